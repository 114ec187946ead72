"""Collectives slow down beside kernels: what a device's work leaves of its ports is all that flows get.

Every link here has 10^9 bytes/s: a byte a nanosecond."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from eidolon_simcore.engine.interface import OPERATION, REFERENCE_RATE, Flag, Flow, Op, Rates
from eidolon_simcore.engine.native import NativeEngine

COMMUNICATION, COMPUTE, THIRD = 0, 1, 2  # lanes
FREE, HALF, QUARTER, SLOWED = range(4)  # classes of work
TABLE = (
    Rates(),
    Rates(leaves=REFERENCE_RATE // 2),
    Rates(leaves=REFERENCE_RATE // 4),
    Rates(with_collective=REFERENCE_RATE // 2, with_both=REFERENCE_RATE // 2, leaves=REFERENCE_RATE // 2),
)


def operations(*rows: tuple[Op, int, int, int, int], seq: int = 0) -> np.ndarray:
    """Rows of operation, lane, work, class or collective, host time."""
    table = np.zeros(len(rows), OPERATION)
    for i, (op, lane, work, value, host) in enumerate(rows):
        table[i] = (seq + i, op, Flag(0), value if op == Op.WORK else 0, lane, host, work, value, 0, 0)
    return table


def work(ns: int, kind: int, *, after: int = 0, lane: int = COMPUTE) -> tuple[Op, int, int, int, int]:
    return (Op.WORK, lane, ns, kind, after)


def join(handle: int, *, after: int = 0) -> tuple[Op, int, int, int, int]:
    return (Op.COLLECTIVE, COMMUNICATION, 0, handle, after)


def made(*, optimistic: bool = False) -> NativeEngine:
    """Two ranks, each at a link of its own out and in; link 4 is nobody's."""
    engine = NativeEngine(optimistic=optimistic, expected_ranks=2)
    for _ in range(4):
        engine.link(10**9)
    engine.link(10**8)
    table = engine.rates(TABLE)
    for rank in range(2):
        engine.add_rank(rank)
        for lane in (COMMUNICATION, COMPUTE, THIRD):
            engine.add_lane(rank, lane, 0)
        engine.set_rates(rank, table)
        engine.set_ports(rank, 0, (2 * rank, 2 * rank + 1))
    return engine


RING = (Flow((0, 3), 1_000), Flow((2, 1), 1_000))


def finish(engine: NativeEngine) -> dict[tuple[int, int], tuple[int, int]]:
    """Start and end of everything, by rank and sequence number."""
    for rank in range(2):
        engine.end_rank(rank)
    ranks, spans = engine.timeline()
    times = zip(spans["seq"].tolist(), spans["start_ns"].tolist(), spans["end_ns"].tolist(), strict=True)
    return {(rank, seq): (start, end) for rank, (seq, start, end) in zip(ranks.tolist(), times, strict=True)}


@pytest.mark.parametrize("busy", [(0,), (1,), (0, 1)])
def test_the_slowest_member_decides(busy: tuple[int, ...]) -> None:
    """A kernel of 600 ns leaves half: 300 of 1,000 bytes are through when it ends, whoever runs it."""
    engine = made()
    ring = engine.collective((0, 1), 0, RING)
    for rank in range(2):
        kernels = [work(600, HALF)] if rank in busy else []
        engine.ingest(rank, operations(*kernels, join(ring)))
    times = finish(engine)
    assert times[0, int(0 in busy)] == times[1, int(1 in busy)] == (0, 1_300)


def test_a_kernel_counts_while_it_runs_and_by_its_class() -> None:
    """From 100 to 300 half, from 300 to 700 a quarter, then all: 100 + 100 + 100 + 700 bytes."""
    engine = made()
    ring = engine.collective((0, 1), 0, RING)
    engine.ingest(0, operations(join(ring), work(200, HALF, after=100), work(400, QUARTER)))
    engine.ingest(1, operations(join(ring), work(5_000, FREE)))
    assert finish(engine)[0, 0] == (0, 1_400)


def test_of_two_streams_the_more_demanding_one_counts() -> None:
    """A quarter for 400 ns, then half until 800, then all: 100 + 200 + 700 bytes."""
    engine = made()
    ring = engine.collective((0, 1), 0, RING)
    engine.ingest(0, operations(join(ring), work(800, HALF), work(400, QUARTER, lane=THIRD)))
    engine.ingest(1, operations(join(ring)))
    assert finish(engine)[0, 0] == (0, 1_500)


def test_both_directions_at_once() -> None:
    """At half speed each: the kernel's 500 ns of work take 1,000, in which 500 bytes are through."""
    engine = made()
    ring = engine.collective((0, 1), 0, RING)
    engine.ingest(0, operations(work(500, SLOWED), join(ring)))
    engine.ingest(1, operations(join(ring)))
    times = finish(engine)
    assert times[0, 0] == (0, 1_000)
    assert times[0, 1] == (0, 1_500)


def test_a_flow_that_a_slower_link_holds_back_feels_nothing() -> None:
    """Half of a port is still five times what the fabric's link has."""
    engine = made()
    across = engine.collective((0, 1), 0, (Flow((0, 4, 3), 1_000),))
    engine.ingest(0, operations(work(20_000, HALF), join(across)))
    engine.ingest(1, operations(join(across)))
    assert finish(engine)[0, 1] == (0, 10_000)


def test_the_latency_is_not_slowed() -> None:
    engine = made()
    ring = engine.collective((0, 1), 400, RING)
    engine.ingest(0, operations(work(600, HALF), join(ring)))
    engine.ingest(1, operations(join(ring)))
    assert finish(engine)[0, 1] == (0, 1_500)  # 200 ns at half, then 900


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_what_comes_late_is_felt_back_then(order: tuple[int, ...]) -> None:
    """Optimistic, a kernel that becomes known after the flow's end was told moves that end, in whatever order."""
    engine = made(optimistic=True)
    ring = engine.collective((0, 1), 0, RING)
    parts = {
        0: [operations(join(ring)), operations(work(600, HALF, after=100), seq=1)],
        1: [operations(join(ring)), operations(work(300, QUARTER, after=50), seq=1)],
    }
    for turn in order:
        engine.ingest(turn % 2, parts[turn % 2].pop(0))
        engine.answers()
        engine.end_of(ring)
    # 50 whole, 300 at a quarter (rank 1), 350 at half (rank 0), then 700
    assert finish(engine)[0, 0] == (0, 50 + 300 + 350 + 700)


def test_errors_name_what_is_wrong() -> None:
    engine = made()
    with pytest.raises(ValueError, match="a port is a link that does not exist"):
        engine.set_ports(0, 0, (99,))
    with pytest.raises(ValueError, match="leaves of a device's ports is from 1 to 2\\^20"):
        engine.rates((Rates(leaves=REFERENCE_RATE + 1),))
