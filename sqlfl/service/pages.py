"""Pages over HTTP, to read only, and those of a coordinator: a page, its JSON, health and metrics.

There is no login. Of a coordinator nothing is shown that an analyst wrote (`ServiceStatus.told`).
By default a page is reached from its own machine alone, and answers to that machine's names alone,
so that no page of another site is taken for one of its own by a browser here. A request has few
bytes and seconds, and there are few of them at once.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import ipaddress
import json
import logging
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from sqlfl.base.errors import Error
from sqlfl.service.status import ServiceStatus

log = logging.getLogger("sqlfl.service")

MAX_REQUEST_BYTES = 16 << 10
"""Of a request, whose line and headers are all that it has."""
SECONDS = 5.0
"""For a request to come, and for its answer to go."""
AT_ONCE = 32
"""Maximum number of requests at once; further connections are closed."""
UNREAD, LINGER = 1 << 20, 1.0
"""Bytes and seconds for which the rest of a request is read: otherwise its answer is lost."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
TEXT = "text/plain; charset=utf-8"
_STATUS = {
    HTTPStatus.NOT_FOUND: "not found",
    HTTPStatus.METHOD_NOT_ALLOWED: "only GET and HEAD",
    HTTPStatus.MISDIRECTED_REQUEST: "this is not the name of this machine",
    HTTPStatus.NOT_IMPLEMENTED: "metrics need a package: pip install 'sqlfl[metrics]'",
    HTTPStatus.REQUEST_URI_TOO_LONG: "the request is too long",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "the request is too long",
}
"""Texts about refused requests, which never quote the request."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Answer = tuple[HTTPStatus, str, bytes, Mapping[str, str]]
"""Status, type, body, and headers beside those of all answers."""


class PageServer:
    """Server of `answers`, by paths. place : 'host:port'; port 0: any that is free. what : the
    content, for errors. open : `place` may be reached from other machines. Raise Error where it
    may not be, or cannot be listened at. Requests wait until `start`.
    """

    def __init__(
        self,
        place: str,
        answers: Mapping[str, Callable[[str], Answer]],
        what: str,
        *,
        open: bool = False,
    ) -> None:
        host, port = read_place(place, what, open=open)
        self._thread: threading.Thread | None = None
        try:
            self._server = _Server((host, port), answers, None if open else LOOPBACK)
        except OSError as error:
            raise Error(f"cannot listen at {place}: {error.strerror or error}") from error

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        serve = functools.partial(self._server.serve_forever, poll_interval=0.1)
        self._thread = threading.Thread(target=serve, name="sqlfl-pages", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No request is taken any more; twice is once."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class Pages(PageServer):
    """State of a coordinator. closing : whether the coordinator is. Others as in `PageServer`."""

    def __init__(
        self, place: str, board: ServiceStatus, closing: Callable[[], bool], *, open: bool = False
    ) -> None:
        self._board, self._closing = board, closing
        answers = {
            "/": self._page,
            "/status.json": self._status,
            "/healthz": self._health,
            "/metrics": self._metrics,
        }
        super().__init__(place, answers, "the status", open=open)
        if open:
            log.warning("the coordinator's state is shown at %s to whoever reaches it", place)

    def _page(self, _: str) -> Answer:
        return html_answer(read_template("status.html"), connects=True)

    def _status(self, _: str) -> Answer:
        told = {**self._board.told(), "closing": self._closing()}
        return HTTPStatus.OK, "application/json", json.dumps(told, allow_nan=False).encode(), {}

    def _health(self, _: str) -> Answer:
        if self._closing():
            return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"closing\n", {}
        return HTTPStatus.OK, TEXT, b"ok\n", {}

    def _metrics(self, accept: str) -> Answer:
        if find_spec("prometheus_client") is None:
            return refused(HTTPStatus.NOT_IMPLEMENTED)
        from sqlfl.service.metrics import exposition

        kind, body = exposition(self._board, accept)
        return HTTPStatus.OK, kind, body, {}


def read_place(place: str, what: str, *, open: bool) -> tuple[str, int]:
    """Return host and port. Raise Error for another text, and for a place that other machines reach
    unless `open`."""
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.netloc != place or "@" in place:
        raise Error(f"{place!r:.80} is no place for {what}", hint="127.0.0.1:8816 is one")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback and not open:
        raise Error(
            f"{what} at {place} would be shown to whoever reaches it, as it has no login",
            hint="127.0.0.1:8816 is for this machine alone; a proxy in front can have a login",
        )
    return host, port


@functools.cache
def read_template(name: str) -> str:
    """Return a page of this package, with the style that all pages share."""
    folder = resources.files(__package__)
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    return folder.joinpath(name).read_text(encoding="utf-8").replace("/* page.css */\n", style)


def html_answer(page: str, *, connects: bool = False) -> Answer:
    """Return a page with its policy: its own style and script run, and no others. connects : its
    script asks this server."""
    allowed = ["connect-src 'self'"] * connects
    for tag in ("style", "script"):
        inner = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in inner]
        if digests:
            allowed.append(f"{tag}-src " + " ".join(f"'sha256-{digest}'" for digest in digests))
    rest = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    policy = "; ".join(["default-src 'none'", *allowed, rest])
    kind = "text/html; charset=utf-8"
    return HTTPStatus.OK, kind, page.encode(), {"Content-Security-Policy": policy}


def refused(status: HTTPStatus) -> Answer:
    body = _STATUS.get(status, "the request is not understood")
    more = {"Allow": "GET, HEAD"} if status is HTTPStatus.METHOD_NOT_ALLOWED else {}
    return status, TEXT, f"{body}\n".encode(), more


class _TooLong(HTTPException):
    """A request of more than `MAX_REQUEST_BYTES`."""


class _Bounded(io.RawIOBase):
    """Reader of a connection: at most so many bytes, within so many seconds in all."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._left = connection, MAX_REQUEST_BYTES
        self._end = time.monotonic() + SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        rest = self._end - time.monotonic()
        if rest <= 0:
            raise TimeoutError
        if self._left <= 0:
            raise _TooLong
        self._connection.settimeout(rest)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    """One request a connection."""

    server: _Server

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Bounded(self.connection))
        self.command, self.requestline, self.request_version = "", "", "HTTP/1.0"

    def handle(self) -> None:
        with suppress(OSError):  # whoever asked has gone, or takes too long
            try:
                super().handle()
            except _TooLong:
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.request_version == "HTTP/0.9":
            self.request_version = "HTTP/1.0"
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        elif self.command not in ("GET", "HEAD"):
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif not self._is_for_here():
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        else:
            return True
        return False

    def do_GET(self) -> None:
        answer = self.server.answers.get(self.path)
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            page = answer(self.headers.get("Accept", ""))
        except Exception:
            log.exception("%s cannot be answered", self.path)
            page = refused(HTTPStatus.INTERNAL_SERVER_ERROR)
        self._send(*page)

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send no text of the standard library, which quotes the request."""
        self._send(*refused(HTTPStatus(code)))

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("page: %r", format % args)

    def _is_for_here(self) -> bool:
        if self.server.names is None:
            return True
        named = self.headers.get_all("Host", [])
        try:
            return len(named) == 1 and urlsplit(f"//{named[0]}").hostname in self.server.names
        except ValueError:
            return False

    def _send(self, status: HTTPStatus, kind: str, body: bytes, headers: Mapping[str, str]) -> None:
        told = {
            **_HEADERS, **headers, "Content-Type": kind, "Content-Length": str(len(body)),
            "Date": self.date_time_string(), "Connection": "close",
        }  # fmt: skip
        self.request_version = "HTTP/1.0"  # 0.9 has no headers
        self.connection.settimeout(SECONDS)
        self.send_response_only(status)
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    """names : by which it is asked; None: by any."""

    daemon_threads = True
    request_queue_size = AT_ONCE

    def __init__(
        self,
        address: tuple[str, int],
        answers: Mapping[str, Callable[[str], Answer]],
        names: tuple[str, ...] | None,
    ) -> None:
        self.answers, self.names = answers, names
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without a request to a name server for this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.close_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread that would
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def shutdown_request(self, request: Any) -> None:
        """Read the rest of the request: a connection that is closed before loses its answer."""
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            end, left = time.monotonic() + LINGER, UNREAD
            while left > 0 and (rest := end - time.monotonic()) > 0:
                request.settimeout(rest)
                count = len(request.recv(1 << 16))
                if not count:
                    break
                left -= count
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.exception("a request for a page failed")
