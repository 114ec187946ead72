"""A small read-only HTTP server: a table of routes over the standard library's threaded server.

It serves people, Prometheus and the operator beside the simulation, and must never slow that down. So handlers only
read what the simulation published. A route is a path, or a prefix that ends in ``/``; of several that fit, the
longest is taken::

    server = HttpServer({"/healthz": health, "/files/": Files(directory)})
    address = server.listen("0.0.0.0:8080")

A handler turns a :class:`Request` into a :class:`Response`. Connections are limited in number and in idle time, so that
no client can hold the process's threads. Where all are taken, one more takes the place of the one from which nothing
has come, and to which nothing could be sent, for the longest time. So connections that only hold their place keep
nobody out.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

MAX_CONNECTIONS = 64  #: connections at a time; one more ends the one that has been idle for longest
STALLED_S = 1.0  #: a client that has not taken more of its answer for so long may be ended for another
IDLE_LIMIT_S = 15.0  #: how long a request may take to come, and a client to take its answer
_CHUNK_BYTES = 256 << 10
_PRIVATE = frozenset({"plan.json", "run.lock"})  # a local run's plan holds the token
_UNFINISHED = ".partial"


@dataclass(frozen=True, slots=True)
class Request:
    """A request. ``rest`` is the decoded path behind a prefix route; ``headers`` have lower-case names."""

    path: str
    rest: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. Its body is bytes, or ``length`` bytes of an open file, which is closed afterwards."""

    body: bytes | BinaryIO = b""
    status: int = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None


Handler = Callable[[Request], Response]


def json_response(value: Any, status: int = HTTPStatus.OK) -> Response:
    """A response with ``value`` as JSON, in one line."""
    return Response(json.dumps(value).encode() + b"\n", status, "application/json")


def error_response(status: int, text: str) -> Response:
    """A response with one line that says what is wrong."""
    return Response(text.encode() + b"\n", status)


class HttpServer:
    """Serves ``routes`` until :meth:`close`."""

    def __init__(self, routes: Mapping[str, Handler]) -> None:
        self._routes = dict(routes)
        self._server: _Server | None = None

    def listen(self, address: str) -> str:
        """Binds HOST:PORT (port 0: any free one) and starts; returns HOST:PORT. Raises :class:`OSError`."""
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65_535:
            raise OSError(f"{address!r} is not HOST:PORT")
        try:
            self._server = _Server((host.strip("[]"), int(port)), self._answer)
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True).start()
        return f"{host}:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stops serving. Answers that are on their way may be cut off."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Response:
        best = max((route for route in self._routes if _fits(route, path)), key=len, default=None)
        if best is None:
            return error_response(HTTPStatus.NOT_FOUND, f"{path}: there is {', '.join(sorted(self._routes))}")
        try:
            return self._routes[best](Request(path, path[len(best) :], query, headers))
        except Exception as error:  # a bug in one handler does not stop the server
            print(f"eidolon: GET {path}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, f"{path}: {type(error).__name__}")


def _fits(route: str, path: str) -> bool:
    return path.startswith(route) if route.endswith("/") else path == route


@dataclass(slots=True)
class _Activity:
    """When a connection last got a request or took a part of an answer, and whether it is being answered."""

    at: float
    answering: bool = False

    def may_end(self, now: float) -> bool:
        return not self.answering or now - self.at > STALLED_S


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], answer: Callable[[str, Mapping[str, str], Mapping[str, str]], Response]
    ) -> None:
        self.answer = answer
        self._changing = threading.Lock()
        self._open: dict[socket.socket, _Activity] = {}
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            has_room = len(self._open) < MAX_CONNECTIONS or self._end_one()
            if has_room:
                self._open[request] = _Activity(time.monotonic())
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _end_one(self) -> bool:
        """Ends the connection that has been idle for longest. False if all are being answered."""
        now = time.monotonic()
        idle = [(one.at, request) for request, one in self._open.items() if one.may_end(now)]
        if not idle:
            return False
        _, request = min(idle, key=lambda one: one[0])
        del self._open[request]
        with contextlib.suppress(OSError):  # it has just ended by itself
            request.shutdown(socket.SHUT_RDWR)  # its thread, which waits for it, goes on and closes it
        return True

    def activity(self, request: socket.socket) -> _Activity:
        """What is known of a connection."""
        with self._changing:
            return self._open.get(request) or _Activity(time.monotonic())

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changing:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not worth a line."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_LIMIT_S
    server: _Server
    server_version = "eidolon"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self._activity = self.server.activity(self.request)

    def do_GET(self) -> None:
        self._activity.at, self._activity.answering = time.monotonic(), True
        try:
            self._answer()
        finally:
            self._activity.at, self._activity.answering = time.monotonic(), False

    def _answer(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        headers = {name.lower(): value for name, value in self.headers.items()}
        response = self.server.answer(urllib.parse.unquote(parts.path), query, headers)
        self._send(response, with_body=self.command != "HEAD")

    do_HEAD = do_GET  # noqa: N815

    def _send(self, response: Response, *, with_body: bool) -> None:
        body = response.body
        if isinstance(body, bytes):
            self._send_head(response, len(body))
            if with_body:
                self.wfile.write(body)
            return
        with body:
            left = response.length or 0
            self._send_head(response, left)
            while with_body and left:
                chunk = body.read(min(left, _CHUNK_BYTES))
                if not chunk:  # the file became shorter, so the client sees a broken answer
                    self.close_connection = True
                    return
                self.wfile.write(chunk)
                self._activity.at = time.monotonic()
                left -= len(chunk)

    def _send_head(self, response: Response, length: int) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(length))
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name is the base class's)
        """Requests are not logged."""


class Files:
    """A handler that lists a directory and serves its files, with single byte ranges.

    Only regular files inside the directory are served; neither ``..`` nor links lead out of it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()

    def __call__(self, request: Request) -> Response:
        if not request.rest:
            return json_response({"files": self._list()})
        path = self._find(request.rest)
        if path is None:
            return error_response(HTTPStatus.NOT_FOUND, f"there is no file {request.rest}")
        file = path.open("rb")
        size = path.stat().st_size
        return _file_response(file, size, request.headers.get("range"))

    def _list(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self._directory.rglob("*")):
            name = path.relative_to(self._directory).as_posix()
            if self._find(name) is not None:
                with contextlib.suppress(OSError):
                    found.append({"name": name, "bytes": path.stat().st_size})
        return found

    def _find(self, name: str) -> Path | None:
        if "\0" in name or name in _PRIVATE:
            return None
        path = (self._directory / name).resolve()
        inside = path.is_relative_to(self._directory) and path.name not in _PRIVATE
        return path if inside and path.suffix != _UNFINISHED and path.is_file() else None


def _file_response(file: BinaryIO, size: int, wanted: str | None) -> Response:
    headers = {"Accept-Ranges": "bytes"}
    kind = "application/octet-stream"
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted or "")
    if asked is None or not (asked[1] or asked[2]):
        return Response(file, HTTPStatus.OK, kind, headers, size)
    if asked[1]:
        first, last = int(asked[1]), min(int(asked[2] or size - 1), size - 1)
    else:
        first, last = max(0, size - int(asked[2])), size - 1
    if first > last:
        file.close()
        headers["Content-Range"] = f"bytes */{size}"
        return Response(b"", HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=headers)
    file.seek(first)
    headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    return Response(file, HTTPStatus.PARTIAL_CONTENT, kind, headers, last - first + 1)
