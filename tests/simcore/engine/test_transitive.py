"""What a late arrival changes, told with small programs: the answers would be wrong if only the flow itself moved."""

from __future__ import annotations

import numpy as np
import pytest

from eidolon_simcore.engine.interface import OPERATION, SPAN, Answer, Blocked, Flag, Flow, Op, Rates
from eidolon_simcore.engine.native import NativeEngine

GB = 10**9


def rows(*operations: tuple[Op, dict[str, int]], first: int = 0) -> np.ndarray:
    table = np.zeros(len(operations), OPERATION)
    for i, (op, fields) in enumerate(operations):
        table[i]["seq"], table[i]["op"] = first + i, op
        for name, value in fields.items():
            table[i][name] = value
    return table


def engine(ranks: int, *, optimistic: bool) -> NativeEngine:
    made = NativeEngine(optimistic=optimistic, expected_ranks=ranks)
    for rank in range(ranks):
        made.add_rank(rank)
        made.add_lane(rank, 0, 0)
        made.add_lane(rank, 1, 0)
    return made


def spans(made: NativeEngine, rank: int) -> dict[int, tuple[int, int]]:
    return {int(s["seq"]): (int(s["start_ns"]), int(s["end_ns"])) for s in made.spans(rank)}


def finish(made: NativeEngine, ranks: int) -> None:
    for rank in range(ranks):
        made.end_rank(rank)
    made.answers()


def test_a_late_flow_moves_everything_behind_it_through_lanes_events_hosts_and_ranks() -> None:
    """Rank 0 sends 1,000 bytes to itself, waits, and meets rank 1 much later. Rank 2's flow over the same link began
    earlier in virtual time but is told later: rank 0's flow ends at 1,500 instead of 1,000, and with it an event, a
    kernel of another lane, the host, the meeting with rank 1, and what rank 1 does after it."""
    made = engine(3, optimistic=True)
    link = made.link(1 * GB)
    alone = made.collective((0,), 0, (Flow((link,), 1000),))
    meeting = made.collective((0, 1), 10, ())
    other = made.collective((2,), 0, (Flow((link,), 500),))
    made.ingest(
        0,
        rows(
            (Op.COLLECTIVE, {"lane": 0, "value": alone}),
            (Op.RECORD, {"lane": 0, "value": 1}),
            (Op.WAIT, {"lane": 1, "value": 1}),
            (Op.WORK, {"lane": 1, "work_ns": 100}),
            (Op.SYNC_LANE, {"lane": 1, "flags": Flag.ASK}),
            (Op.COLLECTIVE, {"lane": 0, "value": meeting, "host_ns": 5}),
        ),
    )
    made.ingest(
        1,
        rows(
            (Op.COLLECTIVE, {"lane": 0, "value": meeting}),
            (Op.WORK, {"lane": 0, "work_ns": 7}),
            (Op.SYNC_LANE, {"lane": 0, "flags": Flag.ASK}),
        ),
    )
    assert made.answers() == [Answer(0, 4, 1100, 0), Answer(1, 2, 1122, 0)]  # as far as is known

    made.ingest(2, rows((Op.COLLECTIVE, {"lane": 0, "value": other})))
    made.ingest(0, rows((Op.CLOCK, {"flags": Flag.ASK}), first=6))
    assert made.answers() == [Answer(0, 6, 1605, 0)]  # corrected at the next call
    finish(made, 3)
    assert spans(made, 0) == {0: (0, 1500), 3: (1500, 1600), 4: (0, 1600), 5: (1605, 1615)}
    assert spans(made, 1) == {0: (0, 1615), 1: (1615, 1622), 2: (0, 1622)}
    assert spans(made, 2) == {0: (0, 1000)}
    assert made.counters()["rollbacks"] == 1


def test_many_late_flows_are_undone_together() -> None:
    made = engine(4, optimistic=True)
    link = made.link(1 * GB)
    flows = [made.collective((rank,), 0, (Flow((link,), 1000),)) for rank in range(4)]
    made.ingest(0, rows((Op.COLLECTIVE, {"value": flows[0]}), (Op.SYNC_LANE, {"flags": Flag.ASK})))
    assert made.answers() == [Answer(0, 1, 1000, 0)]
    for rank in (1, 2, 3):
        made.ingest(rank, rows((Op.COLLECTIVE, {"value": flows[rank], "host_ns": 10 * rank})))
    finish(made, 4)
    assert made.counters()["rollbacks"] == 1
    assert spans(made, 0)[0] == (0, 3957)  # by hand: 3,956.7


