"""What can be wrong with a log that is written."""

from __future__ import annotations

from typing import ClassVar

from effectsvc.errors import EffectsvcError


class DecisionLogError(EffectsvcError):
    """The log cannot be written, read or verified. The message names the file and what to do."""

    code = "decision_log"
    codes: ClassVar = {
        "cell_missing": "There is no cell to export.",
        "no_checkpoint": "There is no checkpoint of that size.",
        "no_proof": "The sizes or the index of the proof do not fit the log.",
        "no_record": "The record is not in the log's files.",
        "nothing_to_prune": "No whole segment lies below the index.",
        "uncovered": "No signed checkpoint covers the record yet.",
    }


class LogDamaged(DecisionLogError):
    """The log on the disk is not what was written: nothing is cut or mended by itself."""

    code = "log_damaged"
    default_next_step = "See `effectsvc log verify`; `effectsvc log recover --dry-run` says what can be done."


class LinkBroken(LogDamaged):
    """A record does not link to the one before it: that one was changed, or the link was."""


class LogHeld(DecisionLogError):
    """Another process writes this log."""

    code = "log_held"
    default_next_step = "One exporter writes a log; stop it first, or let this one stand by."


class LogForked(DecisionLogError):
    """Another exporter has confirmed other records than this log holds: a copy of the log was put back."""

    code = "log_forked"
    default_next_step = "Export with the directory that was used last, or see `effectsvc log recover`."
