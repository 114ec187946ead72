"""What another GPU's measurement says: memory-bound work follows the bandwidth, the rest the SMs."""

from __future__ import annotations

import pytest

from eidolon_simcore import catalogue
from eidolon_simcore.costs.carrying import carried_ns

H100, H200 = catalogue.gpu("h100-sxm"), catalogue.gpu("h200-sxm")


@pytest.mark.parametrize(
    ("what", "megabytes", "h200_us", "h100_us"),
    [  # medians of one kernel in the same training step on both GPUs
        ("bf16 add of 154 M elements", 1233.1, 281.6, 404.6),
        ("GELU backward", 201.3, 49.7, 68.9),
        ("cast by an unrolled kernel", 786.4, 382.5, 406.6),
        ("batch norm, backward reduction", 308.3, 102.7, 116.0),
        ("GEMM of a linear layer", 86.0, 130.2, 128.8),
    ],
)
def test_kernels_of_an_h200_foretell_those_of_an_h100(
    what: str, megabytes: float, h200_us: float, h100_us: float
) -> None:
    carried = carried_ns(h200_us * 1e3, megabytes * 1e6, "bf16", H200, H100)
    assert carried == pytest.approx(h100_us * 1e3, rel=0.07), what


def test_there_and_back_is_the_same_time() -> None:
    there = carried_ns(100_000, 200e6, "bf16", H100, H200)
    assert there < 100_000
    assert carried_ns(there, 200e6, "bf16", H200, H100) == pytest.approx(100_000, rel=0.02)


def test_slower_units_slow_what_does_not_wait_for_memory() -> None:
    a100 = catalogue.gpu("a100-80gb-sxm")
    assert carried_ns(100_000, 0, "bf16", H100, a100) == pytest.approx(100_000 * 989.4 / 312, rel=0.01)
