"""The HTTP server: routes, files with ranges, limits; all over a real socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eidolon_simcore.export import http as served
from eidolon_simcore.export.http import MAX_CONNECTIONS, Files, HttpServer, Request, Response, json_response


def broken(_: Request) -> Response:
    raise ValueError("a bug")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    root = tmp_path / "out"
    root.mkdir()
    routes = {
        "/hello": lambda request: json_response({"query": dict(request.query)}),
        "/files/": Files(root),
        "/broken": broken,
    }
    server = HttpServer(routes)
    yield server.listen("127.0.0.1:0"), root
    server.close()


def get(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
    finally:
        connection.close()


def test_a_route_gets_its_query(site: tuple[str, Path]) -> None:
    status, body, headers = get(site[0], "/hello?a=1&b=x%20y")
    assert (status, json.loads(body)) == (200, {"query": {"a": "1", "b": "x y"}})
    assert headers["content-type"] == "application/json"


def test_what_is_not_there_names_what_is(site: tuple[str, Path]) -> None:
    assert get(site[0], "/helloo")[:2] == (404, b"/helloo: there is /broken, /files/, /hello\n")


def test_nothing_can_be_written(site: tuple[str, Path]) -> None:
    assert get(site[0], "/hello", "POST")[0] == 501
    assert get(site[0], "/files/x", "PUT")[0] == 501


def test_a_handler_that_fails_is_an_answer_and_a_line(
    site: tuple[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert get(site[0], "/broken")[:2] == (500, b"/broken: ValueError\n")
    assert "eidolon: GET /broken: ValueError: a bug" in capfd.readouterr().err
    assert get(site[0], "/hello")[0] == 200


def test_files_are_listed_and_read(site: tuple[str, Path]) -> None:
    address, root = site
    (root / "recording").mkdir()
    (root / "recording" / "part 0").write_bytes(b"0123456789")
    (root / "summary.json").write_text("{}")
    (root / "plan.json").write_text('{"token": "secret"}')
    assert json.loads(get(address, "/files/")[1]) == {
        "files": [{"name": "recording/part 0", "bytes": 10}, {"name": "summary.json", "bytes": 2}]
    }
    status, body, headers = get(address, "/files/recording/part%200")
    assert (status, body, headers["accept-ranges"]) == (200, b"0123456789", "bytes")
    assert get(address, "/files/summary.json", "HEAD")[1] == b""
    assert get(address, "/files/plan.json")[0] == 404, "a local run's plan holds its token"


@pytest.mark.parametrize(
    ("asked", "status", "body", "content_range"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
def test_ranges(site: tuple[str, Path], asked: str, status: int, body: bytes, content_range: str | None) -> None:
    address, root = site
    (root / "file").write_bytes(b"0123456789")
    got, data, headers = get(address, "/files/file", Range=asked)
    assert (got, data, headers.get("content-range")) == (status, body, content_range)


@pytest.mark.parametrize(
    "path", ["../secret", "..%2fsecret", "%2e%2e/secret", "/etc/passwd", "link", "recording", "%00", "a/../../secret"]
)
def test_nothing_outside_the_directory_is_served(site: tuple[str, Path], path: str) -> None:
    address, root = site
    (root.parent / "secret").write_text("secret")
    (root / "link").symlink_to(root.parent / "secret")
    (root / "recording").mkdir()
    assert get(address, f"/files/{path}")[0] == 404
    assert b"link" not in get(address, "/files/")[1]


@pytest.fixture
def connect(site: tuple[str, Path]) -> Iterator[Callable[[], socket.socket]]:
    """Makes connections to the site."""
    host, port = site[0].split(":")
    with contextlib.ExitStack() as made:
        yield lambda: made.enter_context(socket.create_connection((host, int(port)), timeout=10))


def answer(connection: socket.socket) -> bytes:
    """The first line of an answer, all of which is read."""
    text = b""
    while not text.endswith(b"}\n"):
        text += connection.recv(1 << 16)
    return text.partition(b"\r")[0]


def ask(connection: socket.socket, path: str = "/hello") -> None:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def test_connections_are_limited_and_the_idlest_makes_room(connect: Callable[[], socket.socket]) -> None:
    held = [connect() for _ in range(MAX_CONNECTIONS)]
    for connection in (held[-1], held[0]):  # once the last is answered, all have been accepted
        ask(connection)
        assert answer(connection) == b"HTTP/1.1 200 OK"
    held[1].sendall(b"GET /hel")  # and no more
    extra = connect()
    ask(extra)
    assert answer(extra) == b"HTTP/1.1 200 OK"
    assert held[1].recv(1) == b"", "it was idle for longest: a part of a request is none"
    ask(held[0])
    assert answer(held[0]) == b"HTTP/1.1 200 OK", "it has asked lately"
    assert threading.active_count() < MAX_CONNECTIONS + 20


def test_idle_connections_keep_nobody_waiting(site: tuple[str, Path], connect: Callable[[], socket.socket]) -> None:
    _ = [connect() for _ in range(5 * MAX_CONNECTIONS)]
    for _ in range(100):
        assert get(site[0], "/hello")[0] == 200


def test_clients_that_do_not_take_their_answers_make_room_too(
    site: tuple[str, Path], connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, root = site
    (root / "large").write_bytes(b"x" * (32 << 20))
    held = [connect() for _ in range(MAX_CONNECTIONS)]
    for connection in held:
        ask(connection, "/files/large")
        assert connection.recv(12) == b"HTTP/1.1 200"
    with pytest.raises((http.client.HTTPException, OSError)):
        get(address, "/hello")  # all are being answered
    monkeypatch.setattr(served, "STALLED_S", 0.0)
    assert get(address, "/hello")[0] == 200


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:http", "127.0.0.1:70000"])
def test_an_address_that_cannot_be_had_is_an_os_error(address: str) -> None:
    with pytest.raises(OSError, match="HOST:PORT"):
        HttpServer({}).listen(address)
