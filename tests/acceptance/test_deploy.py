"""What `deploy/` holds does what it says: the server's configuration and its users, tried against a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from effectsvc.client import AsyncEffectClient
from effectsvc.errors import StoreProtocolError
from effectsvc.settings import load_settings
from effectsvc.store.keys import CellKeys
from effectsvc.store.scripts import all_scripts
from tests.acceptance import tools_for_tests
from tests.acceptance.deployment import CALLER, case, soon
from tests.acceptance.guarded_server import GuardedServer, guarded_server

CELL, OTHER = CellKeys("effects"), CellKeys("other")
LOOKED_FOR = {"effects-agent: command config|get (toplevel)"}
"""A client asks whether the server is safe; where it may not, the workers' answer has to do."""
SCRIPTS = {
    "agent": ("open_run", "propose", "admit_read", "close_read", "cancel", "set_run", "halt_run", "close_run"),
    "worker": tuple(all_scripts()),
    "relay": tuple(all_scripts()),
    "operator": tuple(all_scripts()),
    "export": ("lease_export", "ack_export"),
}
"""Which operations each user sends. A command that is refused half-way leaves what the script did before it."""
KEYS = {
    "log_keys": CELL.log_keys, "effect": CELL.effect("x"), "payload": CELL.payload("x"), "result": CELL.result("x"),
    "parts": CELL.parts("x"), "approvals": CELL.approvals("x"), "run": CELL.run("x"), "parent": CELL.run("y"),
    "above": CELL.run("y"), "open": CELL.run_open("x"), "call": CELL.call("x"), "intent": CELL.intent("x"),
    "old_intent": CELL.intent("y"), "claim": CELL.intent("y"), "look": CELL.effect("y"), "read": CELL.read("x"),
    "key": CELL.effect("x"),
    "other": CELL.effect("y"), "compensated": CELL.effect("y"),
    "keys": CELL.rate("x"), "target": CELL.target("x"), "old_target": CELL.target("y"),
    "lane": CELL.lane("x"), "rerun": CELL.rerun("x"),
    "lookup": CELL.lookup("x"), "parked": CELL.parked("x"), "live": CELL.live("x"), "asked": CELL.asked("x"),
    "due": CELL.lane("x"), "queue": CELL.lane("x"), "tomb_effect": CELL.tombs(1), "tomb_call": CELL.tombs(2),
    "tomb_intent": CELL.tombs(3), "body": CELL.published("x"),
    "more": CELL.intent("x"), "superseded": CELL.intent("x"), "record_of_it": CELL.effect("x"),
    "joined": CELL.call("x"),
}  # fmt: skip
"""A key of each kind, by the name that the scripts give it; where none stands here, the cell's key of that name."""
WORDS = {
    "HSET": "f v", "HSETNX": "f v", "HGET": "f", "HMGET": "f", "HDEL": "f", "HINCRBY": "f 1", "SET": "v",
    "PEXPIRE": "1", "ZADD": "1 m", "ZREM": "m", "ZSCORE": "m", "ZCOUNT": "0 1", "ZRANGE": "0 1",
    "ZRANGEBYSCORE": "0 1", "ZREMRANGEBYSCORE": "0 1", "SADD": "m", "SREM": "m", "SISMEMBER": "m", "LINDEX": "0",
    "LPUSH": "v", "LTRIM": "0 1", "XADD": "* f v", "XTRIM": "MAXLEN 1", "PUBLISH": "m",
}  # fmt: skip
"""What makes each command whole after its key."""
CALL = re.compile(r"redis\.call\('([A-Z]+)'(?:, *([a-z_]+)(?:\[\w+\])?)?")


USED = {f"contract:{name}" for name in ("stamp", "upload", "look_up_case")}


def published(guarded: GuardedServer) -> set[str]:
    return {name.decode() for name in guarded.root.hkeys(CELL.catalogue)}


