"""`eidolon profile` needs no more of Eidolon than what its package says, and its operator set is what tables hold."""

from __future__ import annotations

import collections
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from eidolon_simcore.profile import operators

SIMCORE = Path(__file__).parents[2] / "simcore" / "eidolon_simcore"
ALONE = """
import sys, types
package = types.ModuleType("eidolon_simcore")
package.__path__ = [sys.argv[1]]
sys.modules |= {"eidolon_simcore": package, "eidolon_proto": None, "eidolon_operator": None, "eidolon_interposer": None}
from eidolon_simcore.profile.__main__ import main
main(["--help"])
"""


def test_it_runs_where_two_parts_of_eidolon_were_copied_alone(tmp_path: Path) -> None:
    (tmp_path / "costs").mkdir()
    shutil.copytree(SIMCORE / "profile", tmp_path / "profile", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SIMCORE / "costs" / "reference_load.py", tmp_path / "costs")
    command = [sys.executable, "-c", ALONE, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "{operators,sustained,host,calibrate,nccl,script}" in done.stdout


def test_the_operator_set_is_the_same_each_time_and_without_a_gpu() -> None:
    cases = operators.operator_set()
    assert [(case.family, case.op, case.facts) for case in cases] == [
        (case.family, case.op, case.facts) for case in operators.operator_set()
    ]
    counts = collections.Counter(case.family for case in cases)
    assert [counts[family] for family in ("gemm", "attention", "conv", "copy", "set")] == [2617, 342, 330, 148, 24]
    assert {case.family for case in operators.operator_set(families=("copy", "set"))} == {"copy", "set"}