def test_a_collective_slows_the_kernels_beside_it_and_its_own_move_moves_them_again() -> None:
    made = engine(2, optimistic=True)
    half = Rates(with_collective=1 << 19)
    table = made.rates((half,))
    made.set_rates(0, table)
    link = made.link(1 * GB)
    mine = made.collective((0,), 0, (Flow((link,), 100),))
    other = made.collective((1,), 0, (Flow((link,), 1000),))
    made.ingest(
        0,
        rows(
            (Op.COLLECTIVE, {"lane": 0, "value": mine}),
            (Op.WORK, {"lane": 1, "work_ns": 300}),
            (Op.SYNC_LANE, {"lane": 1, "flags": Flag.ASK}),
        ),
    )
    assert made.answers() == [Answer(0, 2, 350, 0)]  # half as fast for 100 ns
    made.ingest(1, rows((Op.COLLECTIVE, {"lane": 0, "value": other})))
    finish(made, 2)
    assert spans(made, 0) == {0: (0, 200), 1: (0, 400), 2: (0, 400)}


def test_conservative_answers_wait_until_nothing_can_change_them() -> None:
    made = engine(2, optimistic=False)
    link = made.link(1 * GB)
    mine = made.collective((0,), 0, (Flow((link,), 1000),))
    other = made.collective((1,), 0, (Flow((link,), 500),))
    made.ingest(0, rows((Op.COLLECTIVE, {"value": mine}), (Op.SYNC_LANE, {"flags": Flag.ASK})))
    assert made.answers() == []
    made.ingest(1, rows((Op.COLLECTIVE, {"value": other, "host_ns": 400})))
    assert made.answers() == []  # rank 1 may still act at 400
    made.ingest(1, rows((Op.HOST, {"host_ns": 5000}), first=1))
    assert made.answers() == [Answer(0, 1, 1500, 0)]
    assert made.counters()["rollbacks"] == 0


def test_work_of_ones_own_needs_no_horizon() -> None:
    made = engine(2, optimistic=False)
    made.ingest(0, rows((Op.WORK, {"work_ns": 1000}), (Op.SYNC_LANE, {"flags": Flag.ASK})))
    assert made.answers() == [Answer(0, 1, 1000, 0)]
    assert made.horizon() == 0  # rank 1 stands at 0


def test_a_deadlock_is_told_with_who_waits_for_whom() -> None:
    made = engine(2, optimistic=False)
    first, second = (made.collective((0, 1), 1, ()) for _ in range(2))
    for rank, (a, b) in enumerate(((first, second), (second, first))):
        made.ingest(
            rank,
            rows((Op.COLLECTIVE, {"value": a}), (Op.COLLECTIVE, {"value": b}), (Op.SYNC_LANE, {"flags": Flag.ASK})),
        )
    assert made.answers() == []
    assert made.deadlocked()
    assert made.blocked() == [Blocked(0, 2, first, (1,)), Blocked(1, 2, second, (0,))]


def test_the_end_of_an_event_outlives_its_history() -> None:
    made = engine(1, optimistic=True)
    count = 70_000  # more than stay in memory
    table = np.zeros(2 * count, OPERATION)
    table["seq"] = np.arange(2 * count)
    table["op"][0::2], table["op"][1::2] = Op.WORK, Op.RECORD
    table["work_ns"], table["value"] = 10, np.arange(2 * count) // 2
    table["op"][-1] = Op.SYNC_LANE
    made.ingest(0, table)
    made.answers()
    assert len(made.spans(0)) == count + 1
    assert made.counters()["nodes_live"] == 0
    asked = rows((Op.KEY_TIME, {"value": 3, "flags": Flag.ASK}), (Op.KEY_TIME, {"value": count - 2, "flags": Flag.ASK}))
    restored = NativeEngine()
    restored.restore(made.snapshot())
    for one in (made, restored):
        one.ingest(0, asked)
        assert [answer.value for answer in one.answers()] == [40, 10 * (count - 1)]


def test_a_damaged_snapshot_is_refused_and_changes_nothing() -> None:
    made = engine(1, optimistic=False)
    made.ingest(0, rows((Op.WORK, {"work_ns": 10}), (Op.SYNC_LANE, {})))
    state = made.snapshot()
    for damaged in (state[:-1], state + b"x", b"nonsense"):
        with pytest.raises(ValueError, match="snapshot"):
            made.restore(damaged)
    finish(made, 1)
    assert spans(made, 0) == {0: (0, 10), 1: (0, 10)}


def test_bad_input_is_refused_whole() -> None:
    made = engine(1, optimistic=False)
    with pytest.raises(ValueError, match="lane 9 is not known"):
        made.ingest(0, rows((Op.WORK, {"work_ns": 10}), (Op.WORK, {"lane": 9})))
    with pytest.raises(ValueError, match="each link once"):
        made.pattern((Flow((made.link(1), 0), 1),))
    finish(made, 1)
    assert made.spans(0).dtype == SPAN
    assert made.counters()["nodes"] == 0
