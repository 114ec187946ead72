"""Each watchdog by itself: what it waits for, its limit, and what it says. The parts of a run around it are real."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
from fakes import FakeRank
from simulated_run import Run, pair

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.run import watchdogs
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.run.watchdogs import Failure
from eidolon_simcore.vocabulary import Kind

W = TypeVar("W")


def of(run: Run, kind: type[W]) -> W:
    """The run's watchdog of this kind."""
    [found] = [one for one in run.simulation._watchdogs if isinstance(one, kind)]
    return found


def test_servers_have_a_limit_to_say_hello(tmp_path: Path) -> None:
    run = Run(tmp_path, absent=(0, 2), servers=3, startup_timeout_s=10)
    check = of(run, watchdogs.ServersConnect)
    assert check(10.0) is None
    assert check(10.1) == Failure(Cause.SERVERS_NOT_READY, "server 0, 2 did not connect within 10 s")
    run.hello(0)
    assert check(10.1) == Failure(Cause.SERVERS_NOT_READY, "server 2 did not connect within 10 s")
    run.hello(2)
    assert check(99.0) is None


def test_ranks_have_a_limit_to_join_behind_the_first(tmp_path: Path) -> None:
    run = Run(tmp_path, startup_timeout_s=10)
    check = of(run, watchdogs.RanksStart)
    assert check(99.0) is None  # a workload may take its time before any process is a rank
    run.join(1, 1, 2)
    assert check(10.0) is None
    assert check(10.1) == Failure(Cause.RANK_MISSING, "rank 0 of 2 did not start within 10 s of the first")
    run.join(2, 0, 2)
    assert check(99.0) is None


def test_a_run_has_a_time_limit_from_when_all_servers_are_there(tmp_path: Path) -> None:
    run = Run(tmp_path, absent=(1,), servers=2, time_limit_s=5)
    check = of(run, watchdogs.RunEndsInTime)
    assert check(99.0) is None
    run.hello(1)
    assert check(5.0) is None
    late = "the run took longer than 5 s (spec.timeLimit): no rank waits for another"
    assert check(5.1) == Failure(Cause.TIME_LIMIT_EXCEEDED, late)


def test_a_run_without_a_time_limit_may_take_as_long_as_it_likes(tmp_path: Path) -> None:
    assert of(Run(tmp_path, time_limit_s=None), watchdogs.RunEndsInTime)(1e9) is None


def test_a_broken_stream_has_a_limit_to_come_back(tmp_path: Path) -> None:
    run = Run(tmp_path, servers=2, reconnect_timeout_s=2)
    check = of(run, watchdogs.StreamsComeBack)
    run.simulation.closed(1, 100.0)
    assert check(102.0) is None
    assert check(102.1) == Failure(Cause.AGENT_LOST, "server 1: its agent went away without saying goodbye")
    run.hello(1)
    assert check(199.0) is None


def test_a_stream_that_ends_behind_its_goodbye_is_not_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.send(goodbye=pb.Goodbye())
    run.simulation.closed(0, 100.0)
    assert of(run, watchdogs.StreamsComeBack)(1e9) is None


@pytest.fixture
def stuck(tmp_path: Path) -> Run:
    return Run(tmp_path, left_timeout_s=2, stuck_timeout_s=10, idle_timeout_s=30, busy_timeout_s=30)


def waits(run: Run, rank: FakeRank, comm: int = 7) -> None:
    """The rank waits in a collective of a communicator."""
    rank.collective("all_reduce", comm, 0, 4)
    rank.sync()
    run.batch(rank)


def reason(failure: Failure | None) -> str:
    assert failure is not None
    assert failure.cause == Cause.DEADLOCK
    return failure.reason


def test_ranks_that_wait_for_each_other_are_given_up(stuck: Run) -> None:
    ranks = pair(stuck)
    for i, rank in enumerate(ranks):
        rank.comm(8, i, 2)
        stuck.batch(rank)
    check = of(stuck, watchdogs.SomebodyGoesOn)
    waits(stuck, ranks[0], 7)
    waits(stuck, ranks[1], 8)
    assert check(9.9) is None
    said = reason(check(10.0))
    assert said.startswith("no rank can go on: rank 0 waits in all_reduce, call 0 of communicator unique7 for rank 1")
    assert "rank 1 waits in all_reduce, call 0 of communicator unique8 for rank 0" in said


