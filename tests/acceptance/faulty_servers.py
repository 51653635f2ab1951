"""Servers on loopback that fail the way real ones do, for clients that block: each serves from threads of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOST = "127.0.0.1"
PATIENCE_S = 20.0
"""Longer than any client of the tests waits: a server that gives up earlier would be another fault."""


class FaultyServer:
    """Calls `serve(server, connection)` for each connection; what it raises ends that connection.

    `received` holds what `serve` noted as carried out.
    """

    def __init__(self, serve: Callable[[FaultyServer, socket.socket], None]) -> None:
        self.received: list[bytes] = []
        self._serve = serve
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def connections(self) -> int:
        """How many it has accepted."""
        return len(self._open)

    def stop_listening(self) -> None:
        """From here connections are refused; the open ones stay. The port stays taken, so nobody else gets it."""
        # `shutdown` wakes the thread that accepts, and Linux refuses connections to a socket that does not listen.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self.stop_listening()
        self._accepting.join()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(PATIENCE_S)
            self._open.append(connection)
            thread = threading.Thread(target=self._handle, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _handle(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._serve(self, connection)


def read_request(connection: socket.socket) -> bytes:
    """One HTTP request with its body; raises ConnectionError at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while len(body) < (int(lengths[0]) if lengths else 0):
        body += _some(connection)
    return head


def _some(connection: socket.socket) -> bytes:
    piece = connection.recv(65536)
    if not piece:
        raise ConnectionError("the client has closed")
    return piece


def answer(connection: socket.socket, status: str, *headers: str) -> None:
    lines = (f"HTTP/1.1 {status}", "Content-Length: 0", *headers, "", "")
    connection.sendall("\r\n".join(lines).encode())


# ---- what they do --------------------------------------------------------------------------------------------------


def is_silent(server: FaultyServer, connection: socket.socket) -> None:
    """Accepts and says nothing, so that a handshake never ends."""
    while connection.recv(65536):
        pass


def speaks_no_tls(server: FaultyServer, connection: socket.socket) -> None:
    """Answers whatever comes in plain text."""
    _some(connection)
    answer(connection, "400 Bad Request", "Connection: close")


def applies_and_dies(server: FaultyServer, connection: socket.socket) -> None:
    """Carries out the first request, and is gone: no answer, and a second connection is refused."""
    server.received.append(read_request(connection))
    server.stop_listening()


def answers_once_then_applies_and_dies(server: FaultyServer, connection: socket.socket) -> None:
    """Answers one request, so that the connection is kept; carries out the second one, and is gone."""
    read_request(connection)
    answer(connection, "200 OK")
    applies_and_dies(server, connection)


def redirects_to(url: str, status: str) -> Callable[[FaultyServer, socket.socket], None]:
    """Carries the request out and sends the client elsewhere."""

    def serve(server: FaultyServer, connection: socket.socket) -> None:
        server.received.append(read_request(connection))
        answer(connection, status, f"Location: {url}", "Connection: close")

    return serve


def asks_for_credentials_then_dies(server: FaultyServer, connection: socket.socket) -> None:
    """Carries the first request out, answers 401 all the same, and is gone."""
    server.received.append(read_request(connection))
    server.stop_listening()
    answer(
        connection, "401 Unauthorized", 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth"', "Connection: close"
    )


def breaks_a_tls_record(context: ssl.SSLContext) -> Callable[[FaultyServer, socket.socket], None]:
    """Reads the request over TLS, carries it out, and sends a record that does not decrypt."""

    def serve(server: FaultyServer, connection: socket.socket) -> None:
        raw = socket.socket(fileno=os.dup(connection.fileno()))
        with raw, context.wrap_socket(connection, server_side=True) as tls:
            server.received.append(read_request(tls))
            raw.sendall(b"\x17\x03\x03\x00\x20" + b"?" * 32)  # a record of 32 bytes of application data
            while raw.recv(65536):  # until the client leaves
                pass

    return serve


def greets_with(line: bytes) -> Callable[[FaultyServer, socket.socket], None]:
    """An SMTP server whose greeting is no welcome."""

    def serve(server: FaultyServer, connection: socket.socket) -> None:
        connection.sendall(line)
        is_silent(server, connection)

    return serve


def takes_mail_and_dies(server: FaultyServer, connection: socket.socket) -> None:
    """An SMTP server that takes the message and is gone before it says so."""
    connection.sendall(b"220 ready\r\n")
    while not (line := _some(connection)).upper().startswith(b"DATA"):
        assert line
        connection.sendall(b"250 ok\r\n")
    connection.sendall(b"354 go on\r\n")
    message = b""
    while not message.endswith(b"\r\n.\r\n"):
        message += _some(connection)
    server.received.append(message)
    server.stop_listening()


def redis_applies_and_dies(server: FaultyServer, connection: socket.socket) -> None:
    """Says OK to a client's greetings, carries out INCR, and is gone."""
    while b"INCR" not in (command := _some(connection)):
        connection.sendall(b"+OK\r\n" * command.count(b"*"))
    server.received.append(command)
    server.stop_listening()


def postgres_applies_and_dies(server: FaultyServer, connection: socket.socket) -> None:
    """Lets the client in, carries out its first statement, and is gone."""
    _some(connection)
    connection.sendall(b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I")  # authenticated; ready for a query, idle
    server.received.append(_some(connection))
    server.stop_listening()


# ---- ports where nothing is ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def refused_port() -> Iterator[int]:
    """A port that is taken, and on which nobody listens."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def full_port() -> Iterator[int]:
    """A port whose queue of one is full, so that connecting to it takes for ever."""
    with contextlib.ExitStack() as held:
        full = held.enter_context(socket.socket())
        full.bind((HOST, 0))
        full.listen(0)
        for _ in range(4):  # the queue takes one more than it says, and SYNs beyond it are dropped
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield full.getsockname()[1]


# ---- TLS -----------------------------------------------------------------------------------------------------------


def certificate(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """A new certificate for 127.0.0.1 that vouches for itself: its file, and the context of a server that has it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = directory / "certificate.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = directory / "key.pem"
    unprotected: Any = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unprotected))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, private)
    return file, context
