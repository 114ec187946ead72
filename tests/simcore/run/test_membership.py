"""Ranks that are expected and never come: whom they hold up, and until when."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import FakeRank
from simulated_run import Run

from eidolon_proto.v1 import simulation_pb2 as pb


@pytest.mark.parametrize("servers", [2, 3])
def test_ranks_that_never_joined_hold_others_up_until_their_server_says_goodbye(tmp_path: Path, servers: int) -> None:
    """Only the two ranks of server 0 join, and they say that each server has two. What an all-reduce of theirs takes
    depends on who else uses the network. So its end is not known while ranks of other servers may still come. They
    cannot come any more once the workload of their own server has ended.
    """
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
    for other in range(1, servers):
        assert not waits & run.replies().keys()
        run.send(other, goodbye=pb.Goodbye())
        run.simulation.advance(0.0)
    assert waits <= run.replies().keys()
