"""The `log` commands, as a person or a script calls them; and the exporter as a process."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal as signals
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from effectsvc.decisionlog import verify
from effectsvc.decisionlog.keys import HMAC, Signer, load_signer, new_signer, save_signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.writer import LogWriter
from tests import command_line
from tests.decisionlog import stranger
from tests.decisionlog.feeder import Feeder
from tests.decisionlog.log_maker import ORIGIN, START_MS, Stream, flip, make_log, put_lines, read_lines, write


def run(*words: object, code: int = 0) -> command_line.Ran:
    result = command_line.run(*words)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, str, Path]:
    """A log, its public key, and the file of its signing key."""
    signer, key = make_log(tmp_path / "log", lives=8)
    save_signer(signer, tmp_path / "key")
    return tmp_path / "log", key, tmp_path / "key"


def test_verify_tells_its_verdict_by_exit_code(made: tuple[Path, str, Path], tmp_path: Path) -> None:
    log, key, _ = made
    assert "OK example.org/acme/pay/0: 25 records" in run("log", "verify", log, "--key", key).output
    record = json.loads(run("log", "verify", log, "--key", key, "--pin", tmp_path / "pin", "--json").stdout)
    assert (record["verdict"], record["level"], record["uncovered"]) == ("verified", "signed", 0)
    assert json.loads(run("log", "verify", log, "--pin", tmp_path / "pin", "--json").stdout)["level"] == "pinned"
    (tmp_path / "vkey").write_text(f"{key}\n")
    run("log", "verify", log, "--key", tmp_path / "vkey")
    run("log", "verify", log, "--key", (tmp_path / "vkey").rename(tmp_path / "v+key"))
    run("log", "verify", log, "--key", "no such file", code=2)
    run("log", "verify", log, "--key", "not+a+key", code=2)
    run("log", "verify", tmp_path / "nothing", code=4)
    flip(Layout(log).segments()[0][1], 900)
    assert "FAIL" in run("log", "verify", log, code=1).output
    put_lines(log, read_lines(log)[:3])
    run("log", "verify", log, code=3)


def test_verify_has_an_exit_code_for_each_kind_of_finding(
    made: tuple[Path, str, Path], tmp_path: Path, signer: Signer
) -> None:
    """Uncovered records, a broken rule about effects, and files that cannot be read: none is taken for another."""
    log, key, _ = made
    for path in [Layout(log).latest, *(path for _, path in Layout(log).notes()[-1:])]:
        path.unlink()
    run("log", "verify", log, "--key", key, "--max-uncovered", 8)
    run("log", "verify", log, "--key", key, "--max-uncovered", 7, code=4)
    stream = Stream()
    for effect in ("effect-x", "effect-y"):
        stream.life(effect, intent="one")
    write(tmp_path / "double", signer, stream)
    assert "FAIL DOUBLE_EFFECT" in run("log", "verify", tmp_path / "double", code=5).output
    segment = Layout(log).segments()[0][1]
    segment.unlink()
    segment.mkdir()
    assert "cannot be read" in run("log", "verify", log, code=6).output


def test_what_cannot_be_answered_is_a_matter_of_usage(made: tuple[Path, str, Path], tmp_path: Path) -> None:
    """Each says what is wrong with it, and none is taken for a finding about the log."""
    log, key, key_file = made
    cosigner, pin, vkey = tmp_path / "cosigner", tmp_path / "pin", tmp_path / "cosigner.pub"
    run("log", "keys", "gen", cosigner, "--name", "other.example/cosigner", "--cosigner")
    vkey.write_text(run("log", "keys", "show", cosigner).stdout)
    cosign = ("--pin", pin, "--key-file", cosigner)
    run("log", "cosign", log, *cosign)
    pin.write_text(pin.read_text().replace("/pay/0", "/pay/1"))
    wrong: list[tuple[tuple[object, ...], str]] = [
        (("cosign", log, *cosign), "PIN_OTHER_LOG"),
        (("cosign", log, *cosign, "--key", "a+b+c"), "KEY_MALFORMED"),
        (("verify", log, "--pin", pin), "PIN_OTHER_LOG"),
        (("verify", log, "--key", key_file), "That key is a secret"),
        (("verify", log, "--witness", key), "no witness of its own log"),
        (("verify", log, "--hmac-env", "NO_SUCH_SECRET"), "NO_SUCH_SECRET holds no secret"),
        (("show", log, 5, 2), "is before the first"),
        (("prune", log, "--through-head", "--key-file", key_file, "--key", "a+b+c", "--reason", "x"), "KEY_MALFORMED"),
    ]
    for words, said in wrong:
        assert said in run("log", *words, code=2).output, words
    (tmp_path / "proof").write_text(run("log", "prove", log, 3).stdout)
    assert (
        "--key: That is no verifier key"
        in run("log", "check-proof", tmp_path / "proof", "--key", key_file, code=2).output
    )
    run("log", "find", log, "--since", "9" * 400 + "d", code=2)
    run("log", "verify", log, "--processes", 65, code=2)
    no_text = "\udcff" + key[1:]  # a byte that is no UTF-8, as the shell gives it
    for words in (("verify", log), ("check-proof", tmp_path / "proof")):
        assert "That is no verifier key" in run("log", *words, "--key", no_text, code=2).output
    once = json.loads(run("log", "verify", log, "--witness", vkey, "--witness", vkey, "--json").stdout)
    assert (once["witnesses"], once["witnesses_asked"]) == (1, 1)


def test_what_was_asked_and_is_not_there_is_named_with_what_is_next(
    made: tuple[Path, str, Path], tmp_path: Path
) -> None:
    log, key, _ = made
    _, other = make_log(tmp_path / "other", lives=2)
    assert "--key KEY" in run("log", "verify", log, "--key", other, code=4).output
    assert "log cosign" in run("log", "verify", log, "--witnesses-needed", 1, code=4).output
    assert (
        f"{tmp_path}/no/pin.new cannot be read or written"
        in run("log", "verify", log, "--pin", tmp_path / "no" / "pin", code=6).output
    )
    assert "the nearest are of 17, 25" in run("log", "checkpoint", log, "--size", 7, code=1).output
    assert "cannot be read: No such file" in run("log", "keys", "show", tmp_path / "none", code=1).output
    bundle = json.loads(run("log", "prove", log, 3).stdout)
    (tmp_path / "empty").write_text(json.dumps({**bundle, "records": []}))
    assert "no record" in run("log", "check-proof", tmp_path / "empty", "--key", key, code=5).output


def test_a_log_that_is_gone_where_a_pin_saw_one_was_put_back(made: tuple[Path, str, Path], tmp_path: Path) -> None:
    """Without a pin there is just no log there."""
    log, key, _ = made
    run("log", "verify", log, "--key", key, "--pin", tmp_path / "pin")
    for _, path in Layout(log).segments():
        path.unlink()
    assert (
        "an earlier verification saw 25 records" in run("log", "verify", log, "--pin", tmp_path / "pin", code=3).output
    )
    gone = run("log", "verify", log, code=4).output
    assert f"there are checkpoints of a log in {log}, and no records" in gone
    assert f"next (its files are back from a copy): effectsvc log verify {log}" in gone
    assert stranger.verify(log, key, tmp_path / "pin") == 3
    assert stranger.verify(log, key) == int(verify(log, key=key).verdict) == 4


def test_a_log_is_followed_as_it_grows(made: tuple[Path, str, Path], signer: Signer) -> None:
    """Each record once, from where it was asked for on; also over the end of a segment."""
    log, _, key = made
    command = [sys.executable, "-m", "effectsvc.cli", "log", "follow", str(log), "--from", "23", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        shown = [json.loads(process.stdout.readline())["index"] for _ in range(2)]
        stream = Stream(n=24, at_ms=START_MS + 1_000_000)
        stream.lives(2, start=8)
        with LogWriter(log, origin=ORIGIN, signers=[load_signer(key)], segment_records=26) as writer:
            writer.append(stream.entries)
        shown += [json.loads(process.stdout.readline())["index"] for _ in range(6)]
        process.send_signal(signals.SIGINT)
        assert process.wait(30) == 0
    assert shown == list(range(23, 31))
    assert len(Layout(log).segments()) == 2


def test_records_are_shown_found_and_exported(made: tuple[Path, str, Path], tmp_path: Path) -> None:
    log, _, _ = made
    assert len(run("log", "show", log).output.splitlines()) == 20
    assert len(run("log", "show", log, -5).output.splitlines()) == 5
    shown = json.loads(run("log", "show", log, 3, 3, "--json").stdout)
    assert (shown["index"], shown["type"], shown["entry"]["outcome"]) == (3, "outcome", "returned")
    assert len(run("log", "find", log, "effect-2").output.splitlines()) == 3
    assert len(run("log", "find", log, "--type", "decision").output.splitlines()) == 8
    run("log", "find", log, "no-such-effect", code=6)
    run("log", "show", log, 99, code=6)
    run("log", "export", log, "--format", "jsonl", "--out", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes().splitlines() == read_lines(log)
    run("log", "export", log, "--format", "jsonl", "--out", tmp_path / "copy", code=4)


def test_the_airlock_form_is_a_chain_of_the_same_facts(made: tuple[Path, str, Path], tmp_path: Path) -> None:
    """As its own tools check it: a hash over all else, quoting the one before; outcomes quote decisions."""
    log, _, _ = made
    run("log", "export", log, "--format", "airlock", "--out", tmp_path / "airlock")
    previous, decisions = "0" * 64, set()
    records = [json.loads(line) for line in (tmp_path / "airlock").read_text().splitlines()]
    for seq, record in enumerate(records):
        body = {name: value for name, value in record.items() if name != "record_hash"}
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        assert (record["seq"], record["prev_hash"]) == (seq, previous)
        assert record["record_hash"] == hashlib.sha256(canonical).hexdigest()
        previous = record["record_hash"]
        if record["stage"] == "policy":
            decisions.add(previous)
            assert record["details"]["verdict"] == record["decision"] == "allow"
            assert record["details"]["policy_digest"] == "no_policy"
        else:
            assert record["details"]["decision_hash"] in decisions
    assert len(records) == 16


def test_proofs_and_bundles_are_checked_with_the_key_alone(made: tuple[Path, str, Path], tmp_path: Path) -> None:
    log, key, _ = made
    proof = tmp_path / "proof"
    run("log", "prove", log, 7, "--out", proof)
    assert "record" in run("log", "check-proof", proof, "--key", key).output
    run("log", "bundle", log, "effect-3", "--out", proof)
    assert "records 10, 11, 12 are in the log" in run("log", "check-proof", proof, "--key", key).output
    value = json.loads(proof.read_bytes())
    value["records"][1]["line"] = value["records"][1]["line"].replace("acme", "acmf")
    proof.write_text(json.dumps(value))
    assert "Record 11 is not in the log" in run("log", "check-proof", proof, "--key", key, code=5).stderr
    run("log", "prove", log, "--consistent-with", 17, "--out", proof)
    assert "begins with what it was at size 17" in run("log", "check-proof", proof, "--key", key).output
    proof.write_bytes(proof.read_bytes().replace(b'"proof": [\n    "', b'"proof": [\n    "0', 1))
    run("log", "check-proof", proof, "--key", key, code=5)
    assert run("log", "prove", log, 7, "--tlog").output.startswith("c2sp.org/tlog-proof@v1\nindex 7\n")
    run("log", "prove", log, code=2)
    run("log", "bundle", log, "no-such-effect", code=6)


def test_a_second_host_cosigns_what_it_saw(made: tuple[Path, str, Path], tmp_path: Path) -> None:
    """Its key is asked for by `--witness`; it never signs a log that is not the one it saw before."""
    log, key, _ = made
    witness = run("log", "keys", "gen", tmp_path / "w", "--name", "witness.example", "--cosigner").output.strip()
    assert run("log", "keys", "show", tmp_path / "w").output.strip() == witness
    run("log", "verify", log, "--witness", witness, code=4)
    words = ("log", "cosign", log, "--pin", tmp_path / "pin", "--key-file", tmp_path / "w", "--key", key)
    assert "cosigned example.org/acme/pay/0 at size 25" in run(*words).output
    run(*words)
    report = verify(log, key=key, witnesses=[witness])
    assert (int(report.verdict), report.level, report.witnessed_to) == (0, "witnessed", 25)
    assert run("log", "checkpoint", log).output.count("witness.example") == 1
    put_lines(log, read_lines(log)[:17])
    for size, path in Layout(log).notes():
        if size > 17:
            path.unlink()
    Layout(log).latest.unlink()
    assert "TRUNCATED" in run(*words, code=5).stderr


def test_a_log_is_pruned_and_its_key_rolled_by_command(tmp_path: Path, signer: Signer) -> None:
    stream, log, key = Stream(), tmp_path / "log", tmp_path / "key"
    stream.lives(20)
    write(log, signer, stream, segment_records=16)
    save_signer(signer, key)
    words = ("log", "prune", log, "--before", 40, "--key-file", key, "--reason", "retention")
    assert "would remove: 2 segments, records 0 to 31" in run(*words, "--dry-run").output
    run(*words, code=2)  # nobody said yes, and there is no terminal to ask on
    shown = run(*words, "--yes").output
    assert "removed 2 segments" in shown
    assert "10 ended attempts in 650 bytes" in shown
    assert "pruned: 10 attempts that ended before record 32 are kept" in run("log", "verify", log).output
    run("log", "keys", "gen", tmp_path / "new", "--name", "example.org/acme/pay-2")
    words = ("log", "keys", "roll", log, "--old", key, "--new", tmp_path / "new", "--reason", "a year", "--yes")
    assert "rolled at size" in run(*words).output
    assert "pay-2" in run("log", "checkpoint", log, "--sign", "--key-file", tmp_path / "new").output
    assert int(verify(log, key=str(signer.vkey)).verdict) == stranger.verify(log, str(signer.vkey)) == 0


def test_commands_that_sign_checkpoints_give_them_the_secret_s_line(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the exporter does with the same option: a roll, a prune, and a checkpoint by hand."""
    stream, log, key, secret = Stream(), tmp_path / "log", tmp_path / "key", new_signer("example.org/mac", kind=HMAC)
    stream.lives(20)
    write(log, signer, stream, segment_records=16)
    save_signer(signer, key)
    run("log", "keys", "gen", tmp_path / "new", "--name", "example.org/acme/pay-2")
    monkeypatch.setenv("THE_SECRET", secret.secret_text())
    monkeypatch.setenv("NO_SECRET", signer.secret_text())
    roll = ("keys", "roll", log, "--old", key, "--new", tmp_path / "new", "--reason", "a year", "--yes")
    prune = ("prune", log, "--before", 40, "--key-file", tmp_path / "new", "--reason", "retention", "--yes")
    stamp = ("checkpoint", log, "--sign", "--key-file", tmp_path / "new")
    for words in (roll, prune, stamp):
        assert "no secret of HMAC lines" in run("log", *words, "--hmac-env", "NO_SECRET", code=1).output
        assert "holds no key" in run("log", *words, "--hmac-env", "NOT_SET", code=1).output
        run("log", *words, "--hmac-env", "THE_SECRET")
        report = verify(log, secret=secret.secret_text())
        assert (int(report.verdict), report.uncovered) == (0, 0), words


