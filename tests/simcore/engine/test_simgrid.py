"""The network alone against SimGrid, an independent max-min simulator.

Our times are integers: an end is moved up to the next nanosecond, and each earlier end in the component may have moved
what comes after it. So ends agree within 1 ns for every earlier end, and 1e-9 of the time.

Skipped, and said so in the summary, where the system has no SimGrid; EIDOLON_REQUIRE_SIMGRID=1 makes that a failure.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from simgrid_oracle import ask, missing

from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]

if os.environ.get("EIDOLON_REQUIRE_SIMGRID") == "1":
    assert missing() is None, missing()
pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no oracle for the network: {missing()}")


def native(links: list[int], flows: list[tuple[int, tuple[int, ...], int]]) -> list[int]:
    network = _engine.Network(journal=False)
    for bytes_per_s in links:
        network.link(bytes_per_s)
    columns = [
        np.array(column, np.int64)
        for column in (
            [start for start, _, _ in flows],
            [network.route(list(route)) for _, route, _ in flows],
            [size for _, _, size in flows],
            [1] * len(flows),
        )
    ]
    network.add(*columns)
    network.advance(_engine.NEVER)
    return [int(end) for end in network.ends()]


def test_the_textbook_case() -> None:
    links = [10_000_000, 4_000_000]
    flows = [(0, (0,), 80_000_000), (0, (0, 1), 40_000_000), (0, (0,), 20_000_000)]
    assert native(links, flows) == [14_000_000_001, 11_000_000_001, 6_000_000_001]  # a third is not divided evenly
    ours, theirs = native(links, flows), ask(links, [(0.0, r, s) for _, r, s in flows])["ends"]
    assert np.allclose(np.array(ours) / 1e9, theirs, rtol=1e-9, atol=3e-9)


@pytest.mark.parametrize("seed", range(12))
def test_random_flows_end_when_simgrid_says(seed: int) -> None:
    rng = random.Random(seed)
    links = [rng.randint(1, 50) * 10**9 for _ in range(rng.randint(1, 12))]
    flows = [
        (
            rng.choice([0, 0, rng.randrange(10**6)]),
            tuple(rng.sample(range(len(links)), rng.randint(1, min(4, len(links))))),
            rng.randint(1, 10**7),
        )
        for _ in range(rng.randint(1, 80))
    ]
    ours = native(links, flows)
    theirs = ask(links, [(start / 1e9, route, size) for start, route, size in flows])["ends"]
    earlier = {number: rank for rank, number in enumerate(sorted(range(len(flows)), key=ours.__getitem__))}
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        allowed = 1 + earlier[number] + 1e-9 * a
        assert abs(a - b * 1e9) <= allowed, f"flow {number}: {a} against {b * 1e9}, {earlier[number]} ended before it"
