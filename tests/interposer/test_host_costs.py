"""The shim has no host costs of its own: a run's come with its server.conf."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import eidolon_interposer

LIB = Path(eidolon_interposer.__file__).parent / "lib"
ENTER_A_FUNCTION = """
import ctypes
assert ctypes.PyDLL(None).eidolon_follow_python() == 1
(lambda: None)()
"""
RUNS = "64 512 8192 1 2 3 4"


def under_the_shim(directory: Path, conf: str) -> "subprocess.CompletedProcess[str]":
    (directory / "server.conf").write_text(f"mode=core\ndevices=1\n{conf}")
    environment = {**os.environ, "EIDOLON_DIR": str(directory), "LD_PRELOAD": str(LIB / "libeidolon.so")}
    command = [sys.executable, "-S", "-c", ENTER_A_FUNCTION]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_python_is_counted_by_what_server_conf_says(tmp_path: Path) -> None:
    done = under_the_shim(tmp_path, f"host.function={RUNS}\n")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ("", "server.conf: host.function is missing: mode=core needs the figures of the host cost table"),
        ("host.function=64 512\n", "server.conf: host.function=64 512: three ages and four times in ns are allowed"),
    ],
)
def test_a_run_without_them_ends_with_the_name_of_the_key(tmp_path: Path, conf: str, message: str) -> None:
    done = under_the_shim(tmp_path, conf)
    assert (done.returncode, done.stderr) == (70, f"eidolon: {message}\n")