def test_a_log_of_which_something_is_missing_is_never_told_as_one_that_needs_nothing(
    tmp_path: Path, signer: Signer
) -> None:
    """A file that is gone can be fetched; a later version is read by a later verifier."""
    stream, log, key, pin = Stream(), tmp_path / "log", tmp_path / "key", tmp_path / "pin"
    stream.lives(20)
    write(log, signer, stream, segment_records=16)
    save_signer(signer, key)
    pin.write_bytes(Layout(log).note(16).read_bytes())
    run("log", "prune", log, "--before", 40, "--key-file", key, "--reason", "retention", "--yes")
    Layout(log).note(16).unlink()
    said = run("log", "verify", log, "--pin", pin, code=4).output
    assert "PIN_PRUNED" in said
    assert "next (the missing file is back from a copy of the log): effectsvc log verify" in said
    Layout(log).note(32).unlink()
    said = run("log", "verify", log, code=4).output
    assert "ANCHOR_UNSIGNED" in said
    assert "next (the missing file is back from a copy of the log): effectsvc log verify" in said
    anchor = Layout(log).anchor(32)
    anchor.write_bytes(anchor.read_bytes().replace(b'"v":3', b'"v":4'))
    said = run("log", "verify", log, code=4).output
    assert "UNKNOWN_VERSION" in said
    assert "next (a later effectsvc is installed): effectsvc log verify" in said


