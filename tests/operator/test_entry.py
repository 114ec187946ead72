"""The program as a shell starts it: pipes that close, outputs that are full, paths that are no text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.yaml"
PROGRAM = "from eidolon_operator.entry import main; raise SystemExit(main())"


def shell(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a line of bash in which `eidolon` is our program."""
    text = f'eidolon() {{ "{sys.executable}" -c "{PROGRAM}" "$@"; }}\n{line}'
    return subprocess.run(
        ["bash", "-c", text],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        timeout=60,
    )


@pytest.mark.parametrize("arguments", ["gpus", "--help", "run --help", f"topology show {DEMO}"])
def test_a_reader_that_stops_ends_it_quietly(tmp_path: Path, arguments: str) -> None:
    done = shell(f"eidolon {arguments} | true; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert done.stderr == b""
    assert int(done.stdout) in (0, 128 + signal.SIGPIPE)


def test_a_closed_output_is_no_traceback(tmp_path: Path) -> None:
    assert shell("eidolon gpus >&-", tmp_path).stderr == b""
    done = shell("eidolon validate none.yaml 2>&-; echo $?", tmp_path)
    assert (done.stdout, done.stderr) == (b"2\n", b"")


def test_a_full_output_is_one_line(tmp_path: Path) -> None:
    done = shell("eidolon gpus >/dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (1, b"eidolon: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_paths_that_are_no_text(tmp_path: Path, encoding: str) -> None:
    name = "cl\udcffst\u00e9r.yaml"
    (tmp_path / name).write_bytes(DEMO.read_bytes())
    done = shell("for file in *.yaml; do eidolon validate --local $file; done", tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert b"valid: demo on 2 servers" in done.stdout
    (tmp_path / name).write_text("a: 1\n")
    done = shell("for file in *.yaml; do eidolon validate $file; done", tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_ctrl_c_while_modules_are_imported_is_no_traceback(tmp_path: Path) -> None:
    """The signal comes from within the import, so that it is certain to come then."""
    (tmp_path / "argparse.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)\n")
    done = shell("eidolon gpus; echo $?", tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert b"Traceback" not in done.stderr
    assert done.stdout == b"130\n"
