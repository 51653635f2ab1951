"""Ready-made pieces for mail: a message whose Message-ID is made from the effect's key, and its lookup by that.

    mail = MailByMessageId(SmtpServer(host="smtp.example.com", login=read_login), domain="example.com",
                           sent=ImapFolder(host="imap.example.com", login=read_login, folder="Sent"))

    @tools.effect(..., retry_class="reconcile")
    def notify(args: Notice, ctx: SyncEffectContext) -> MailSent:
        return mail.send(ctx, make_message(args))

    notify.lookup(mail.lookup)

SMTP refuses no repeated message, so what decides after a lost answer is whether the message is found. Where the server
keeps no copy of what it relays, send one to a mailbox of your own (Bcc), and look there.
"""

from __future__ import annotations

import contextlib
import copy
import re
import smtplib
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP as MAIL_POLICY
from email.utils import getaddresses
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic import BaseModel

from effectsvc.core.outcome import Absent, Found, LookupAnswer, NotAttempted, OutcomeUnknown, Rejected, Undetermined

if TYPE_CHECKING:
    from effectsvc.tools.context import EffectContext

Login: TypeAlias = Callable[[], tuple[str, str]]
"""User and password, asked for at each connection."""
Security: TypeAlias = Literal["starttls", "tls", "none"]

MARGIN_S: Final = 1.0
MARGIN_SHARE: Final = 0.1
"""A server that is silent is given up on so long before the attempt ends: an error that the tool sees."""
_BODY_END: Final = b".\r\n"
_DOT_AT_LINE_START: Final = re.compile(rb"(?m)^\.")
_ON_THE_WIRE: Final = MAIL_POLICY.clone(cte_type="7bit")
"""Any server takes it: no 8-bit extension is needed."""


class MailSent(BaseModel):
    """The server has taken the message over. `provider_ref` is its Message-ID's left side, which is the effect's key.

    The whole Message-ID reads like an address, and addresses are redacted from what is stored.
    """

    provider_ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpServer:
    """Where mail is handed over. `local_hostname` is how we greet; given, so that no name service is asked."""

    host: str
    port: int = 587
    security: Security = "starttls"
    login: Login | None = field(default=None, repr=False)
    local_hostname: str = "effectsvc"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImapFolder:
    """Whether a folder holds a message, by its Message-ID: for `sent`. The folder is only read."""

    host: str
    port: int = 993
    security: Literal["tls", "none"] = "tls"
    login: Login = field(repr=False)
    folder: str = "Sent"
    timeout_s: float = 10.0

    def __call__(self, message_id: str) -> bool | None:
        """True or False; None when the server's answer does not say. Raises what imaplib raises."""
        import imaplib  # noqa: PLC0415  # only who looks into a folder needs it

        connect: Any = imaplib.IMAP4 if self.security == "none" else imaplib.IMAP4_SSL
        context = {} if self.security == "none" else {"ssl_context": ssl.create_default_context()}
        with connect(self.host, self.port, timeout=self.timeout_s, **context) as imap:
            imap.login(*self.login())
            if imap.select(f'"{self.folder}"', readonly=True)[0] != "OK":
                return None
            word, found = imap.search(None, "HEADER", "Message-ID", f'"{message_id}"')
            return bool(found[0].split()) if word == "OK" and found and found[0] is not None else None


class MailByMessageId:
    """Sends one message per effect, and finds it again.

    `server` may be a function, asked at each send. `domain` is the right side of the Message-ID. `sent` answers
    whether a message of that id was taken over: True, False, or None when it cannot tell; without it nothing can be
    looked up.
    """

    def __init__(
        self,
        server: SmtpServer | Callable[[], SmtpServer],
        *,
        domain: str,
        sent: Callable[[str], bool | None] | None = None,
    ) -> None:
        self._server = server
        self._domain = domain
        self._sent = sent

    def message_id(self, key: str) -> str:
        """The Message-ID of an effect's message: the same in every attempt."""
        return f"<{key}@{self._domain}>"

    def send(self, ctx: EffectContext, message: EmailMessage) -> MailSent:
        """Hands the message over to every recipient of To, Cc and Bcc, or to none. From a `def` tool: it blocks.

        Raises NotAttempted when there is no server to be had, or it says "later" (4xx) before it took the message;
        Rejected when it says no (5xx); OutcomeUnknown when its answer to the whole message is lost.
        """
        prepared = self._prepared(ctx, message)
        with _connected(ctx, self._server if isinstance(self._server, SmtpServer) else self._server()) as smtp:
            _offer(ctx, smtp, prepared)
            _hand_over(ctx, smtp, prepared)
        return MailSent(provider_ref=ctx.idempotency_key)

    def lookup(self, key: str, args: Any, ctx: EffectContext) -> LookupAnswer[MailSent]:
        """For `tool.lookup`: asks `sent` for the message of this key."""
        if self._sent is None:
            return Undetermined("no_sent_folder")
        match self._sent(self.message_id(key)):
            case True:
                return Found(MailSent(provider_ref=key), provider_ref=key, key=key)
            case False:
                return Absent()
        return Undetermined("sent_folder_cannot_tell")

    def _prepared(self, ctx: EffectContext, message: EmailMessage) -> _Prepared:
        if "Message-ID" in message:
            raise NotAttempted("The message has a Message-ID of its own.", code="message_id_given")
        senders = [address for _, address in getaddresses([str(message.get("From", ""))])]
        lines = [str(line) for name in ("To", "Cc", "Bcc") for line in message.get_all(name, [])]
        recipients = tuple(dict.fromkeys(address for _, address in getaddresses(lines) if address))
        if len(senders) != 1 or not senders[0] or not recipients:
            raise NotAttempted("A message needs one sender and a recipient.", code="no_addresses")
        if not all(address.isascii() for address in (*senders, *recipients)):
            raise NotAttempted("An address is not ASCII, which not every server takes.", code="address_not_ascii")
        sent = copy.deepcopy(message)  # the same object may be sent by another attempt
        del sent["Bcc"]
        sent["Message-ID"] = self.message_id(ctx.idempotency_key)
        text = _DOT_AT_LINE_START.sub(b"..", sent.as_bytes(policy=_ON_THE_WIRE))
        return _Prepared(senders[0], recipients, text if text.endswith(b"\r\n") else text + b"\r\n")


