"""Every exception that effectsvc raises, in one tree.

    EffectsvcError
    ├── ContractError            a tool's declaration is wrong or misused (also a ValueError)
    ├── PolicyError              the policy file is wrong: names file, line and both values
    ├── SettingsError            settings that contradict each other
    ├── CanonicalError           a value that has no canonical form (also a ValueError): names its path
    ├── RunConflict              a run is joined with another tenant, parent or a later deadline
    ├── IdentityError            a caller's or operator's token does not hold; never quotes it
    ├── EmbeddedError            the embedded server cannot be started; says why and what to do
    └── StoreError
        ├── StoreUnavailable     the store did not take the command (accepted="no")
        │   └── ProposalUnanswered   it may have taken the proposal (accepted="unknown"): send it again, same id
        ├── StoreUnsafe          the server evicts, does not persist as the setting demands, or is too old
        ├── CellMissing          no cell under this name
        ├── EpochChanged         the store's past may be lost; begins stop until `accept` has run
        ├── SchemaTooNew         the cell was written by a newer effectsvc
        └── StoreProtocolError   a reply that no version of the script may give

Every error carries `code` (stable, lower case), the ids it is about in `ids`, and `next_step`: what to do.
No message holds an argument, a result or a credential.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal


class EffectsvcError(Exception):
    """Base of the tree. `str(error)` is the message followed by the next step."""

    code = "error"
    codes: ClassVar[Mapping[str, str]] = {}
    """More exact codes that instances of this very class may carry, each with its meaning."""
    default_next_step = ""

    def __init__(self, message: str, *, next_step: str | None = None, code: str | None = None, **ids: str) -> None:
        self.message = message
        self.next_step = self.default_next_step if next_step is None else next_step
        self.code = type(self).code if code is None else code
        self.ids = {name: value for name, value in ids.items() if value}
        super().__init__(message)

    def __str__(self) -> str:
        shown = f"{self.message} [{', '.join(f'{k}={v}' for k, v in self.ids.items())}]" if self.ids else self.message
        return f"{shown} {self.next_step}".rstrip()


class ContractError(EffectsvcError, ValueError):
    """A tool's declaration is wrong, or a tool is used against its declaration."""

    code = "contract_error"


class PolicyError(EffectsvcError, ValueError):
    """The operator's policy file is wrong. The message names file, line, and both values where two disagree."""

    code = "policy_error"


class SettingsError(EffectsvcError, ValueError):
    """Two settings contradict each other, or one is out of its range."""

    code = "settings_error"


class CanonicalError(EffectsvcError, ValueError):
    """A value has no canonical JSON form. `path` names where, e.g. `$.items[3].price`; the value is not shown."""

    code = "unreadable_arguments"

    def __init__(self, message: str, *, path: str, next_step: str | None = None) -> None:
        self.path = path
        super().__init__(f"{message} at {path}", next_step=next_step)


class RunConflict(EffectsvcError):
    """A run id was joined with another tenant, another parent, or a later deadline."""

    code = "run_conflict"
    default_next_step = "Use a run id of its own for each conversation or workflow."


class IdentityError(EffectsvcError):
    """A token that is to say who calls or acts does not hold. The message never quotes it; `code` says why."""

    code = "token_refused"
    codes: ClassVar = {
        "token_unreadable": "It is no token, or too long to be one.",
        "issuer_unknown": "Its issuer is none of EFFECTSVC_ISSUERS.",
        "key_unknown": "Its issuer has no key of that name.",
        "token_expired": "Its time is over.",
        "tenant_mismatch": "It is another tenant's.",
    }
    default_next_step = "Get a fresh token for this audience from an issuer of EFFECTSVC_ISSUERS."


class EmbeddedError(EffectsvcError):
    """The embedded server cannot be started or reached."""

    code = "embedded_error"
    codes: ClassVar = {
        "port_taken": "Another process listens on the port.",
        "aof_damaged": "The append-only file is damaged.",
        "disk_full": "The disk is full.",
        "directory_unwritable": "The data directory cannot be written.",
    }


class StoreError(EffectsvcError):
    """Base of everything that the store may be wrong about."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store did not take the command: nothing of it happened."""

    code = "store_unavailable"
    codes: ClassVar = {
        "store_refused": "The server refused a command under a word that is not known here.",
        "too_few_replicas": "Fewer replicas than EFFECTSVC_REPLICAS have synced the decision.",
        "claims_moved": "The claims of a call changed hands each time that they were looked at; propose again.",
    }
    default_next_step = "Check that the server at EFFECTSVC_REDIS_URL is up (`effectsvc doctor`), then send again."
    accepted: Literal["no", "unknown"] = "no"

    def __init__(
        self, message: str, *, effect_id: str | None = None, next_step: str | None = None, code: str | None = None
    ) -> None:
        self.effect_id = effect_id
        super().__init__(message, next_step=next_step, code=code, effect_id=effect_id or "")


class ProposalUnanswered(StoreUnavailable):
    """The proposal was sent and no answer came: it may be in the outbox.

    Send it again with the same effect id: a second send of one id never makes a second effect.
    """

    code = "proposal_unanswered"
    default_next_step = "Propose again with this effect_id: it is the same effect, never a second one."
    accepted: Literal["no", "unknown"] = "unknown"


class StoreUnsafe(StoreError):
    """The server would break a promise: it evicts keys, does not persist as demanded, or is too old."""

    code = "store_unsafe"


class CellMissing(StoreError):
    """There is no cell under this name on this server."""

    code = "cell_missing"
    default_next_step = "Create it once with `effectsvc cell init`, or check EFFECTSVC_REDIS_URL and EFFECTSVC_CELL."


class EpochChanged(StoreError):
    """The store restarted or was replaced; nothing begins until the new epoch is accepted."""

    code = "epoch"
    default_next_step = "Workers accept a plain restart by themselves; otherwise see `effectsvc cell status`."


class SchemaTooNew(StoreError):
    """The cell's data was written by a newer effectsvc than this one."""

    code = "schema_too_new"
    default_next_step = "Upgrade this process."


class StoreProtocolError(StoreError):
    """A reply that no version of the script may give, or wrongly declared keys: a bug, or a foreign writer."""

    code = "store_protocol_error"
