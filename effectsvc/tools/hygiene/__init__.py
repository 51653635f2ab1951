"""Tool output is untrusted: before an answer is stored or shown it is decoded, cut, stripped, redacted and screened."""

from effectsvc.tools.hygiene.clean import Cleaned, Hygiene, clean_text, cleaned, holds_secret
from effectsvc.tools.hygiene.decode import as_json
from effectsvc.tools.hygiene.redact import BUILT_IN_REDACTORS, Redactor
from effectsvc.tools.hygiene.screen import BUILT_IN_SCREENS, Screen

__all__ = [
    "BUILT_IN_REDACTORS",
    "BUILT_IN_SCREENS",
    "Cleaned",
    "Hygiene",
    "Redactor",
    "Screen",
    "as_json",
    "clean_text",
    "cleaned",
    "holds_secret",
]
