"""effectsvc: tool calls of AI agents happen at most once, and can be proved.

The public API. Everything else is private to the package.
"""

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
