"""What a user would pick instead, side by side with ours: no-op calls of usual size through one worker process.

    python tests/benchmarks/compare.py [--calls 3000] [--durability fsync|everysec]

Each contender has a fresh server of the same kind, with the same syncs, one proposing process and one worker process.
Ours is the only one that guards (one effect per intent) and logs; the others deliver a message. RQ is always there;
the others take part where they are installed (dramatiq, huey, arq).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from effectsvc.bench.measure import Plan, measure
from effectsvc.bench.tools import TEXT_BYTES
from effectsvc.bench.workloads import WORKLOADS
from effectsvc.embedded import EmbeddedServer

TEXT = "x" * TEXT_BYTES
WARM_CALLS = 200
"""Before the clock runs, as in our own bench."""
WORKER_THREADS = 8
"""The default of dramatiq; huey is given the same."""
WITHIN_S = 120.0

_calls = itertools.count(1)


def answer(number: int, text: str) -> dict[str, Any]:
    """The job. Every so many calls it leaves a file, by which the proposing process knows how far the worker is."""
    done = next(_calls)
    if done in (WARM_CALLS, int(os.environ["COMPARE_CALLS"])):
        (Path(os.environ["COMPARE_DIR"]) / f"done-{done}").touch()
    return {"number": number, "text": text}


def answer_nobody(number: int, text: str) -> None:
    """For dramatiq, which logs each result that nobody stores."""
    answer(number, text)


async def answer_arq(_: dict[str, Any], number: int, text: str) -> dict[str, Any]:
    return answer(number, text)


# ---- the contenders: what the worker process runs, and how a call is given to it -----------------------------------


def serve_rq(url: str) -> None:
    from redis import Redis
    from rq import Queue, SimpleWorker
    from rq.serializers import JSONSerializer

    connection = Redis.from_url(url)
    queue = Queue("compare", connection=connection, serializer=JSONSerializer)
    SimpleWorker([queue], connection=connection, serializer=JSONSerializer).work(logging_level="WARNING")


@contextmanager
def propose_rq(url: str) -> Iterator[Callable[[int], object]]:
    from redis import Redis
    from rq import Queue
    from rq.serializers import JSONSerializer

    connection = Redis.from_url(url)
    queue = Queue("compare", connection=connection, serializer=JSONSerializer)
    yield lambda number: queue.enqueue_call("compare.answer", kwargs={"number": number, "text": TEXT})
    connection.close()


def _dramatiq(url: str) -> tuple[Any, Any]:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)
    return broker, dramatiq.actor(answer_nobody, broker=broker)


def serve_dramatiq(url: str) -> None:
    from dramatiq import Worker

    broker, _ = _dramatiq(url)
    worker = Worker(broker, worker_threads=WORKER_THREADS)
    worker.start()
    while True:
        time.sleep(1)


@contextmanager
def propose_dramatiq(url: str) -> Iterator[Callable[[int], object]]:
    _, actor = _dramatiq(url)
    yield lambda number: actor.send(number, TEXT)


def _huey(url: str) -> tuple[Any, Any]:
    from huey import RedisHuey

    huey = RedisHuey("compare", url=url, results=False)
    return huey, huey.task(name="answer")(answer)


def serve_huey(url: str) -> None:
    huey, _ = _huey(url)
    huey.create_consumer(workers=WORKER_THREADS, periodic=False).run()


@contextmanager
def propose_huey(url: str) -> Iterator[Callable[[int], object]]:
    _, task = _huey(url)
    yield lambda number: task(number, TEXT)


def _arq_settings(url: str) -> Any:
    from arq.connections import RedisSettings

    return RedisSettings(unix_socket_path=url.removeprefix("unix://"))


def serve_arq(url: str) -> None:
    from arq.worker import Worker

    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker(functions=[answer_arq], redis_settings=_arq_settings(url), max_jobs=100).run()


@contextmanager
def propose_arq(url: str) -> Iterator[Callable[[int], object]]:
    from arq import create_pool

    with asyncio.Runner() as runner:
        pool = runner.run(create_pool(_arq_settings(url)))
        yield lambda number: runner.run(pool.enqueue_job("answer_arq", number, TEXT))
        runner.run(pool.aclose())


CONTENDERS = {
    "rq": (serve_rq, propose_rq),
    "dramatiq": (serve_dramatiq, propose_dramatiq),
    "huey": (serve_huey, propose_huey),
    "arq": (serve_arq, propose_arq),
}
SHOWN = {"rq": "rq SimpleWorker, one job per call"}


# ---- the measuring -------------------------------------------------------------------------------------------------


def rate_of(name: str, *, calls: int, appendfsync: Literal["always", "everysec"]) -> float:
    """Calls per second, from the first enqueue to the last call of the worker."""
    _, propose = CONTENDERS[name]
    with tempfile.TemporaryDirectory(prefix="compare-") as directory:
        place = Path(directory)
        with EmbeddedServer(data_dir=place / "server", appendfsync=appendfsync) as server:
            told = {"COMPARE_DIR": directory, "COMPARE_CALLS": str(WARM_CALLS + calls)}
            worker = subprocess.Popen(
                [sys.executable, __file__, "--serve", name, server.url],
                env=os.environ | told | {"PYTHONPATH": str(Path(__file__).parent)},
                stdout=subprocess.DEVNULL,
            )
            try:
                with propose(server.url) as give:
                    for number in range(WARM_CALLS):
                        give(number)
                    _await_file(place / f"done-{WARM_CALLS}", worker)
                    start_s = time.perf_counter()
                    for number in range(calls):
                        give(number)
                    _await_file(place / f"done-{WARM_CALLS + calls}", worker)
                    return calls / (time.perf_counter() - start_s)
            finally:
                worker.kill()
                worker.wait()


def _await_file(path: Path, worker: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not path.exists():
        if worker.poll() is not None:
            raise SystemExit(f"The worker ended with status {worker.returncode}.")
        if time.monotonic() > until_s:
            raise SystemExit("The worker did not come to the end of its calls in time.")
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3_000)
    parser.add_argument("--durability", choices=["fsync", "everysec"], default="fsync")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        name, url = given.serve
        CONTENDERS[name][0](url)
        return

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    here = [name for name in CONTENDERS if importlib.util.find_spec(name)]
    # Ours first and last: a shared machine is not the same all the time.
    plan = Plan(durability=given.durability, effects=given.calls, seconds=WITHIN_S)
    ours = measure(WORKLOADS["noop"], plan, say=say)
    rates = {}
    for name in here:
        say(f"{name}: {given.calls} calls")
        rates[SHOWN.get(name, name)] = rate_of(
            name, calls=given.calls, appendfsync="always" if given.durability == "fsync" else "everysec"
        )
    ours += measure(WORKLOADS["noop"], plan, say=say)
    our_rate = sum(row.effects for row in ours) / sum(row.seconds for row in ours)
    print(f"{'':36}{'calls/s':>10}{'to ours':>10}")
    for name, rate in {"effectsvc, guarded and logged": our_rate, **rates}.items():
        print(f"{name:36}{rate:10.0f}{rate / our_rate:10.2f}")
    print(f"durability {given.durability}, one sync {ours[0].sync_ms:.2f} ms, {ours[0].server}, {ours[0].cores} cores")


if __name__ == "__main__":
    main()
