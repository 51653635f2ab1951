"""The whole application: what the help shows, and every page about the command line."""

from __future__ import annotations

from effectsvc.cli.entry import whole

app = whole()
