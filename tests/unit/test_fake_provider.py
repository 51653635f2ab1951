"""FakeProvider: its ledger is honest, and each fault does what its name says."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from effectsvc.testing.provider import FakeProvider, ProviderRejected


class Clock:
    """Seconds that pass when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_application_of_a_key_is_counted() -> None:
    provider = FakeProvider()
    first, second = provider.apply("k", 1), provider.apply("k", 1)
    provider.apply("other", 1)
    assert provider.ledger == {"k": 2, "other": 1}
    assert first != second
    assert [row.ref for row in provider.lookup("k")] == [first, second]


def test_parts_of_one_key_are_counted_apart() -> None:
    provider = FakeProvider()
    provider.apply("k", "record", part="record")
    provider.apply("k", "file", part="attachments")
    assert provider.ledger == {"k|record": 1, "k|attachments": 1}
    assert [row.part for row in provider.lookup("k")] == ["record", "attachments"]


def test_an_unknown_key_is_absent() -> None:
    assert FakeProvider().lookup("k") == []


def test_a_provider_that_honours_keys_answers_a_repeat_with_the_first_ref() -> None:
    provider = FakeProvider(honours_keys=True)
    assert provider.apply("k", 1) == provider.apply("k", 1)
    assert provider.ledger == {"k": 1}


def test_a_provider_that_honours_keys_refuses_a_known_key_with_another_value() -> None:
    provider = FakeProvider(honours_keys=True)
    provider.apply("k", 1)
    with pytest.raises(ProviderRejected) as refused:
        provider.apply("k", 2)
    assert refused.value.status_code == 422
    assert provider.ledger == {"k": 1}


def test_a_timeout_before_the_write_applies_nothing() -> None:
    provider = FakeProvider()
    provider.timeout_before()
    with pytest.raises(TimeoutError):
        provider.apply("k", 1)
    assert provider.ledger == {}


def test_a_timeout_after_the_write_applies_it() -> None:
    provider = FakeProvider()
    provider.timeout_after()
    with pytest.raises(TimeoutError):
        provider.apply("k", 1)
    assert provider.ledger == {"k": 1}


def test_a_rejection_has_its_status_and_applies_nothing() -> None:
    provider = FakeProvider()
    provider.reject(429)
    with pytest.raises(ProviderRejected) as refused:
        provider.apply("k", 1)
    assert refused.value.status_code == 429
    assert provider.ledger == {}


def test_a_late_write_is_truthfully_absent_until_it_lands() -> None:
    clock = Clock()
    provider = FakeProvider(clock=clock)
    provider.late(2_000)
    with pytest.raises(TimeoutError):
        provider.apply("k", 1)
    clock.now = 1.999
    assert provider.lookup("k") == []
    clock.now = 2.0
    assert [row.value for row in provider.lookup("k")] == [1]
    assert provider.ledger == {"k": 1}


def test_a_late_write_lands_beside_a_repeat_unless_keys_are_honoured() -> None:
    counts = {}
    for honours_keys in (False, True):
        clock = Clock()
        provider = FakeProvider(honours_keys=honours_keys, clock=clock)
        provider.late(2_000)
        with pytest.raises(TimeoutError):
            provider.apply("k", 1)
        provider.apply("k", 1)
        clock.now = 3.0
        counts[honours_keys] = provider.ledger
    assert counts == {False: {"k": 2}, True: {"k": 1}}


def test_faults_fire_once_each_in_the_order_in_which_they_were_armed() -> None:
    provider = FakeProvider()
    provider.reject(500, times=2)
    provider.timeout_after()
    seen = []
    for _ in range(4):
        try:
            seen.append(provider.apply("k", 1))
        except (TimeoutError, ProviderRejected) as error:
            seen.append(type(error).__name__)
    assert seen == ["ProviderRejected", "ProviderRejected", "TimeoutError", "ext_2"]


def test_a_fault_that_could_not_fire_is_refused() -> None:
    provider = FakeProvider()
    with pytest.raises(ValueError, match="400 to 599"):
        provider.reject(200)
    with pytest.raises(ValueError, match="late_ms"):
        provider.late(-1)
    with pytest.raises(ValueError, match="times"):
        provider.timeout_after(times=0)


def test_no_application_is_lost_among_threads() -> None:
    provider = FakeProvider()
    with ThreadPoolExecutor(8) as threads:
        refs = list(threads.map(lambda number: provider.apply(f"k{number % 4}", number), range(400)))
    assert provider.ledger == {"k0": 100, "k1": 100, "k2": 100, "k3": 100}
    assert len(set(refs)) == 400


async def test_a_cancelled_call_may_have_been_applied() -> None:
    provider = FakeProvider()
    call = asyncio.create_task(provider.apply_async("k", 1))
    while not provider.ledger:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [row.key for row in await provider.lookup_async("k")] == ["k"]


async def test_the_async_form_answers_and_fails_as_the_sync_one_does() -> None:
    provider = FakeProvider()
    assert await provider.apply_async("k", 1, part="record") == "ext_1"
    provider.timeout_before()
    with pytest.raises(TimeoutError):
        await provider.apply_async("k", 1)
    assert provider.ledger == {"k|record": 1}
