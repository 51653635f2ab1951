"""`effectsvc bench`: that it measures what it names. How fast this machine is, is no test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import check_json

FIELDS = {
    "schema_version", "workload", "durability", "effects", "not_committed", "seconds", "rate", "bare_rate", "ratio",
    "p50_ms", "p99_ms", "bare_p50_ms", "cpu_ms_per_effect", "cpu_ms_by_process", "redis_commands_per_effect",
    "redis_script_calls_per_effect", "net_in_bytes_per_effect", "net_out_bytes_per_effect", "bytes_per_effect",
    "rss_mb", "sync_ms", "cores", "other_cores", "python", "server",
}  # fmt: skip


def run_bench(*options: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "effectsvc.cli", "bench", "--dir", str(directory), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    check_json(["bench", "--json"], done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The row of 200 no-op effects."""
    directory = tmp_path_factory.mktemp("bench")
    [row] = rows_of(run_bench("--workload", "noop", "--effects", "200", "--json", directory=directory))
    return row


def test_a_row_has_every_figure_beside_that_of_the_bare_scripts(row: dict[str, Any]) -> None:
    assert row.keys() == FIELDS
    assert (row["workload"], row["durability"], row["schema_version"]) == ("noop", "fsync", 1)
    assert (row["effects"], row["not_committed"]) == (200, 0)
    assert abs(row["rate"] - row["effects"] / row["seconds"]) < 0.01 * row["rate"]
    assert abs(row["ratio"] - row["rate"] / row["bare_rate"]) < 0.01 * row["ratio"]
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= 1000 * row["seconds"]
    assert row["bare_p50_ms"] > 0
    assert row["cores"] == os.cpu_count()
    # One lifecycle is three scripts and four reads, and one run is opened for every so many of them.
    assert 7 <= row["redis_commands_per_effect"] < 40
    assert 10 < row["redis_script_calls_per_effect"] < 100
    # The arguments and the result, of 300 bytes each, go in; they and what tells effects apart stay.
    assert row["net_in_bytes_per_effect"] > 600
    assert 600 < row["bytes_per_effect"] < 10_000


def test_the_gates_are_measured_without_a_server(tmp_path: Path) -> None:
    """One row, for client and worker, beside the limit that is promised."""
    [row] = rows_of(run_bench("--workload", "gates", "--json", directory=tmp_path))
    assert row.keys() == {
        "schema_version", "workload", "gates", "client_us", "worker_us", "limit_us", "calls", "python",
    }  # fmt: skip
    assert (row["workload"], row["gates"], row["limit_us"]) == ("gates", 12, 100)
    assert row["client_us"] > 1
    assert row["worker_us"] > 1


def test_export_and_verification_are_measured_with_the_memory_that_they_take(tmp_path: Path) -> None:
    [row] = rows_of(run_bench("--workload", "log", "--effects", "400", "--json", directory=tmp_path))
    assert row.keys() == {
        "schema_version", "workload", "records", "line_bytes", "export_rate", "export_per_core_s", "verify_rate",
        "verify_per_core_s", "export_rss_mb", "verify_rss_mb", "verify_processes",
        "verify_process_rss_mb", "sync_ms", "verdict",
    }  # fmt: skip
    assert row["records"] > 1_200
    assert row["verdict"] == "verified"
    assert min(row["export_rate"], row["verify_rate"]) > 100
    assert all(20 < mb < 500 for mb in [*row["export_rss_mb"], *row["verify_rss_mb"]])
    assert list(tmp_path.iterdir()) == []


def test_what_each_process_costs_adds_up_to_the_whole(row: dict[str, Any]) -> None:
    assert row["cpu_ms_by_process"].keys() == {"client", "worker", "server", "relay"}
    if Path("/proc/self/stat").exists():
        assert abs(sum(row["cpu_ms_by_process"].values()) - row["cpu_ms_per_effect"]) < 0.01
        assert all(row["cpu_ms_by_process"][name] > 0 for name in ("client", "worker", "server"))
        assert 20 < row["rss_mb"] < 500


def test_latency_is_told_for_a_warm_lane_a_loaded_one_and_a_cold_one(tmp_path: Path) -> None:
    rows = rows_of(run_bench("--workload", "latency", "--effects", "5", "--json", directory=tmp_path))

    assert [row["workload"] for row in rows] == ["latency", "latency_half", "latency_cold"]
    assert all(row.keys() == FIELDS for row in rows)
    assert all((row["effects"], row["not_committed"]) == (5, 0) for row in rows)
    assert all(row["p50_ms"] > 0 for row in rows)
    assert rows[2]["cpu_ms_per_effect"] is None


def test_nothing_is_left_behind_and_the_table_stands_alone_on_stdout(tmp_path: Path) -> None:
    done = run_bench("--workload", "noop", "--effects", "50", "--durability", "everysec", directory=tmp_path)

    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    head, row, *notes = done.stdout.splitlines()
    assert head.split()[:2] == ["workload", "effects/s"]
    assert row.split()[0] == "noop"
    assert "durability everysec" in notes[0]
    assert "measuring" in done.stderr


def test_a_bench_that_is_told_to_end_stops_what_it_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "effectsvc.cli", "bench", "--workload", "noop", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "warming up" in line:
                break
        [server_record] = tmp_path.glob("*/server/server.json")
        server_pid = json.loads(server_record.read_text())["pid"]
        process.send_signal(signal.SIGTERM)
        process.stderr.read()  # so that it never waits for us to read

        assert process.wait(timeout=60) == 130

    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(server_pid, 0)


def test_profiles_of_worker_and_proposer_are_left_where_asked(tmp_path: Path) -> None:
    work, profiles = tmp_path / "work", tmp_path / "profiles"
    work.mkdir()

    done = run_bench("--workload", "noop", "--effects", "50", "--profile", str(profiles), directory=work)

    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in profiles.iterdir())
    assert names[0] == "client-noop.prof"
    assert [name.startswith("worker-") for name in names[1:]] == [True]


def test_an_unknown_workload_is_a_usage_error_that_names_the_known_ones(tmp_path: Path) -> None:
    done = run_bench("--workload", "nope", directory=tmp_path)

    assert done.returncode == 2
    assert "noop, async200ms, thread200ms, latency" in done.stderr
