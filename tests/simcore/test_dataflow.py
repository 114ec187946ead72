"""The plain engine: small programs with their log of events, and properties against the oracle."""

from __future__ import annotations

import random

import numpy as np
import pytest
from engine_oracle import Operation, solve
from hypothesis import given, settings
from hypothesis import strategies as st

from eidolon_simcore.engine.dataflow import DataflowEngine
from eidolon_simcore.engine.interface import OPERATION, Answer, Blocked, Flag, Flow, Mark, Op

ASK, MORE, NO_HOST, BACK = Flag.ASK, Flag.GROUP_MORE, Flag.NO_HOST, Flag.BACKGROUND


def table(program: list[Operation], first_seq: int = 0) -> np.ndarray:
    out = np.zeros(len(program), OPERATION)
    for i, o in enumerate(program):
        out[i] = (first_seq + i, o.op, o.flags, 0, o.lane, o.host, o.work, o.value, 7, 0)
    return out


def engine(ranks: int = 1, lanes: int = 2, **settings: int) -> DataflowEngine:
    e = DataflowEngine(**settings)
    for rank in range(ranks):
        e.add_rank(rank)
        for lane in range(lanes):
            e.add_lane(rank, lane, 0)
    return e


def spans(e: DataflowEngine, rank: int = 0) -> list[tuple[int, int, int]]:
    return [(int(s["seq"]), int(s["start_ns"]), int(s["end_ns"])) for s in e.spans(rank)]


def run(e: DataflowEngine, *program: Operation, rank: int = 0, seq: int = 0) -> list[Answer]:
    e.ingest(rank, table(list(program), seq))
    return e.answers()


# ---- small programs ------------------------------------------------------------------------------------------------


def test_a_lane_is_a_chain_and_the_host_runs_ahead() -> None:
    e = engine()
    answers = run(
        e,
        Operation(Op.WORK, lane=0, host=10, work=100),
        Operation(Op.WORK, lane=0, host=10, work=100),
        Operation(Op.WORK, lane=1, host=10, work=5),
        Operation(Op.CLOCK, host=1, flags=ASK),
        Operation(Op.SYNC_DEVICE, host=1, value=0, flags=ASK),
    )
    assert answers == [Answer(0, 3, 31, 0), Answer(0, 4, 210, 0)]
    assert spans(e) == [(0, 10, 110), (1, 110, 210), (2, 30, 35), (4, 32, 210)]
    assert spans(e) == []  # handed out once


def test_an_event_orders_lanes_and_an_unrecorded_one_does_not() -> None:
    e = engine()
    run(
        e,
        Operation(Op.WORK, lane=0, work=50),
        Operation(Op.RECORD, lane=0, value=1),
        Operation(Op.WAIT, lane=1, value=1),
        Operation(Op.WAIT, lane=1, value=99),
        Operation(Op.WORK, lane=1, work=1),
    )
    assert spans(e)[-1] == (4, 50, 51)


def test_an_event_on_an_idle_lane_has_the_time_of_its_recording() -> None:
    e = engine()
    answers = run(
        e,
        Operation(Op.RECORD, lane=0, value=1, host=70),
        Operation(Op.KEY_TIME, value=1, flags=ASK),
    )
    assert answers == [Answer(0, 1, 70, 70)]


def test_queries_compare_with_the_callers_clock() -> None:
    e = engine()
    answers = run(
        e,
        Operation(Op.WORK, lane=0, work=50),
        Operation(Op.RECORD, lane=0, value=1),
        Operation(Op.QUERY_KEY, value=1, host=49, flags=ASK),
        Operation(Op.QUERY_KEY, value=1, host=1, flags=ASK),
        Operation(Op.QUERY_LANE, lane=1, flags=ASK),
        Operation(Op.QUERY_KEY, value=77, flags=ASK),
    )
    assert [a.value for a in answers] == [0, 1, 1, 1]


def test_the_launch_queue_holds_the_host_back() -> None:
    e = engine(launch_queue=2)
    answers = run(
        e,
        *[Operation(Op.WORK, lane=0, host=1, work=100)] * 4,
        Operation(Op.CLOCK, flags=ASK),
    )
    assert answers == [Answer(0, 4, 201, 0)]  # the fourth launch waited for the end of the second


