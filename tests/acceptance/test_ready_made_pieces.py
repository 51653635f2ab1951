"""The pieces that users plug into their tools, against real providers on loopback: each verdict, each trap."""

from __future__ import annotations

import re
import ssl
import threading
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import BaseModel

from effectsvc import (
    POST_ERRORS,
    Absent,
    Caller,
    ContractError,
    EffectContext,
    Found,
    ImapFolder,
    MailByMessageId,
    MailSent,
    NotAttempted,
    OutcomeUnknown,
    Rejected,
    SmtpServer,
    SyncEffectContext,
    ToolRegistry,
    Undetermined,
    http_lookup,
    post_by_key,
    post_by_key_sync,
)
from effectsvc.core.identity import provider_key
from effectsvc.testing import HttpProvider, SmtpProvider, Workbench, check_tool
from effectsvc.tools.connections import HttpConnections
from effectsvc.tools.context import boot_now_s
from effectsvc.tools.contract import ToolContract
from tests.acceptance.pieces_providers import ImapScript, Page, SmtpScript, http_page, line_server

TEXTS: Any = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")
KEY = provider_key(intent_key="ab" * 32, occurrence=1)
LONG_S = 5.0
SILENCE_S = 3.0
"""Waited out after the message: until then the provider's thread may stand still for a while."""


class Order(BaseModel):
    order: str = "o-1"


class Receipt(BaseModel):
    id: str


def contract(**fields: Any) -> ToolContract:
    given = {"name": "act", "input_model": Order, "output_model": Receipt} | fields
    return ToolContract.declare(**TEXTS, **given)


def context(kind: type[Any] = EffectContext, *, alive: bool = True, left_s: float = LONG_S, **more: Any) -> Any:
    return kind(
        contract=contract(),
        effect_id="e",
        tenant_id="acme",
        run_id="run",
        tool_call_id="call",
        caller=Caller(agent_id="a"),
        intent_key="ab" * 32,
        occurrence=1,
        attempt=1,
        attempt_started_ms=0,
        deadline=boot_now_s() + left_s,
        alive=lambda: alive,
        **more,
    )


@pytest.fixture
async def ctx() -> Any:
    connections = HttpConnections()
    yield context(http=connections)
    await connections.aclose()


# ---- HTTP: the POST --------------------------------------------------------------------------------------------------


async def test_a_post_carries_the_effects_key_as_a_structured_string(ctx: Any) -> None:
    with http_page(Page(201, "{}")) as page:
        await post_by_key(ctx, f"{page.url}/charges", json={"a": 1}, headers={"X-Other": "1"})
        await post_by_key(ctx, f"{page.url}/charges", quoted=False)
    (_, _, first), (_, _, second) = page.requests
    assert (first["Idempotency-Key"], first["X-Other"]) == (f'"{KEY}"', "1")
    assert second["Idempotency-Key"] == KEY


async def test_a_part_is_posted_under_its_own_key(ctx: Any) -> None:
    with http_page(Page(200, "{}")) as page:
        await post_by_key(ctx, page.url, part="record")
    assert page.requests[0][2]["Idempotency-Key"] == f'"{ctx.part_key("record")}"'


async def test_a_blocking_tool_posts_the_same() -> None:
    connections = HttpConnections()
    sync_ctx = context(SyncEffectContext, loop=None, http=connections)
    with http_page(Page(200, '{"id": "r"}')) as page:
        assert post_by_key_sync(sync_ctx, page.url).json() == {"id": "r"}
    assert page.requests[0][2]["Idempotency-Key"] == f'"{KEY}"'
    await connections.aclose()


@pytest.mark.parametrize("status", [301, 303, 400, 409, 422, 429, 500])
async def test_any_other_status_is_raised_and_the_contract_says_what_it_proves(ctx: Any, status: int) -> None:
    with http_page(Page(status, "{}")) as page, pytest.raises(httpx.HTTPStatusError) as caught:
        await post_by_key(ctx, page.url)
    rule = contract(expected_errors=POST_ERRORS).rule_for(caught.value)
    assert (rule and rule.verdict) == {400: "rejected", 429: "not_attempted"}.get(status)


