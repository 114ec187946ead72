"""What a kernel feels of a collective beside it."""

from __future__ import annotations

import pytest

from eidolon_simcore.engine.interface import REFERENCE_RATE
from eidolon_simcore.rates import SLOWDOWN, beside_collectives
from eidolon_simcore.roofline import ATTENTION, MATRIX, MEMORY


def test_each_class_slows_by_its_own_factor_beside_a_collective_only() -> None:
    table = beside_collectives()
    for kind, factor in SLOWDOWN.items():
        assert table[kind].alone == table[kind].with_lane == REFERENCE_RATE
        assert REFERENCE_RATE / table[kind].with_collective == pytest.approx(factor, rel=1e-5)
        assert table[kind].with_both == table[kind].with_collective


def test_what_fills_the_chip_slows_most() -> None:
    assert SLOWDOWN[MATRIX] > SLOWDOWN[ATTENTION] > SLOWDOWN[MEMORY] > 1.0


def test_class_0_is_never_slowed() -> None:
    assert beside_collectives()[0].with_both == REFERENCE_RATE
