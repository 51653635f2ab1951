"""The port of a process, served for real, on a loop that falls silent."""

from __future__ import annotations

import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from effectsvc import health
from effectsvc.errors import SettingsError
from effectsvc.health import Port, Pulse, StoreReady
from effectsvc.settings import load_settings

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def make_port() -> Iterator[Callable[..., Port]]:
    """Starts ports on the loopback address; all are stopped after the test."""
    made: list[Port] = []

    def make(*, number: int | None = 0, pulse: Pulse | None = None) -> Port:
        settings = load_settings(redis_url=NOWHERE, metrics_port=number, metrics_host="127.0.0.1")
        made.append(Port(settings, pulse=pulse or Pulse(), ready=StoreReady(settings)))
        made[-1].start()
        return made[-1]

    yield make
    for port in made:
        port.stop()


def _status(port: Port, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port.number}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_a_loop_that_has_fallen_silent_is_not_healthy_until_it_beats_again(
    make_port: Callable[..., Port], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port answers all the while: it has threads of its own."""
    pulse = Pulse()
    port = make_port(pulse=pulse)
    assert _status(port, "/healthz") == 200
    monkeypatch.setattr(health, "SILENT_S", -1.0)
    assert _status(port, "/healthz") == 503
    monkeypatch.setattr(health, "SILENT_S", 5.0)
    pulse.beat()
    assert _status(port, "/healthz") == 200
    assert _status(port, "/readyz") == 503


def test_a_port_that_is_taken_is_said_with_what_to_do(make_port: Callable[..., Port]) -> None:
    """Two processes with the same setting on one host."""
    with pytest.raises(SettingsError, match="ports of their own"):
        make_port(number=make_port().number)


def test_without_a_port_nothing_is_served(make_port: Callable[..., Port]) -> None:
    """It is the setting that opens it."""
    assert make_port(number=None).number == 0


def test_a_scraper_that_says_nothing_does_not_keep_the_others_waiting(make_port: Callable[..., Port]) -> None:
    """Each request has its own thread."""
    import socket

    port = make_port()
    with socket.create_connection(("127.0.0.1", port.number)):
        started = time.monotonic()
        assert _status(port, "/metrics") == 200
        assert time.monotonic() - started < health.IDLE_S


def test_a_page_that_cannot_be_made_is_logged(
    make_port: Callable[..., Port], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A scrape that fails for a defect of ours is not silent."""

    def broken(_: object) -> bytes:
        raise ValueError("a defect")

    monkeypatch.setattr(health, "page", broken)
    port = make_port()
    with caplog.at_level(logging.ERROR, logger="effectsvc.health"), pytest.raises(ConnectionError):
        _status(port, "/metrics")
    assert "was not answered" in caplog.text