async def test_a_key_is_not_given_twice(ctx: Any) -> None:
    with pytest.raises(NotAttempted, match="its own"):
        await post_by_key(ctx, "http://127.0.0.1:1/", headers={"idempotency-key": "mine"})
    assert ctx.sends == 0


# ---- HTTP: the lookup ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (200, '{"id": "r"}', Found(Receipt(id="r"), key=KEY)),
        (404, "nothing here", Absent()),
        (410, "{}", Undetermined("status_410")),
        (401, "{}", Undetermined("status_401")),
        (500, "{}", Undetermined("status_500")),
        (302, "{}", Undetermined("status_302")),
        (204, "", Undetermined("status_204")),
        (200, "<html>", Undetermined("unreadable_answer")),
        (200, '{"name": "another shape"}', Undetermined("unreadable_answer")),
    ],
)
async def test_a_resource_at_the_keys_own_path_is_found_absent_or_undetermined(
    ctx: Any, status: int, body: str, answer: Any
) -> None:
    with http_page(Page(status, body)) as page:
        find = http_lookup(f"{page.url}/charges/{{key}}", Receipt)
        assert await find(KEY, Order(), ctx) == answer
        assert page.requests[0][:2] == ("GET", f"/charges/{KEY}")


@pytest.mark.parametrize(
    ("body", "is_ours"),
    [
        (f'{{"id": "r", "meta": {{"key": "{KEY}"}}}}', True),
        ('{"id": "r", "meta": {"key": "another"}}', False),
        ('{"id": "r"}', False),
        ('{"id": "r", "meta": "flat"}', False),
    ],
)
async def test_what_a_query_found_counts_only_if_it_quotes_the_key(ctx: Any, body: str, is_ours: bool) -> None:
    """A provider that does not know the parameter answers with something else."""
    with http_page(Page(200, body)) as page:
        find = http_lookup(f"{page.url}/charges?key={{key}}", Receipt, key_field="meta.key")
        answer = await find(KEY, Order(), ctx)
        assert answer == (Found(Receipt(id="r"), key=KEY) if is_ours else Undetermined("answer_does_not_quote_the_key"))
        made = http_lookup(lambda key, args, _: f"{page.url}/{args.order}?key={key}", Receipt)
        assert await made(KEY, Order(), ctx) == Undetermined("answer_does_not_quote_the_key")


@pytest.mark.parametrize("url", ["http://h/charges", "http://h/charges?key={key}"])
def test_a_url_that_cannot_prove_whose_answer_it_is_is_refused(url: str) -> None:
    with pytest.raises(ContractError):
        http_lookup(url, Receipt)


async def held_in(
    tools: ToolRegistry, name: str, provider: HttpProvider | SmtpProvider, *, wanted: set[str]
) -> set[str]:
    """The cases in which `check_tool` says that the tool holds; it is never said to violate anything.

    Where a machine stands still, an attempt may end in the middle of a case, which then proves nothing: it is tried
    again, until those that are wanted are among them.
    """
    held: set[str] = set()
    for _ in range(10):
        report = await check_tool(tools, name, {"order": "o-1"}, provider)
        report.raise_for_violations()
        assert {case.verdict for case in report.cases} <= {"held", "not_checked"}
        held = {case.name for case in report.cases if case.verdict == "held"}
        if held >= wanted:
            break
    return held


async def test_a_tool_of_both_http_pieces_holds_in_every_case() -> None:
    """`check_tool` on a provider that honours keys, and on one that does not but can be asked first."""
    for honours_keys in (True, False):
        with HttpProvider(honours_keys=honours_keys) as provider:
            tools = ToolRegistry()
            by_key = {"retry_class": "idempotent_write", "provider_key_ttl_s": 86_400.0} if honours_keys else {}

            @tools.effect(**TEXTS, probe_first=not honours_keys, expected_errors=POST_ERRORS, **by_key)
            async def charge(args: Order, ctx: EffectContext) -> Receipt:
                answer = await post_by_key(ctx, f"{provider.url}/charges", json=args.model_dump())
                return Receipt.model_validate(answer.json())

            charge.lookup(http_lookup(f"{provider.url}/charges/{{key}}", Receipt))
            every_case = {
                "runs_and_is_found", "timeout_before_write", "timeout_after_write", "duplicate_delivery",
                "provider_answers_429", "injection_text", "record_stale_or_missing",
            }  # fmt: skip
            assert await held_in(tools, "charge", provider, wanted=every_case) == every_case


