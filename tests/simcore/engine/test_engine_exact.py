"""Every final time is the reference's, to the bit, for every order of arrival, in both answer modes.

500 cases and more by default. The full run, 10,000 cases:

    EIDOLON_ENGINE_EXAMPLES=10000 pytest tests/simcore/engine/test_engine_exact.py
"""

from __future__ import annotations

import copy
import os

from driver import Player, agrees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import World, simulate
from worlds import worlds

EXAMPLES = int(os.environ.get("EIDOLON_ENGINE_EXAMPLES", "500"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds(), st.integers(0, 2**32), st.booleans(), st.booleans(), st.booleans())
def test_any_order_of_arrival_gives_the_references_times(
    world: World, seed: int, optimistic: bool, keep_all: bool, snapshots: bool
) -> None:
    world = copy.deepcopy(world)
    player = Player(world, seed, optimistic=optimistic, keep_all=keep_all, snapshots=snapshots)
    played = player.play()
    agrees(world, played, simulate(world), final_answers=not optimistic)
