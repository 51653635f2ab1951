"""`Retry-After` in both its forms, wherever a client keeps it; what is malformed says nothing."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from effectsvc.child_wire import pack_error, receive, unpack_error
from effectsvc.tools.retry_after import MAX_S, read_retry_after, retry_after_s

NOON = "Sun, 06 Nov 1994 12:00:00 GMT"
A_MINUTE_LATER = "Sun, 06 Nov 1994 12:01:00 GMT"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120", 120.0), (" 0 ", 0.0), ("1.5", 1.5), ("9999999999", MAX_S)],
)
def test_seconds_are_read_as_they_stand(text: str, seconds: float) -> None:
    assert read_retry_after(text) == seconds


@pytest.mark.parametrize(
    "later",
    [A_MINUTE_LATER, "Sunday, 06-Nov-94 12:01:00 GMT", "Sun, 06 Nov 1994 12:01:00 +0000"],
)
def test_a_date_counts_from_the_answers_own_date(later: str) -> None:
    """The provider's clock may be years off: both dates are of that clock."""
    assert read_retry_after(later, date=NOON) == 60.0
    assert read_retry_after(NOON, date=A_MINUTE_LATER) == 0.0


def test_a_date_without_an_answers_date_counts_from_this_machines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 784_123_200.0)  # NOON
    assert read_retry_after(A_MINUTE_LATER) == 60.0
    assert read_retry_after(A_MINUTE_LATER, date="yesterday") == 60.0


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "1e3", "nan", "99999999999", "Sun, 99 Nov 1994 12:00:00 GMT", "9" * 70]
)
def test_what_is_malformed_says_nothing(text: str) -> None:
    assert read_retry_after(text) is None


def answer(**headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/")
    response = httpx.Response(429, headers={name.replace("_", "-"): text for name, text in headers.items()})
    return httpx.HTTPStatusError("429", request=request, response=response)


class Raised(Exception):
    """An error as an SDK raises it."""

    def __init__(self, **fields: Any) -> None:
        super().__init__("busy")
        vars(self).update(fields)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (answer(Retry_After="7"), 7.0),
        (answer(Retry_After=A_MINUTE_LATER, Date=NOON), 60.0),
        (answer(), None),
        (Raised(headers={"Retry-After": "7"}), 7.0),
        (Raised(headers={"retry-after": "7"}), 7.0),
        (Raised(response=SimpleNamespace(headers={"Retry-After": "7"})), 7.0),
        (Raised(headers={"Retry-After": 7}), None),
        (Raised(headers="Retry-After: 7"), None),
        (ValueError("7"), None),
    ],
)
def test_it_is_found_where_clients_keep_it(error: BaseException, seconds: float | None) -> None:
    assert retry_after_s(error) == seconds


@pytest.mark.parametrize("headers", [{"Retry_After": "7"}, {"Retry_After": A_MINUTE_LATER, "Date": NOON}])
def test_it_leaves_a_child_process_as_what_it_meant_there(headers: dict[str, str]) -> None:
    """The answer's own date stays behind; the seconds that it made do not."""
    near, far = socket.socketpair()
    with near, far:
        near.sendall(pack_error(answer(**headers)))
        frame = receive(far)
    assert frame is not None
    assert retry_after_s(unpack_error(frame)) == retry_after_s(answer(**headers))