# ---- mail ------------------------------------------------------------------------------------------------------------


def letter(to: str = "ana@example.com", text: str = "Hello\n") -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Bcc"] = "atlas@example.com", to, "copy@example.com"
    message["Subject"] = "Grüße"
    message.set_content(text)
    return message


def mail_to(port: int, **more: Any) -> MailByMessageId:
    server = SmtpServer(host="127.0.0.1", port=port, security="none", local_hostname="worker.example")
    return MailByMessageId(server, domain="example.com", **more)


@pytest.mark.parametrize("text", ["Hello\n.hidden\n..two\n.\n", "Äpfel\n.\n"])
def test_a_message_goes_to_everyone_under_the_id_that_its_key_makes(text: str) -> None:
    """Bcc is no header on the wire, dots stay dots, and every line is ASCII."""
    with SmtpProvider() as provider:
        mail = mail_to(provider.port)
        message = letter(text=text)
        sent = mail.send(context(), message)
        assert sent == MailSent(provider_ref=KEY)
        assert provider.ledger == {KEY: 1}
        (content,) = provider.messages
        assert provider.has(mail.message_id(KEY))
    assert content.isascii()
    assert b"copy@example.com" not in content
    arrived = message_from_bytes(content, policy=policy.default)
    assert isinstance(arrived, EmailMessage)
    content_lines = arrived.get_content().replace("\r\n", "\n")
    assert (content_lines, arrived["Subject"], arrived["Message-ID"]) == (text, "Grüße", f"<{KEY}@example.com>")
    assert message["Bcc"] == "copy@example.com"
    assert "Message-ID" not in message


SAID = {
    "the greeting is no": ({"greet": "554 no service"}, NotAttempted, "connect_refused"),
    "it hangs up at once": ({"greet": ""}, NotAttempted, "connect_failed"),
    "later, at the sender": ({"mail": "451 later"}, NotAttempted, "deferred"),
    "no, at the sender": ({"mail": "550 no"}, Rejected, "sender_refused"),
    "later, at the recipient": ({"rcpt": "450 later"}, NotAttempted, "deferred"),
    "no, at the recipient": ({"rcpt": "550 unknown"}, Rejected, "recipient_refused"),
    "it hangs up at the recipient": ({"rcpt": ""}, NotAttempted, "broke_off"),
    "later, before the message": ({"data": "452 full"}, NotAttempted, "deferred"),
    "no, before the message": ({"data": "554 no"}, Rejected, "message_refused"),
    "it hangs up before the message": ({"data": ""}, NotAttempted, "broke_off"),
    "later, after the message": ({"message": "451 later"}, NotAttempted, "deferred"),
    "no, after the message": ({"message": "554 spam"}, Rejected, "message_refused"),
    "it hangs up after the message": ({"message": ""}, OutcomeUnknown, "answer_lost"),
    "something strange after the message": ({"message": "299 hm"}, OutcomeUnknown, "strange_reply"),
}


@pytest.mark.parametrize("what", SAID)
def test_what_the_mail_server_says_is_what_the_attempt_proves(what: str) -> None:
    replies, kind, code = SAID[what]
    script = SmtpScript(**replies)
    with line_server(script.talk) as port, pytest.raises(kind) as caught:
        mail_to(port).send(context(), letter())
    assert caught.value.code == code  # type: ignore[attr-defined]
    assert len(script.got) == (1 if "after the message" in what else 0)


def test_a_second_recipient_that_is_refused_keeps_the_message_from_the_first() -> None:
    """To all or to none: a message that half of them got could be neither repeated nor found missing."""

    class SecondRefused(SmtpScript):
        def _say(self, connection: Any, word: str, otherwise: str) -> bool:
            self.replies["rcpt"] = "550 unknown" if self.commands.count("rcpt") > 1 else "250 OK"
            return super()._say(connection, word, otherwise)

    script = SecondRefused()
    with line_server(script.talk) as port, pytest.raises(Rejected):
        mail_to(port).send(context(), letter())
    assert (script.commands.count("rcpt"), script.got) == (2, [])