def test_graph_nodes_have_no_host_cost_and_are_no_launches() -> None:
    e = engine(launch_queue=1)
    answers = run(
        e,
        *[Operation(Op.WORK, lane=0, host=1, work=100, flags=NO_HOST)] * 4,
        Operation(Op.CLOCK, flags=ASK),
    )
    assert answers == [Answer(0, 4, 0, 0)]


def test_a_collective_starts_when_all_are_there_and_ends_for_all_at_once() -> None:
    e = engine(ranks=2)
    wire = e.link(1_000_000_000)  # a byte a nanosecond
    handle = e.collective((0, 1), 10, (Flow((wire,), 500), Flow((wire,), 300)))
    run(e, Operation(Op.COLLECTIVE, lane=0, host=5, value=handle), Operation(Op.WORK, lane=0, work=1))
    assert spans(e) == []
    run(e, Operation(Op.COLLECTIVE, lane=1, host=100, value=handle), rank=1)
    assert spans(e) == [(0, 5, 610), (1, 610, 611)]
    assert spans(e, 1) == [(0, 100, 610)]


def test_a_slow_wire_rounds_up_and_nothing_is_free() -> None:
    e = engine(ranks=1)
    a, b = e.link(3), e.link(2_000_000_000)
    handle = e.collective((0,), 0, (Flow((a, b), 1),))
    free = e.collective((0,), 0, ())
    run(e, Operation(Op.COLLECTIVE, value=handle), Operation(Op.COLLECTIVE, lane=1, value=free))
    assert spans(e) == [(0, 0, 333_333_334), (1, 0, 1)]


def test_different_orders_on_different_lanes_do_not_deadlock() -> None:
    e = engine(ranks=2)
    x, y = e.collective((0, 1), 10, ()), e.collective((0, 1), 10, ())
    run(e, Operation(Op.COLLECTIVE, lane=0, value=x), Operation(Op.COLLECTIVE, lane=1, value=y))
    run(e, Operation(Op.COLLECTIVE, lane=1, value=y), Operation(Op.COLLECTIVE, lane=0, value=x), rank=1)
    assert e.blocked() == []
    assert spans(e) == [(0, 0, 10), (1, 0, 10)]


def test_a_group_is_reached_and_left_together() -> None:
    e = engine(ranks=2)
    send, receive = e.collective((0, 1), 10, ()), e.collective((0, 1), 30, ())
    run(
        e,
        Operation(Op.COLLECTIVE, host=1, value=send, flags=MORE),
        Operation(Op.COLLECTIVE, host=1, value=receive),
        Operation(Op.WORK, work=1),
    )
    run(e, Operation(Op.COLLECTIVE, value=receive, flags=MORE), Operation(Op.COLLECTIVE, value=send), rank=1)
    assert spans(e) == [(0, 2, 32), (1, 2, 32), (2, 32, 33)]


def test_a_rank_that_takes_part_twice_joins_twice() -> None:
    e = engine()
    me = e.collective((0, 0), 10, ())
    run(e, Operation(Op.COLLECTIVE, value=me, flags=MORE), Operation(Op.COLLECTIVE, value=me))
    assert spans(e) == [(0, 0, 10), (1, 0, 10)]


def test_a_reserved_collective_waits_for_its_definition() -> None:
    e = engine(ranks=2)
    handle = e.reserve()
    ask = Operation(Op.SYNC_LANE, lane=0, flags=ASK)
    assert run(e, Operation(Op.COLLECTIVE, host=3, value=handle), ask) == []
    assert e.blocked() == [Blocked(0, 1, handle, ())]
    assert run(e, Operation(Op.COLLECTIVE, host=7, value=handle), ask, rank=1) == []
    e.define(handle, (0, 1), 10, ())
    assert e.answers() == [Answer(0, 1, 17, 0), Answer(1, 1, 17, 0)]


