"""What the launcher's tests share: the launcher, compiled here from its sources, and an installation around it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "interposer" / "native" / "launcher").glob("*.c"))
PROBE = ROOT / "interposer" / "eidolon_interposer" / "probe.py"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the launcher needs a C compiler"
    out = tmp_path_factory.mktemp("launcher") / "launch"
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-static", "-I", str(SOURCES[0].parents[1] / "core")]
    subprocess.run([compiler, *options, *map(str, SOURCES), "-o", str(out), "-lresolv"], check=True)
    return out


class Site:
    """An installation as in the wheel: bin/launch, lib/libeidolon.so, hook/, probe.py; and a shared directory."""

    def __init__(self, root: Path, compiled: Path) -> None:
        self.root = root
        self.launch = root / "bin" / "launch"
        self.lib = root / "lib"
        self.hook = root / "hook"
        self.dir = root / "shared"
        for directory in (self.launch.parent, self.lib, self.hook, self.dir):
            directory.mkdir(parents=True)
        shutil.copy(compiled, self.launch)
        shutil.copy(PROBE, root)
        # A library without any dependency, so that preloading it into the test's commands changes nothing.
        (root / "empty.c").write_text("int eidolon_empty;\n")
        subprocess.run(
            ["gcc", "-shared", "-nostdlib", str(root / "empty.c"), "-o", str(self.lib / "libeidolon.so")], check=True
        )

    def command(self, *command: str, options: Sequence[str] = ()) -> list[str]:
        return [str(self.launch), "--dir", str(self.dir), *options, "--", *command]

    def run(self, *command: str, options: Sequence[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH")}
        line = self.command(*command, options=options)
        return subprocess.run(line, env=clean | environment, capture_output=True, text=True, timeout=60)

    @property
    def exit(self) -> str:
        return (self.dir / "exit").read_text()


@pytest.fixture
def site(tmp_path: Path, compiled: Path) -> Site:
    return Site(tmp_path, compiled)


def until(path: Path) -> str:
    """The contents of a file once it is there and not empty."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{path} did not appear")