def test_a_server_that_is_not_there_was_not_attempted() -> None:
    with line_server(lambda _: None) as port:
        pass
    with pytest.raises(NotAttempted):
        mail_to(port).send(context(), letter())


@pytest.mark.parametrize(("auth", "is_let_in"), [("235 welcome", True), ("535 who are you", False)])
def test_a_login_is_made_where_one_is_given_and_its_refusal_sends_nothing(auth: str, is_let_in: bool) -> None:
    script = SmtpScript(ehlo="250-hello\r\n250 AUTH PLAIN", auth=auth)
    with line_server(script.talk) as port:
        server = SmtpServer(host="127.0.0.1", port=port, security="none", login=lambda: ("atlas", "secret"))
        mail = MailByMessageId(lambda: server, domain="example.com")
        if is_let_in:
            mail.send(context(), letter())
        else:
            with pytest.raises(NotAttempted) as caught:
                mail.send(context(), letter())
            assert caught.value.code == "login_failed"
    assert len(script.got) == is_let_in
    assert "secret" not in repr(server)


def certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS for `localhost`, and the file of the certificate that a client must trust."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    trusted, pair = directory / "cert.pem", directory / "pair.pem"
    trusted.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pair.write_bytes(secret + trusted.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    return context, trusted


@pytest.mark.parametrize("security", ["starttls", "tls"])
@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_message_goes_only_to_a_server_whose_certificate_is_trusted(
    security: Any, is_trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, trusted = certificate(tmp_path)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    script = SmtpScript(tls=tls, starttls=security == "starttls")
    with line_server(script.talk) as port:
        server = SmtpServer(host="localhost", port=port, security=security)
        mail = MailByMessageId(server, domain="example.com")
        if is_trusted:
            mail.send(context(), letter())
        else:
            with pytest.raises(NotAttempted):
                mail.send(context(), letter())
    assert (len(script.got), "mail" in script.secured) == ((1, True) if is_trusted else (0, False))


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_server_without_the_security_that_is_asked_for_gets_nothing(security: Any) -> None:
    script = SmtpScript()
    with line_server(script.talk) as port:
        mail = MailByMessageId(SmtpServer(host="127.0.0.1", port=port, security=security), domain="example.com")
        with pytest.raises(NotAttempted):
            mail.send(context(left_s=1.0), letter())
    assert "mail" not in script.commands


def test_a_silent_server_is_given_up_before_the_attempt_ends() -> None:
    """Silence after the message is unknown, and before it is not attempted; the tool sees an error, not an overrun."""
    wait = threading.Event()

    class Silent(SmtpScript):
        def _say(self, connection: Any, word: str, otherwise: str) -> bool:
            if word == "message":
                wait.wait(LONG_S)
            return super()._say(connection, word, otherwise)

    def given_up() -> tuple[type[Exception], bool]:
        wait.clear()
        silent = context(left_s=1.0)
        with pytest.raises((OutcomeUnknown, NotAttempted)) as caught:
            mail_to(port).send(silent, letter())
        in_time = silent.remaining_s() > 0
        wait.set()  # the server talks to one client after the other
        return caught.type, in_time

    with line_server(Silent().talk) as port:
        # A machine that stands still may be late for the message, or for the end: then it is tried again.
        assert any(given_up() == (OutcomeUnknown, True) for _ in range(10))


def test_a_lease_that_ended_before_the_message_sends_nothing() -> None:
    script = SmtpScript()
    with line_server(script.talk) as port, pytest.raises(NotAttempted) as caught:
        mail_to(port).send(context(alive=False), letter())
    assert caught.value.code == "lease_ended"
    assert (script.got, "data" in script.commands) == ([], True)


@pytest.mark.parametrize("wrong", ["Message-ID", "To", "an address"])
def test_a_message_that_cannot_be_sent_so_is_not_attempted(wrong: str) -> None:
    message = letter()
    if wrong == "Message-ID":
        message["Message-ID"] = "<mine@example.com>"
    elif wrong == "To":
        del message["To"], message["Bcc"]
    else:
        message.replace_header("To", "jürgen@example.com")
    with pytest.raises(NotAttempted):
        mail_to(1).send(context(), message)


async def test_a_tool_of_the_mail_piece_holds_in_every_case() -> None:
    with SmtpProvider() as provider:
        mail = mail_to(provider.port, sent=provider.has)
        tools = ToolRegistry()

        @tools.effect(**TEXTS, reversibility="irreversible", probe_first=True)
        def notify(args: Order, ctx: EffectContext) -> MailSent:
            return mail.send(ctx, letter())

        notify.lookup(mail.lookup)
        wanted = {"record_stale_or_missing"}
        assert await held_in(tools, "notify", provider, wanted=wanted) >= wanted


# ---- mail: the folder ------------------------------------------------------------------------------------------------

ID = f"<{KEY}@example.com>"


@pytest.fixture
def folder() -> Any:
    return lambda port, name="Sent": ImapFolder(
        host="127.0.0.1", port=port, security="none", login=lambda: ("atlas", "secret"), folder=name
    )


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        (ImapScript(ID), Found(MailSent(provider_ref=KEY), provider_ref=KEY, key=KEY)),
        (ImapScript("<another@example.com>"), Absent()),
        (ImapScript(ID, folder="Elsewhere"), Undetermined("sent_folder_cannot_tell")),
    ],
)
def test_a_message_is_looked_for_in_an_imap_folder_which_is_only_read(
    folder: Any, script: ImapScript, answer: Any
) -> None:
    with line_server(script.talk) as port:
        mail = mail_to(1, sent=folder(port))
        assert mail.lookup(KEY, Order(), context()) == answer
    assert "SELECT" not in script.commands
    assert "EXAMINE" in script.commands