def test_who_waits_for_whom_is_told_through_events_and_lanes() -> None:
    e = engine(ranks=3)
    handle = e.collective((0, 1, 2), 10, ())
    run(
        e,
        Operation(Op.COLLECTIVE, lane=0, value=handle),
        Operation(Op.RECORD, lane=0, value=1),
        Operation(Op.WAIT, lane=1, value=1),
        Operation(Op.SYNC_LANE, lane=1, flags=ASK),
    )
    assert e.blocked() == [Blocked(0, 3, handle, (1, 2))]
    run(e, Operation(Op.COLLECTIVE, value=handle), rank=2)
    assert e.blocked() == [Blocked(0, 3, handle, (1,))]


def test_a_strangers_or_a_second_arrival_is_refused() -> None:
    e = engine(ranks=3)
    handle = e.collective((0, 1), 10, ())
    with pytest.raises(ValueError, match="rank 2 is not a participant"):
        run(e, Operation(Op.COLLECTIVE, value=handle), rank=2)


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (Operation(Op.WORK, lane=9), "lane 9 is not known"),
        (Operation(Op.COLLECTIVE, value=5), "collective 5 is not known"),
        (Operation(Op.KEY_TIME, value=5), "event 5 was never recorded"),
    ],
)
def test_bad_operations_are_named(operation: Operation, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(engine(), operation)


def test_a_mark_tells_the_end_of_the_device_work_before_it_and_delays_nothing() -> None:
    e = engine()
    run(
        e,
        Operation(Op.WORK, lane=0, host=5, work=100),
        Operation(Op.MARK, host=5),
        Operation(Op.WORK, lane=1, host=5, work=1),
    )
    assert e.marks() == [Mark(0, 1, 10, 105)]
    assert spans(e)[-1] == (2, 15, 16)


def test_a_callback_is_answered_when_it_is_due() -> None:
    e = engine()
    answers = run(e, Operation(Op.WORK, lane=0, work=100), Operation(Op.CALLBACK, lane=0, host=1, flags=ASK))
    assert answers == [Answer(0, 1, 100, 0)]
    assert e.clock(0) == 1


# ---- queries, idleness and the horizon -----------------------------------------------------------------------------


def test_a_query_is_answered_no_as_soon_as_nobody_can_act_before_it() -> None:
    e = engine(ranks=2)
    handle = e.collective((0, 1), 10, ())
    query = Operation(Op.QUERY_LANE, lane=0, host=50, flags=ASK)
    assert run(e, Operation(Op.COLLECTIVE, value=handle), query) == []  # rank 1 stands at 0: it could still be quick
    assert e.horizon() == 0
    assert run(e, Operation(Op.HOST, host=49), rank=1) == []
    assert run(e, Operation(Op.HOST, host=1), rank=1, seq=1) == [Answer(0, 1, 50, 0)]
    assert e.counters()["early_queries"] == 1


def test_a_query_waits_for_a_slower_rank_and_then_tells_the_truth() -> None:
    e = engine(ranks=2)
    handle = e.collective((0, 1), 10, ())
    query = Operation(Op.QUERY_LANE, lane=0, host=50, flags=ASK)
    assert run(e, Operation(Op.COLLECTIVE, value=handle), query) == []
    assert run(e, Operation(Op.COLLECTIVE, host=40, value=handle), rank=1) == [Answer(0, 1, 50, 1)]


def test_an_idle_rank_does_not_hold_a_poller_and_resumes_at_the_horizon() -> None:
    e = engine(ranks=2)
    handle = e.collective((0, 1), 10, ())
    run(e, Operation(Op.IDLE), rank=1)
    query = Operation(Op.QUERY_LANE, lane=0, host=50, flags=ASK)
    assert run(e, Operation(Op.COLLECTIVE, value=handle), query) == [Answer(0, 1, 50, 0)]
    run(e, Operation(Op.RESUME), Operation(Op.COLLECTIVE, value=handle), rank=1, seq=1)
    assert spans(e, 1) == [(1, 0, 50), (2, 50, 60)]
    assert e.counters()["idle_jump_ns"] == 50


def test_background_threads_read_but_never_wait_or_move_the_clock() -> None:
    e = engine(ranks=2)
    handle = e.collective((0, 1), 10, ())
    reads = [
        Operation(Op.QUERY_KEY, value=1, flags=ASK | BACK, host=500),
        Operation(Op.CLOCK, flags=ASK | BACK, host=500),
    ]
    program = [
        Operation(Op.COLLECTIVE, host=5, value=handle),
        Operation(Op.RECORD, value=1),
        Operation(Op.SYNC_LANE, flags=ASK),
        reads[0],
    ]
    assert run(e, *program) == [Answer(0, 3, 5, 0)]  # overtakes the blocked host
    assert run(e, reads[1], reads[0], Operation(Op.CLOCK, host=1, flags=ASK), seq=4) == [
        Answer(0, 4, 5, 0),
        Answer(0, 5, 5, 0),
    ]
    assert run(e, Operation(Op.COLLECTIVE, value=handle), rank=1) == [Answer(0, 2, 15, 0), Answer(0, 6, 16, 0)]
    assert e.clock(0) == 16


def test_the_horizon_is_the_least_clock_of_those_that_run() -> None:
    e = engine(ranks=3)
    handle = e.collective((0, 1), 10, ())
    run(e, Operation(Op.COLLECTIVE, host=5, value=handle), Operation(Op.SYNC_LANE))
    run(e, Operation(Op.HOST, host=30), rank=1)
    assert e.horizon() == 0
    e.end_rank(2)
    assert e.horizon() == 30


# ---- memory --------------------------------------------------------------------------------------------------------


def test_old_events_leave_memory_but_keep_their_times() -> None:
    e = engine(keys_kept=100)
    program = []
    for key in range(1000):
        program += [Operation(Op.WORK, work=10), Operation(Op.RECORD, value=key)]
    run(e, *program)
    assert len(e._ranks[0].keys) <= 200
    asked = [
        Operation(Op.KEY_TIME, value=3, flags=ASK),
        Operation(Op.SYNC_KEY, value=3, flags=ASK),
        Operation(Op.KEY_TIME, value=999, flags=ASK),
        Operation(Op.SYNC_KEY, value=999, flags=ASK),
        Operation(Op.QUERY_KEY, value=3, flags=ASK),
    ]
    answers = run(e, *asked, seq=2000)
    assert [(a.clock_ns, a.value) for a in answers] == [(0, 40), (0, 0), (0, 10000), (10000, 0), (10000, 1)]


# ---- properties ----------------------------------------------------------------------------------------------------

LANES = {0: 0, 1: 0, 2: 1}


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[int, list[Operation]], list[tuple[int, tuple[int, ...], int]], int]:
    """Programs that cannot deadlock: all ranks meet their collectives in one global order."""
    rng = draw(st.randoms(use_true_random=False))
    ranks = draw(st.integers(1, 4))
    programs: dict[int, list[Operation]] = {rank: [] for rank in range(ranks)}
    keys = dict.fromkeys(range(ranks), 0)
    collectives: list[tuple[int, tuple[int, ...], int]] = []
    for _ in range(draw(st.integers(1, 12))):
        for rank in range(ranks):
            filler(rng, programs[rank], keys, rank)
        group: dict[int, list[Operation]] = {}
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            members = tuple(sorted(rng.sample(range(ranks), rng.randint(1, ranks))))
            handle = len(collectives) + 1
            collectives.append((handle, members, rng.randint(1, 60)))
            for rank in members:
                flags = NO_HOST if rng.random() < 0.1 else Flag(0)
                group.setdefault(rank, []).append(
                    Operation(Op.COLLECTIVE, rng.randrange(3), rng.randrange(20), value=handle, flags=flags)
                )
        for rank, joined in group.items():
            for operation in joined[:-1]:
                operation.flags |= MORE
            programs[rank] += joined
    for rank in range(ranks):
        filler(rng, programs[rank], keys, rank)
        programs[rank].append(Operation(Op.MARK))
        programs[rank].append(Operation(Op.SYNC_DEVICE, value=0, flags=ASK))
    return programs, collectives, draw(st.sampled_from([1, 2, 3, 6, 70]))


