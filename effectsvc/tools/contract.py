"""What a tool declares about itself, and the part of it that clients without the tool's code can use.

    ContractFacts            every declared field that is plain data
    ├── ToolContract         with the models: what the worker has; its relations are checked (contract_checks.py)
    └── PublishedContract    with their schemas: what a worker publishes and a client reads back

The digest is made from everything in the contract: dump, canonical JSON, SHA-256. A field that is added later is in
it by construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.errors import PydanticUserError

from effectsvc.core.canonical import canonical_arguments, digest
from effectsvc.errors import CanonicalError, ContractError
from effectsvc.tools.arguments import ArgumentsRefused, RawArguments, SentArguments, read_sent
from effectsvc.tools.contract_checks import faults
from effectsvc.tools.error_rule import DEFAULT_AMBIGUOUS, ErrorRule, dotted_name, rule_for
from effectsvc.tools.strictness import Approval, DataClassification, RerunRule, RetryClass, Reversibility

__all__ = ["ContractFacts", "ErrorRule", "PublishedContract", "RateLimit", "ToolContract"]

# 64 characters: the longest function name that the common model APIs take.
NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,64}$"
Name: TypeAlias = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]

# The four texts become a tool description in every prompt; 2,000 characters each is already a page.
Said: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
Text: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, max_length=2000)]

Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Intent: TypeAlias = tuple[str, ...] | Literal["arguments", "per_call"]

# A tool that runs longer than a day is several tools.
_MAX_TIMEOUT_S: Final = 86_400.0
_DEFAULT_TIMEOUT_S: Final = 30.0
# An unlucky provider outage is over within the hour, or a person is at it.
_DEFAULT_MAX_ELAPSED_S: Final = 3600.0
# A request may lie in the network as long as we waited, and then take the provider as long again.
_SETTLE_TIMEOUTS: Final = 2


class RateLimit(BaseModel):
    """At most `calls` in any window of `per_s` seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: int = Field(ge=1)
    per_s: Seconds


