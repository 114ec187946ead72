"""Whole local runs of workloads without a GPU: whatever of a run is killed, the run ends at once and says what it was.

Core, agents and launchers are real. Runs that train are in e2e/local.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eidolon_operator import processes

EIDOLON = [sys.executable, "-c", "from eidolon_operator.entry import main; raise SystemExit(main())"]


class Running:
    """`eidolon run` of two servers whose workload sleeps; its processes are found by their command lines."""

    def __init__(self, out: Path, *options: str, command: tuple[str, ...] = ("sleep", "600")) -> None:
        self.out = out
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        self.process = subprocess.Popen(
            [*EIDOLON, "run", "--servers", "2", "--out", str(out), *options, "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def pids(self, pattern: str) -> list[int]:
        """Descendants whose command line matches, in order."""
        children = processes._children()
        found = []
        for pid in processes._below(children, self.process.pid):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if re.search(pattern, line):
                found.append(pid)
        return sorted(found)

    def started(self) -> None:
        """Waits until the workloads of both servers sleep."""
        deadline = time.monotonic() + 60
        while len(self.pids(r"^\S*/sleep 600")) < 2:
            assert time.monotonic() < deadline, self.process.poll()
            time.sleep(0.05)

    def end(self) -> tuple[int, str, float]:
        """Exit code, stderr, and the seconds until the end."""
        began = time.monotonic()
        _, err = self.process.communicate(timeout=90)
        return self.process.returncode, err, time.monotonic() - began

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    run = Running(tmp_path / "out")
    try:
        run.started()
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


def test_a_launcher_that_is_killed_is_named_at_once(running: Running) -> None:
    victim = running.pids("launch --dir .*-1 ")[0]
    os.kill(victim, signal.SIGKILL)
    code, err, took_s = running.end()
    assert code == 128 + signal.SIGKILL
    assert took_s < 8, err
    reason = "server 1: exit code 137: its launcher was killed by signal 9 (SIGKILL)"
    assert err.splitlines()[-1] == f"eidolon: {reason}"
    assert (running.summary["cause"], running.summary["reason"]) == ("WorkloadFailed", reason)


def test_a_core_that_is_killed_is_named_at_once(running: Running) -> None:
    os.kill(running.pids("-m eidolon_operator.one_host ")[0], signal.SIGKILL)
    code, err, took_s = running.end()
    assert code != 0
    assert took_s < 8, err
    assert "eidolon: the simulation core was killed by signal 9 (SIGKILL) too early" in err
    assert not (running.out / "summary.partial").exists()


def test_ctrl_c_ends_the_run_as_asked(running: Running) -> None:
    running.process.send_signal(signal.SIGINT)
    code, err, _ = running.end()
    assert code == 128 + signal.SIGINT
    assert err.splitlines()[-1] == "eidolon: ended by SIGINT"
    assert "Traceback" not in err


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.1, 0.2, 0.4, 0.7, 1.0])
def test_ctrl_c_in_the_first_second_leaves_no_traceback(tmp_path: Path, delay_s: float) -> None:
    run = Running(tmp_path / "out")
    try:
        caught = re.compile("^SigCgt:.*[2367abef]$", re.MULTILINE)  # SIGINT: Python itself is starting
        status = Path(f"/proc/{run.process.pid}/status")
        while not caught.search(status.read_text()):
            time.sleep(0.001)
        soon = time.monotonic() + 1  # the moment in which it is not caught is short: a busy machine may miss it
        while caught.search(status.read_text()) and time.monotonic() < soon:
            time.sleep(0.001)
        time.sleep(delay_s)
        run.process.send_signal(signal.SIGINT)
        code, err, _ = run.end()
        assert code in (130, -signal.SIGINT), err
        assert "Traceback" not in err
        assert run.pids(".") == []
    finally:
        run.process.kill()
        run.process.communicate()
