"""What a contract says, and what it may not say."""

from __future__ import annotations

import json
from enum import Enum, StrEnum
from typing import Any, Literal, NewType

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from effectsvc.errors import ContractError
from effectsvc.tools.arguments import ArgumentsRefused, SentArguments
from effectsvc.tools.contract import ErrorRule, PublishedContract, RateLimit, ToolContract
from effectsvc.tools.contract_table import contract_table
from effectsvc.tools.strictness import REVERSIBILITY, is_looser, stricter

CaseId = NewType("CaseId", str)


class Channel(StrEnum):
    MAIL = "mail"


class Weight(Enum):
    HEAVY = 1.5


class Ask(BaseModel):
    case_id: CaseId
    channel: Channel
    kind: Literal["a", "b"] = Field(alias="type")
    count: int
    urgent: bool
    weight: Weight
    amount: float
    maybe: str | None
    items: list[str]
    note: str = ""


class Sent(BaseModel):
    message_id: str


BASE: dict[str, Any] = {
    "name": "request_document",
    "purpose": "Ask for a document.",
    "use_when": "It is missing.",
    "do_not_use_when": "It was asked for already.",
    "result_means": "The request was sent, not answered.",
    "input_model": Ask,
    "output_model": Sent,
}


def contract(**fields: Any) -> ToolContract:
    return ToolContract.declare(**BASE | fields)


def fault(**fields: Any) -> str:
    with pytest.raises(ContractError) as caught:
        contract(**fields)
    return str(caught.value)


# --- defaults


def test_an_untagged_tool_is_irreversible_and_is_reconciled() -> None:
    assert (contract().reversibility, contract().rerun_rule) == ("irreversible", "reconcile")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"reversibility": "reversible"}, "reversible"),
        ({"reversibility": "costly"}, "reconcile"),
        ({"reversibility": "reversible", "retry_class": "never"}, "never"),
        ({"reversibility": "reversible", "retry_class": "reconcile"}, "reconcile"),
        ({"retry_class": "idempotent_write", "provider_key_ttl_s": 86400}, "idempotent_write"),
        ({"kind": "read"}, "read_safe"),
    ],
)
def test_a_named_retry_class_wins_over_what_reversibility_allows(fields: dict[str, Any], rule: str) -> None:
    assert contract(**fields).rerun_rule == rule


def test_settling_and_elapsed_time_follow_the_timeout_unless_they_are_named() -> None:
    assert (contract().settle_s, contract().max_elapsed_s) == (60, 3600)
    assert (contract(timeout_s=5000).settle_s, contract(timeout_s=5000).max_elapsed_s) == (10_000, 10_000)
    assert contract(timeout_s=5, settle_s=7).settle_s == 7


def test_of_two_tags_the_stricter_wins_and_costly_is_not_reversible() -> None:
    assert stricter(REVERSIBILITY, "reversible", "costly") == "costly"
    assert stricter(REVERSIBILITY, "irreversible", "reversible", "costly") == "irreversible"
    assert is_looser(REVERSIBILITY, "reversible", "costly")
    assert not is_looser(REVERSIBILITY, "costly", "costly")


# --- what is refused


@pytest.mark.parametrize("field", ["purpose", "use_when", "do_not_use_when", "result_means"])
@pytest.mark.parametrize("text", ["", "  \n", None])
def test_an_empty_text_of_the_four_is_refused(field: str, text: str | None) -> None:
    assert field in fault(**{field: text})


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 65, "a\n"])
@pytest.mark.parametrize("field", ["name", "lane"])
def test_a_name_of_other_characters_or_length_is_refused(field: str, name: str) -> None:
    assert field in fault(**{field: name})


@pytest.mark.parametrize("name", ["effect_status", "effectsvc.anything"])
def test_reserved_tool_names_are_refused(name: str) -> None:
    assert "reserved" in fault(name=name)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"settle_s": 29}, "settle_s 29 is shorter than timeout_s 30"),
        ({"max_elapsed_s": 10}, "max_elapsed_s 10 is shorter than timeout_s 30"),
        ({"reversibility": "costly", "presumed_dead_after_s": 30}, "within its own timeout_s"),
        ({"presumed_dead_after_s": 300}, "presumed_dead_after_s is refused for an irreversible tool"),
        ({"on_unlisted_error": "release"}, "refused for an irreversible tool"),
        ({"retry_class": "read_safe"}, "read_safe"),
        ({"retry_class": "read_safe", "reversibility": "costly"}, "read_safe"),
        ({"retry_class": "idempotent_write"}, "needs provider_key_ttl_s"),
        ({"compensation": "request_document"}, "names the tool itself"),
        ({"expected_errors": [{"status": 409, "verdict": "rejected"}]}, "409"),
        ({"parts": ["a", "a"]}, "parts names a twice"),
        ({"intent_version": 2, "supersedes": [1, 2]}, "supersedes names 2"),
        ({"intent_version": 12, "supersedes": list(range(1, 11))}, "supersedes"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"output_model": type("Plain", (), {})}, "no JSON schema"),
    ],
)
def test_fields_that_contradict_each_other_are_refused_with_both_named(fields: dict[str, Any], says: str) -> None:
    assert says in fault(**fields)