class ContractFacts(BaseModel):
    """Every declared field that is plain data. The description of each says what it means and why its default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name = Field(description="What the model calls. From the function's name.")
    version: int = Field(default=1, ge=1, description="Grows with every change that callers can notice.")
    kind: Literal["read", "effect"] = Field(
        default="effect", description="From the decorator; a read changes nothing at the provider."
    )
    purpose: Said = Field(description="What the tool is for. No default: the model chooses by it.")
    use_when: Said = Field(description="When to use it. No default, as for purpose.")
    do_not_use_when: Said = Field(description="When not to use it. No default: most wrong calls are wrong here.")
    result_means: Said = Field(description="What a result does and does not say. No default, as for purpose.")
    preconditions: Text = Field(default="", description="What must hold, in words; `@tool.check` tests it.")
    side_effects: Text = Field(default="", description="What it changes, in words, for approvers.")
    reversibility: Reversibility = Field(
        default="irreversible",
        description="Untagged is irreversible: forgetting it must not allow a rerun. Reads are reversible.",
    )
    timeout_s: float = Field(
        default=_DEFAULT_TIMEOUT_S,
        gt=0,
        le=_MAX_TIMEOUT_S,
        description="How long one attempt may take. Gateways commonly give up at 29 to 60 s.",
    )
    retry_class: RetryClass | None = Field(
        default=None,
        description=(
            "What may be run again from unknown. Unset: a reversible tool may, once no lease lives; any other "
            "is reconciled. Reads are read_safe."
        ),
    )
    intent: Intent = Field(
        default="arguments",
        description=(
            "The fields that say what is meant, so that a re-plan is recognised. Unset: all arguments (volatile "
            "ones left out), the strictest reading that never joins two different calls. `per_call`: the call id."
        ),
    )
    intent_version: int = Field(default=1, ge=1, description="Grows only when the intent fields' meaning does.")
    supersedes: tuple[int, ...] = Field(
        default=(),
        max_length=8,  # each is one more key that every propose declares
        description="Older intent versions whose claims are checked too. None: there is no older one.",
    )
    volatile: tuple[str, ...] = Field(
        default=(),
        description="Arguments left out of the digest (a timestamp, a trace id). None: every argument counts.",
    )
    sends: Literal["one_request", "many"] = Field(
        default="one_request",
        description="Whether an attempt sends one request, as most do. With `many` only parts prove anything.",
    )
    expected_errors: tuple[ErrorRule, ...] = Field(
        default=(), description="Errors that prove something. None: only NotAttempted and Rejected do."
    )
    on_unlisted_error: Literal["unknown", "release"] = Field(
        default="unknown",
        description="`release` reads an unlisted error as not done: never for irreversible tools.",
    )
    ambiguous_errors: tuple[str, ...] = Field(
        default=DEFAULT_AMBIGUOUS,
        description="With `release`: errors that are in doubt all the same. The usual signs of a lost answer.",
    )
    probe_first: bool = Field(
        default=False,
        description="Ask the lookup before the first attempt too. Off: it costs a request to the provider.",
    )
    provider_key_ttl_s: Seconds | None = Field(
        default=None,
        description="How long the provider remembers a key. Unset: it refuses no repeat, as most do not.",
    )
    settle_s: Seconds = Field(
        default=_SETTLE_TIMEOUTS * _DEFAULT_TIMEOUT_S,
        description=(
            "How far apart two lookups that find nothing must lie. Unset: twice timeout_s, since a request may "
            "lie in the network as long as we waited, and then take the provider as long again."
        ),
    )
    presumed_dead_after_s: Seconds | None = Field(
        default=None,
        description="When a silent attempt counts as over. Off: silence is no proof. Never if irreversible.",
    )
    max_attempts: int = Field(
        default=5, ge=1, le=100, description="Five tries with doubling waits outlast a provider's restart."
    )
    max_elapsed_s: Seconds = Field(
        default=_DEFAULT_MAX_ELAPSED_S,
        description="No attempt begins later than this after the first. Unset: an hour, or twice timeout_s.",
    )
    backoff_s: Seconds = Field(
        default=1.0, description="The first wait at most (full jitter); it doubles. A second spares the provider."
    )
    parts: tuple[Name, ...] = Field(
        default=(), description="Steps that the provider can hold separately. None: it is done or it is not."
    )
    acting_as: Literal["service", "user", "workflow", "tenant_integration"] = Field(
        default="service", description="Whose identity the provider sees. `service` needs no delegated credential."
    )
    result_scope: Literal["caller", "tenant"] = Field(
        default="caller", description="Who gets a joined result's data. Only the acting subject, unless said."
    )
    required_scopes: tuple[str, ...] = Field(default=(), description="What the caller must hold. None named.")
    approval: Approval = Field(
        default="never", description="Whether a person must agree. The operator's policy decides; it can tighten."
    )
    target_args: tuple[str, ...] = Field(
        default=(), description="Arguments that name the target; one must be given. None: nothing to check."
    )
    data_classification: DataClassification = Field(
        default="internal",
        description="Of arguments and result, told with each; what is restricted leaves by no webhook. "
        "Nothing is public by accident.",
    )
    audit_fields: tuple[str, ...] = Field(
        default=(), description="Arguments shown (redacted) to operators and webhooks. None: arguments stay unseen."
    )
    max_result_bytes: int = Field(
        default=65_536, ge=256, le=16_777_216, description="64 KiB is about as much as a model reads with care."
    )
    max_age_s: Seconds | None = Field(default=None, description="Older data is tagged stale. Unset: no limit.")
    rate_limit: RateLimit | None = Field(
        default=None, description="Calls per window, of all callers together. Unset: no limit."
    )
    cost_minor: int = Field(default=0, ge=0, description="Cost of one call in minor units. 0: not budgeted.")
    compensation: Name | None = Field(default=None, description="The effect tool that undoes it. None known.")
    isolation: Literal["task", "thread", "process"] = Field(
        default="task", description="Where it runs. `async def`: a task of the worker's loop; `def`: a thread."
    )
    lane: Name = Field(default="default", description="The queue it waits in. One is enough until one is full.")
    lookup: str | None = Field(default=None, description="`@tool.lookup`: how to ask the provider what happened.")
    checks: tuple[str, ...] = Field(default=(), description="`@tool.check`: tests of preconditions at begin.")
    render: str | None = Field(default=None, description="`@tool.render`: what is sent, for approvers to see.")

    @field_validator("ambiguous_errors", mode="before")
    @classmethod
    def _errors_by_name(cls, value: object) -> object:
        if not isinstance(value, tuple | list | frozenset | set):
            return value
        names = [dotted_name(kind) if isinstance(kind, type) else kind for kind in value]
        return sorted(names) if isinstance(value, frozenset | set) else names

    @field_validator("required_scopes", mode="before")
    @classmethod
    def _scopes_in_order(cls, value: object) -> object:
        # One set has one digest, in whatever order it was written.
        return sorted(set(value)) if isinstance(value, tuple | list | frozenset | set) else value

    @property
    def rerun_rule(self) -> RerunRule:
        """What decides about a rerun from unknown: the named retry class, else what reversibility allows."""
        if self.retry_class is not None:
            return self.retry_class
        return "reversible" if self.reversibility == "reversible" else "reconcile"

    @property
    def has_explicit_intent(self) -> bool:
        """Whether the author named what is meant, rather than leaving it to all arguments."""
        return self.intent != "arguments"

    @property
    def description(self) -> str:
        """The text by which a model chooses and uses the tool."""
        return (
            f"{self.purpose}\n"
            f"Use when: {self.use_when}\n"
            f"Do not use when: {self.do_not_use_when}\n"
            f"What the result means: {self.result_means}"
        )

    def rule_for(self, error: BaseException) -> ErrorRule | None:
        """What the contract lists about `error`; None if it lists nothing that may count."""
        return rule_for(self.expected_errors, error)


class ToolContract(ContractFacts):
    """A tool's contract, with its models. `declare` makes one; constructing it checks the same relations.

    Raises pydantic's ValidationError; `declare` turns that into a ContractError.
    """

    input_model: type[BaseModel] = Field(description="Of the arguments. From the function's first parameter.")
    output_model: Any = Field(description="Of the answer. From the function's return, without NotFound and Partial.")

    @classmethod
    def declare(cls, **fields: Any) -> ToolContract:
        """A checked contract. Raises ContractError that names the tool and everything wrong with it."""
        try:
            contract = cls(**fields)
            _ = contract.output_schema, contract.digest  # neither fails later, when a worker publishes it
            return contract
        except ValidationError as fault:
            told = [_told(error["loc"], error["msg"]) for error in fault.errors(include_url=False)]
        except PydanticUserError as fault:
            told = [f"a type of the tool has no JSON schema: {fault.message}"]
        except CanonicalError as fault:
            told = [f"its models' schemas have no canonical form: {fault.message}"]
        raise ContractError(
            f"Tool {fields.get('name', '')!r} is declared wrongly: {'; '.join(told)}.",
            next_step="Change the declaration.",
        )

    def changed(self, **changes: Any) -> ToolContract:
        """The same declaration but for `changes`, checked again. Raises ContractError like `declare`.

        What was not declared is derived anew, so a default that follows from a changed field follows it.
        """
        declared = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).declare(**declared | changes)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Pydantic's copy, without the digest and schemas that were made for the original."""
        copied = super().model_copy(update=update, deep=deep)
        for made in ("digest", "input_schema", "output_schema"):
            copied.__dict__.pop(made, None)
        return copied

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, given: Any) -> Any:
        """Fill in the defaults that follow from other fields."""
        if not isinstance(given, dict):
            return given
        fields = dict(given)
        timeout_s = fields.get("timeout_s")
        if isinstance(timeout_s, int | float):
            fields.setdefault("settle_s", _SETTLE_TIMEOUTS * timeout_s)
            fields.setdefault("max_elapsed_s", max(_DEFAULT_MAX_ELAPSED_S, 2 * timeout_s))
        if fields.get("kind") == "read":
            fields.setdefault("reversibility", "reversible")
            fields.setdefault("retry_class", "read_safe")
        return fields

    @model_validator(mode="after")
    def _relations(self) -> ToolContract:
        found = faults(self)
        if found:
            raise ValueError("; ".join(found))
        return self

    @field_serializer("input_model")
    def _dump_input(self, _: type[BaseModel]) -> dict[str, Any]:
        return self.input_schema

    @field_serializer("output_model")
    def _dump_output(self, _: Any) -> dict[str, Any]:
        return self.output_schema

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema 2020-12 of the arguments, under the names that are sent."""
        return self.input_model.model_json_schema()

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        """JSON Schema 2020-12 of the answer, as it is stored."""
        return TypeAdapter(self.output_model).json_schema(mode="serialization")

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every field, as 64 hex digits. The same in every process that has the same declaration."""
        return digest(canonical_arguments(self.model_dump(mode="json")))

    def read_sent(self, raw: RawArguments) -> SentArguments | ArgumentsRefused:
        """Arguments as a host passes them, stripped, canonical and checked by the schema."""
        return read_sent(self.input_schema, raw)

    def published(self) -> dict[str, Any]:
        """Plain JSON values: all that a client needs to propose without the tool's code."""
        facts = self.model_dump(mode="json", exclude={"input_model", "output_model"})
        return {
            **facts,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "description": self.description,
            "rerun_rule": self.rerun_rule,
            "digest": self.digest,
        }

    def as_published(self) -> PublishedContract:
        """The same as an object: what a client would read back."""
        return PublishedContract.read(self.published())


class PublishedContract(ContractFacts):
    """A contract as a worker published it. Fields that a newer worker added are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")

    @classmethod
    def read(cls, published: Mapping[str, Any]) -> PublishedContract:
        """Read back `ToolContract.published()`. Raises ContractError if this process cannot understand it."""
        try:
            return cls.model_validate(published)
        except ValidationError as fault:
            told = [_told(error["loc"], error["msg"]) for error in fault.errors(include_url=False)]
        raise ContractError(
            f"The published contract of tool {published.get('name', '')!r} cannot be read: {'; '.join(told)}.",
            next_step="Upgrade this process to the effectsvc version of the workers.",
        )

    def read_sent(self, raw: RawArguments) -> SentArguments | ArgumentsRefused:
        """Arguments as a host passes them, stripped, canonical and checked by the schema. The worker decides."""
        return read_sent(self.input_schema, raw)


def _told(place: tuple[int | str, ...], message: str) -> str:
    text = message.removeprefix("Value error, ")
    where = ".".join(str(step) for step in place if not str(step).startswith(("literal[", "tuple[")))
    return f"{where}: {text}" if where else text
