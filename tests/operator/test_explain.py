"""`eidolon explain`: the costliest operations, with source and expected error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eidolon_operator import explain
from eidolon_operator.cli import main

GEMM = {"family": "gemm", "name": "cublasGemmEx m=8", "operator": "aten::mm", "count": 4, "ns": 900_000}
GUESS = {"family": "kernel odd", "name": "odd", "operator": "", "count": 1, "ns": 100_000}
SUMMARY = {
    "gpu": "h100-sxm",
    "cost_share": {"measured": 0.9, "unknown": 0.1},
    "startup_cost_share": {"unknown": 1.0},
    "coverage": {
        "expected_error": 0.08,
        "families": {"gemm": {"measured": 900_000}, "kernel odd": {"unknown": 100_000}},
        "operations": [
            GEMM | {"source": "measured", "expected_error": 0.02, "share": 0.9},
            GUESS | {"source": "unknown", "expected_error": 0.6, "share": 0.1},
        ],
    },
}


def test_it_names_the_costliest_operations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY), "utf-8")
    assert main(["explain", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "expected error of device time at most 8.0%" in text
    first = next(line for line in text.splitlines() if "cublasGemmEx" in line)
    assert first.split()[:1] == ["90.0%"]
    assert "measured" in first
    assert "225" in first  # us of each of the four
    assert "10.00% unknown odd" in text
    assert "Device time by cost source: measured 90.0%, unknown 10.0%\n" in text
    assert "the start-up (building, compilation, autotuning) had unknown 100.0%\n" in text


def test_a_folder_without_a_summary_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path)]) == 2
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text("{}", "utf-8")
    with pytest.raises(explain.ExplainError, match="no field 'coverage'"):
        explain.load(tmp_path)


REAL_TIME = {"rank": 0, "s": 10.0, "peers_s": 1.0, "horizon_s": 0.5, "ingest_s": 2.0, "room_s": 0.0, "watchers_s": 0.5}


def test_wall_says_what_a_rank_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY | {"real_time": [REAL_TIME]}), "utf-8")
    assert main(["explain", "--wall", str(tmp_path)]) == 0
    head, row = capsys.readouterr().out.splitlines()[:2]
    assert head.split() == ["rank", "real", "time", "own", "work", "peers", "horizon", "ingest", "room", "watchers"]
    assert row.split() == ["0", "10.00", "s", "60.0%", "10.0%", "5.0%", "20.0%", "0.0%", "5.0%"]


def test_wall_of_an_older_summary_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY), "utf-8")
    assert main(["explain", "--wall", str(tmp_path)]) == 2
    assert "no field 'real_time'" in capsys.readouterr().err