@dataclass(frozen=True, slots=True)
class _Prepared:
    sender: str
    recipients: tuple[str, ...]
    body: bytes = field(repr=False)


# ---- the dialogue --------------------------------------------------------------------------------------------------


def _left_s(ctx: EffectContext) -> float:
    left_s = ctx.remaining_s()
    return max(0.1, left_s - min(MARGIN_S, left_s * MARGIN_SHARE))


@contextlib.contextmanager
def _connected(ctx: EffectContext, server: SmtpServer) -> Iterator[smtplib.SMTP]:
    """A connection that has been greeted and logged in. Raises NotAttempted when there is none to be had."""
    context = ssl.create_default_context() if server.security != "none" else None
    kind: Any = smtplib.SMTP
    more: dict[str, Any] = {"local_hostname": server.local_hostname, "timeout": _left_s(ctx)}
    if server.security == "tls":
        kind, more["context"] = smtplib.SMTP_SSL, context
    try:
        smtp = kind(server.host, server.port, **more)  # with the host, which TLS checks the certificate against
    except smtplib.SMTPConnectError as error:
        raise NotAttempted("The mail server takes no mail now.", code="connect_refused") from error
    except OSError as error:  # smtplib's other exceptions are OSErrors too
        raise NotAttempted("The mail server cannot be reached.", code="connect_failed") from error
    try:
        _enter(ctx, smtp, server, context)
        yield smtp
    finally:
        smtp.close()


def _enter(ctx: EffectContext, smtp: smtplib.SMTP, server: SmtpServer, context: ssl.SSLContext | None) -> None:
    try:
        _set_timeout(ctx, smtp)
        smtp.ehlo_or_helo_if_needed()
        if server.security == "starttls":
            smtp.starttls(context=context)
    except OSError as error:
        raise NotAttempted("The mail server does not talk to us securely.", code="no_secure_channel") from error
    if server.login is None:
        return
    try:
        smtp.login(*server.login())
    except OSError as error:
        raise NotAttempted("The mail server does not let us in.", code="login_failed") from error


def _offer(ctx: EffectContext, smtp: smtplib.SMTP, mail: _Prepared) -> None:
    """Everything before the message itself: until then nothing can have been sent."""
    try:
        _set_timeout(ctx, smtp)
        _judge(smtp.mail(mail.sender)[0], code="sender_refused")
        for recipient in mail.recipients:
            _set_timeout(ctx, smtp)
            _judge(smtp.rcpt(recipient)[0], code="recipient_refused")
        smtp.putcmd("data")
        _judge(smtp.getreply()[0], code="message_refused", yes=(354,))
    except OSError as error:
        raise NotAttempted("The mail server broke off before the message.", code="broke_off") from error


def _hand_over(ctx: EffectContext, smtp: smtplib.SMTP, mail: _Prepared) -> None:
    """The message. A server has it from the final dot on, so only its answer to that is clear.

    Without the dot it throws away what it got: a lease that has ended here means that nothing was sent.
    """
    ctx.before_send()
    try:
        _set_timeout(ctx, smtp)
        smtp.send(mail.body + _BODY_END)
        code, _ = smtp.getreply()
    except OSError as error:
        raise OutcomeUnknown("The mail server did not answer to the message.", code="answer_lost") from error
    _judge(code, code="message_refused")
    with contextlib.suppress(OSError):  # the message is theirs; how the goodbye goes says nothing about it
        smtp.quit()


def _judge(reply: int, *, code: str, yes: tuple[int, ...] = (250, 251, 252)) -> None:
    """RFC 5321, 4.2.1: 4yz is "not accepted, come back later", 5yz "not accepted, do not repeat"."""
    if reply in yes:
        return
    if 500 <= reply < 600:
        raise Rejected("The mail server refused the message.", code=code)
    if 400 <= reply < 500:
        raise NotAttempted("The mail server asks to come back later.", code="deferred")
    raise OutcomeUnknown("The mail server answered something else.", code="strange_reply")


def _set_timeout(ctx: EffectContext, smtp: smtplib.SMTP) -> None:
    if smtp.sock is not None:
        smtp.sock.settimeout(_left_s(ctx))