def test_a_model_whose_schema_has_no_canonical_form_is_refused_when_it_is_declared() -> None:
    from pydantic import create_model

    huge = create_model("Huge", count=(int, Field(le=2**60)))
    assert "no canonical form" in fault(input_model=huge)


def test_intent_fields_are_known_by_the_first_of_several_names_to_read_from() -> None:
    from pydantic import AliasChoices, create_model

    either = create_model("Either", case=(str, Field(validation_alias=AliasChoices("case_id", "id"))))
    assert contract(input_model=either, intent=("case_id",)).intent == ("case_id",)
    assert "does not have" in fault(input_model=either, intent=("case",))


def test_every_fault_is_told_at_once() -> None:
    told = fault(settle_s=1, presumed_dead_after_s=300, intent=("amount",))
    assert all(word in told for word in ("settle_s", "presumed_dead_after_s", "intent names amount"))


def test_a_reversible_tool_may_release_and_presume_death() -> None:
    made = contract(reversibility="costly", on_unlisted_error="release", presumed_dead_after_s=300)
    assert made.presumed_dead_after_s == 300


@pytest.mark.parametrize("field", ["tool_call_id", "run_id", "tenant_id", "justification"])
def test_an_input_field_that_only_the_host_sets_is_refused_also_as_an_alias(field: str) -> None:
    from pydantic import create_model

    assert field in fault(input_model=create_model("Named", **{field: (str, ...)}))  # type: ignore[call-overload]
    aliased = create_model("Aliased", other=(str, Field(alias=field)))
    assert field in fault(input_model=aliased)


def test_an_input_that_takes_any_name_or_is_no_object_is_refused() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: str

    assert 'extra="allow"' in fault(input_model=Open)
    assert "no object" in fault(input_model=RootModel[list[str]])


@pytest.mark.parametrize("name", ["case_id", "channel", "type", "count", "urgent"])
def test_intent_takes_required_texts_integers_booleans_and_enums_by_the_name_as_sent(name: str) -> None:
    assert contract(intent=(name,)).intent == (name,)


@pytest.mark.parametrize(
    ("intent", "says"),
    [
        (("amount",), "intent names amount, whose type"),
        (("maybe",), "intent names maybe, whose type"),
        (("items",), "intent names items, whose type"),
        (("weight",), "intent names weight, whose type"),
        (("note",), "intent names note, which has a default"),
        (("kind",), "intent names kind, which the input model Ask does not have"),
        (("case_id", "case_id"), "intent names case_id twice"),
        ((), "intent is empty"),
        ("case_id", "intent"),
    ],
)
def test_intent_of_any_other_kind_is_refused(intent: Any, says: str) -> None:
    assert says in fault(intent=intent)


def test_a_field_is_not_both_intent_and_volatile() -> None:
    assert "both in intent and volatile" in fault(intent=("case_id",), volatile=("case_id",))


@pytest.mark.parametrize("field", ["volatile", "target_args", "audit_fields"])
def test_a_list_of_arguments_names_only_fields_of_the_input(field: str) -> None:
    assert getattr(contract(**{field: ("type",)}), field) == ("type",)
    assert f"{field} names nope" in fault(**{field: ("nope",)})


def test_intent_may_be_the_call_itself() -> None:
    assert contract(intent="per_call").has_explicit_intent
    assert not contract().has_explicit_intent


@pytest.mark.parametrize(
    "fields", [{"intent": ("case_id",)}, {"parts": ("a",)}, {"compensation": "undo"}, {"probe_first": True}]
)
def test_what_is_for_effects_is_refused_on_a_read(fields: dict[str, Any]) -> None:
    assert "is for effect tools" in fault(kind="read", **fields)
    assert "reversible and read_safe" in fault(kind="read", reversibility="irreversible")


# --- digest

