"""What a listed error may prove."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from effectsvc.tools.error_rule import ErrorRule, rule_for, status_of


class Answer:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("no")
        self.response = Answer(status)


class QuotaError(ConnectionRefusedError):
    pass


@pytest.mark.parametrize("status", [200, 303, 408, 409, 425, 500, 503, 599])
@pytest.mark.parametrize("verdict", ["not_attempted", "rejected"])
def test_a_status_that_may_follow_a_write_cannot_be_listed_as_proof(status: int, verdict: str) -> None:
    with pytest.raises(ValidationError, match="may have done it"):
        ErrorRule.model_validate({"status": status, "verdict": verdict})


@pytest.mark.parametrize("status", [400, 404, 422, 429])
def test_a_definite_answer_can_be_listed(status: int) -> None:
    assert ErrorRule(status=status, verdict="rejected").matches(HttpError(status))


def test_any_status_can_be_listed_as_unknown_to_give_it_a_code() -> None:
    assert ErrorRule(status=503, verdict="unknown", code="provider_down").code == "provider_down"


@pytest.mark.parametrize("kind", [Exception, OSError, TimeoutError, ConnectionResetError, BrokenPipeError])
def test_an_exception_that_says_nothing_about_the_provider_cannot_be_listed_as_proof(kind: type[Exception]) -> None:
    with pytest.raises(ValidationError, match="says nothing about the provider"):
        ErrorRule.model_validate({"exception": kind, "verdict": "not_attempted"})


@pytest.mark.parametrize("fields", [{}, {"status": 422, "exception": QuotaError}])
def test_a_rule_names_either_a_status_or_an_exception(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="either a status or an exception"):
        ErrorRule.model_validate({**fields, "verdict": "rejected"})


def test_a_class_is_kept_by_its_dotted_name_and_matches_classes_derived_from_it() -> None:
    rule = ErrorRule.model_validate({"exception": ConnectionRefusedError, "verdict": "not_attempted"})
    assert rule.exception == "builtins.ConnectionRefusedError"
    assert rule.matches(QuotaError())
    assert not rule.matches(ConnectionError())


def test_the_first_rule_that_matches_counts() -> None:
    first = ErrorRule(status=422, verdict="rejected", code="first")
    second = ErrorRule(status=422, verdict="unknown")
    assert rule_for((first, second), HttpError(422)) is first
    assert rule_for((first, second), HttpError(400)) is None


@pytest.mark.parametrize("status", [408, 409, 425, 500, 502])
def test_a_rule_by_exception_does_not_make_proof_of_a_status_that_proves_nothing(status: int) -> None:
    rule = ErrorRule.model_validate({"exception": HttpError, "verdict": "rejected"})
    doubt = ErrorRule.model_validate({"exception": HttpError, "verdict": "unknown"})
    assert rule_for((rule,), HttpError(422)) is rule
    assert rule_for((rule,), HttpError(status)) is None
    assert rule_for((rule, doubt), HttpError(status)) is doubt


def test_an_sdks_refusal_inside_an_answer_of_200_can_be_listed_by_its_exception() -> None:
    rule = ErrorRule.model_validate({"exception": HttpError, "verdict": "rejected"})
    assert rule_for((rule,), HttpError(200)) is rule


def test_the_status_is_found_where_the_common_clients_keep_it() -> None:
    class Urllib(Exception):
        code = 404

    class Aiohttp(Exception):
        status = 429

    class Words(Exception):
        code = "E17"
        status = True

    assert [status_of(kind()) for kind in (Urllib, Aiohttp, Words)] == [404, 429, None]
    assert status_of(HttpError(500)) == 500
