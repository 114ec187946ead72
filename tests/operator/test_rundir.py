"""The folder of a run: two runs never share one."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eidolon_operator import cli, rundir

HOLDER = """
import sys, time
from pathlib import Path
from eidolon_operator import rundir
with rundir.given(Path(sys.argv[1])):
    print("has it", flush=True)
    time.sleep(600)
"""


def test_folders_of_the_same_second_have_different_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def make(_: int) -> Path:
        with rundir.new("demo-20260101-000000") as path:
            (path / "plan.json").touch(exist_ok=False)
            return path

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(24)))
    assert len(set(made)) == 24
    names = {path.name for path in (tmp_path / "eidolon-runs").iterdir()}
    assert names == {"demo-20260101-000000", *(f"demo-20260101-000000-{number}" for number in range(2, 25))}
    assert not list(tmp_path.rglob(rundir.LOCK))


def test_a_folder_in_use_is_refused_and_its_user_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    (tmp_path / "run").mkdir()
    (out / "summary.json").write_text("of an earlier run")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(out)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        assert cli.main(["run", "--out", str(out), "--", "true"]) == 2
        assert capsys.readouterr().err == f"eidolon: --out: {out} is in use by process {holder.pid}: -c {out}\n"
        assert (out / "summary.json").read_text() == "of an earlier run"
    finally:
        holder.kill()
        holder.communicate()
    with rundir.given(out):
        assert (out / rundir.LOCK).exists()
    assert not (out / rundir.LOCK).exists()


def test_one_of_many_that_want_the_same_folder_gets_it(tmp_path: Path) -> None:
    """Also while others give it up, and take the lock file with them."""
    inside: list[int] = []
    most = 0

    def use(number: int) -> int:
        nonlocal most
        taken = 0
        for _ in range(50):
            try:
                with rundir.given(tmp_path):
                    inside.append(number)
                    most = max(most, len(inside))
                    time.sleep(0.0005)
                    inside.remove(number)
                    taken += 1
            except rundir.InUseError:
                pass
        return taken

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(use, range(6))) > 0
    assert most == 1


@pytest.mark.parametrize("parts", [("file",), ("file", "below"), ("a" * 300,)])
def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["run", "--out", str(tmp_path.joinpath(*parts)), "--", "true"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("eidolon: --out: ")
    assert error.count("\n") == 1
