"""The `effects` group with those of its commands that have a file of their own."""

from __future__ import annotations

from effectsvc.cli import compensation, finding, notes, timeline, watching
from effectsvc.cli.effects import effects_app

effects_app.command("compensate")(compensation.compensate)
effects_app.command("find")(finding.find)
effects_app.command("note")(notes.note)
effects_app.command("timeline")(timeline.timeline)
effects_app.command("watch")(watching.watch)

__all__ = ["effects_app"]