def inner_commands(script: str) -> set[tuple[str, ...]]:
    """Every command that a script may send, with a key of the kind that it names."""
    found = set()
    for command, name in CALL.findall(all_scripts()[script].text):
        if command in {"INFO", "TIME"}:
            found.add((command,))
        elif command == "PUBLISH":
            found.add((command, CELL.bell_channel, "m"))
        else:
            kind = name.removeprefix("k_")
            key = KEYS.get(kind) or getattr(CELL, kind)
            found.add((command, key, *WORDS.get(command, "").split()))
    return found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("guarded"), "effects", "other") as server:
        made = server.run("operator", "cell", "init")
        assert made.returncode == 0, made.stderr
        assert server.refusals() == []
        yield server


async def test_a_whole_effect_runs_under_the_users_of_agent_worker_and_relay(
    guarded: GuardedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proposed, joined, begun and committed; a read, a cancelled effect and a halted run; nothing is refused."""
    for name, value in guarded.environment("agent").items():
        monkeypatch.setenv(name, value)
    with guarded.process("relay", "relay"), guarded.process("worker", "worker"):
        async with AsyncEffectClient(load_settings(), tools=tools_for_tests.tools) as client:
            await soon(lambda: published(guarded) >= USED, "a worker publishes its contracts")
            run = await client.run(tenant_id="acme", run_id="guarded", caller=CALLER)
            effect = await run.propose("stamp", case(1), tool_call_id="call_1")
            assert (await effect.wait(timeout=30)).status == "ok"
            again = await run.propose("stamp", case(1), tool_call_id="call_2")
            assert (await again.wait(timeout=10)).status == "ok"
            read = await run.call("look_up_case", {"case_id": "case_1"}, tool_call_id="call_3", timeout=10)
            assert read.status != "denied"  # the provider is away, so it fails; what counts is the ACL log
            await run.set_state("closing")
            late = await run.propose("upload", case(2), tool_call_id="call_4")
            await late.cancel()
            await run.halt("enough")
    assert set(guarded.refusals()) <= LOOKED_FOR
    assert (guarded.directory / "stamps").read_text().split() == [case(1)["case_id"]]


@pytest.mark.parametrize("role", SCRIPTS)
def test_no_command_inside_a_script_is_refused_to_who_may_send_it(guarded: GuardedServer, role: str) -> None:
    """A refusal inside a script would leave half of an operation."""
    answers = {
        (script, *words): dryrun(guarded, role, *words) for script in SCRIPTS[role] for words in inner_commands(script)
    }
    assert {asked: answer for asked, answer in answers.items() if answer != "OK"} == {}


def dryrun(guarded: GuardedServer, role: str, *words: str) -> str:
    """OK, or why the server would refuse the command to the user."""
    answer = guarded.root.execute_command("ACL", "DRYRUN", f"effects-{role}", *words)
    return answer.decode() if isinstance(answer, bytes) else str(answer)


@pytest.mark.parametrize("role", ["agent", "worker", "relay", "export", "operator", "reader"])
def test_a_user_of_one_cell_reaches_nothing_of_another(guarded: GuardedServer, role: str) -> None:
    """Neither its keys, nor by a script, nor its channels, nor RQ's keys of it."""
    with guarded.client(role) as client, client.pubsub() as heard:
        assert client.ping()
        for words in [
            ("HGETALL", OTHER.meta),
            ("GET", OTHER.payload("x")),
            ("HSET", OTHER.effect("x"), "state", "proposed"),
            ("XADD", OTHER.log, "*", "n", "1"),
            ("EVAL", "return redis.call('HGET', KEYS[1], 'n')", "1", OTHER.meta),
            ("EVAL", f"return redis.call('HGET', '{OTHER.meta}', 'n')", "0"),
            ("PUBLISH", OTHER.bell_channel, "x"),
            ("LPUSH", "{other}:rq:queue:effectsvc:other:default", "x"),
            ("LPUSH", "rq:queue:effectsvc:other:default", "x"),
        ]:
            assert refused(client, *words), words
        heard.subscribe(OTHER.bell_channel)
        with pytest.raises(NoPermissionError):
            heard.get_message(timeout=30)
    guarded.refusals()


def refused(client: Redis, *words: str) -> bool:
    """Whether the ACL, and nothing else, refuses it, at the top or inside a script."""
    try:
        client.execute_command(*words)
    except NoPermissionError:
        return True
    except ResponseError as error:
        return "ACL failure in script" in str(error)
    return False


@pytest.mark.parametrize("role", ["agent", "worker", "relay", "export", "operator", "reader"])
def test_no_user_of_a_cell_may_ruin_the_server(guarded: GuardedServer, role: str) -> None:
    for words in [
        ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "SET", "appendfsync", "no"), ("SHUTDOWN",), ("DEBUG", "RELOAD"),
        ("ACL", "LIST"), ("ACL", "SETUSER", "x"), ("KEYS", "*"), ("MONITOR",), ("SCRIPT", "FLUSH"), ("SCRIPT", "KILL"),
        ("REPLICAOF", "NO", "ONE"), ("FUNCTION", "FLUSH"), ("XDEL", CELL.log, "1-1"), ("RENAME", CELL.log, CELL.meta),
        ("CLIENT", "KILL", "TYPE", "normal"),
    ]:  # fmt: skip
        assert dryrun(guarded, role, *words) != "OK", words


