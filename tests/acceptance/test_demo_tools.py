"""The demo's tools against the demo's providers: what each end of a call proves, and what the ledgers have then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from effectsvc.core.effect import Caller
from effectsvc.core.outcome import Absent, Found, NotFound, PartlyFound
from effectsvc.demo import tools as demo
from effectsvc.demo.case_system import CaseSystem
from effectsvc.demo.mail_system import MailSystem
from effectsvc.isolation import Isolation
from effectsvc.tools.connections import HttpConnections
from effectsvc.tools.context import EffectContext, SyncEffectContext, boot_now_s
from effectsvc.tools.tool import Tool
from effectsvc.tools.verdicts import Happened, NotHappened, Unclear, Verdict, verdict_of

CASE, CONTACT = "case_0001", "contact_0001_1"
ADDRESS = f"{CONTACT}@clients.example"
_numbers = count(1)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseSystem]:
    with CaseSystem(data_dir=tmp_path_factory.mktemp("cases")) as system:
        yield system


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailSystem]:
    with MailSystem(data_dir=tmp_path_factory.mktemp("mail")) as system:
        yield system


@pytest.fixture(autouse=True)
def _addresses(cases: CaseSystem, mail: MailSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(demo.CASES_URL_VARIABLE, cases.url)
    monkeypatch.setenv(demo.MAIL_VARIABLE, f"{mail.host}:{mail.port}")


@dataclass
class Attempts:
    """Runs a tool as an executor would, with a fresh intent, and keeps the parts that it recorded."""

    isolation: Isolation
    connections: HttpConnections
    intent_key: str = field(default_factory=lambda: f"{next(_numbers):064x}")
    parts: list[tuple[str, str]] = field(default_factory=list)

    def context(self, tool: Tool[Any, Any], *, completed: tuple[str, ...] = ()) -> EffectContext:
        async def record(name: str, _: str, ref: str) -> None:
            self.parts.append((name, ref))

        fields: dict[str, Any] = {
            "contract": tool.contract,
            "effect_id": "effect_1",
            "tenant_id": "acme",
            "run_id": "run_1",
            "tool_call_id": "call_1",
            "caller": Caller(agent_id="atlas"),
            "intent_key": self.intent_key,
            "occurrence": 1,
            "attempt": 1,
            "attempt_started_ms": 0,
            "deadline": boot_now_s() + tool.contract.timeout_s,
            "alive": lambda: True,
            "completed_parts": completed,
            "record_part": record,
            "http": self.connections,
        }
        if tool.isolation == "thread":
            return SyncEffectContext(loop=asyncio.get_running_loop(), **fields)
        return EffectContext(**fields)

    async def run(self, tool: Tool[Any, Any], args: Any, *, completed: tuple[str, ...] = ()) -> Verdict:
        ctx, contract = self.context(tool, completed=completed), tool.contract
        ended = await self.isolation.run(
            tool.function, args, ctx, isolation=contract.isolation, timeout_s=contract.timeout_s
        )
        return verdict_of(contract, ended, parts_begun=bool(ctx.parts_begun), sends=ctx.sends)


@pytest.fixture
async def attempts() -> AsyncIterator[Attempts]:
    isolation = Isolation(threads=2, children=1)
    isolation.start()
    yield Attempts(isolation, isolation.connections)
    await isolation.close()


def request(**changes: str) -> demo.DocumentRequest:
    fields: dict[str, Any] = {
        "case_id": CASE,
        "recipient_id": CONTACT,
        "template_id": "source-of-funds-request",
        "missing_items": ["bank statement"],
        **changes,
    }
    return demo.DocumentRequest(**fields)


def packet(*names: str) -> demo.Packet:
    attachments = [demo.Attachment(name=name, text=f"text of {name}") for name in names]
    return demo.Packet(case_id=CASE, packet_ref="PKT-1", title="Evidence", attachments=attachments)


def mails(system: MailSystem, attempts: Attempts) -> list[str]:
    key = attempts.context(demo.request_missing_document).idempotency_key
    return [row.name for row in system.ledger_rows(key=key)]


def rows(system: CaseSystem, attempts: Attempts, *parts: str) -> list[int]:
    """How many rows there are under the key of each part."""
    ctx = attempts.context(demo.upload_packet)
    return [len(system.ledger_rows(key=ctx.part_key(part))) for part in parts]


# ---- the mail ------------------------------------------------------------------------------------------------------


async def test_a_request_is_one_message_to_the_contact_under_the_effects_key(
    attempts: Attempts, mail: MailSystem
) -> None:
    verdict = await attempts.run(demo.request_missing_document, request())
    assert isinstance(verdict, Happened)
    assert mails(mail, attempts) == [ADDRESS]
    (row,) = mail.ledger_rows(key=attempts.context(demo.request_missing_document).idempotency_key)
    assert verdict.value == demo.Requested(recipient_id=CONTACT, provider_ref=row.ref)


async def test_a_mail_system_that_is_not_there_proves_that_nothing_was_sent(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # taken, and nobody listens: the connection is refused
        monkeypatch.setenv(demo.MAIL_VARIABLE, f"127.0.0.1:{taken.getsockname()[1]}")
        verdict = await attempts.run(demo.request_missing_document, request())
    assert isinstance(verdict, NotHappened)
    assert (verdict.proof, verdict.code) == ("not_attempted", "connect_failed")


@pytest.mark.parametrize(
    ("fault", "proof", "code"),
    [("greylist", "not_attempted", "deferred"), ("reject", "rejected", "recipient_refused")],
)
async def test_a_no_before_the_message_proves_that_nothing_was_sent(
    attempts: Attempts, mail: MailSystem, fault: str, proof: str, code: str
) -> None:
    mail.arm(match=ADDRESS, fault=fault)
    verdict = await attempts.run(demo.request_missing_document, request())
    assert isinstance(verdict, NotHappened)
    assert (verdict.proof, verdict.code) == (proof, code)
    assert mails(mail, attempts) == []


@pytest.mark.parametrize(("fault", "sent"), [("drop_after_accept", [ADDRESS]), ("reject", [])])
async def test_once_the_message_has_begun_anything_but_yes_is_unclear(
    attempts: Attempts, mail: MailSystem, fault: str, sent: list[str]
) -> None:
    # Armed for the key, so that it fires when the message itself is there.
    mail.arm(match=attempts.context(demo.request_missing_document).idempotency_key, fault=fault)
    verdict = await attempts.run(demo.request_missing_document, request())
    assert isinstance(verdict, Unclear)
    assert mails(mail, attempts) == sent


async def test_a_recipient_of_another_case_gets_no_message(attempts: Attempts, mail: MailSystem) -> None:
    verdict = await attempts.run(demo.request_missing_document, request(case_id="case_0002"))
    assert isinstance(verdict, NotHappened)
    assert (verdict.proof, verdict.code) == ("rejected", "unknown_recipient")
    assert mails(mail, attempts) == []


# ---- the packet ----------------------------------------------------------------------------------------------------


async def test_a_packet_writes_each_part_once_under_the_parts_own_key(attempts: Attempts, cases: CaseSystem) -> None:
    verdict = await attempts.run(demo.upload_packet, packet("a.txt", "b.txt"))
    assert isinstance(verdict, Happened)
    ref = verdict.value.provider_ref
    assert attempts.parts == [("record", ref), ("attachment-1", ref), ("attachment-2", ref)]
    assert rows(cases, attempts, "record", "attachment-1", "attachment-2") == [1, 1, 1]
    assert demo.parts_of("upload_packet", packet("a.txt", "b.txt").model_dump()) == tuple(p for p, _ in attempts.parts)


async def test_a_refusal_of_the_record_is_proof_and_may_be_tried_again(attempts: Attempts, cases: CaseSystem) -> None:
    cases.arm(match=attempts.context(demo.upload_packet).part_key("record"), fault="429")
    verdict = await attempts.run(demo.upload_packet, packet("a.txt"))
    assert isinstance(verdict, NotHappened)
    assert (verdict.proof, verdict.code) == ("not_attempted", "rate_limited_by_provider")
    assert rows(cases, attempts, "record", "attachment-1") == [0, 0]


async def test_a_refusal_after_the_record_is_no_proof(attempts: Attempts, cases: CaseSystem) -> None:
    cases.arm(match=attempts.context(demo.upload_packet).part_key("attachment-1"), fault="429")
    assert isinstance(await attempts.run(demo.upload_packet, packet("a.txt")), Unclear)
    assert rows(cases, attempts, "record", "attachment-1") == [1, 0]


async def test_a_lost_answer_is_looked_up_and_resumed_without_a_second_record(
    attempts: Attempts, cases: CaseSystem
) -> None:
    args = packet("a.txt", "b.txt")
    cases.arm(match=attempts.context(demo.upload_packet).part_key("attachment-1"), fault="drop_after_write")
    assert isinstance(await attempts.run(demo.upload_packet, args), Unclear)
    key = attempts.context(demo.upload_packet).idempotency_key

    found = await demo.find_packet(key, args, attempts.context(demo.upload_packet))
    assert isinstance(found, PartlyFound)
    assert (found.completed_parts, found.pending_parts) == (("record", "attachment-1"), ("attachment-2",))
    assert found.key == key

    verdict = await attempts.run(demo.upload_packet, args, completed=found.completed_parts)
    assert isinstance(verdict, Happened)
    assert verdict.value.provider_ref == found.provider_ref
    assert rows(cases, attempts, "record", "attachment-1", "attachment-2") == [1, 1, 1]
    whole = await demo.find_packet(key, args, attempts.context(demo.upload_packet))
    assert whole == Found(verdict.value, provider_ref=found.provider_ref, key=key)


async def test_a_packet_that_was_never_sent_is_absent(attempts: Attempts) -> None:
    ctx = attempts.context(demo.upload_packet)
    assert await demo.find_packet(ctx.idempotency_key, packet("a.txt"), ctx) == Absent()


# ---- reads ---------------------------------------------------------------------------------------------------------


async def test_reads_give_records_and_say_when_there_is_none(attempts: Attempts) -> None:
    case = await attempts.run(demo.read_case, demo.CaseId(case_id=CASE))
    contact = await attempts.run(demo.read_contact, demo.ContactId(contact_id=CONTACT))
    nobody = await attempts.run(demo.read_contact, demo.ContactId(contact_id="contact_0001_9"))
    assert isinstance(case, Happened)
    assert isinstance(contact, Happened)
    assert CONTACT in case.value.contact_ids
    assert contact.value.email == ADDRESS
    assert nobody == Happened(NotFound("There is no such contact."))


async def test_a_search_gives_articles_newest_first(attempts: Attempts) -> None:
    search = demo.MediaSearch(
        entity_id="entity_0001", query_terms=["fraud"], date_from="2020-01-01", jurisdictions=[], max_results=5
    )
    verdict = await attempts.run(demo.search_adverse_media, search)
    assert isinstance(verdict, Happened)
    days = [article.published_on for article in verdict.value.articles]
    assert days == sorted(days, reverse=True)
    assert 0 < len(days) <= 5


@pytest.mark.parametrize("variable", [demo.CASES_URL_VARIABLE, demo.MAIL_VARIABLE])
async def test_without_a_providers_address_nothing_is_attempted(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv(variable)
    calls: dict[str, Callable[[], Any]] = {
        demo.CASES_URL_VARIABLE: lambda: attempts.run(demo.upload_packet, packet("a.txt")),
        demo.MAIL_VARIABLE: lambda: attempts.run(demo.request_missing_document, request()),
    }
    verdict = await calls[variable]()
    assert isinstance(verdict, NotHappened)
    assert (verdict.proof, verdict.code) == ("not_attempted", "no_provider")
