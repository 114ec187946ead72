"""What the engine makes of small programs: the rules of lanes, events, collectives, queries and idleness, one each."""

from __future__ import annotations

import pytest
from driver import table
from reference import Operation

from eidolon_simcore.engine.interface import Answer, Blocked, Flag, Flow, Mark, Op
from eidolon_simcore.engine.native import NativeEngine

ASK, MORE, NO_HOST, BACK = Flag.ASK, Flag.GROUP_MORE, Flag.NO_HOST, Flag.BACKGROUND


def engine(ranks: int = 1, lanes: int = 2, **settings: int) -> NativeEngine:
    e = NativeEngine(**settings)
    for rank in range(ranks):
        e.add_rank(rank)
        for lane in range(lanes):
            e.add_lane(rank, lane, 0)
    return e


def spans(e: NativeEngine, rank: int = 0) -> list[tuple[int, int, int]]:
    return [(int(s["seq"]), int(s["start_ns"]), int(s["end_ns"])) for s in e.spans(rank)]


def done(e: NativeEngine, ranks: int = 1) -> None:
    """Nothing follows, on any rank: everything is final."""
    for rank in range(ranks):
        e.end_rank(rank)
    assert e.answers() == []


def run(e: NativeEngine, *program: Operation, rank: int = 0, seq: int = 0) -> list[Answer]:
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
    done(e)
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
    done(e, 2)
    assert spans(e) == [(0, 5, 910), (1, 910, 911)]  # both flows are on one wire
    assert spans(e, 1) == [(0, 100, 910)]


def test_a_slow_wire_rounds_up_and_nothing_is_free() -> None:
    e = engine(ranks=1)
    a, b = e.link(3), e.link(2_000_000_000)
    handle = e.collective((0,), 0, (Flow((a, b), 1),))
    free = e.collective((0,), 0, ())
    run(e, Operation(Op.COLLECTIVE, value=handle), Operation(Op.COLLECTIVE, lane=1, value=free))
    done(e)
    assert spans(e) == [(0, 0, 333_333_334), (1, 0, 1)]


def test_different_orders_on_different_lanes_do_not_deadlock() -> None:
    e = engine(ranks=2)
    x, y = e.collective((0, 1), 10, ()), e.collective((0, 1), 10, ())
    run(e, Operation(Op.COLLECTIVE, lane=0, value=x), Operation(Op.COLLECTIVE, lane=1, value=y))
    run(e, Operation(Op.COLLECTIVE, lane=1, value=y), Operation(Op.COLLECTIVE, lane=0, value=x), rank=1)
    assert e.blocked() == []
    done(e, 2)
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
    done(e, 2)
    assert spans(e) == [(0, 2, 32), (1, 2, 32), (2, 32, 33)]


def test_a_rank_that_takes_part_twice_joins_twice() -> None:
    e = engine()
    me = e.collective((0, 0), 10, ())
    run(e, Operation(Op.COLLECTIVE, value=me, flags=MORE), Operation(Op.COLLECTIVE, value=me))
    done(e)
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
    done(e)
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
    done(e, 2)
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
