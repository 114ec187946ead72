"""Whole runs through the installed ``eidolon`` command, as a user starts them.

Fixtures for a directory's ``conftest.py`` to import: :func:`run` and :func:`nothing_is_left`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
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
        """The run's ``summary.json``."""
        found: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return found

    @property
    def all_output(self) -> str:
        """For assertion messages: everything there is to know."""
        logs = [f"--- {log.name}\n{log.read_text()}" for log in sorted(self.directory.glob("*.log"))]
        return "\n".join([f"exit code {self.code}", self.out, self.err, *logs])


Run = Callable[..., Result]


#: Every process that these tests start inherits it, however far it gets away.
MARK = f"E2E_MARK={uuid.uuid4()}"


def environment() -> dict[str, str]:
    """What a user's shell holds with the environment active, without a test runner's own settings."""
    dropped = ("PYTEST_", "PYTHONPATH", "LD_PRELOAD", "EIDOLON_", "PET_", "RANK", "WORLD_SIZE", "MASTER_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    name, _, value = MARK.partition("=")
    return {**kept, name: value, "PATH": f"{BIN}:{os.environ['PATH']}"}


def active(site: Path) -> dict[str, str]:
    """What activating this environment adds to a shell; ``eidolon`` itself is called by its path."""
    return {"VIRTUAL_ENV": str(site), "PATH": f"{site / 'bin'}:{os.environ['PATH']}"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs ``eidolon run ARGUMENTS`` with a directory of its own for the output, where ``site`` names one in the
    environment there.
    """
    count = 0

    def start(*arguments: str, timeout_s: float = 300, cwd: Path = REPOSITORY, site: Path | None = None) -> Result:
        nonlocal count
        count += 1
        directory = tmp_path / f"out-{count}"
        done = subprocess.run(
            [str(BIN / "eidolon"), "run", "--out", str(directory), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**environment(), **(active(site) if site else {})},
            cwd=cwd,
        )
        return Result(done.returncode, done.stdout, done.stderr, directory)

    return start


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After every test: no process that a run started, and no directory in shared memory whose run is gone."""
    yield
    assert _processes() == []
    assert _abandoned_directories() == []


def _processes() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and MARK.encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                found.append(f"{entry.name} {command}")
    return found


def _abandoned_directories() -> list[Path]:
    """Those of runs beside ours are locked by their owners."""
    found = []
    for owner in Path("/dev/shm").glob("eidolon-*/owner"):
        with contextlib.suppress(OSError), owner.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(owner.parent)
    return found