def test_commands_that_look_after_a_log_print_records_too(tmp_path: Path, signer: Signer) -> None:
    """Each line is held against its schema as it is read."""
    stream, log, key = Stream(), tmp_path / "log", tmp_path / "key"
    stream.lives(20)
    write(log, signer, stream, segment_records=16)
    save_signer(signer, key)

    def told(*words: object) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(run("log", *words, "--json").stdout.splitlines()[0])
        return record

    witness = told("keys", "gen", tmp_path / "w", "--name", "witness.example", "--cosigner")["key"]
    assert told("keys", "show", tmp_path / "w")["key"] == witness
    cosigned = told("cosign", log, "--pin", tmp_path / "pin", "--key-file", tmp_path / "w")
    assert cosigned["cosignature"].split()[1] == "witness.example"
    assert told("find", log, "effect-3")["entry"]["effect"] == "effect-3"
    prune = ("prune", log, "--before", 40, "--key-file", key, "--reason", "retention", "--yes")
    assert [told(*prune, *dry)["answer"] for dry in (("--dry-run",), (), ())] == [
        "would_prune", "pruned", "already_pruned",
    ]  # fmt: skip
    assert told("verify", log)["kept"] == 10
    forgotten = told("prune", log, "--through-head", "--forget", *prune[4:])
    assert (forgotten["kept"], forgotten["kept_bytes"]) == (0, 0)
    assert told("verify", log)["unchecked_before"] == forgotten["size"]
    run("log", "keys", "gen", tmp_path / "new", "--name", "example.org/acme/pay-2")
    roll = ("keys", "roll", log, "--old", key, "--new", tmp_path / "new", "--reason", "a year", "--yes")
    assert [told(*roll, *dry)["answer"] for dry in (("--dry-run",), (), ())] == [
        "would_roll", "rolled", "already_rolled",
    ]  # fmt: skip


