"""The command line. Data on stdout, messages on stderr; every command has `--json`."""

from effectsvc.cli.app import main

__all__ = ["main"]
