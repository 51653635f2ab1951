"""A provider in the test's own process: no network, no waiting, an honest ledger, and faults on demand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol


class Provider(Protocol):
    """What `check_tool` asks of a provider: an honest ledger, and faults on demand. FakeProvider is one."""

    @property
    def ledger(self) -> Mapping[str, int]:
        """How often each key was applied, `key|part` where a part was named; keys as the tool sent them."""

    def timeout_before(self) -> None:
        """The next application does not answer and applies nothing."""

    def timeout_after(self) -> None:
        """The next application is applied and does not answer."""

    def reject(self, status_code: int) -> None:
        """The next application is answered with this HTTP status and applies nothing."""

    def speak(self, text: str) -> None:
        """The next application is applied and answered with this text where the provider's own words would be."""

    def disarm(self) -> int:
        """Forgets what is armed and was not met. Returns how many of them."""


class ProviderRejected(Exception):
    """The provider answered with an HTTP error status and applied nothing. `status_code` is that status.

    `headers` holds `Retry-After`, where the provider sent one.
    """

    def __init__(self, *, status_code: int, retry_after: str = "") -> None:
        self.status_code = status_code
        self.headers = {"Retry-After": retry_after} if retry_after else {}
        super().__init__(f"the provider answered {status_code}")


@dataclass(frozen=True, slots=True)
class Applied:
    """One application: the ledger's row. `ref` is the provider's own id for it."""

    key: str
    part: str
    value: Any
    ref: str


@dataclass(frozen=True, slots=True)
class _Fault:
    kind: Literal["timeout_before", "timeout_after", "reject", "late", "speak"]
    status_code: int = 0
    late_ms: int = 0
    text: str = ""
    """What it says, or the value of `Retry-After`."""


class FakeProvider:
    """Applies what it is given, and counts it.

    It never deduplicates, unless `honours_keys`: then a key and part that were applied before answer with the first
    ref, or with 422 when the value is another one.

    Each armed fault takes one `apply`, in the order in which they were armed. Safe to use from many threads and from
    asyncio: nothing blocks. `clock` gives seconds, and only `late` looks at it; a test may hand in its own.
    """

    def __init__(self, *, honours_keys: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._honours_keys = honours_keys
        self._clock = clock
        self._lock = threading.Lock()
        self._applied: list[Applied] = []
        self._underway: list[tuple[float, str, Any, str]] = []
        self._faults: deque[_Fault] = deque()

    def apply(self, key: str, value: Any, part: str = "") -> str:
        """Apply once and return the provider's ref.

        Raises TimeoutError when the answer is lost (whether or not it was applied), ProviderRejected when refused.
        """
        with self._lock:
            self._land_due()
            fault = self._faults.popleft() if self._faults else None
            match fault:
                case None:
                    return self._apply(key, value, part)
                case _Fault(kind="speak"):
                    self._apply(key, value, part)
                    return fault.text
                case _Fault(kind="reject"):
                    raise ProviderRejected(status_code=fault.status_code, retry_after=fault.text)
                case _Fault(kind="late"):
                    self._underway.append((self._clock() + fault.late_ms / 1000, key, value, part))
                case _Fault(kind="timeout_after"):
                    self._apply(key, value, part)
            raise TimeoutError("the provider did not answer")

    async def apply_async(self, key: str, value: Any, part: str = "") -> str:
        """As `apply`, letting other tasks run before the write and before the answer, as a network does."""
        await asyncio.sleep(0)
        try:
            return self.apply(key, value, part)
        finally:
            await asyncio.sleep(0)

    def lookup(self, key: str) -> list[Applied]:
        """What was applied under the key, oldest first: the truth of this moment. Empty: nothing yet."""
        with self._lock:
            self._land_due()
            return [row for row in self._applied if row.key == key]

    async def lookup_async(self, key: str) -> list[Applied]:
        """As `lookup`, letting other tasks run first."""
        await asyncio.sleep(0)
        return self.lookup(key)

    @property
    def ledger(self) -> dict[str, int]:
        """How often each key was applied; `key|part` where a part was named."""
        with self._lock:
            self._land_due()
            return dict(Counter(f"{row.key}|{row.part}" if row.part else row.key for row in self._applied))

    def timeout_before(self, *, times: int = 1) -> None:
        """The next `times` applications raise TimeoutError and apply nothing."""
        self._arm(_Fault(kind="timeout_before"), times)

    def timeout_after(self, *, times: int = 1) -> None:
        """The next `times` applications are applied and raise TimeoutError."""
        self._arm(_Fault(kind="timeout_after"), times)

    def reject(self, status_code: int, *, times: int = 1, retry_after: str = "") -> None:
        """The next `times` applications raise ProviderRejected with this HTTP status and apply nothing.

        `retry_after` is the value of that header: seconds, or an HTTP date.
        """
        if not 400 <= status_code <= 599:
            raise ValueError("a rejection is an HTTP status from 400 to 599")
        self._arm(_Fault(kind="reject", status_code=status_code, text=retry_after), times)

    def late(self, late_ms: int, *, times: int = 1) -> None:
        """The next `times` applications raise TimeoutError at once and are applied `late_ms` later."""
        if late_ms < 0:
            raise ValueError("late_ms is at least 0")
        self._arm(_Fault(kind="late", late_ms=late_ms), times)

    def speak(self, text: str, *, times: int = 1) -> None:
        """The next `times` applications are applied and answered with this text in place of the ref."""
        self._arm(_Fault(kind="speak", text=text), times)

    def disarm(self) -> int:
        """Forgets the faults that no application has met. Returns how many."""
        with self._lock:
            left = len(self._faults)
            self._faults.clear()
            return left

    def _arm(self, fault: _Fault, times: int) -> None:
        if times < 1:
            raise ValueError("times is at least 1")
        with self._lock:
            self._faults.extend([fault] * times)

    def _apply(self, key: str, value: Any, part: str) -> str:
        if self._honours_keys:
            for row in self._applied:
                if (row.key, row.part) == (key, part):
                    if row.value != value:
                        raise ProviderRejected(status_code=422)
                    return row.ref
        ref = f"ext_{len(self._applied) + 1}"
        self._applied.append(Applied(key=key, part=part, value=value, ref=ref))
        return ref

    def _land_due(self) -> None:
        """Apply the late writes whose time has come. Nobody waits for their answers, so a refusal of one is silent."""
        now = self._clock()
        due = sorted((write for write in self._underway if write[0] <= now), key=lambda write: write[0])
        self._underway = [write for write in self._underway if write[0] > now]
        for _, key, value, part in due:
            try:
                self._apply(key, value, part)
            except ProviderRejected:
                continue
