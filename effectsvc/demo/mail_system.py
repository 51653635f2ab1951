"""The demo's mail system: a real SMTP server on loopback that keeps an honest ledger of every message it
accepted.

One ledger row per accepted message and recipient: key (the header X-Effect-Key, else the Message-ID), kind
`mail`, name (the recipient), ref (the Message-ID), digest (of the text after the headers). A message
accepted twice is two rows.

Faults are armed for a recipient's address, an effect key or `*`; or named for one message by the header
X-Demo-Fault, or by the recipient's local part (`reject@…`, `anything+greylist@…`).

    drop_after_accept        stores the message, then cuts the connection without the 250
    slow_after_accept:<ms>   stores the message, says 250 after the delay
    reject                   550 at RCPT (after DATA when a header or a key asks for it); stores nothing
    greylist                 451 at RCPT (likewise); stores nothing
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any

from effectsvc.demo.ledger import Fault, Ledger, LedgerRow, body_digest, now_ms
from effectsvc.demo.provider_process import (
    HOST,
    ProcessArguments,
    ProviderProcess,
    announce_port,
    end_with_stdin,
    process_arguments,
)

MODULE = "effectsvc.demo.mail_system"
LEDGER_NAME = "mail_system.sqlite3"
HOSTNAME = "mail.demo.example"  # given, so that nothing asks the name service for this machine's own

_REFUSALS = {"reject": "550 5.1.1 mailbox unavailable", "greylist": "451 4.7.1 greylisted, try again later"}
_AT_RECIPIENT = dict.fromkeys(_REFUSALS, False)
_AFTER_ACCEPT = {"drop_after_accept": False, "slow_after_accept": True}
FAULTS = _AT_RECIPIENT | _AFTER_ACCEPT
"""Every fault's name, and whether it takes a delay."""


class MailSystem(ProviderProcess):
    """The mail system as its starter sees it: `start`, `stop`, `host`, `port`; the rest as ProviderProcess says."""

    module = MODULE
    ledger_name = LEDGER_NAME
    faults = FAULTS


class _Mailbox:
    """The hooks that the SMTP server calls. Returned text is the reply on the wire."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def handle_RCPT(  # noqa: N802 - the library finds its hooks by these names
        self, server: Any, session: Any, envelope: Any, address: str, rcpt_options: list[str]
    ) -> str:
        fault = _fault_of_address(address) or self._ledger.take_fault(matches=[address], known=_AT_RECIPIENT)
        if fault is not None and fault.name in _REFUSALS:
            return _REFUSALS[fault.name]
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(rcpt_options)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - see above
        content: bytes = envelope.content
        headers = BytesHeaderParser().parsebytes(content)
        message_id = str(headers.get("Message-ID", "")).strip()
        key = str(headers.get("X-Effect-Key", "")).strip() or message_id
        if not key:
            return "554 5.6.0 a message needs a Message-ID or an X-Effect-Key"
        try:
            fault = self._fault_of_message(headers, key, envelope.rcpt_tos)
        except ValueError:
            return "554 5.6.0 unknown X-Demo-Fault"
        if fault is not None and fault.name in _REFUSALS:
            return _REFUSALS[fault.name]
        self._store(key, message_id, envelope.rcpt_tos, content)
        if fault is not None and fault.name == "drop_after_accept":
            server.transport.abort()
            # The server cancels this coroutine once the connection is gone, so no reply is ever written.
            await asyncio.Event().wait()
        if fault is not None and fault.name == "slow_after_accept":
            await asyncio.sleep(fault.delay_ms / 1000)
        return "250 OK"

    def _fault_of_message(self, headers: Message, key: str, recipients: list[str]) -> Fault | None:
        asked = headers.get("X-Demo-Fault")
        if asked is not None:
            return Fault.parse(str(asked).strip(), known=FAULTS)
        named = next(filter(None, map(_fault_of_address, recipients)), None)
        return named or self._ledger.take_fault(matches=[key, *recipients], known=FAULTS)

    def _store(self, key: str, message_id: str, recipients: list[str], content: bytes) -> None:
        _, _, text = content.partition(b"\r\n\r\n")
        at_ms, digest = now_ms(), body_digest(text)
        self._ledger.record(
            *(
                LedgerRow(key=key, kind="mail", name=rcpt, ref=message_id, path="smtp", at_ms=at_ms, digest=digest)
                for rcpt in recipients
            )
        )


def _fault_of_address(address: str) -> Fault | None:
    name = address.rpartition("@")[0].rpartition("+")[2]
    return Fault(name=name) if FAULTS.get(name) is False else None


async def _serve(arguments: ProcessArguments, ledger: Ledger) -> None:
    # Imported here: whoever starts or reads the mail system needs neither the library nor its import-time
    # warnings.
    from aiosmtpd.smtp import SMTP  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    mailbox = _Mailbox(ledger)
    server = await loop.create_server(
        lambda: SMTP(mailbox, hostname=HOSTNAME, enable_SMTPUTF8=True, loop=loop),
        HOST,
        arguments.port,
        backlog=1024,  # a worker opens hundreds of connections at once
    )
    announce_port(port_file=arguments.port_file, port=server.sockets[0].getsockname()[1])
    if arguments.end_with_stdin:
        end_with_stdin()
    await stop.wait()
    server.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT or, when asked for, the end of stdin. Returns 0."""
    arguments = process_arguments(module=MODULE, argv=argv)
    # The library logs peers and commands; addresses are arguments.
    logging.getLogger("mail").setLevel(logging.CRITICAL)
    with Ledger(path=arguments.data / LEDGER_NAME) as ledger:
        asyncio.run(_serve(arguments, ledger))
    return 0


if __name__ == "__main__":
    sys.exit(main())
