"""A workload that never used a GPU: which torch it had is found without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from eidolon_operator import diagnosis


def make_torch(directory: Path, cuda: str | None) -> dict[str, str]:
    """A package that looks like torch and cannot be imported; returns the environment that finds it first."""
    (directory / "torch").mkdir()
    (directory / "torch" / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    (directory / "torch" / "version.py").write_text(f"__version__ = '2.11.0+x'\ncuda = {cuda!r}\n")
    return {"PYTHONPATH": str(directory)}


def test_a_torch_without_cuda_is_named(tmp_path: Path) -> None:
    found = diagnosis.no_rank([sys.executable, "train.py"], make_torch(tmp_path, None))
    assert found == (
        f"torch 2.11.0+x in {tmp_path}/torch is built without CUDA: the workload could not use a GPU. "
        "Install a CUDA build of torch; no GPU or driver is needed"
    )


def test_a_torch_with_cuda_is_not_blamed(tmp_path: Path) -> None:
    found = diagnosis.no_rank([sys.executable, "train.py"], make_torch(tmp_path, "13.0"))
    assert found.startswith("no process of the workload created a CUDA context (torch 2.11.0+x for CUDA 13.0")


def test_a_python_that_does_not_answer(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert "does not answer" in diagnosis.no_rank([str(python)], {})


@pytest.mark.parametrize(
    ("first_line", "expected"),
    [
        ("#!/opt/venv/bin/python3.11", "/opt/venv/bin/python3.11"),
        ("#!/usr/bin/env python3", "python3"),
        ("#!/bin/sh", None),
        ("", None),
    ],
)
def test_the_interpreter_of_a_script(tmp_path: Path, first_line: str, expected: str | None) -> None:
    script = tmp_path / "torchrun"
    script.write_text(first_line + "\n")
    assert diagnosis.interpreter([str(script)]) == expected


def test_the_interpreter_of_a_program_that_is_not_there(tmp_path: Path) -> None:
    assert diagnosis.interpreter([str(tmp_path / "none")]) is None
    assert diagnosis.no_rank([str(tmp_path / "none")], {}).startswith("no process of the workload")
