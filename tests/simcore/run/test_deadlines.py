"""Timeouts of process groups in virtual time: who is told, when time stands still, and what becomes of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import BLOCKING, FakeRank
from simulated_run import Run, pair

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.run.deadlines import ENDS_S, SAYS_S
from eidolon_simcore.vocabulary import Kind, RecordFlag

FOREGROUND = RecordFlag.FOREGROUND
SECOND_NS = 1_000_000_000


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, left_timeout_s=2, stuck_timeout_s=10, idle_timeout_s=30, busy_timeout_s=30)


def named(run: Run, *timeouts_s: int) -> list[FakeRank]:
    """Two ranks whose programs name these timeouts."""
    ranks = pair(run)
    for rank in ranks:
        for seconds in timeouts_s:
            rank.signature("timeout", "nccl", ms=1000 * seconds)
    return ranks


def sleep(rank: FakeRank, seconds: float) -> None:
    rank.write(Kind.SLEEP, value=round(seconds * SECOND_NS))


def reduces(run: Run, rank: FakeRank) -> tuple[int, int]:
    """The rank waits in an all-reduce: numbers of the record of the call, and of that of the wait."""
    call = rank.collective("all_reduce", 7, 0, 4)
    wait = rank.sync()
    run.batch(rank)
    return call, wait


def comes_late(run: Run, ranks: list[FakeRank]) -> tuple[int, int, int]:
    """The second rank makes the call a minute after the first one: numbers of the records of the first one's call and
    wait, and of the second one's wait."""
    call, wait = reduces(run, ranks[0])
    sleep(ranks[1], 60)
    _, late = reduces(run, ranks[1])
    return call, wait, late


def told(run: Run) -> list[tuple[int, int, int]]:
    """What ranks were told: session, record of the call, for how long it was under way, in ns."""
    return [(o.session, o.seq, o.waited_ns) for m in run.sent[0] for o in m.overdue]


def answered(run: Run, rank: FakeRank, seq: int) -> bool:
    return (rank.session, seq) in run.replies()


def tick(run: Run, now: float) -> None:
    run.simulation.tick(now)
    run.simulation.advance(now)


def test_a_rank_that_comes_in_time_ends_nobody(run: Run) -> None:
    first, second = named(run, 30)
    _, wait = reduces(run, first)
    sleep(second, 20)
    reduces(run, second)
    assert answered(run, first, wait)
    assert told(run) == []


def test_a_rank_whose_peer_comes_too_late_is_told_before_its_call_is_over(run: Run) -> None:
    first, second = named(run, 30)
    call, wait, late = comes_late(run, [first, second])
    [(session, seq, waited_ns)] = told(run)
    assert (session, seq) == (1, call)
    assert 60 * SECOND_NS <= waited_ns < 60.1 * SECOND_NS
    assert not answered(run, first, wait)
    assert not answered(run, second, late)  # time stands still for all


def test_a_rank_without_timeouts_is_left_alone(run: Run) -> None:
    first, second = pair(run)
    _, wait, _ = comes_late(run, [first, second])
    assert answered(run, first, wait)
    assert told(run) == []


def test_the_run_goes_on_where_torch_lets_the_call_go_on(run: Run) -> None:
    first, second = named(run, 30)
    call, wait, late = comes_late(run, [first, second])
    kept = first.signature("timeout", "kept", ms=0)
    first.write(Kind.HOST, flags=0, thread=1, sig=kept, value=call)
    run.batch(first)
    assert told(run)[-1] == (1, call, 0)
    assert answered(run, first, wait)
    assert answered(run, second, late)


def test_a_process_that_torch_ends_has_its_time(run: Run) -> None:
    first, second = named(run, 30)
    call, _, late = comes_late(run, [first, second])
    over = first.signature("timeout", "over", ms=0)
    first.write(Kind.HOST, flags=0, thread=1, sig=over, value=call)
    run.batch(first)
    tick(run, ENDS_S)
    assert run.simulation.state is None
    assert not answered(run, second, late)
    tick(run, ENDS_S + 0.1)  # it was told to end nothing
    assert answered(run, second, late)


def test_the_run_goes_on_where_nobody_acts_on_it(run: Run) -> None:
    first, second = named(run, 30)
    call, wait, _ = comes_late(run, [first, second])
    tick(run, SAYS_S)
    assert not answered(run, first, wait)
    tick(run, SAYS_S + 0.1)
    assert told(run)[-1] == (1, call, 0)
    assert answered(run, first, wait)
    assert run.simulation.state is None


def test_a_rank_that_time_has_left_behind_is_told(run: Run) -> None:
    """Its peer is far ahead, and has not made the call yet."""
    first, second = named(run, 30)
    call, _ = reduces(run, first)
    sleep(second, 40)
    second.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING)
    run.batch(second)
    tick(run, 1.0)
    [(session, seq, waited_ns)] = told(run)
    assert (session, seq) == (1, call)
    assert 30 * SECOND_NS <= waited_ns <= 40 * SECOND_NS


@pytest.mark.parametrize("left", [False, True])
def test_where_nothing_goes_on_time_goes_on_to_the_earliest_deadline(run: Run, left: bool) -> None:
    first, second = named(run, 30, 600)
    call, _ = reduces(run, first)
    if left:
        run.send(left=pb.RankLeft(session=2, orderly=True, records=second.seq))
    else:
        second.write(Kind.IDLE, flags=0)
        run.batch(second)
    limit_s = 2.0 if left else 30.0
    tick(run, limit_s - 0.1)
    assert told(run) == []
    tick(run, limit_s)
    assert told(run) == [(1, call, 600 * SECOND_NS)]
    assert run.simulation.state is None
    tick(run, limit_s + SAYS_S + 0.1)  # nobody acts on it: it was no program of torch
    tick(run, limit_s + SAYS_S + 0.2)
    assert run.simulation.reason.startswith("no rank can go on: ")


def test_the_reason_names_the_rank_and_what_it_waited_for(run: Run) -> None:
    first, second = named(run, 30)
    comes_late(run, [first, second])
    run.send(left=pb.RankLeft(session=1, orderly=False, records=first.seq, wait_status=6))
    run.send(goodbye=pb.Goodbye(exit_code=1))
    assert run.simulation.state == "Failed"
    assert "rank 0 was ended by torch's NCCL watchdog: it waits in " in run.simulation.reason
    assert "signal 6 (SIGABRT)" in run.simulation.reason
