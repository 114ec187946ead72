"""The HTTP server: routes, files with ranges, limits; all over a real socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_connections_are_limited_and_the_rest_goes_on(site: tuple[str, Path]) -> None:
    host, port = site[0].split(":")
    held = [socket.create_connection((host, int(port)), timeout=10) for _ in range(MAX_CONNECTIONS)]
    extra = socket.create_connection((host, int(port)), timeout=10)
    assert extra.recv(1) == b"", "one too many is closed at once"
    extra.close()
    held[0].sendall(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
    assert held[0].recv(12) == b"HTTP/1.1 200"
    for connection in held:
        connection.close()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:http", "127.0.0.1:70000"])
def test_an_address_that_cannot_be_had_is_an_os_error(address: str) -> None:
    with pytest.raises(OSError, match="HOST:PORT"):
        HttpServer({}).listen(address)
