"""The verifier: re-reads everything, and shares with the writer only what a record is (`decisionlog.record`)."""

from __future__ import annotations

from effectsvc.decisionlog.verifier.report import Fault, Report, Verdict, VerifierUsage
from effectsvc.decisionlog.verifier.walk import verify

__all__ = ["Fault", "Report", "Verdict", "VerifierUsage", "verify"]
