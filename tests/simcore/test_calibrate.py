"""`eidolon calibrate host`: what is counted, and what least squares make of it. No GPU is needed for either."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from eidolon_simcore.costs import hostcost
from eidolon_simcore.profile import nnls

torch = pytest.importorskip("torch")
from eidolon_simcore.profile import calibrate, counting  # noqa: E402 (needs torch)

KNOWN = [180.0, 4_500.0, 10_600.0, 15_300.0, 1_350.0, 10_700.0, 33_600.0, 47_200.0, 8_400.0, 64_500.0]


def synthetic(noise: float, count: int = 50) -> list[calibrate.Phase]:
    chance = random.Random(5)
    phases = []
    for index in range(count):
        counts = tuple(chance.randrange(most) for most in (5_000, 800, 500, 300, 1_000, 200, 60, 40, 300, 80))
        ns = sum(count * cost for count, cost in zip(counts, KNOWN, strict=True))
        phases.append(calibrate.Phase(f"phase {index}", counts, ns * chance.uniform(1 - noise, 1 + noise)))
    return phases


def test_known_figures_come_back() -> None:
    found, distance = calibrate.fit(synthetic(0.0))
    assert found == pytest.approx(KNOWN, rel=1e-3)
    assert distance < 1e-3


def test_noise_is_told_as_distance_and_no_figure_is_negative() -> None:
    found, distance = calibrate.fit(synthetic(0.3, 400))
    assert 0.05 < distance < 0.25
    assert min(found) >= 0
    assert found[2] == pytest.approx(KNOWN[2], rel=0.3)  # most of the time of these phases


def test_an_unknown_that_would_be_negative_is_zero() -> None:
    assert nnls.solve([[1.0, 1.0], [1.0, 2.0], [0.0, 1.0]], [1.0, 0.5, -1.0]) == pytest.approx([0.75, 0.0])
    assert nnls.solve([[1.0, 0.0], [2.0, 0.0]], [3.0, 6.0]) == pytest.approx([3.0, 0.0])


def bounds(runs: hostcost.Runs) -> tuple[int, int, int]:
    return runs.warm, runs.cold, runs.rare


def test_a_table_is_read_back() -> None:
    phases = synthetic(0.0)
    table = hostcost.parse(yaml.safe_load(calibrate.table(phases, {"cpu": "A: CPU", "date": "today"}, 123)))
    assert table.call_ns("cudaLaunchKernel") == pytest.approx(KNOWN[8], rel=1e-3)
    assert table.call_ns("cublasLtMatmul") == pytest.approx(KNOWN[9], rel=1e-3)
    assert table.function.rare_ns == pytest.approx(KNOWN[2], rel=1e-3)
    assert table.operator.far_ns == pytest.approx(KNOWN[7], rel=1e-3)
    assert bounds(table.function) == counting.FUNCTION_AGES
    assert bounds(table.operator) == counting.OPERATOR_AGES
    assert (table.reference_ns, table.stated()) == (123, "of A: CPU, today")


def test_the_ages_are_those_of_the_package() -> None:
    own = hostcost.table()
    assert bounds(own.function) == counting.FUNCTION_AGES
    assert bounds(own.operator) == counting.OPERATOR_AGES
    assert own.ages == hostcost.Ages(counting.LAUNCH_AGE, counting.LIBRARY_AGE, counting.DEVICE_WAIT_AGE)


def test_launches_and_library_calls_age_what_ran_before() -> None:
    ages = counting.Ages(functions=(4, 59, 100))
    ages.function(1, "a")
    ages.launch(1)
    ages.function(1, "a")  # six ago, with itself, which was new: cold
    ages.library(1, 1)
    ages.function(1, "a")  # 61 ago: rare
    ages.function(1, "a")  # one ago
    ages.device_wait(1)
    ages.function(1, "a")
    assert ages.take() == ([1, 1, 1, 2], [0, 0, 0, 0])  # the first one was new


def test_what_is_warm_ages_nothing() -> None:
    ages = counting.Ages((2, 5, 9))
    for what in ("a", "b", *["b"] * 100, "a"):  # b alone has been fetched since
        ages.function(1, what)
    assert ages.take() == ([101, 0, 0, 2], [0, 0, 0, 0])


def test_each_thread_has_ages_of_its_own() -> None:
    ages = counting.Ages((1, 3, 5))
    for thread, what in ((1, "a"), (2, "a"), (1, "b"), (1, "a"), (1, "b"), (1, "c"), (1, "d"), (1, "a"), (1, "a")):
        ages.function(thread, what)
    # new: a, a of the second thread, b, c, d; two ago: a, b; four ago: a; one ago: a
    assert ages.take() == ([1, 2, 1, 5], [0, 0, 0, 0])
    assert ages.take() == ([0, 0, 0, 0], [0, 0, 0, 0])


def test_operators_age_functions() -> None:
    ages = counting.Ages((2, 3, 4))
    for code in ("a", "x", "y", "a"):  # three ago, not one
        (ages.function if code == "a" else ages.operator)(1, code)
    assert ages.take() == ([0, 1, 0, 1], [0, 0, 0, 2])


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Nothing is collected meanwhile: what earlier tests left may call functions as it goes, which count, too."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage")
def test_functions_are_counted_with_generators_and_without_imports() -> None:
    def numbers() -> Any:
        yield 1
        yield 2

    def work() -> None:
        sum(numbers())
        sys.modules.pop("this_is_not_there", None)
        sys.modules.pop("colorsys", None)
        import colorsys  # noqa: F401

    counter = counting.Counter()
    counter.during(work)
    assert sum(counter.take()[:4]) == 5  # itself, and the generator: made, begun, gone on, to its end
    counter.during(work)
    assert counter.take()[:4] == (5, 0, 0, 0)


@pytest.mark.usefixtures("no_garbage")
def test_operators_are_counted_from_a_profile() -> None:
    counter = counting.Counter()
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)

    def work() -> None:
        layer(x)

    counter.during(work)
    first = counter.take()
    counter.during(work)
    second = counter.take()
    assert sum(first[4:8]) == sum(second[4:8]) > 3  # linear, t, transpose, as_strided, addmm, ...
    assert second[4:8] == (sum(first[4:8]), 0, 0, 0)
    assert first[7] >= 4  # those that had not been called
    assert sum(first[:4]) == sum(second[:4]) == second[0] >= 3  # this function, the module's call, its forward


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("busy", [False, True])
def test_functions_and_operators_come_in_one_order(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that runs once in seventy different operators is not warm, though no other function ran between. Nor
    does it matter if the machine does something else while the clocks of functions and operators are compared.
    """
    if busy:
        delays_s = iter((0.05, 0.0, 0.05))

        def late_ns() -> int:
            time.sleep(next(delays_s, 0.0))
            return time.perf_counter_ns()

        monkeypatch.setattr(counting, "time", SimpleNamespace(perf_counter_ns=late_ns))
    x = torch.zeros(4)
    names = "abs acos asin asinh atan ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac lgamma log log10"
    names += " log1p log2 neg reciprocal round rsqrt sigmoid sign sin sinc sinh sqrt tan tanh trunc"
    different = [getattr(x, name + suffix) for name in names.split() for suffix in ("", "_")]

    def once() -> None:
        """What is looked for."""

    def work() -> None:
        for _ in range(3):
            once()
            for operator in different:
                operator()

    counter = counting.Counter()
    counter.during(work)
    functions, operators = counter.take()[:4], counter.take()
    assert functions == (0, 2, 0, 2)  # work and the first `once` are new
    assert not any(operators)


