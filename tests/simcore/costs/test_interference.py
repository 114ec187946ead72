"""What a kernel feels of a collective beside it."""

from __future__ import annotations

import pytest

from eidolon_simcore.costs.interference import OF_COLLECTIVES, SLOWDOWN, beside_collectives
from eidolon_simcore.costs.roofline import ATTENTION, MATRIX, MEMORY
from eidolon_simcore.engine.interface import REFERENCE_RATE


def test_each_class_slows_by_its_own_factor_beside_a_collective_only() -> None:
    table = beside_collectives()
    for kind, factor in SLOWDOWN.items():
        assert table[kind].alone == table[kind].with_lane == REFERENCE_RATE
        assert REFERENCE_RATE / table[kind].with_collective == pytest.approx(factor, rel=1e-5)
        assert table[kind].with_both == table[kind].with_collective
        assert REFERENCE_RATE / table[kind].leaves == pytest.approx(OF_COLLECTIVES[kind], rel=1e-5)


def test_what_fills_the_chip_slows_most() -> None:
    assert SLOWDOWN[MATRIX] > max(SLOWDOWN[ATTENTION], SLOWDOWN[MEMORY]) > 1.0


def test_what_is_bound_by_memory_leaves_collectives_least() -> None:
    assert OF_COLLECTIVES[MEMORY] > OF_COLLECTIVES[MATRIX] > OF_COLLECTIVES[ATTENTION] > 1.0


def test_class_0_neither_feels_a_collective_nor_is_felt() -> None:
    assert beside_collectives()[0].with_both == beside_collectives()[0].leaves == REFERENCE_RATE
