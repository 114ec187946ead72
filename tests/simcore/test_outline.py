"""A rank's time in outline, from its own list: where nothing is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.engine.interface import OPERATION, Flag, Op

MS = 1_000_000
COMPUTE, SIDE = 1, 2  # lanes


def op(kind: Op, lane: int = COMPUTE, *, host: int = 0, work: int = 0, value: int = 0, flags: int = 0) -> Any:
    row = np.zeros(1, OPERATION)
    row["op"], row["lane"], row["host_ns"], row["work_ns"] = int(kind), lane, host, work
    row["value"], row["flags"] = value, flags
    return row


def idle(*operations: Any, alone: int = 0, outline: Any = None) -> int:
    """Nanoseconds of gaps; every collective takes ``alone`` by itself."""
    rows = np.concatenate(operations)
    outline = outline or _engine.Outline()
    outline.take(rows.tobytes(), np.where(rows["op"] == int(Op.COLLECTIVE), alone, 0).astype(np.int64))
    return int(outline.cut())


def work(ns: int, lane: int = COMPUTE) -> Any:
    return op(Op.WORK, lane, work=ns)


def test_work_behind_work_leaves_no_gap() -> None:
    assert idle(work(5), work(7), op(Op.COLLECTIVE, SIDE), work(3), alone=1_000) == 0


def test_a_collective_that_work_waits_for_is_a_gap_as_far_as_nothing_else_runs() -> None:
    before, behind = op(Op.RECORD, value=1), op(Op.RECORD, SIDE, value=2)
    both = op(Op.WAIT, SIDE, value=1), op(Op.COLLECTIVE, SIDE), behind
    assert idle(work(10), before, *both, op(Op.WAIT, value=2), work(5), alone=100) == 100
    assert idle(work(10), before, *both, work(60), op(Op.WAIT, value=2), work(5), alone=100) == 40


def test_collectives_of_a_group_are_one() -> None:
    group = op(Op.COLLECTIVE, flags=int(Flag.GROUP_MORE)), op(Op.COLLECTIVE)
    assert idle(work(10), *group, work(5), alone=100) == 100


def test_a_host_that_comes_late_leaves_a_gap_and_one_that_waits_comes_late() -> None:
    assert idle(op(Op.WORK, host=20, work=10), op(Op.WORK, host=50, work=10)) == 20 + 40
    assert idle(work(100), op(Op.SYNC_LANE), op(Op.WORK, host=30, work=10)) == 30
    assert idle(work(100), op(Op.RECORD, value=3), op(Op.SYNC_KEY, value=3), op(Op.WORK, host=30, work=10)) == 30
    assert idle(work(100), op(Op.SYNC_DEVICE), op(Op.WORK, SIDE, host=30, work=10)) == 30
    watching = op(Op.SYNC_LANE, flags=int(Flag.BACKGROUND))  # holds nobody up
    assert idle(work(100), watching, op(Op.WORK, host=30, work=10)) == 0


def test_a_pause_counts_as_far_as_the_clock_is_a_mean_over_it() -> None:
    assert idle(op(Op.WORK, host=5_000 * MS, work=10)) == 100 * MS


def test_each_step_has_its_own_gaps() -> None:
    outline = _engine.Outline()
    assert idle(op(Op.WORK, host=20, work=10), outline=outline) == 20
    assert idle(op(Op.RECORD, value=1), op(Op.WAIT, SIDE, value=1), work(10), outline=outline) == 0
    assert idle(op(Op.WORK, host=30, work=10), outline=outline) == 10


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        _engine.Outline().take(np.concatenate([work(1), work(2)]).tobytes(), np.zeros(1, np.int64))