OTHER: dict[str, Any] = {
    "name": "other",
    "version": 2,
    "kind": "read",
    "purpose": "x",
    "use_when": "x",
    "do_not_use_when": "x",
    "result_means": "x",
    "preconditions": "x",
    "side_effects": "x",
    "reversibility": "costly",
    "timeout_s": 10,
    "retry_class": "never",
    "intent": ("case_id",),
    "intent_version": 5,
    "supersedes": (1,),
    "volatile": ("note",),
    "sends": "many",
    "expected_errors": (ErrorRule(status=422, verdict="rejected"),),
    "on_unlisted_error": "release",
    "ambiguous_errors": (TimeoutError,),
    "probe_first": True,
    "provider_key_ttl_s": 60,
    "settle_s": 61,
    "presumed_dead_after_s": 600,
    "max_attempts": 4,
    "max_elapsed_s": 60,
    "backoff_s": 2,
    "parts": ("a",),
    "acting_as": "user",
    "result_scope": "tenant",
    "required_scopes": ("case:write",),
    "approval": "always",
    "target_args": ("case_id",),
    "data_classification": "restricted",
    "audit_fields": ("case_id",),
    "max_result_bytes": 1000,
    "max_age_s": 5,
    "rate_limit": RateLimit(calls=1, per_s=1),
    "cost_minor": 1,
    "compensation": "undo",
    "isolation": "thread",
    "lane": "slow",
    "lookup": "a.b",
    "checks": ("a.c",),
    "render": "a.d",
    "input_model": type("Other", (Ask,), {"__module__": __name__}),
    "output_model": None,
}
NEEDS: dict[str, dict[str, Any]] = {
    "supersedes": {"intent_version": 5},
    "on_unlisted_error": {"reversibility": "costly"},
    "presumed_dead_after_s": {"reversibility": "costly"},
}


def test_the_digest_covers_every_field() -> None:
    assert OTHER.keys() == ToolContract.model_fields.keys()
    for field, value in OTHER.items():
        needs = NEEDS.get(field, {})
        assert contract(**needs).digest != contract(**needs, **{field: value}).digest, field


def test_the_digest_does_not_depend_on_how_the_same_thing_is_written() -> None:
    one = contract(required_scopes={"b", "a"}, expected_errors=[ErrorRule(status=422, verdict="rejected")])
    other = contract(required_scopes=["a", "b", "b"], expected_errors=({"status": 422, "verdict": "rejected"},))
    assert one.digest == other.digest
    assert len(one.digest) == 64


def test_a_copy_and_a_changed_contract_have_digests_of_their_own() -> None:
    one = contract()
    assert one.model_copy(update={"version": 9}).digest == one.changed(version=9).digest != one.digest


def test_a_change_is_checked_like_a_declaration() -> None:
    with pytest.raises(ContractError, match="settle_s"):
        contract().changed(settle_s=1)


def test_a_contract_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        contract().version = 2  # type: ignore[misc]


# --- publishing


def test_what_is_published_is_plain_json_and_reads_back_whole() -> None:
    made = contract(intent=("case_id",), expected_errors=[ErrorRule(status=422, verdict="rejected")])
    published = json.loads(json.dumps(made.published()))
    read = PublishedContract.read(published)
    assert read == made.as_published()
    for name in ToolContract.model_fields.keys() - {"input_model", "output_model"}:
        assert getattr(read, name) == getattr(made, name), name
    assert (read.digest, read.rerun_rule, read.description) == (made.digest, made.rerun_rule, made.description)
    assert read.input_schema == Ask.model_json_schema()


def test_the_description_holds_the_four_texts() -> None:
    assert contract().description.splitlines() == [
        "Ask for a document.",
        "Use when: It is missing.",
        "Do not use when: It was asked for already.",
        "What the result means: The request was sent, not answered.",
    ]


def test_a_published_contract_judges_arguments_like_the_contract_itself() -> None:
    made = contract()
    whole = {"case_id": "c", "channel": "mail", "type": "a", "count": 1, "urgent": False}
    whole |= {"weight": 1.5, "amount": 2, "maybe": None, "items": [], "ghost": 1}
    for judge in (made, made.as_published()):
        read = judge.read_sent(whole)
        assert isinstance(read, SentArguments)
        assert read.ghosts == ("ghost",)
        wrong = judge.read_sent({**whole, "count": "1"})
        assert wrong == ArgumentsRefused("invalid_arguments", ("count: expected integer, got string",))


def test_what_a_newer_worker_added_is_ignored_and_what_cannot_be_read_is_named() -> None:
    published = contract().published()
    assert PublishedContract.read({**published, "added_later": 1}).name == "request_document"
    with pytest.raises(ContractError, match="reversibility"):
        PublishedContract.read({**published, "reversibility": "somewhat"})


# --- errors and the table


def test_a_contract_finds_the_rule_for_an_error() -> None:
    rule = ErrorRule.model_validate({"exception": ConnectionRefusedError, "verdict": "not_attempted"})
    assert contract(expected_errors=[rule]).rule_for(ConnectionRefusedError()) == rule
    assert contract(expected_errors=[rule]).rule_for(TimeoutError()) is None


def test_the_table_of_defaults_has_every_field_once_and_says_why() -> None:
    rows = [line.split(" | ") for line in contract_table().splitlines()[2:]]
    assert [row[0].strip("|` ") for row in rows] == list(ToolContract.model_fields)
    assert all(row[1].strip() and row[2].strip("| ") for row in rows)