def filler(rng: random.Random, program: list[Operation], keys: dict[int, int], rank: int) -> None:
    for _ in range(rng.randrange(6)):
        op = rng.choice(
            [Op.WORK] * 6
            + [Op.HOST, Op.RECORD, Op.RECORD, Op.WAIT, Op.SYNC_LANE, Op.SYNC_KEY, Op.SYNC_DEVICE]
            + [Op.QUERY_LANE, Op.QUERY_KEY, Op.KEY_TIME, Op.CLOCK, Op.MARK, Op.CALLBACK]
        )
        flags = ASK if op >= Op.SYNC_LANE else Flag(0)
        if op in (Op.WORK, Op.RECORD, Op.WAIT) and rng.random() < 0.15:
            flags |= NO_HOST
        o = Operation(op, rng.randrange(3), rng.randrange(30), flags=flags)
        if op == Op.WORK:
            o.work = rng.randrange(50)
            program += [Operation(op, o.lane, o.host, o.work, 0, flags) for _ in range(rng.choice([1, 1, 1, 60]))]
            continue
        if op == Op.RECORD:
            keys[rank] += 1
            o.value = keys[rank]
        elif op in (Op.WAIT, Op.SYNC_KEY, Op.QUERY_KEY, Op.KEY_TIME):
            if not keys[rank]:
                continue
            o.value = rng.randint(1, keys[rank])
        elif op == Op.SYNC_DEVICE:
            o.value = rng.randrange(2)
        program.append(o)