# ---- the exporter's process ------------------------------------------------------------------------------------------


@pytest.fixture
def start(feeder: Feeder, signer: Signer, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts `effectsvc export` on the cell; what still runs at the end is killed."""
    save_signer(signer, tmp_path / "key")
    running: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "EFFECTSVC_REDIS_URL": feeder.url, "EFFECTSVC_CELL": feeder.keys.cell,
            "EFFECTSVC_LOG_ORIGIN": ORIGIN, "EFFECTSVC_LOG_DIR": str(tmp_path / "log"),
            "EFFECTSVC_LOG_KEY_FILE": str(tmp_path / "key"), "EFFECTSVC_CHECKPOINT_RECORDS": "64",
        }  # fmt: skip
        command = [sys.executable, "-m", "effectsvc.cli", "export", *words]
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def wait_for(what: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    until = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_process_exports_and_signs_to_the_end_when_it_is_told_to_stop(
    feeder: Feeder, start: Callable[..., Any], tmp_path: Path
) -> None:
    n = feeder.feed(40)
    first = start()
    wait_for(lambda: feeder.store.send(feeder.commands.watermark()) == n)
    standby = start()
    n = feeder.feed(3)
    wait_for(lambda: feeder.store.send(feeder.commands.watermark()) == n)
    first.send_signal(signals.SIGTERM)
    assert first.wait(30) == 0
    n = feeder.feed(3)
    wait_for(lambda: feeder.store.send(feeder.commands.watermark()) == n)
    standby.send_signal(signals.SIGTERM)
    assert standby.wait(30) == 0
    report = verify(tmp_path / "log", max_uncovered=0)
    assert (int(report.verdict), report.happened) == (0, 46)
    assert start("--once").wait(30) == 0


@dataclass
class Hunt:
    """Two exporters of one log; in each round one of them is killed while entries come in, and another replaces it."""

    feeder: Feeder
    start: Callable[..., Any]
    log: Path
    kills: int = 0
    of_the_writer: int = 0
    behind: int = 0
    """Kills at a moment when the stream held what was not yet exported."""

    def watermark(self) -> int:
        return int(self.feeder.plain.hget(self.feeder.keys.exporter, "n") or 0)

    def play(self, *, rounds: int, lives: int) -> None:
        drawn = random.Random(rounds)
        pair = [self.start(), self.start()]
        for _ in range(rounds):
            seen = self.watermark()
            feeding = threading.Thread(target=self.feeder.feed, args=(lives,))
            feeding.start()
            wait_for(lambda seen=seen: self.watermark() > seen, timeout_s=120)  # somebody exports again
            time.sleep(drawn.uniform(0, 0.1))
            victim = pair.pop(drawn.randrange(2))
            was_writing = victim.pid == writer_of(self.log)
            victim.kill()
            victim.wait()
            self.kills, self.of_the_writer = self.kills + 1, self.of_the_writer + was_writing
            feeding.join()
            self.behind += was_writing and self.watermark() < int(self.feeder.meta()["n"])
            pair.append(self.start())
        n = int(self.feeder.meta()["n"])
        wait_for(lambda: self.watermark() == n, timeout_s=120)
        # Who exported the last of it may be the one that was killed: then another signs, once it has the log.
        wait_for(lambda: writer_of(self.log) in {each.pid for each in pair}, timeout_s=120)
        for process in pair:
            process.send_signal(signals.SIGTERM)
        for process in pair:
            assert process.wait(60) in (0, -signals.SIGTERM)  # one that has only just been started ends at once
        assert [json.loads(line)["s"].get("n", 0) for line in read_lines(self.log)] == list(range(n + 1))
        assert int(verify(self.log, max_uncovered=0).verdict) == stranger.verify(self.log) == 0

    def __str__(self) -> str:
        torn, notes = Layout(self.log).quarantine_dir.glob("*.tail"), Layout(self.log).notes()
        return (
            f"{self.kills} kills, {self.of_the_writer} of the one that wrote, {self.behind} of these in the middle of "
            f"an export, {len(list(torn))} torn ends; {self.watermark()} entries, {len(notes)} checkpoints"
        )


def writer_of(log: Path) -> int:
    """The process that has the log's lock, as the kernel lists it; 0 for none."""
    inode = Layout(log).lock.stat().st_ino
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "FLOCK" in line]
    return next((int(words[4]) for words in held if "->" not in words and words[5].endswith(f":{inode}")), 0)


