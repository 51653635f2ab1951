"""The decision log: stream to files, checkpoints, and a verifier for strangers.

`verify` re-reads a log and says what holds; `DecisionLogError` is raised where one cannot be written or read.
"""

from __future__ import annotations

from effectsvc.decisionlog.errors import DecisionLogError
from effectsvc.decisionlog.verifier import Fault, Report, Verdict, VerifierUsage, verify

__all__ = ["DecisionLogError", "Fault", "Report", "Verdict", "VerifierUsage", "verify"]
