"""Credentials: resolved by the worker at the last moment, for the identity that the contract names.

They are never arguments, never stored in an effect, never logged and never shown to a model. What the log records is a
`reference`: an opaque name of the identity, from which nobody can act.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from effectsvc.core.outcome import NotAttempted

if TYPE_CHECKING:
    from effectsvc.core.effect import Caller
    from effectsvc.tools.context import Resolve
    from effectsvc.tools.contract import ContractFacts

MAX_REFERENCE_BYTES: Final = 64
"""A reference stands in every decision of the log."""


@dataclass(frozen=True, slots=True)
class ActingIdentity:
    """Whose identity the provider is to see: what a resolver is asked about. No model had a say in any field.

    `acting_as` is the contract's word; `subject` the user or integration that the effect acts for (None: the service
    or the workflow itself), `scopes` what the contract and the policy require of the caller.
    """

    tenant_id: str
    tool: str
    acting_as: str
    subject: str | None
    agent_id: str
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Credential:
    """What a tool acts with. `value` is whatever its client wants (a token, a key, a pair); it is never shown."""

    value: Any = field(repr=False)
    reference: str = ""


@runtime_checkable
class CredentialResolver(Protocol):
    """The host's own source of credentials, given to the registry: `ToolRegistry(credentials=MyResolver())`."""

    def reference(self, identity: ActingIdentity) -> str:
        """The opaque name of the identity, without I/O: it is in the decision before the tool may run."""
        ...

    async def resolve(self, identity: ActingIdentity, audience: str, scope: str) -> Any:
        """The credential for one audience and scope, resolved now. Called for each `ctx.credentials` of a tool.

        Whatever it raises ends the attempt as not attempted if the tool had sent nothing: it is tried again later.
        """
        ...


def identity_of(contract: ContractFacts, *, tenant_id: str, caller: Caller, subject: str | None) -> ActingIdentity:
    """For whom a tool of this contract acts when this caller asks."""
    return ActingIdentity(
        tenant_id, contract.name, contract.acting_as, subject, caller.agent_id, contract.required_scopes
    )


def identity_of_lookup(contract: ContractFacts, *, tenant_id: str, caller: Caller) -> ActingIdentity:
    """A lookup changes nothing and may come hours later: it asks as the service, or as the tenant's integration."""
    acting_as = contract.acting_as if contract.acting_as == "tenant_integration" else "service"
    subject = f"integration:{tenant_id}" if acting_as == "tenant_integration" else None
    return ActingIdentity(tenant_id, contract.name, acting_as, subject, caller.agent_id)


class CredentialsUnavailable(NotAttempted):
    """The resolver gave no credential, so the tool could not begin to act."""


def resolver_of(resolver: CredentialResolver | None, identity: ActingIdentity) -> Resolve | None:
    """What a context's `credentials` asks; None where no resolver is configured."""
    return None if resolver is None else partial(resolved, resolver, identity)


async def resolved(resolver: CredentialResolver, identity: ActingIdentity, audience: str, scope: str) -> Any:
    """One credential. Raises CredentialsUnavailable, with nothing of what the resolver said (it may quote secrets)."""
    try:
        found = await resolver.resolve(identity, audience, scope)
    except Exception as error:  # noqa: BLE001  # the host's own code; its words may hold the credential
        name = type(error).__name__
        raise CredentialsUnavailable(
            f"The credential resolver raised {name}.", code="credentials_unavailable"
        ) from None
    return found.value if isinstance(found, Credential) else found


def checked_reference(resolver: CredentialResolver | None, identity: ActingIdentity) -> str:
    """The reference for the decision; `not_evaluated` without a resolver, `unreadable` for one that cannot be shown."""
    if resolver is None:
        return "not_evaluated"
    try:
        reference = resolver.reference(identity)
    except Exception:  # noqa: BLE001  # the host's own code
        return "unreadable"
    is_name = isinstance(reference, str) and reference.isprintable()
    return reference if is_name and 0 < len(reference.encode()) <= MAX_REFERENCE_BYTES else "unreadable"
