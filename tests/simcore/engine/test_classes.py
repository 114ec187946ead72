"""Classes of equal links and flows: flows with counts, and what happens when a class is divided.

Every link here has 10^9 bytes/s: a byte a nanosecond."""

from __future__ import annotations

import numpy as np
import pytest

from eidolon_simcore.engine.interface import OPERATION, REFERENCE_RATE, Flow, Op, Rates
from eidolon_simcore.engine.native import NativeEngine


def made(links: int, ranks: int = 1, *, optimistic: bool = False) -> NativeEngine:
    engine = NativeEngine(optimistic=optimistic, expected_ranks=ranks)
    table = engine.rates((Rates(), Rates(leaves=REFERENCE_RATE // 2)))
    for _ in range(links):
        engine.link(10**9)
    for rank in range(ranks):
        engine.add_rank(rank)
        engine.add_lane(rank, 0, 0)
        engine.add_lane(rank, 1, 0)
        engine.set_rates(rank, table)
    return engine


def call(engine: NativeEngine, rank: int, pattern: int, *, seq: int = 0, host: int = 0) -> None:
    handle = engine.reserve()
    engine.define_as(handle, (rank,), 0, pattern)
    row = np.zeros(1, OPERATION)
    row[0] = (seq, Op.COLLECTIVE, 0, 0, 0, host, 0, handle, 0, 0)
    engine.ingest(rank, row)


def work(engine: NativeEngine, rank: int, ns: int, *, seq: int = 0, host: int = 0) -> None:
    row = np.zeros(1, OPERATION)
    row[0] = (seq, Op.WORK, 0, 1, 1, host, ns, 0, 0, 0)
    engine.ingest(rank, row)


def end(engine: NativeEngine, ranks: int = 1) -> list[list[int]]:
    """When each operation of each rank ends, once nothing more comes."""
    for rank in range(ranks):
        engine.end_rank(rank)
    assert engine.answers() == []
    return [engine.spans(rank)["end_ns"].tolist() for rank in range(ranks)]


def test_a_flow_counts_on_a_link_as_often_as_it_is_said_to_be_there() -> None:
    """Three flows such as the first are on link 0, one such as the second: a fourth of the link each."""
    engine = made(2)
    call(engine, 0, engine.pattern((Flow((0,), 100, 1, (3,)), Flow((0, 1), 100, 1, (1, 1)))))
    assert end(engine) == [[400]]


def test_what_is_under_way_goes_on_in_parts_from_where_it_was() -> None:
    """Two links of a class are half full of 1,000 bytes when another flow comes to the second of them."""
    engine = made(1, ranks=2)
    both = engine.pattern((Flow((0,), 1_000, 1, (1,)),))
    call(engine, 0, both)
    work(engine, 0, 1, seq=1, host=500)
    work(engine, 1, 1, host=500)
    assert engine.answers() == []
    second = engine.twin(0)
    engine.refine(both, (Flow((0,), 1_000, 1, (1,)), Flow((second,), 1_000, 1, (1,))), (0, 0))
    call(engine, 1, engine.pattern((Flow((second,), 200, 1, (1,)),)), seq=1)
    assert end(engine, 2) == [[1_200, 501], [501, 900]]


def test_a_part_of_a_class_of_ports_is_at_the_same_device() -> None:
    """The kernel leaves half of both parts from 0 to 600: 300 bytes. The other 700 take 700 ns."""
    engine = made(1)
    engine.set_ports(0, 0, (0,))
    pattern = engine.pattern((Flow((0,), 1_000, 1, (1,)),))
    call(engine, 0, pattern)
    work(engine, 0, 600, seq=1)
    assert engine.answers() == []
    engine.refine(pattern, (Flow((engine.twin(0),), 1_000, 1, (1,)),), (0,))
    assert end(engine) == [[1_300, 600]]


def test_a_collective_that_has_not_begun_begins_in_parts() -> None:
    engine = made(1)
    pattern = engine.pattern((Flow((0,), 100, 1, (1,)),))
    call(engine, 0, pattern, host=50)
    engine.refine(pattern, (Flow((0,), 100, 1, (1,)), Flow((engine.twin(0),), 100, 1, (1,))), (0, 0))
    assert end(engine) == [[150]]
    assert engine.counters()["flows"] == 2


def test_a_division_survives_a_snapshot() -> None:
    engine = made(1)
    pattern = engine.pattern((Flow((0,), 100, 1, (2,)),))
    engine.refine(pattern, (Flow((0,), 100, 1, (1,)), Flow((0,), 100, 1, (1,))), (0, 0))
    call(engine, 0, pattern)
    engine.restore(engine.snapshot())
    assert end(engine) == [[200]]


@pytest.mark.parametrize(
    ("flows", "origin", "words"),
    [
        ((Flow((0,), 99, 1, (1,)),), (0,), "the bytes and the weight of the flow"),
        ((Flow((0,), 100, 2, (1,)),), (0,), "the bytes and the weight of the flow"),
        ((Flow((0,), 100, 1, (1,)),), (1,), "the flow that it stems from"),
        ((Flow((0,), 100, 1, (1,)),), (), "a flow that it stems from"),
        ((Flow((0,), 100),), (0,), "has counts"),
        ((), (), "has counts"),
        ((Flow((0,), 100, 1, (1, 1)),), (0,), "one count for each link"),
        ((Flow((0,), 100, 1, (0,)),), (0,), "from 1 to 2"),
    ],
)
def test_parts_that_are_none_are_refused(flows: tuple[Flow, ...], origin: tuple[int, ...], words: str) -> None:
    engine = made(1)
    pattern = engine.pattern((Flow((0,), 100, 1, (1,)),))
    with pytest.raises(ValueError, match=words):
        engine.refine(pattern, flows, origin)


def test_only_patterns_of_classes_are_divided_and_only_where_nothing_is_undone() -> None:
    engine = made(1)
    with pytest.raises(ValueError, match="has no flows with counts"):
        engine.refine(engine.pattern((Flow((0,), 100),)), (Flow((0,), 100, 1, (1,)),), (0,))
    with pytest.raises(ValueError, match="link 9 does not exist"):
        engine.twin(9)
    back = made(1, optimistic=True)
    pattern = back.pattern((Flow((0,), 100, 1, (1,)),))
    with pytest.raises(ValueError, match="goes back in time"):
        back.refine(pattern, (Flow((0,), 100, 1, (1,)),), (0,))