def test_without_a_name_nobody_comes_in(guarded: GuardedServer) -> None:
    port = guarded.root.connection_pool.connection_kwargs["port"]
    with Redis(port=port, protocol=2) as nobody, pytest.raises(AuthenticationError):
        nobody.ping()


def test_a_reader_can_write_nothing_and_run_no_script(guarded: GuardedServer) -> None:
    """Every command of the server that may write, or that runs a script, is refused, whatever its arguments."""
    writes = [
        name.upper()
        for name, about in guarded.root.command().items()
        if {"write", "movablekeys"} & set(map(str, about["flags"])) and name not in READS_WITH_KEYS_TO_FIND
    ]
    assert {"SET", "HSET", "XADD", "DEL", "EVAL", "EVALSHA", "FCALL", "XTRIM", "EXPIRE"} <= set(writes)
    granted = guarded.root.acl_getuser("effects-reader")["commands"]
    assert not {f"+{name.lower()}" for name in writes} & set(granted)
    with guarded.client("reader") as client:
        assert client.hget(CELL.meta, "epoch")
        assert refused(client, "SET", CELL.doctor, "1")
        assert refused(client, "HSET", CELL.meta, "n", "0")
        assert refused(client, "EVAL", "return 1", "0")
        assert refused(client, "PUBLISH", CELL.bell_channel, "x")
    guarded.refusals()


READS_WITH_KEYS_TO_FIND = {"xread"}
"""Reads whose keys stand at no fixed place, which COMMAND marks as it marks EVAL."""


@pytest.mark.parametrize("words", [
    ("HDEL", CELL.switches, "cell"),
    ("HSET", CELL.switches, "cell", ""),
    ("HSET", CELL.freezes, "x", "y"),
    ("HSET", CELL.catalogue, "policy:policy", "x"),
    ("SET", CELL.published("x"), "y"),
    ("SADD", CELL.approvals("x"), "me"),
    ("SET", CELL.result("x"), "y"),
    ("HSET", CELL.meta, "epoch", "x"),
    ("HSET", CELL.epochs, "x", "y"),
    ("DEL", CELL.log),
    ("SET", CELL.log, "x"),
    ("XTRIM", CELL.log, "MAXLEN", "0"),
    ("XRANGE", CELL.log, "-", "+"),
    ("DEL", CELL.call("x")),
    ("DEL", CELL.intent("x")),
    ("HDEL", CELL.tombs(1), "x"),
    ("ZREM", CELL.leases, "x"),
    ("ZREM", CELL.unknown, "x"),
    ("EVAL", "return redis.call('HDEL', KEYS[1], 'cell')", "1", CELL.switches),
    ("LPUSH", "{effects}:rq:queue:effectsvc:effects:default", "x"),
], ids=lambda words: " ".join(words)[:60])  # fmt: skip
def test_an_agent_by_hand_can_not(guarded: GuardedServer, words: tuple[str, ...]) -> None:
    """Thaw, publish, approve, make a result, delete a claim, cut the log: not even with a script of its own."""
    with guarded.client("agent") as client:
        assert refused(client, *words)
    guarded.refusals()


