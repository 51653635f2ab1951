"""The command line. Data on stdout, messages on stderr; every command has `--json`."""

from effectsvc.cli.entry import main

__all__ = ["main"]