@pytest.mark.parametrize("asleep", [False, True])
def test_a_rank_that_waits_for_nothing_has_longer(stuck: Run, asleep: bool) -> None:
    ranks = pair(stuck)
    waits(stuck, ranks[0])
    if asleep:
        ranks[1].write(Kind.IDLE, flags=0)
        stuck.batch(ranks[1])
    check = of(stuck, watchdogs.SomebodyGoesOn)
    assert check(29.9) is None
    assert "rank 0 waits in all_reduce, call 0 of communicator unique7 for rank 1" in reason(check(30.0))
    assert ("rank 1 makes no calls" in reason(check(30.0))) != asleep


def test_a_rank_that_left_is_waited_for_least(stuck: Run) -> None:
    ranks = pair(stuck)
    waits(stuck, ranks[0])
    stuck.send(left=pb.RankLeft(session=2, orderly=False, records=ranks[1].seq))
    check = of(stuck, watchdogs.SomebodyGoesOn)
    assert check(1.9) is None
    assert "for rank 1 (rank 1 has left)" in reason(check(2.0))


@pytest.mark.parametrize(
    ("left_s", "orderly", "limit_s"), [(5.0, True, 5.0), (5.0, False, watchdogs.DIED_S), (1.0, True, 1.0)]
)
def test_a_rank_that_left_in_order_is_waited_for_as_long_as_is_stated(
    tmp_path: Path, left_s: float, orderly: bool, limit_s: float
) -> None:
    run = Run(tmp_path, left_timeout_s=left_s, stuck_timeout_s=10)
    ranks = pair(run)
    waits(run, ranks[0])
    run.send(left=pb.RankLeft(session=2, orderly=orderly, records=ranks[1].seq))
    check = of(run, watchdogs.SomebodyGoesOn)
    assert check(limit_s - 0.1) is None
    reason(check(limit_s))


def test_the_limit_for_ranks_that_all_wait_may_be_the_shortest(tmp_path: Path) -> None:
    run = Run(tmp_path, left_timeout_s=5, stuck_timeout_s=1)
    ranks = pair(run)
    for i, rank in enumerate(ranks):
        rank.comm(8, i, 2)
        run.batch(rank)
    for rank, comm in zip(ranks, (7, 8), strict=True):
        waits(run, rank, comm)
    check = of(run, watchdogs.SomebodyGoesOn)
    assert check(0.9) is None
    reason(check(1.0))


def test_nobody_is_stuck_who_does_not_wait_or_waits_for_a_rank_that_has_yet_to_start(stuck: Run) -> None:
    check = of(stuck, watchdogs.SomebodyGoesOn)
    assert check(1e9) is None  # there is no rank
    ranks = [FakeRank(1), FakeRank(2, device=1)]
    stuck.join(1, 0, 2)
    ranks[0].comm(7, 0, 2)
    stuck.batch(ranks[0])
    assert check(1e9) is None  # rank 1 has yet to start
    stuck.join(2, 1, 2)
    ranks[1].comm(7, 1, 2)
    stuck.batch(ranks[1])
    assert check(1e9) is None  # both may go on


def test_a_rank_that_skips_a_collective_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path, missing_virtual_s=0.001)
    ranks = pair(run)
    check = of(run, watchdogs.NobodySkips)
    waits(run, ranks[0])
    assert check(1.0) is None
    goes_on(run, ranks[1], 900_000)
    assert check(2.0) is None  # 0.9 ms: it may yet come
    goes_on(run, ranks[1], 300_000)
    assert check(2.9) is None  # nobody looks more often than once a second
    failure = check(3.0)
    assert failure is not None
    assert failure.cause == Cause.RANK_MISSING
    assert failure.reason.startswith("rank 1 is missing in all_reduce, call 0 of communicator unique7 (all_reduce(")
    assert failure.reason.endswith("which rank 0 reached 0.001 s of virtual time ago")


def goes_on(run: Run, rank: FakeRank, host_ns: int) -> None:
    """The rank works on its host for a while."""
    rank.write(Kind.HOST, host_ns=host_ns)
    rank.kernel()
    run.batch(rank)
