"""Files of a recording: columns come back as they were, the size stays bounded, trouble ends it and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from eidolon_simcore.export.timeline import store
from eidolon_simcore.export.timeline.store import Recording, RecordingError, Writer, pack, unpack

ALWAYS = (0, 1 << 62)


def write(writer: Writer, table: str, columns: dict[str, NDArray[Any]], window: tuple[int, int] = ALWAYS) -> None:
    writer.block(table, lambda: columns, lambda _: window)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1))
def test_any_column_of_integers_comes_back(values: list[int]) -> None:
    column = np.array(values, np.int64)
    how, packed = pack(column)
    assert unpack(packed, json.loads(json.dumps(how))).tolist() == values


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1))
def test_so_does_one_of_natural_numbers(values: list[int]) -> None:
    column = np.array(values, np.uint64)
    how, packed = pack(column)
    assert unpack(packed, how).tolist() == values


def test_times_take_as_many_bytes_as_their_differences() -> None:
    _, packed = pack(10**15 + np.arange(0, 1_000_000, 1_000))
    assert len(packed) == 2 * 1_000  # the first difference is 0, the others 1,000


def test_blocks_come_back_in_order_and_by_table(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 1 << 20)
    writer.name("label", name="gemm")
    for number in range(3):
        write(writer, "spans", {"start": np.array([number], np.int64)}, (number, number))
        write(writer, "steps", {"step": np.array([10 + number], np.int64)})
    writer.close({"ranks": 2})
    found = Recording(tmp_path)
    assert [block.columns["start"].tolist() for block in found.blocks("spans")] == [[0], [1], [2]]
    assert [block.columns["step"].tolist() for block in found.blocks("steps")] == [[10], [11], [12]]
    assert [block.window for block in found.blocks("spans", (1, 1))] == [(1, 1)]
    assert found.names("label") == [{"name": "gemm"}]
    assert (found.facts["complete"], found.facts["ranks"]) == (True, 2)


def test_too_long_a_recording_keeps_its_end(tmp_path: Path) -> None:
    limit = 256 << 10
    writer = Writer(tmp_path, limit)
    noise = np.random.default_rng(1)
    for number in range(200):
        columns = {"x": noise.integers(0, 1 << 62, 1_000), "number": np.full(1_000, number)}
        write(writer, "spans", columns)
    writer.close({})
    found = Recording(tmp_path)
    kept = [int(block.columns["number"][0]) for block in found.blocks("spans")]
    assert kept == list(range(200 - len(kept), 200))
    assert found.facts["dropped_rows"] == 1_000 * (200 - len(kept))
    assert limit / 2 < found.size_bytes() <= limit


def test_a_recording_cut_short_can_be_read_up_to_there(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 1 << 20)
    for number in range(2):
        write(writer, "spans", {"start": np.arange(100) * 7**number})
    writer.close({})
    file = tmp_path / "000000.columns"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert len(list(Recording(tmp_path).blocks("spans"))) <= 1
    file.write_bytes(whole)
    assert len(list(Recording(tmp_path).blocks("spans"))) == 2


def test_a_disk_that_fails_ends_the_recording_and_says_why(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 1 << 20)

    def fail() -> Any:
        raise OSError(28, "No space left on device", str(tmp_path / "000000.columns"))

    writer.block("spans", fail, lambda _: ALWAYS)
    for _ in range(1_000):  # more than can wait: nobody is held up
        write(writer, "spans", {"start": np.arange(10)})
    writer.close({})
    facts = Recording(tmp_path).facts
    assert facts["complete"] is False
    assert facts["problem"] == f"{tmp_path}/000000.columns: No space left on device"


def test_a_disk_that_hangs_holds_the_run_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(store, "WAIT_S", 0.05)
    monkeypatch.setattr(store, "CLOSE_S", 0.05)
    writer = Writer(tmp_path, 1 << 20)
    released = threading.Event()
    writer.block("spans", lambda: released.wait(20) and {}, lambda _: ALWAYS)  # type: ignore[arg-type, return-value]
    for _ in range(store.WAITING + 2):
        write(writer, "spans", {"start": np.arange(10)})
    writer.close({})
    released.set()
    assert "the disk took more than" in Recording(tmp_path).facts["problem"]


def test_what_is_no_recording_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"no recording: .*recording\.json is missing"):
        Recording(tmp_path)
    Writer(tmp_path, 1 << 20).close({})
    (tmp_path / "recording.json").write_text('{"format": 99}')
    with pytest.raises(RecordingError, match="format 99; this version reads 1"):
        Recording(tmp_path)
