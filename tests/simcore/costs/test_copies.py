"""What copies and sets take, by bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from eidolon_simcore import catalogue
from eidolon_simcore.costs import copies
from eidolon_simcore.costs.model import LAUNCH_GAP_NS, CostModel
from eidolon_simcore.signature import Signature

H100 = catalogue.gpu("h100-sxm")
D2D = Signature("copy", "d2d", {"pinned": 0})
SET = Signature("set", "set", {})


def host(name: str, pinned: int) -> Signature:
    return Signature("copy", name, {"pinned": pinned})


PARTS = Signature("copy", "d2d", {"pinned": 0, "pages": 0})
WAYS = (D2D, PARTS, SET, *(host(name, pinned) for name in ("h2d", "d2h") for pinned in (0, 1)))


def ns(signature: Signature, size: int, gpu: str = "h100-sxm") -> float:
    law = copies.law(signature, catalogue.gpu(gpu))
    sizes, times = np.array(law.points, np.float64).T
    return float(np.interp(float(size), sizes, times))


@pytest.mark.parametrize(
    ("signature", "size", "us"),
    [  # in profiler traces of an H100; means
        (D2D, 33_554_432, 24.6),
        (D2D, 8_192, 1.44),
        (SET, 205_520_896, 62.7),
        (SET, 16_384, 1.16),
        (host("h2d", 1), 852_480, 20.4),
        (host("h2d", 0), 65_536, 5.5),
        (host("d2h", 1), 4, 2.5),
    ],
)
def test_durations_are_those_of_the_h100s_traces(signature: Signature, size: int, us: float) -> None:
    assert ns(signature, size) / 1e3 == pytest.approx(us, rel=0.1)


@pytest.mark.parametrize(
    ("signature", "size", "us"),
    [  # of the operator set on an H200: means of a warm and a cold L2
        (D2D, 16_777_216, 7.82),
        (D2D, 1_073_741_824, 503.8),
        (PARTS, 5_284_352, 5.18),
        (host("h2d", 1), 1_073_741_824, 19_407),
        (host("d2h", 0), 268_435_456, 19_625),
        (SET, 1_073_741_824, 232.5),
    ],
)
def test_durations_are_those_of_an_h200(signature: Signature, size: int, us: float) -> None:
    assert ns(signature, size, "h200-sxm") / 1e3 == pytest.approx(us, rel=0.01)


def test_whole_pages_are_copied_faster_where_the_size_lies_between_one_and_128_mib() -> None:
    assert ns(PARTS, 3 << 20, "h200-sxm") > 1.7 * ns(D2D, 3 << 20, "h200-sxm")
    for size in (64 << 10, 256 << 20):
        assert ns(PARTS, size, "h200-sxm") == ns(D2D, size, "h200-sxm")


@pytest.mark.parametrize("gpu", catalogue.names())
@pytest.mark.parametrize("signature", WAYS, ids=copies.way_of)
def test_every_gpu_has_points_of_every_way_and_more_bytes_take_longer(signature: Signature, gpu: str) -> None:
    law = copies.law(signature, catalogue.gpu(gpu))
    assert law.source == "interpolated"
    assert 0 < law.error < 0.3
    octaves = [ns(signature, 1 << power, gpu) for power in range(16, 36)]
    assert all(0.9 * less < more for less, more in itertools.pairwise(octaves))
    assert octaves[-1] > 1_000 * octaves[0]


def test_a_gpu_without_points_takes_them_from_one_that_has_them() -> None:
    """Copies on the device follow the memory, those from the host the bus."""
    big = 1 << 30
    ratio = H100.bandwidth_bytes_per_s / catalogue.gpu("a100-80gb-sxm").bandwidth_bytes_per_s
    assert ns(D2D, big, "a100-80gb-sxm") / ns(D2D, big) == pytest.approx(ratio, rel=0.1)
    bus = H100.pcie_bytes_per_s / catalogue.gpu("a100-80gb-sxm").pcie_bytes_per_s
    assert ns(host("h2d", 1), big, "a100-80gb-sxm") / ns(host("h2d", 1), big) == pytest.approx(bus, rel=0.05)


def test_a_way_that_nobody_measured_follows_its_formula() -> None:
    law = copies.law(Signature("copy", "p2p", {}), H100)
    assert law.source == "roofline"
    assert ns(Signature("copy", "p2p", {}), 1 << 30) == pytest.approx(
        1e9 * 2**30 / (0.8 * H100.intra_bytes_per_s), rel=0.01
    )


def test_the_model_says_so_and_adds_the_gap_between_launches() -> None:
    cost = CostModel(H100).cost(D2D)
    assert (cost.base_ns, cost.source) == (LAUNCH_GAP_NS, "interpolated")
    assert cost.by_bytes == copies.law(D2D, H100).points
    assert CostModel(catalogue.gpu("a100-80gb-sxm")).cost(D2D).error > cost.error
