"""What an error that a tool raises proves, by its contract.

Only what the contract lists proves anything. Some answers prove nothing whoever lists them: a request that
timed out or conflicted, or a server that failed, may have done the work.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Verdict = Literal["not_attempted", "rejected", "unknown"]

PROOFS: Final = frozenset({"not_attempted", "rejected"})

# 408 and 425: the provider gave up waiting, or asks to send again. 409: often our own earlier send.
_DOUBTFUL_STATUSES: Final = frozenset({408, 409, 425})

# The connection broke or time ran out while the provider may have been at work; and the two that match anything.
_NEVER_PROOF: Final = frozenset(
    f"builtins.{name}"
    for name in (
        "BaseException",
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionResetError",
        "Exception",
        "OSError",
        "TimeoutError",
    )
)

DEFAULT_AMBIGUOUS: Final = (
    "builtins.TimeoutError",
    "builtins.ConnectionResetError",
    "builtins.ConnectionAbortedError",
    "builtins.BrokenPipeError",
)
"""The errors that leave an effect in doubt even where `on_unlisted_error` is "release"."""


def can_prove(status: int) -> bool:
    """Whether an HTTP status may count as proof that nothing was done.

    A redirect may not: 303 is how many providers answer a write that they have done.
    """
    return 400 <= status < 500 and not _is_doubtful(status)


def _is_doubtful(status: int) -> bool:
    return status in _DOUBTFUL_STATUSES or status >= 500


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error carries, as httpx, requests, aiohttp, urllib and most SDKs keep it."""
    for holder in (getattr(error, "response", None), error):
        for name in ("status_code", "status", "code"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600:
                return int(status)
    return None


def dotted_name(kind: type) -> str:
    """`module.QualName` of a class: how contracts name exception types."""
    return f"{kind.__module__}.{kind.__qualname__}"


def is_a(error: BaseException, names: frozenset[str]) -> bool:
    """Whether the error's class, or one that it derives from, has one of the dotted names."""
    return any(dotted_name(kind) in names for kind in type(error).__mro__)


class ErrorRule(BaseModel):
    """One listed error: an exception type or an HTTP status, and what it proves.

    Classes derived from `exception` match too. Raises ValidationError for a
    rule that names both or neither, and for a proof that can be none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdict: Verdict
    status: int | None = Field(default=None, ge=100, le=599)
    exception: type[BaseException] | str | None = None
    """Given as a class or a dotted name; kept as the dotted name."""
    code: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]{0,63}$")
    """The stable word that hosts see; unset: `rejected`, `not_attempted` or `outcome_unknown`."""
    retry_after_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds to wait where the provider names none."""

    @field_validator("exception", mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return dotted_name(value) if isinstance(value, type) and issubclass(value, BaseException) else value

    @model_validator(mode="after")
    def _holds(self) -> ErrorRule:
        if (self.status is None) == (self.exception is None):
            raise ValueError("an ErrorRule names either a status or an exception")
        if self.verdict in PROOFS and self.status is not None and not can_prove(self.status):
            raise ValueError(
                f"status {self.status} cannot be listed as {self.verdict}: the provider may have done it "
                "(only 4xx except 408, 409 and 425 can); leave it out, and the outcome is unknown"
            )
        if self.verdict in PROOFS and self.exception in _NEVER_PROOF:
            raise ValueError(
                f"{self.exception} cannot be listed as {self.verdict}: it says nothing about the provider; "
                "list the exact exception types that prove it, or raise NotAttempted in the tool"
            )
        return self

    def matches(self, error: BaseException) -> bool:
        """Whether this rule is about `error`."""
        if isinstance(self.exception, str):
            return is_a(error, frozenset({self.exception}))
        return status_of(error) == self.status


def rule_for(rules: tuple[ErrorRule, ...], error: BaseException) -> ErrorRule | None:
    """The first rule about `error`.

    A rule by exception type does not turn a status that proves nothing (a 500 inside HTTPStatusError) into
    proof: it is passed over. (Inside an answer of 200 an SDK's exception may well be a definite refusal.)
    """
    status = status_of(error)
    doubtful = status is not None and _is_doubtful(status)
    for rule in rules:
        if rule.matches(error) and not (doubtful and rule.verdict in PROOFS):
            return rule
    return None
