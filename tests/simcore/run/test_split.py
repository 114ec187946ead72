"""Dividing a communicator: each member says its color and key and is told its place."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from fakes import BLOCKING, FOREGROUND, FakeRank
from simulated_run import Run

from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.vocabulary import Kind


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, gpus_per_server=3, ranks_per_server=3)


def split(rank: FakeRank, at: int, color: int, key: int, position: int = 0) -> int:
    signature = {"parent": 7, "position": position, "color": color, "key": key, "rank": at, "size": 3}
    sig = rank.signature("split", f"all/split{position}", **signature)
    return rank.write(Kind.COMM_INIT, sig=sig, flags=FOREGROUND | BLOCKING)


def test_members_of_a_color_are_ordered_by_key(run: Run) -> None:
    ranks = [FakeRank(session, device=session - 1) for session in (1, 2, 3)]
    for at, rank in enumerate(ranks):
        run.join(at + 1, at, 3)
        rank.comm(7, at, 3)
    seqs = [split(ranks[0], 0, 5, 9), split(ranks[1], 1, -1, 0), split(ranks[2], 2, 5, 1)]
    run.batch(ranks[0])
    run.batch(ranks[1])
    assert (1, seqs[0]) not in run.replies()  # one member has not chosen yet
    run.batch(ranks[2])
    values = [run.replies()[session, seq][1] for session, seq in zip((1, 2, 3), seqs, strict=True)]
    assert values == [1 << 32 | 2, -1, 0 << 32 | 2]


def test_members_on_one_device_are_told_of_each_other(run: Run) -> None:
    ranks = [FakeRank(session, device=device) for session, device in ((1, 0), (2, 1), (3, 0))]
    seqs = []
    for at, rank in enumerate(ranks):
        run.join(at + 1, at, 3)
        seqs.append(rank.comm(7, at, 3))
        run.batch(rank)
    values = [run.replies()[session, seq][1] for session, seq in zip((1, 2, 3), seqs, strict=True)]
    assert values == [-2 - 2, -1, -2 - 0]
    for device, rank in enumerate(ranks):  # the run goes on
        rank.device = device
        seqs[device] = rank.comm(8, device, 3)
        run.batch(rank)
    assert [run.replies()[session, seq][1] for session, seq in zip((1, 2, 3), seqs, strict=True)] == [0, 0, 0]


def test_communicators_that_are_made_one_after_the_other_share_a_lane(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane for each would make every look at a rank of Megatron longer, which makes thousands of communicators."""
    lanes: list[int] = []
    monkeypatch.setattr(NativeEngine, "add_lane", counting(NativeEngine.add_lane, lanes))
    rank = FakeRank()
    run.join(1, 0, 1)
    clocks = []
    for identity in range(7, 27):
        seq = rank.comm(identity, 0, 1)
        run.batch(rank)
        clocks.append(run.replies()[1, seq][0])
    assert len(lanes) == 1
    assert len({later - earlier for earlier, later in pairwise(clocks)}) == 1  # each takes as long as the one before


def counting(add_lane: Callable[..., None], lanes: list[int]) -> Callable[..., None]:
    def counted(engine: NativeEngine, rank: int, lane: int, device: int) -> None:
        lanes.append(lane)
        add_lane(engine, rank, lane, device)

    return counted