def test_launches_within_a_library_call_are_part_of_it() -> None:
    def event(name: str, start: int, parent: Any = None, scope: int = 0) -> Any:
        cpu = torch.autograd.DeviceType.CPU
        time = SimpleNamespace(start=start)
        return SimpleNamespace(name=name, time_range=time, thread=1, scope=scope, device_type=cpu, cpu_parent=parent)

    mm = event("aten::mm", 0)
    add = event("aten::add", 2)
    counter = counting.Counter()
    counter.add(
        [
            *(add, mm, event("cudaLaunchKernel", 1, mm), event("cudaLaunchKernel", 3, add)),
            *(event("cudaMemcpyAsync", 4), event("autograd::engine::evaluate_function: MmBackward0", 5)),
            *(event("MmBackward0", 6, scope=1), event("cudaStreamIsCapturing", 7)),
        ]
    )
    assert counter.take()[4:9] == (0, 0, 0, 2, 2)  # two operators; the addition's launch, and the copy


def test_every_model_makes_its_step() -> None:
    for name, model, x, options in calibrate.models("cpu"):
        phases = calibrate.measure(name, calibrate.phases_of(model, x, options), steps=1)
        assert [p.name for p in phases] == [f"{name} {part}" for part in ("forward", "backward", "clip", "optimizer")]
        assert all(sum(p.counts[4:8]) for p in phases)  # operators of each phase
        if name == "wrapped":
            assert phases[0].counts[0] >= 24 * 40
