"""Large files of `bench/truth`: their checksums, the archive that is unpacked, and the packed form of traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bench import trace_files, truth_files
from bench.truth_files import SUMS, TITAN, TRUTH, DamagedError, checked

LISTED = [line.split()[1] for line in (TRUTH / SUMS).read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", LISTED)
def test_each_file_has_the_checksum_that_was_noted(name: str) -> None:
    assert checked(TRUTH / name) == (TRUTH / name).read_bytes()


def test_all_traces_are_noted() -> None:
    there = {path.relative_to(TRUTH).as_posix() for path in (TRUTH / "traces").iterdir()}
    assert there | {TITAN} == set(LISTED)


def test_a_file_that_changed_or_is_not_noted_is_refused(tmp_path: Path) -> None:
    (tmp_path / SUMS).write_text(f"{'0' * 64}  one\n", "utf-8")
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(b"text")
    with pytest.raises(DamagedError, match=rf"one: SHA-256 982d9e3e.*: {'0' * 64} is noted"):
        checked(tmp_path / "one", tmp_path)
    with pytest.raises(DamagedError, match=r"two: SHA-256 982d9e3e.*: nothing is noted"):
        checked(tmp_path / "two", tmp_path)


def test_titan_is_unpacked_once_and_again_where_its_archive_changed(tmp_path: Path) -> None:
    folder = truth_files.titan(tmp_path)
    data = folder / "tests" / "assets" / "c4_test" / "data.json"
    assert len(data.read_text("utf-8").splitlines()) == 400
    data.write_text("kept", "utf-8")
    assert truth_files.titan(tmp_path) == folder
    assert data.read_text("utf-8") == "kept"
    (folder / truth_files.MARK).write_text("another", "utf-8")
    truth_files.titan(tmp_path)
    assert len(data.read_text("utf-8").splitlines()) == 400
    assert [path.name for path in tmp_path.iterdir()] == ["titan"]


EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 4956958744343.216, "dur": 16.544}
    | {"args": {"External id": 11, "correlation": 25, "stream": 7, "grid": [8192, 1, 1], "occupancy %": 62.060608}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 438, "tid": 483, "ts": 4956958744000.001, "dur": 0}
    | {"args": {"External id": 11, "Sequence number": 10080, "Input Dims": [[2, 3], []], "Concrete Inputs": ["", "1"]}},
    {"ph": "X", "cat": "Trace", "name": "PyTorch", "pid": "Spans", "tid": "PyTorch", "ts": 1.5, "dur": 2},
]


def test_a_packed_trace_holds_complete_events_whole_and_in_order(tmp_path: Path) -> None:
    trace = tmp_path / "one.json.gz"
    arrow = {"ph": "s", "id": 5, "pid": 1, "tid": 2, "ts": 3.25, "cat": "ac2g", "name": "ac2g"}
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": [*EVENTS, arrow]}).encode()))
    trace_files.pack(trace_files.complete_events(trace), tmp_path / "one.parquet")
    assert trace_files.complete_events(tmp_path / "one.parquet") == trace_files.complete_events(trace) == EVENTS
