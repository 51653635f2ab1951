"""Where the operator's Authorizer is found, and what is said when it is not there."""

from __future__ import annotations

import pytest

from effectsvc.errors import SettingsError
from effectsvc.hooks import load_authorizer
from tests.acceptance import authorizer_for_tests


def test_an_authorizer_is_found_by_its_place_and_none_is_wanted_without_one() -> None:
    assert load_authorizer(authorizer_for_tests.PLACE) is authorizer_for_tests.authorizer
    assert load_authorizer("") is None


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("no.such.module:authorizer", "there is no module 'no'"),
        (f"{authorizer_for_tests.__name__}:nothing", "no object with an `authorize` method"),
        (f"{authorizer_for_tests.__name__}:ByTitle", "no object with an `authorize` method"),
        (authorizer_for_tests.__name__, "no object with an `authorize` method"),
    ],
)
def test_a_place_that_holds_none_is_told_by_its_name(place: str, says: str) -> None:
    """A class is no instance: its method could not be called."""
    with pytest.raises(SettingsError, match="EFFECTSVC_AUTHORIZER") as caught:
        load_authorizer(place)
    assert says in str(caught.value)