def test_a_reader_sees_with_the_command_line_and_an_operator_acts(guarded: GuardedServer) -> None:
    """Freeze and thaw are the operator's; a reader lists and shows, and its own attempt to freeze is told in words."""
    looks = [("cell", "status"), ("effects", "list"), ("approvals", "list"), ("freezes",), ("quarantine", "list"),
             ("tools", "list"), ("runs", "list"), ("workers", "list"), ("top", "--once")]  # fmt: skip
    for words in looks:
        for role in ("reader", "operator"):
            seen = guarded.look(role, *words)
            assert seen.exit_code == 0, (role, words, seen.output)
    denied = guarded.run("reader", "freeze", "tool", "stamp", "--reason", "a trial", "--yes")
    assert denied.returncode == 7, denied.stderr
    assert "ACL denies" in denied.stderr
    guarded.refusals()


def test_doctor_finds_this_server_safe(guarded: GuardedServer) -> None:
    """As the operator, who may read the configuration: no danger in what redis.conf says."""
    seen = guarded.run("operator", "doctor")
    assert "begin is durable on this node" in seen.stdout
    codes = {line.split()[1].rstrip(":") for line in seen.stdout.splitlines() if line.startswith(("DANGER", "WARNING"))}
    assert codes <= {"lane_unserved", "disk_low"}, seen.stdout  # no worker runs, and the disk is the test machine's


async def test_a_command_that_is_denied_inside_a_script_is_told_as_a_fault_of_the_acl(guarded: GuardedServer) -> None:
    """It is no refusal before the fact: the script may have done a part of its work."""
    lines = (guarded.directory / "users" / "users.acl").read_text().splitlines()
    rules = next(line for line in lines if line.startswith("user effects-agent "))
    half = rules.replace("effects-agent", "half").replace("(+xadd ~{effects}:log)", "")
    guarded.root.execute_command("ACL", "SETUSER", *re.findall(r"\([^)]*\)|\S+", half)[1:], "nopass")
    url = re.sub("//[^@]*@", "//half:any@", guarded.url("agent"))
    async with AsyncEffectClient(load_settings(redis_url=url), tools=tools_for_tests.tools) as client:
        run = await client.run(tenant_id="acme", run_id="half", caller=CALLER)
        with pytest.raises(StoreProtocolError, match="ACL denied a command inside a script"):
            await run.halt("enough")
    guarded.refusals()


def test_the_exporter_writes_signs_and_trims_under_its_user_and_reaches_no_effect(guarded: GuardedServer) -> None:
    log, key = guarded.directory / "log", guarded.directory / "log-key"
    made = guarded.run("operator", "log", "keys", "gen", str(key), "--name", "test/log")
    assert made.returncode == 0, made.stderr
    written = guarded.run("export", "export", "--once", "--log", str(log), "--key-file", str(key))
    assert written.returncode == 0, written.stderr
    assert guarded.refusals() == []
    assert guarded.run("operator", "log", "verify", str(log), "--key", made.stdout.strip()).returncode == 0
    with guarded.client("export") as client:
        assert refused(client, "HGETALL", CELL.effect("x"))
        assert refused(client, "GET", CELL.payload("x"))
        assert refused(client, "XADD", CELL.log, "*", "n", "1")
        assert refused(client, "HSET", CELL.meta, "n", "0")
    guarded.refusals()
