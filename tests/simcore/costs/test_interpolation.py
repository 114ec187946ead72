"""Points in, estimates out: exact, between, beyond, and not at all."""

from __future__ import annotations

import math

import pytest

from eidolon_simcore import catalogue
from eidolon_simcore.costs import package_tables
from eidolon_simcore.costs.interpolation import Known, Points, Work
from eidolon_simcore.costs.model import CostModel


def work(size: float, analytic_ns: float = 100.0, group: str = "g", kin: str = "") -> Work:
    return Work(group, (math.log(size),), analytic_ns, kin)


def test_the_same_work_is_measured() -> None:
    found = Points([Known(work(8), 130.0)]).estimate(work(8))
    assert found is not None
    assert (found.source, round(found.ns)) == ("measured", 130)


def test_the_same_work_measured_often_is_its_mean() -> None:
    """One signature stands for short and long launches: three of 100 ns and one of 200 take 500."""
    found = Points([Known(work(8), 100.0, count=3), Known(work(8), 200.0)]).estimate(work(8))
    assert found is not None
    assert (found.source, round(found.ns)) == ("measured", 125)


def test_the_own_time_hides_what_was_carried_from_another_gpu() -> None:
    carried = Known(work(8), 200.0, count=9, carried=True)
    found = Points([carried]).estimate(work(8))
    assert found is not None
    assert (found.source, round(found.ns)) == ("interpolated", 200)
    found = Points([carried, Known(work(8), 100.0)]).estimate(work(8))
    assert found is not None
    assert (found.source, round(found.ns)) == ("measured", 100)


def test_between_points_the_ratio_to_the_analytic_time_is_interpolated() -> None:
    """Twice the analytic time at 8 and at 16, whatever the analytic time is in between."""
    points = Points([Known(work(8, 100.0), 200.0), Known(work(16, 300.0), 600.0)])
    found = points.estimate(work(11, 170.0))
    assert found is not None
    assert found.source == "interpolated"
    assert found.ns == pytest.approx(340.0, rel=0.01)


def test_far_from_all_points_the_analytic_model_answers_for_the_size() -> None:
    found = Points([Known(work(8), 110.0)]).estimate(work(8_000, 1e6))
    assert found is not None
    assert found.source == "roofline"
    assert found.ns == pytest.approx(1.1e6, rel=0.06)


def test_the_expected_error_grows_with_the_spread() -> None:
    tight = Points([Known(work(8 + i), 200.0) for i in range(8)]).estimate(work(11.5))
    loose = Points([Known(work(8 + i), 200.0 + 60 * (i % 2)) for i in range(8)]).estimate(work(11.5))
    assert tight is not None
    assert loose is not None
    assert tight.error < 0.03 < loose.error


def test_work_of_no_measured_group_is_told_about_by_its_kin() -> None:
    points = Points([Known(work(8, group="kernel<float>", kin="kernel"), 120.0)])
    assert points.estimate(work(8, group="kernel<half>")) is None
    found = points.estimate(work(8, group="kernel<half>", kin="kernel"))
    assert found is not None
    assert (found.source, round(found.ns)) == ("interpolated", 120)


@pytest.mark.parametrize(
    ("m", "n", "k", "us"),
    [  # not in the tables: F.linear in bf16 on an H100, of the same source; within 8 %
        (4096, 14336, 4096, 621.0),
        (8192, 14336, 4096, 1244.0),
        (4096, 5632, 2048, 128.0),
    ],
)
def test_linear_layers_of_an_h100(m: int, n: int, k: int, us: float) -> None:
    cost = CostModel(catalogue.gpu("h100-sxm")).cost(package_tables.linear(m, n, k))
    assert cost.base_ns == pytest.approx(us * 1e3, rel=0.08)
    assert cost.source in ("measured", "interpolated")


def test_another_gpu_takes_the_efficiency_and_says_so() -> None:
    h100 = CostModel(catalogue.gpu("h100-sxm")).cost(package_tables.linear(4096, 4096, 4096))
    a100 = CostModel(catalogue.gpu("a100-40gb-sxm")).cost(package_tables.linear(4096, 4096, 4096))
    assert h100.source == "measured"
    assert a100.source == "interpolated"
    assert a100.error > h100.error
    assert 2.0 < a100.base_ns / h100.base_ns < 4.0


def test_the_tables_name_their_provenance() -> None:
    for file, metadata in package_tables.provenance().items():
        assert metadata["eidolon.table"] == "1", file
        assert {"gpu", "source", "clock"} <= set(metadata), file