def play(
    programs: dict[int, list[Operation]], collectives: list[tuple[int, tuple[int, ...], int]], depth: int, seed: int
) -> dict[int, tuple[object, ...]]:
    """Feeds the programs in batches of a random interleaving; everything the engine said, by rank."""
    rng = random.Random(seed)
    e = DataflowEngine(launch_queue=depth)
    for rank in programs:
        e.add_rank(rank)
        for lane, device in LANES.items():
            e.add_lane(rank, lane, device)
    for handle, members, duration in collectives:
        assert e.collective(members, duration, ()) == handle
    at = dict.fromkeys(programs, 0)
    answers: list[Answer] = []
    marks: list[Mark] = []
    seen: dict[int, list[tuple[int, int, Op, int, int]]] = {rank: [] for rank in programs}
    while any(at[rank] < len(programs[rank]) for rank in programs):
        rank = rng.choice([rank for rank in programs if at[rank] < len(programs[rank])])
        size = rng.choice([1, 2, 5, 200])
        e.ingest(rank, table(programs[rank][at[rank] : at[rank] + size], at[rank]))
        at[rank] += size
        if rng.random() < 0.7:
            answers += e.answers()
        for rank, log in seen.items():
            if rng.random() < 0.3:
                log += [tuple(int(x) for x in s[["seq", "lane", "op", "start_ns", "end_ns"]]) for s in e.spans(rank)]  # type: ignore[misc]
    answers += e.answers()
    marks += e.marks()
    for rank, log in seen.items():
        log += [tuple(int(x) for x in s[["seq", "lane", "op", "start_ns", "end_ns"]]) for s in e.spans(rank)]  # type: ignore[misc]
    assert e.blocked() == []
    assert not e._collectives
    return {
        rank: (
            seen[rank],
            {a.seq: (a.clock_ns, a.value) for a in answers if a.rank == rank},
            {m.seq: m.end_ns for m in marks if m.rank == rank},
            e.clock(rank),
        )
        for rank in programs
    }


@settings(max_examples=150, deadline=None)
@given(worlds(), st.integers(0, 2**32))
def test_any_interleaving_gives_the_oracles_timeline(
    world: tuple[dict[int, list[Operation]], list[tuple[int, tuple[int, ...], int]], int], seed: int
) -> None:
    programs, collectives, depth = world
    expected = solve(programs, LANES, {h: (m, d) for h, m, d in collectives}, depth)
    played = play(programs, collectives, depth, seed)
    for rank, result in expected.items():
        assert played[rank] == (result.spans, result.answers, result.marks, result.clock)
