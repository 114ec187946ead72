"""Whole runs through the installed ``eidolon`` command, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Result:
    """A finished run: what it printed and what it left."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return found

    @property
    def all_output(self) -> str:
        """For assertion messages: everything there is to know."""
        logs = [f"--- {log.name}\n{log.read_text()}" for log in sorted(self.directory.glob("*.log"))]
        return "\n".join([f"exit code {self.code}", self.out, self.err, *logs])


Run = Callable[..., Result]


def environment() -> dict[str, str]:
    """What a user's shell holds, without a test runner's own settings."""
    dropped = ("PYTEST_", "PYTHONPATH", "LD_PRELOAD", "EIDOLON_", "PET_", "RANK", "WORLD_SIZE", "MASTER_")
    return {key: value for key, value in os.environ.items() if not key.startswith(dropped)}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs ``eidolon run ARGUMENTS`` with a directory of its own for the output."""
    count = 0

    def start(*arguments: str, timeout_s: float = 300, cwd: Path = REPOSITORY) -> Result:
        nonlocal count
        count += 1
        directory = tmp_path / f"out-{count}"
        done = subprocess.run(
            [str(BIN / "eidolon"), "run", "--out", str(directory), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment(),
            cwd=cwd,
        )
        return Result(done.returncode, done.stdout, done.stderr, directory)

    return start


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    """After every test: no directory in shared memory and no process of ours beyond those that were there before."""
    before = _ours()
    yield
    assert _ours() <= before


def _ours() -> set[str]:
    found = {str(path) for path in Path("/dev/shm").glob("eidolon-*")}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if "eidolon_simcore" in command or "eidolon_interposer" in command:
                found.add(f"{entry.name} {command}")
    return found
