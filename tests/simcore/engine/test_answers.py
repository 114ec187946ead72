"""What is answered when, and who is said to wait: conservative, with a rank that stands still at 0."""

from __future__ import annotations

import numpy as np
import pytest

from eidolon_simcore.engine.interface import OPERATION, Answer, Flag, Flow, Op, Rates
from eidolon_simcore.engine.native import NativeEngine


def operations(*rows: tuple[Op, int, int, Flag], seq: int = 0) -> np.ndarray:
    """(op, value, host_ns, flags) on lane 0."""
    out = np.zeros(len(rows), OPERATION)
    for at, (op, value, host, flags) in enumerate(rows):
        out[at]["seq"], out[at]["op"], out[at]["value"] = seq + at, op, value
        out[at]["host_ns"], out[at]["flags"] = host, flags
    return out


ASK, NONE, WATCH = Flag.ASK, Flag(0), Flag.ASK | Flag.BACKGROUND


@pytest.fixture
def engine() -> NativeEngine:
    made = NativeEngine()
    for rank in range(3):
        made.add_rank(rank)
        made.add_lane(rank, 0, 0)
    made.link(10**9)
    return made


@pytest.mark.parametrize(("flows", "known"), [((), True), ((Flow((0,), 100),), False)])
def test_only_what_others_can_slow_down_waits_for_them(
    engine: NativeEngine, flows: tuple[Flow, ...], known: bool
) -> None:
    handle = engine.collective((0, 1), 50, flows)
    assert engine.end_of(handle) is None
    for rank in (0, 1):
        engine.ingest(rank, operations((Op.COLLECTIVE, handle, 7, NONE), (Op.SYNC_LANE, 0, 0, ASK)))
    expected = [Answer(rank, 1, 57 if known else 157, 0) for rank in (0, 1)]
    assert engine.answers() == (expected if known else [])  # rank 2 may yet put something on the wire
    assert engine.end_of(handle) == (57 if known else None)
    engine.end_rank(2)
    assert engine.answers() == ([] if known else expected)


def test_who_waits_for_a_collective_that_is_not_defined_is_blocked(engine: NativeEngine) -> None:
    handle = engine.reserve()
    engine.ingest(0, operations((Op.COLLECTIVE, handle, 0, NONE), (Op.SYNC_LANE, 0, 0, ASK)))
    assert [(b.rank, b.collective, b.missing) for b in engine.blocked()] == [(0, handle, ())]


def test_the_end_of_a_collective_that_is_forgotten_is_0(engine: NativeEngine) -> None:
    for rank in (1, 2):
        engine.end_rank(rank)
    first = engine.collective((0,), 50, ())
    engine.ingest(0, operations((Op.COLLECTIVE, first, 7, NONE), (Op.SYNC_LANE, 0, 0, ASK)))
    assert engine.end_of(first) == 57
    engine.timeline()
    assert engine.end_of(first) == 0
    with pytest.raises(ValueError, match="not known"):
        engine.end_of(99)


def test_an_idle_rank_is_woken_by_what_it_does_but_not_by_what_watches_it(engine: NativeEngine) -> None:
    handle = engine.collective((0, 2), 50, (Flow((0,), 40),))
    engine.ingest(1, operations((Op.IDLE, 0, 0, NONE), (Op.CLOCK, 0, 0, WATCH)))
    for rank in (0, 2):
        engine.ingest(rank, operations((Op.COLLECTIVE, handle, 0, NONE), (Op.SYNC_LANE, 0, 0, ASK)))
    answers = [Answer(0, 1, 90, 0), Answer(1, 1, 0, 0), Answer(2, 1, 90, 0)]
    assert sorted(engine.answers(), key=lambda a: a.rank) == answers
    engine.ingest(1, operations((Op.CLOCK, 0, 5, ASK), seq=2))
    assert engine.answers() == [Answer(1, 2, 95, 0)]
    assert [(j.rank, j.seq, j.time_ns) for j in engine.jumps()] == [(1, 2, 90)]


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("joins", [0, 1, 2])
def test_an_idle_rank_is_left_behind_only_where_all_others_wait_for_what_can_come(
    engine: NativeEngine, joins: int, coupled: bool
) -> None:
    """Two of three take part in a collective; with both in it, it can end, and only time has to go on for that: until
    then, not until they ask, which is later."""
    if coupled:
        table = engine.rates((Rates(100, 50, 100, 50),))
        for rank in range(3):
            engine.set_rates(rank, table)
    handle = engine.collective((0, 2), 50, (Flow((0,), 40),))
    engine.ingest(1, operations((Op.IDLE, 0, 0, NONE)))
    for rank in (0, 2)[:joins]:
        engine.ingest(rank, operations((Op.COLLECTIVE, handle, 0, NONE), (Op.SYNC_LANE, 0, 700, ASK)))
    assert len(engine.answers()) == (2 if joins == 2 else 0)
    engine.ingest(1, operations((Op.RESUME, 0, 0, NONE), (Op.CLOCK, 0, 0, ASK), seq=1))
    assert Answer(1, 2, 90 if joins == 2 else 0, 0) in engine.answers()


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("optimistic", [False, True])
def test_a_rank_that_joins_after_all_others_have_ended_goes_on_from_their_end(optimistic: bool, coupled: bool) -> None:
    """Work of 100 ns that a process did not wait for is over at 107; the process after it begins there."""
    engine = NativeEngine(optimistic=optimistic)
    for rank in (0, 1):
        engine.add_rank(rank)
        engine.add_lane(rank, 0, 0)
        if coupled:
            engine.set_rates(rank, engine.rates((Rates(with_collective=1 << 19),)))
        work = operations((Op.WORK, 0, 7, NONE), (Op.SYNC_LANE, 0, 0, ASK))
        work["work_ns"][0] = 100
        engine.ingest(rank, work[: 1 + rank])
        if rank == 1:
            assert engine.answers() == [Answer(1, 1, 107 + 107, 0)]
        engine.end_rank(rank)
    assert engine.horizon() == 214
    assert [(j.rank, j.time_ns) for j in engine.jumps()] == [(1, 107)]
