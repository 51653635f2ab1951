"""The signed webhook: a real receiver, the cell's real log."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from effectsvc import counts
from effectsvc.core.decision import note_entry
from effectsvc.core.effect import Caller, Payload
from effectsvc.errors import SettingsError
from effectsvc.policy.tool_policy import Policy, ToolPolicy
from effectsvc.settings import Settings, load_settings
from effectsvc.store.commands import Commands, Read
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from effectsvc.tools.contract import ToolContract
from effectsvc.webhook import Webhook
from tests.acceptance.deployment import until
from tests.contract.stage import AGENT, LONG_MS, TOOL, Stage

KEY = bytes(range(32))


@dataclass
class Receiver:
    """What came in: headers and body of each request; `answers` are the statuses of the next ones."""

    url: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            status = receiver.answers.pop(0) if receiver.answers else 204
            self.send_response(status)
            if status == 302:
                self.send_header("location", receiver.url)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()


@pytest.fixture
def settings(redis_url: str, cell_name: str, receiver: Receiver, tmp_path: Path) -> Settings:
    (tmp_path / "key").write_text("whsec_" + base64.b64encode(KEY).decode())
    return load_settings(
        redis_url=redis_url, cell=cell_name, webhook_url=receiver.url, webhook_key_file=tmp_path / "key"
    )


@pytest.fixture
def stage(redis_url: str, cell_name: str) -> Iterator[Stage]:
    with SyncStore(redis_url) as store:
        yield Stage(store, Commands(CellKeys(cell_name)))


@pytest.fixture
def webhook(settings: Settings, stage: Stage) -> Iterator[Webhook]:
    webhook = Webhook(settings)
    yield webhook
    webhook.close()


def propose_held(stage: Stage) -> str:
    at = stage.address()
    entry = note_entry("proposal", by="client", at_ms=1, facts={"effect": at.effect_id})
    held = {"to": "held", "rule": "approval_required", "layer": "8:approval", "ttl_ms": LONG_MS, "entry": entry}
    return stage.propose(at, **held).effect_id


def tell_all(webhook: Webhook) -> None:
    while webhook.tell_once():
        pass


def test_what_waits_for_a_person_is_told_once_signed_and_without_arguments(
    stage: Stage, webhook: Webhook, receiver: Receiver
) -> None:
    effect_id = propose_held(stage)
    tell_all(webhook)
    (event,) = receiver.events
    assert event["type"] == "effect.held"
    assert event["data"]["effect_id"] == effect_id
    assert event["data"]["rule"] == "approval_required"
    headers, body = receiver.got[0]
    assert b"payload" not in body
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"


class Mail(BaseModel):
    case_id: str
    contact: str = ""
    text: str = ""


def published(stage: Stage, **fields: Any) -> None:
    """A worker publishes the tool's contract, with these fields."""
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")
    made = ToolContract.declare(name=TOOL, version=1, input_model=Mail, output_model=None, **texts, **fields)
    body = orjson.dumps(made.published())
    stage.send(
        stage.commands.publish(kind="contract", name=TOOL, version=1, digest=made.digest, body=body, entry=b"{}")
    )


def propose_mail(stage: Stage) -> str:
    """Held, with arguments of which one holds what is redacted, and one is not listed."""
    sent = orjson.dumps({"case_id": "case_1", "contact": "ann@example.com", "text": "unlisted"})
    rest: dict[str, Any] = {"justification": "", "above": (), "stripped": (), "contract": "", "policy": ""}
    caller = Caller(agent_id=AGENT)
    payload = Payload(arguments=sent, run_id="r", tool_call_id="c", caller=caller, intent_key="0" * 64, **rest)
    at = stage.address()
    entry = note_entry("proposal", by="client", at_ms=1, facts={"effect": at.effect_id})
    held = {"to": "held", "rule": "approval_required", "layer": "8:approval", "ttl_ms": LONG_MS, "entry": entry}
    return stage.propose(at, payload=payload.to_bytes(), **held).effect_id


def test_the_arguments_that_a_contract_lists_are_told_redacted(
    stage: Stage, webhook: Webhook, receiver: Receiver
) -> None:
    """Beside them no other argument; a tool that lists none tells none."""
    published(stage, audit_fields=("case_id", "contact"))
    propose_mail(stage)
    tell_all(webhook)
    (event,) = receiver.events
    assert event["data"]["audit"] == {"case_id": "case_1", "contact": "[redacted:email]"}
    assert b"unlisted" not in receiver.got[0][1]


@pytest.mark.parametrize("how", ["contract", "policy", "a policy that cannot be read", "no audit fields"])
def test_what_is_restricted_leaves_by_no_webhook(stage: Stage, webhook: Webhook, receiver: Receiver, how: str) -> None:
    restricted = {"data_classification": "restricted"} if how == "contract" else {}
    published(stage, audit_fields=() if how == "no audit fields" else ("case_id",), **restricted)
    policy = Policy(tools=(ToolPolicy(name=TOOL, data_classification="restricted"),))
    body = orjson.dumps(policy.published()) if how == "policy" else b"{}"
    if "policy" in how:
        stage.send(
            stage.commands.publish(
                kind="policy", name="policy", version=1, digest=policy.digest, body=body, entry=b"{}"
            )
        )
    propose_mail(stage)
    tell_all(webhook)
    (event,) = receiver.events
    assert "audit" not in event["data"]
    assert b"case_1" not in receiver.got[0][1]