def test_two_exporters_that_are_killed_at_any_moment_export_each_entry_once(
    feeder: Feeder, start: Callable[..., Any], tmp_path: Path
) -> None:
    Hunt(feeder, start, tmp_path / "log").play(rounds=3, lives=200)


@pytest.mark.storm
@pytest.mark.timeout(1_800)
def test_fifty_kills_over_a_hundred_thousand_entries(feeder: Feeder, start: Callable[..., Any], tmp_path: Path) -> None:
    hunt = Hunt(feeder, start, tmp_path / "log")
    hunt.play(rounds=50, lives=667)
    print(hunt)
    assert hunt.watermark() > 100_000
    assert hunt.of_the_writer >= 15
    assert hunt.behind >= 5


def test_a_damaged_end_is_mended_by_command(feeder: Feeder, start: Callable[..., Any], tmp_path: Path) -> None:
    """Looked at first, mended once, and whole after that."""
    log, key = tmp_path / "log", tmp_path / "key"
    environment = {"EFFECTSVC_REDIS_URL": feeder.url, "EFFECTSVC_CELL": feeder.keys.cell, "EFFECTSVC_ACTOR": "pat"}
    feeder.feed(10)
    assert start("--once").wait(30) == 0
    lines = read_lines(log)
    put_lines(log, lines[:-2])

    def recover(*words: str) -> str:
        words = ("log", "recover", str(log), "--key-file", str(key), "--reason", "a cut end", "--json", *words)
        ran = command_line.run(*words, environment=environment)
        assert ran.exit_code == 0, ran.output
        return str(json.loads(ran.stdout)["answer"])

    assert (recover("--dry-run"), recover("--yes"), recover("--yes")) == ("would_mend", "mended", "already_whole")
    assert command_line.run("log", "recover", tmp_path / "no", "--reason", "r", environment=environment).exit_code == 6
