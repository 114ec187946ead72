"""Fair shares of links, to the last unit: what the network gives flows whose answer can be worked out by hand.

A rate is a whole number of 2^-16 bytes per second, and a share is rounded down to one. Flows are made so long that one
unit more or less moves their ends by nanoseconds. SimGrid, where it is there, agrees only within its own rounding
(test_simgrid.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]

Flow = tuple[int, tuple[int, ...], int]  # when it starts in ns, its links, its bytes
UNIT = 1 << 16  # of rates, in one byte per second
SIZE = 10**15
MB = 10**6


def ends(links: list[int], flows: list[Flow]) -> list[int]:
    """When flows end, in ns."""
    network = _engine.Network(journal=False)
    for bytes_per_s in links:
        network.link(bytes_per_s)
    starts, routes, sizes = zip(*flows, strict=True)
    columns = (starts, [network.route(list(route)) for route in routes], sizes, [1] * len(flows))
    network.add(*(np.array(column, np.int64) for column in columns))
    network.advance(_engine.NEVER)
    return [int(end) for end in network.ends()]


def volume(size: int) -> int:
    """A flow's bytes, as what a rate of one unit moves in as many nanoseconds."""
    return size * 10**9 * UNIT


def end(left: int, rate: int, start: int = 0) -> int:
    """When a volume has moved at a rate in units: at the first nanosecond at which all of it is there."""
    return start - (-left // rate)


@pytest.mark.parametrize("flows", [1, 2, 3, 7, 200])
@pytest.mark.parametrize("capacity", [1000 * MB, 999_999_937, 123 * MB + 1])
def test_equal_flows_get_what_a_division_leaves_each(capacity: int, flows: int) -> None:
    rate = capacity * UNIT // flows
    assert ends([capacity], [(0, (0,), SIZE)] * flows) == [end(volume(SIZE), rate)] * flows


def test_what_a_flow_cannot_take_is_left_to_the_others() -> None:
    """One flow also goes over a link of 100 MB/s. The others share what it leaves of 1,000 MB/s, and then all of it."""
    held, *others = ends([1000 * MB, 100 * MB], [(0, (0, 1), SIZE // 10), *[(0, (0,), SIZE)] * 3])
    assert held == end(volume(SIZE // 10), 100 * MB * UNIT)
    left = volume(SIZE) - held * (900 * MB * UNIT // 3)
    assert others == [end(left, 1000 * MB * UNIT // 3, held)] * 3


def test_the_tightest_link_is_divided_first() -> None:
    """Its third flow has a link of its own behind it, which is divided by what is left for it."""
    flows = [(0, (0,), SIZE), (0, (0,), SIZE), (0, (0, 1), SIZE), (0, (1,), SIZE)]
    *three, last = ends([100 * MB, 200 * MB + 1], flows)
    third = 100 * MB * UNIT // 3
    rest = (200 * MB + 1) * UNIT - third
    assert last == end(volume(SIZE), rest)
    assert three == [end(volume(SIZE), third)] * 3
