"""The core as a process: its options, its end, TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import certificate
from fakes import CORE, FakeAgent


class Process:
    """A core as a process of its own."""

    def __init__(self, directory: Path, *options: str, **changes: Any) -> None:
        plan_file = directory / "plan.json"
        plan_file.write_text(json.dumps({"name": "t", "core": {**CORE, **changes}}))
        command = [sys.executable, "-m", "eidolon_simcore", "--plan", str(plan_file), "--out", str(directory), *options]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def said(self, word: str) -> str:
        """What stands behind the word on the next line."""
        assert self.process.stdout is not None
        found, address = self.process.stdout.readline().split()
        assert found == word
        return str(address)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def read(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
        body = answer.read()
    return json.loads(body) if answer.headers["Content-Type"] == "application/json" else body


def test_a_core_that_lingers_stays_readable_until_it_is_told_to_end(tmp_path: Path) -> None:
    core = Process(tmp_path, "--linger", "--http", "127.0.0.1:0")
    try:
        http, address = core.said("http"), core.said("listening")
        assert read(http, "/healthz") == b"ok\n"
        assert read(http, "/status")["state"] == "Waiting"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(http, "/summary")
        agent = FakeAgent(address)
        agent.goodbye(3, "why")
        deadline = time.monotonic() + 20
        while read(http, "/status")["state"] != "Failed" or not (tmp_path / "summary.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert read(http, "/status")["message"] == "server 0: exit code 3: why"
        assert read(http, "/summary")["cause"] == "WorkloadFailed"
        names = [file["name"] for file in read(http, "/files/")["files"]]
        assert names == ["progress.jsonl", "summary.json"]
        assert json.loads(read(http, "/files/summary.json"))["state"] == "Failed"
        assert read(http, "/healthz") == b"ok\n"
        assert core.process.poll() is None
        core.process.terminate()
        assert core.process.wait(20) == 1
        agent.close()
    finally:
        core.close()


def test_a_core_that_lingers_ends_at_sigterm_in_the_middle_too(tmp_path: Path) -> None:
    core = Process(tmp_path, "--linger")
    try:
        agent = FakeAgent(core.said("listening"))
        agent.wait(lambda messages: messages)
        core.process.terminate()
        assert "asked to stop" in agent.stopped().reason
        agent.goodbye(1)
        assert core.process.wait(20) == 1
        agent.close()
    finally:
        core.close()
    assert json.loads((tmp_path / "summary.json").read_text())["cause"] == "Cancelled"


# ---- security --------------------------------------------------------------------------------------------------------


def test_tls_pins_the_certificate_and_the_token_is_the_secret_s(tmp_path: Path) -> None:
    tls, other = certificate(tmp_path / "tls"), certificate(tmp_path / "other")
    core = Process(tmp_path, "--tls", str(tls))
    try:
        address = core.said("listening")
        plain = FakeAgent(address)
        assert plain.status()[0] == grpc.StatusCode.UNAVAILABLE, "no plain text"
        mistaken = FakeAgent(address, trust=other / "tls.crt")
        assert mistaken.status()[0] == grpc.StatusCode.UNAVAILABLE, "only this certificate is trusted"
        stranger = FakeAgent(address, trust=tls / "tls.crt", token="secret")
        assert stranger.status() == (grpc.StatusCode.UNAUTHENTICATED, "the token is not that of this run")
        agent = FakeAgent(address, trust=tls / "tls.crt", token="5" * 64)
        agent.wait(lambda messages: messages)
        agent.goodbye()
        assert core.process.wait(20) == 0
        for each in (plain, mistaken, stranger, agent):
            each.close()
    finally:
        core.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda tls: (tls / "token").write_text("short"), "token: 5 characters are too few"),
        (lambda tls: (tls / "tls.key").unlink(), "No such file"),
    ],
)
def test_a_tls_directory_that_is_wrong_is_one_clear_line(
    tmp_path: Path, spoil: Callable[[Path], Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from eidolon_simcore.__main__ import main

    tls = certificate(tmp_path / "tls")
    spoil(tls)
    (tmp_path / "plan.json").write_text(json.dumps({"core": CORE}))
    assert main(["--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path), "--tls", str(tls)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_the_process_as_the_launcher_starts_it(tmp_path: Path) -> None:
    core = Process(tmp_path)
    try:
        agent = FakeAgent(core.said("listening"))
        agent.wait(lambda messages: messages)
        agent.goodbye()
        assert core.process.wait(20) == 0
        agent.close()
    finally:
        core.close()
    assert json.loads((tmp_path / "summary.json").read_text())["state"] == "Succeeded"


@pytest.mark.parametrize(
    ("core", "words"),
    [
        ({**CORE, "gpu": "h900"}, "core.gpu: unknown GPU 'h900': h100-sxm"),
        ({**CORE, "time_sync": "both"}, "core.time_sync: 'both': conservative, optimistic are allowed"),
        ({**CORE, "servers": 0}, "core.servers: 0 is not positive"),
    ],
)
def test_a_plan_that_cannot_run_is_one_clear_line(
    tmp_path: Path, core: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from eidolon_simcore.__main__ import main

    (tmp_path / "plan.json").write_text(json.dumps({"core": core}))
    assert main(["--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_metrics_and_the_dcgm_page_are_served_from_the_beginning(tmp_path: Path) -> None:
    core = Process(tmp_path, "--http", "127.0.0.1:0", "--dcgm", "127.0.0.1:0")
    try:
        http, dcgm = core.said("http"), core.said("dcgm")
        core.said("listening")
        with urllib.request.urlopen(f"http://{http}/metrics", timeout=20) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert 'eidolon_run_state{run="t",state="Waiting"} 1.0' in answer.read().decode()
        page = read(dcgm, "/metrics").decode()
        assert 'DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-' in page
        assert 'hostname="t-server-0"' in page
    finally:
        core.close()
