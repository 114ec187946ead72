"""Fetching: files come whole over connections that break, stall or lie. Kubernetes itself: e2e/kubernetes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eidolon_operator import fetch
from eidolon_operator.fetch import FetchError, RunFile, RunFiles
from eidolon_simcore.export.http import Files, HttpServer

Connect = Callable[[], socket.socket]


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """What a core has written."""
    directory = tmp_path / "run"
    (directory / "recording").mkdir(parents=True)
    (directory / "summary.json").write_text('{"name": "demo"}')
    (directory / "recording" / "a b%c").write_bytes(os.urandom(3 * fetch.PIECE_BYTES // 2))
    (directory / "empty.log").write_bytes(b"")
    return directory


@pytest.fixture
def connect(run_directory: Path) -> Iterator[Connect]:
    """Opens connections to a core's own HTTP server."""
    server = HttpServer({"/files/": Files(run_directory)})
    host, _, port = server.listen("127.0.0.1:0").rpartition(":")
    yield lambda: socket.create_connection((host, int(port)), timeout=5)
    server.close()


@contextlib.contextmanager
def answering(answer: bytes, *, times: int = 100) -> Iterator[Connect]:
    """Opens connections to something that reads a request, sends ``answer`` and closes; if it is empty, it waits."""
    listener = socket.create_server(("127.0.0.1", 0))
    held = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            for _ in range(times):
                connection, _ = listener.accept()
                connection.recv(65536)
                if answer:
                    connection.sendall(answer)
                    connection.close()
                else:
                    held.append(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield lambda: socket.create_connection(listener.getsockname(), timeout=5)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=5)
        for connection in held:
            connection.close()


def response(body: bytes, *, length: int | None = None) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def test_all_files_come_as_they_are(connect: Connect, run_directory: Path, tmp_path: Path) -> None:
    source = RunFiles(connect, timeout_s=5)
    files = source.list()
    assert [file.name for file in files] == ["empty.log", "recording/a b%c", "summary.json"]
    for file in files:
        copied = source.copy(file, tmp_path / "out")
        assert copied == tmp_path / "out" / file.name
        assert copied.read_bytes() == (run_directory / file.name).read_bytes()
    assert not list((tmp_path / "out").rglob("*.part"))


def test_a_connection_that_breaks_costs_a_piece(connect: Connect, run_directory: Path, tmp_path: Path) -> None:
    opened = 0

    def fragile() -> socket.socket:
        nonlocal opened
        opened += 1
        if opened % 2:
            raise ConnectionResetError("it broke")
        return connect()

    size = 3 * fetch.PIECE_BYTES // 2
    copied = RunFiles(fragile, timeout_s=5).copy(RunFile("recording/a b%c", size), tmp_path / "out")
    assert copied.read_bytes() == (run_directory / "recording" / "a b%c").read_bytes()
    assert opened == 4


def test_a_file_that_does_not_come_whole_is_not_under_its_name(tmp_path: Path) -> None:
    with (
        answering(response(b"abc", length=10)) as connect,
        pytest.raises(FetchError, match=r"x ends after 3 of the 10 .*\(3 tries\)"),
    ):
        RunFiles(connect, timeout_s=5).copy(RunFile("x", 10), tmp_path)
    assert not (tmp_path / "x").exists()


def test_a_core_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    with (
        answering(b"") as connect,
        pytest.raises(FetchError, match=r"did not list its files: nothing came for 0\.05 s"),
    ):
        RunFiles(connect, timeout_s=0.05).list()


def test_an_error_of_the_core_is_passed_on(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="does not send none: 404 Not Found there is no file none"):
        RunFiles(connect, timeout_s=5).copy(RunFile("none", 3), tmp_path)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "a\0b"])
def test_no_file_leaves_the_directory(name: str) -> None:
    listing = json.dumps({"files": [{"name": name, "bytes": 1}]}).encode()
    with answering(response(listing)) as connect, pytest.raises(FetchError, match="outside its directory"):
        RunFiles(connect, timeout_s=5).list()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"files": [{"name": "x"}]}', b"<html>"])
def test_a_list_that_is_none_is_named(body: bytes) -> None:
    with answering(response(body)) as connect, pytest.raises(FetchError, match="list of files cannot be read"):
        RunFiles(connect, timeout_s=5).list()


@pytest.mark.parametrize("target", ["simc/demo", "demo", "SimulatedCluster/demo", "simulatedclusters.eidolon.dev/demo"])
def test_an_object_may_be_named_as_for_kubectl(target: str) -> None:
    assert fetch.object_name(target) == "demo"


@pytest.mark.parametrize("target", ["pod/demo", "simc/", "/demo", ""])
def test_anything_else_is_refused(target: str) -> None:
    with pytest.raises(FetchError, match="write simc/NAME"):
        fetch.object_name(target)