async def test_a_folder_that_cannot_be_reached_determines_nothing(folder: Any) -> None:
    """Through the worker: the lookup raises, the effect stays unknown, and nothing is sent a second time."""
    with SmtpProvider() as provider, line_server(lambda _: None) as gone:
        mail = mail_to(provider.port, sent=folder(gone))
        tools = ToolRegistry()

        @tools.effect(**TEXTS, reversibility="irreversible", timeout_s=SILENCE_S, settle_s=SILENCE_S)
        def notify(args: Order, ctx: EffectContext) -> MailSent:
            return mail.send(ctx, letter())

        notify.lookup(mail.lookup)
        async with Workbench(tools) as bench:
            provider.timeout_after()
            run = await bench.run()
            effect = await run.propose("notify", {"order": "o-1"}, tool_call_id="call_1")
            await bench.work()
            bench.advance(60)
            await bench.work()
            assert (await effect.status()).status == "unknown"
        assert provider.ledger == dict.fromkeys(provider.ledger, 1)
        assert len(provider.ledger) == 1


def test_without_a_folder_nothing_can_be_looked_up() -> None:
    assert mail_to(1).lookup(KEY, Order(), context()) == Undetermined("no_sent_folder")


async def test_the_reference_of_a_mail_is_stored_as_it_is() -> None:
    """What reads like an address or a secret is redacted from results; who asks for a mail needs its id whole."""
    with SmtpProvider() as provider:
        mail = mail_to(provider.port)
        tools = ToolRegistry()

        @tools.effect(**TEXTS, reversibility="irreversible")
        def notify(args: Order, ctx: EffectContext) -> MailSent:
            return mail.send(ctx, letter())

        async with Workbench(tools) as bench:
            effect = await (await bench.run()).propose("notify", {"order": "o-1"}, tool_call_id="call_1")
            await bench.work()
            result = await effect.status()
            assert result.effect is not None
            assert result.data == {"provider_ref": result.effect.idempotency_key}
            assert result.effect.provider_ref == result.effect.idempotency_key
            assert provider.has(mail.message_id(result.effect.provider_ref))


def test_a_messages_id_is_made_from_the_key_alone() -> None:
    assert re.fullmatch(r"<[0-9a-f]{64}@example\.com>", mail_to(1).message_id(KEY))
