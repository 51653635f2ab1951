"""What a gate sees, and what it may answer.

A gate is a pure function of a frozen context: no I/O, no clock. What is known is in the context, the time too. What a
script has answered about the call is there as well, so that the chain tells one story wherever the answer came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from effectsvc.core.effect import Caller
from effectsvc.policy.tool_rules import ToolRules
from effectsvc.tools.arguments import ArgumentsRefused

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Allow:
    """Nothing against it."""


@dataclass(frozen=True, slots=True)
class Deny:
    """A refusal.

    `hints` and `message` are for the model; `facts` (who lacks what) stays with host and operator. `liftable`: it
    comes from the tool's entry in the policy alone, so an entry in mode `log_only` only notes it.
    """

    rule_id: str
    layer: str
    hints: tuple[str, ...] = ()
    message: str = ""
    facts: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    liftable: bool = False


@dataclass(frozen=True, slots=True)
class Escalate:
    """A person must agree first; `reason` says which rule wants it. A denial of any gate beats it."""

    reason: str


Verdict: TypeAlias = Allow | Deny | Escalate

ALLOW: Final = Allow()


@dataclass(frozen=True, slots=True)
class Approved:
    """What the store knows of a person's approval: what exactly was approved, and until when it may be used.

    `is_used`: by an attempt that may have happened; proof that nothing happened makes it usable again.
    """

    mark: str
    until_ms: int
    is_used: bool = False


class GateContext(NamedTuple):
    """One call, as far as it is known where it is judged.

    A tuple, because each call makes three of them: a frozen dataclass of so many fields takes three times as long.
    """

    where: Literal["client", "worker"]
    tool: str
    rules: ToolRules | None
    """What holds for the tool; None: nobody has published it."""
    tenant: str
    caller: Caller
    now_ms: int
    """Unix time, by the store's clock as far as it is known here."""
    asked_version: int | None = None
    """The version that a new proposal names; None: it names none, or it is not new."""
    is_policy_readable: bool = True

    frozen: tuple[str, str] | None = None
    """Scope and ids of a freeze in force."""
    halt_reason: str | None = None
    is_in_run: bool = True
    run_tenant: str | None = None
    """Whose the run is, by its record; None: not read."""
    caller_tenant: str | None = None
    """Whose the caller is, where its token says so."""
    run_state: str = ""
    deadline_ms: int | None = None

    arguments: Mapping[str, Any] | ArgumentsRefused = _NOTHING
    """As sent, without ghosts; or why they cannot be used."""
    ghosts: tuple[str, ...] = ()
    tool_call_id: str = ""
    means_the_same: bool = True
    """Whether digest and intent key, made again from what is stored, are those of the claims."""

    approved: Approved | None = None
    approvable: str = ""
    """What an approval must have named to count for this call (see `approval_mark`)."""
    render_stored: str = ""
    """The digest of the rendering that a person was shown; empty: none was."""
    render: str = ""
    """The digest of the rendering made now; empty: the tool has none."""

    answers: Mapping[str, Deny] = _NOTHING
    """What a script has refused, by layer: loops, claims, rates and budgets are judged where they are counted."""

    def __repr__(self) -> str:
        """Without the arguments: they stand in no log and no message."""
        return f"<GateContext {self.where} {self.tool}>"


@dataclass(frozen=True, slots=True)
class Gate:
    """One step of the chain: its place and name (`2:policy`), and its judgement."""

    layer: str
    judge: Callable[[GateContext], Verdict]


def told(context: GateContext, layer: str) -> Verdict:
    """What a script has answered for this layer; Allow where it has said nothing."""
    return context.answers.get(layer, ALLOW)