def test_a_receiver_that_was_away_is_told_again_under_the_same_id_and_in_order(
    stage: Stage, webhook: Webhook, receiver: Receiver
) -> None:
    first, second = propose_held(stage), propose_held(stage)
    receiver.answers = [500]
    with pytest.raises(urllib.error.HTTPError):
        tell_all(webhook)
    tell_all(webhook)
    assert [event["data"]["effect_id"] for event in receiver.events] == [first, first, second]
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert ids[0] == ids[1] != ids[2]


def test_a_redirect_is_not_followed(stage: Stage, webhook: Webhook, receiver: Receiver) -> None:
    propose_held(stage)
    receiver.answers = [302]
    with pytest.raises(urllib.error.HTTPError):
        webhook.tell_once()
    assert len(receiver.got) == 1


def test_of_two_relays_one_tells(stage: Stage, webhook: Webhook, settings: Settings, receiver: Receiver) -> None:
    propose_held(stage)
    assert webhook.tell_once()
    other = Webhook(settings)
    propose_held(stage)
    assert other.tell_once() == 0
    other.close()
    assert webhook.tell_once()
    assert len(receiver.got) == 2


def test_in_a_relays_thread_it_goes_on_by_itself(stage: Stage, webhook: Webhook, receiver: Receiver) -> None:
    receiver.answers = [503]
    webhook.start()
    effect_id = propose_held(stage)
    until(lambda: len(receiver.got) == 2, "the event is told again")
    assert receiver.events[-1]["data"]["effect_id"] == effect_id


@pytest.mark.parametrize("text", ["", "not base64!", "c2hvcnQ="])
def test_a_key_that_signs_nothing_worth_is_refused(settings: Settings, tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(SettingsError):
        Webhook(settings)


def test_a_url_without_a_key_is_refused(settings: Settings) -> None:
    with pytest.raises(SettingsError, match="signed"):
        Webhook(settings.model_copy(update={"webhook_key_file": None}))


def add_raw(stage: Stage, fields: dict[str, str | bytes]) -> str:
    """An entry that no script of ours wrote. Returns its id."""
    words = [each for pair in fields.items() for each in pair]
    return str(stage.send(Read(("XADD", stage.commands.keys.log, "*", *words), lambda raw: raw.decode())))


ROW: dict[str, str | bytes] = {
    "n": "1", "epoch": "e", "type": "proposal", "answer": "held", "rule": "r", "from": "none", "to": "held", "e": "{}",
}  # fmt: skip
CANARY = "canary-5e1f"


@pytest.mark.parametrize(
    "fields",
    [
        ROW | {"e": f"no JSON {CANARY}"},
        ROW | {"e": f'["{CANARY}"]'},
        ROW | {"n": CANARY},
        ROW | {"e": CANARY.encode() + b"\xff"},
        {"type": CANARY},
    ],
    ids=["no_json", "no_object", "no_number", "no_text", "no_fields"],
)
def test_an_entry_that_cannot_be_read_is_told_by_its_place_alone_and_holds_up_nothing(
    stage: Stage,
    webhook: Webhook,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
    fields: dict[str, str | bytes],
) -> None:
    """What it holds may be what nobody is to see; its id is the same each time it is told."""
    propose_held(stage)
    tell_all(webhook)
    before = counts.FAULTS.values().get(("webhook",), 0)
    stream_id = add_raw(stage, fields)
    good = propose_held(stage)
    receiver.answers = [503]
    with pytest.raises(OSError, match="503"):
        tell_all(webhook)
    tell_all(webhook)
    _, first, again, last = receiver.events
    assert first == again
    assert first == {
        "type": "entry.unreadable",
        "timestamp": int(stream_id.partition("-")[0]),
        "data": {"cell": stage.commands.keys.cell, "stream_id": stream_id},
    }
    assert receiver.got[1][0]["webhook-id"] == receiver.got[2][0]["webhook-id"]
    assert last["data"]["effect_id"] == good
    assert counts.FAULTS.values()[("webhook",)] == before + 2
    assert CANARY not in caplog.text


def test_an_entry_whose_effect_cannot_be_read_is_told_by_its_place_too(
    stage: Stage, webhook: Webhook, receiver: Receiver
) -> None:
    """A key of the wrong type would be refused at every try."""
    bad, good = propose_held(stage), propose_held(stage)
    key = stage.commands.keys.effect(bad)
    stage.send(Read(("DEL", key), int))
    stage.send(Read(("SET", key, "x"), lambda raw: raw))
    tell_all(webhook)
    assert [each["type"] for each in receiver.events] == ["entry.unreadable", "effect.held"]
    assert receiver.events[1]["data"]["effect_id"] == good
