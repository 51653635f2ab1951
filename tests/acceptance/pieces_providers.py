"""Loopback servers that say what a test has them say: an HTTP resource, a line-by-line SMTP server, an IMAP folder."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Page:
    """What one path answers, and the requests that came, as (method, path, headers)."""

    def __init__(self, status: int, body: str, **headers: str) -> None:
        self.status, self.body, self.headers = status, body, headers
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.url = ""


@contextmanager
def http_page(page: Page) -> Iterator[Page]:
    """Serves the page at every path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page.requests.append((self.command, self.path, dict(self.headers)))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(page.status)
            for name, value in page.headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(page.body.encode())))
            self.end_headers()
            self.wfile.write(page.body.encode())

        do_POST = do_GET  # noqa: N815  # the library's name

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        page.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield page
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def line_server(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server whose every connection is talked to by `talk`, one after the other. Yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        talk(connection)
                    except OSError:
                        continue  # the client has gone

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


class SmtpScript:
    """An SMTP server that answers each command as the script says, and else 250 (354 to DATA).

    A reply of "" cuts the connection there. `got` holds the messages whose final dot came.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, starttls: bool = False, **replies: str) -> None:
        self.replies = {"greet": "220 hello"} | ({"ehlo": "250-hello\r\n250 STARTTLS"} if starttls else {}) | replies
        self._tls, self._starttls = tls, starttls
        self.secured: list[str] = []
        self.got: list[bytes] = []
        self.commands: list[str] = []

    def talk(self, connection: socket.socket) -> None:
        if self._tls is not None and not self._starttls:
            connection = self._secured(connection)
        with connection:
            if self._say(connection, "greet", "220 hello"):
                self._commands(connection)

    def _secured(self, connection: socket.socket) -> socket.socket:
        assert self._tls is not None
        return self._tls.wrap_socket(connection, server_side=True)

    def _commands(self, connection: socket.socket) -> None:
        lines = connection.makefile("rb")
        for line in lines:
            word = line.split()[0].decode(errors="replace").lower() if line.split() else ""
            self.commands.append(word)
            if isinstance(connection, ssl.SSLSocket):
                self.secured.append(word)
            if word == "starttls" and self._starttls:
                self._say(connection, word, "220 go on")
                with self._secured(connection) as secured:
                    self._commands(secured)
                return
            if not self._say(connection, word, "354 go on" if word == "data" else "250 OK") or word == "quit":
                return
            if word == "data" and self.replies.get("data", "354").startswith("354"):
                body = b""
                while not body.endswith(b"\r\n.\r\n"):
                    more = lines.readline()
                    if not more:
                        return
                    body += more
                self.got.append(body)
                if not self._say(connection, "message", "250 taken"):
                    return

    def _say(self, connection: socket.socket, word: str, otherwise: str) -> bool:
        reply = self.replies.get(word, otherwise)
        if reply:
            connection.sendall(f"{reply}\r\n".encode())
        return bool(reply)


class ImapScript:
    """An IMAP server with one folder that holds these Message-IDs; `search` may be another answer to that command."""

    def __init__(self, *message_ids: str, folder: str = "Sent", search: str = "") -> None:
        self.message_ids, self.folder, self.search = message_ids, folder, search
        self.commands: list[str] = []

    def talk(self, connection: socket.socket) -> None:
        connection.sendall(b"* OK ready\r\n")
        for raw in connection.makefile("rb"):
            tag, command, *rest = raw.decode().strip().split(" ", 2)
            self.commands.append(command.upper())
            told, word = "", "OK"
            match command.upper():
                case "CAPABILITY":
                    told = "* CAPABILITY IMAP4rev1\r\n"
                case "SELECT" | "EXAMINE":
                    word = "OK" if rest[0].strip('"') == self.folder else "NO"
                    told = "* 1 EXISTS\r\n" if word == "OK" else ""
                case "SEARCH":
                    found = " 1" if any(message_id in rest[0] for message_id in self.message_ids) else ""
                    told = self.search or f"* SEARCH{found}\r\n"
                case "LOGOUT":
                    told = "* BYE\r\n"
            connection.sendall(f"{told}{tag} {word} done\r\n".encode())
            if command.upper() == "LOGOUT":
                return
