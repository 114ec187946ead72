"""Who takes part in a run: which sessions may join, whom ranks that never come hold up, who is named as dead."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import FakeRank
from simulated_run import Run

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.fabric.network import Port
from eidolon_simcore.run.membership import FALLOUT_S, MAX_SESSIONS, Membership
from eidolon_simcore.run.server import RejectedError
from eidolon_simcore.vocabulary import Kind


def members(run: Run) -> Membership:
    return run.simulation._ranks


@pytest.mark.parametrize("goodbyes", [(1,), (1, 2), (2, 1)])
def test_ranks_that_never_joined_hold_others_up_until_their_server_says_goodbye(
    tmp_path: Path, goodbyes: tuple[int, ...]
) -> None:
    """Only the two ranks of server 0 join, and they say that each server has two. What an all-reduce of theirs takes
    depends on who else uses the network. So its end is not known while ranks of other servers may still come. They
    cannot come any more once the workload of their own server has ended.
    """
    servers = 1 + len(goodbyes)
    run = Run(tmp_path, servers=servers)
    ranks = [FakeRank(1), FakeRank(2, device=1)]
    for number, rank in enumerate(ranks):
        run.join(rank.session, number, 2 * servers)
        rank.comm(7, number, 2)
        run.batch(rank)
    waits = set()
    for rank in ranks:
        rank.collective("all_reduce", 7, 0, 1 << 22)
        waits.add((rank.session, rank.sync()))
        run.batch(rank)
    for other in goodbyes:
        assert not waits & run.replies().keys()
        run.send(other, goodbye=pb.Goodbye())
        run.simulation.advance(0.0)
    assert waits <= run.replies().keys()


@pytest.mark.parametrize("session", [0, MAX_SESSIONS + 1])
def test_a_session_beyond_the_limits_is_refused(run: Run, session: int) -> None:
    with pytest.raises(RejectedError):
        run.join(session, 0, 1)
    assert run.simulation.reason == f"server 0: session {session}"


def test_the_last_session_within_the_limits_is_taken(run: Run) -> None:
    run.join(MAX_SESSIONS, 0, 1)
    assert members(run).live() == {0}


def test_a_world_beyond_the_plan_is_named(run: Run) -> None:
    run.join(1, 0, 3)
    assert (run.simulation.state, run.simulation.cause) == ("Failed", "WorkloadFailed")
    assert run.simulation.reason == "rank 0 says WORLD_SIZE=3, the run has 2 ranks"


def test_a_process_without_a_rank_of_its_own_expects_no_others(run: Run) -> None:
    """WORLD_SIZE without RANK, as a process that a rank has started may have it."""
    run.join(1, -1, 2)
    assert (members(run).expected, members(run).absent()) == (1, [])


def test_a_rank_beyond_the_world_is_not_waited_for(run: Run) -> None:
    """A second process with RANK=0 is numbered behind the world."""
    for session in (1, 2):
        run.join(session, 0, 2)
    assert members(run).live() == {0, 2}
    assert members(run).absent() == [1]


def test_a_rank_cannot_leave_after_records_that_have_not_come(run: Run) -> None:
    run.join(1, 0, 1)
    with pytest.raises(RejectedError):
        run.send(left=pb.RankLeft(session=1, orderly=True, records=5))
    assert run.simulation.reason == "server 0: rank 0 left after 5 records, of which 0 came"


def test_what_a_rank_that_left_had_allocated_is_free(run: Run) -> None:
    ranks = [FakeRank(1), FakeRank(2)]
    for number, rank in enumerate(ranks):
        run.join(rank.session, number, 2)
        rank.write(Kind.MEMORY, value=(number + 1) << 30)
        run.batch(rank)

    memory = run.simulation._books.memory
    assert memory.allocated(Port(0, 0)) == 3 << 30
    run.send(left=pb.RankLeft(session=1, orderly=True, records=1))
    assert memory.allocated(Port(0, 0)) == 2 << 30


def test_only_ranks_that_died_are_named_as_dead(run: Run) -> None:
    for session in (1, 2):
        run.join(session, session - 1, 2)
    run.send(left=pb.RankLeft(session=2, orderly=False, records=0, wait_status=9))
    assert members(run).death(0) == ""
    assert members(run).death(1) == "rank 1 (process 0) was killed by signal 9 (SIGKILL)"


@pytest.mark.parametrize(("later_s", "named"), [(FALLOUT_S, ""), (FALLOUT_S + 0.1, "rank 1 (process 0)")])
def test_who_dies_within_a_while_of_another_may_have_been_ended_because_of_it(
    run: Run, later_s: float, named: str
) -> None:
    """Rank 0 left in order, so its leaving is no death; rank 1 died."""
    for session in (1, 2):
        run.join(session, session - 1, 2)
    for session, at in ((1, 100.0), (2, 100.0 + later_s)):
        left = pb.RankLeft(session=session, orderly=session == 1, records=0, wait_status=9)
        run.simulation.message(0, pb.AgentMessage(left=left), at)
    assert members(run).casualty(0).startswith(named)
    assert bool(members(run).casualty(0)) == bool(named)
