"""effectsvc: tool calls of AI agents happen at most once, and can be proved.

The public API. Everything else is private to the package. A name is loaded when it is first asked for: the command line
and its completion need few of them, and the rest takes half a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from effectsvc.client import AsyncEffectClient, EffectClient, EffectHandle, Run, current_run
    from effectsvc.core.effect import Caller, CompensatedEffect
    from effectsvc.core.outcome import (
        Absent,
        EffectRecord,
        Found,
        NotAttempted,
        NotFound,
        OutcomeUnknown,
        Partial,
        PartlyFound,
        Rejected,
        Source,
        Sourced,
        SourceRef,
        ToolError,
        ToolResult,
        Undetermined,
    )
    from effectsvc.errors import (
        ContractError,
        EffectsvcError,
        IdentityError,
        ProposalUnanswered,
        RunConflict,
        SettingsError,
        StoreError,
        StoreUnavailable,
    )
    from effectsvc.hooks import Authorizer, Forbid, Permit
    from effectsvc.settings import Settings
    from effectsvc.tools.context import EffectContext, SyncEffectContext
    from effectsvc.tools.contract import ErrorRule
    from effectsvc.tools.credentials import ActingIdentity, Credential, CredentialResolver, CredentialsUnavailable
    from effectsvc.tools.http_pieces import POST_ERRORS, http_lookup, post_by_key, post_by_key_sync
    from effectsvc.tools.mail_pieces import ImapFolder, MailByMessageId, MailSent, SmtpServer
    from effectsvc.tools.registry import ToolRegistry
    from effectsvc.version import __version__

__all__ = [
    "POST_ERRORS",
    "Absent",
    "ActingIdentity",
    "AsyncEffectClient",
    "Authorizer",
    "Caller",
    "CompensatedEffect",
    "ContractError",
    "Credential",
    "CredentialResolver",
    "CredentialsUnavailable",
    "EffectClient",
    "EffectContext",
    "EffectHandle",
    "EffectRecord",
    "EffectsvcError",
    "ErrorRule",
    "Forbid",
    "Found",
    "IdentityError",
    "ImapFolder",
    "MailByMessageId",
    "MailSent",
    "NotAttempted",
    "NotFound",
    "OutcomeUnknown",
    "Partial",
    "PartlyFound",
    "Permit",
    "ProposalUnanswered",
    "Rejected",
    "Run",
    "RunConflict",
    "Settings",
    "SettingsError",
    "SmtpServer",
    "Source",
    "SourceRef",
    "Sourced",
    "StoreError",
    "StoreUnavailable",
    "SyncEffectContext",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "Undetermined",
    "__version__",
    "current_run",
    "http_lookup",
    "post_by_key",
    "post_by_key_sync",
]

_HOMES: Final = {
    "effectsvc.client": "AsyncEffectClient EffectClient EffectHandle Run current_run",
    "effectsvc.core.effect": "Caller CompensatedEffect",
    "effectsvc.core.outcome": (
        "Absent EffectRecord Found NotAttempted NotFound OutcomeUnknown Partial PartlyFound Rejected Source Sourced "
        "SourceRef ToolError ToolResult Undetermined"
    ),
    "effectsvc.errors": (
        "ContractError EffectsvcError IdentityError ProposalUnanswered RunConflict SettingsError StoreError "
        "StoreUnavailable"
    ),
    "effectsvc.hooks": "Authorizer Forbid Permit",
    "effectsvc.settings": "Settings",
    "effectsvc.tools.context": "EffectContext SyncEffectContext",
    "effectsvc.tools.contract": "ErrorRule",
    "effectsvc.tools.credentials": "ActingIdentity Credential CredentialResolver CredentialsUnavailable",
    "effectsvc.tools.http_pieces": "POST_ERRORS http_lookup post_by_key post_by_key_sync",
    "effectsvc.tools.mail_pieces": "ImapFolder MailByMessageId MailSent SmtpServer",
    "effectsvc.tools.registry": "ToolRegistry",
    "effectsvc.version": "__version__",
}
"""Where each name is from: the same as above, for the interpreter."""
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """The name, which is from now on an attribute of its own. Raises AttributeError for one that is not public."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
