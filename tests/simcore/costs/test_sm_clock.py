"""The clock of a step from the mix of the step before it, held against real GPUs."""

from __future__ import annotations

import pytest

from eidolon_simcore import catalogue
from eidolon_simcore.costs.roofline import ATTENTION, MATRIX, MEMORY, PLAIN
from eidolon_simcore.costs.sm_clock import CLASSES, FULL, GAP_POWER, pace

H100, H200 = catalogue.gpu("h100-sxm"), catalogue.gpu("h200-sxm")


def step(**ms: float) -> list[float]:
    classes = {"matrix": MATRIX, "attention": ATTENTION, "memory": MEMORY, "plain": PLAIN}
    work = [0.0] * CLASSES
    for name, value in ms.items():
        work[classes[name]] = value * 1e6
    return work


def test_gemms_back_to_back_run_at_the_clock_that_was_measured() -> None:
    found = pace(step(matrix=100), H100)
    assert found.clock * 1_980 == pytest.approx(1_320, rel=0.02)
    assert found.slowdown[MATRIX] == pytest.approx(1_396 / 1_207, rel=0.04)  # against 1,980 MHz


def test_a_long_step_of_llama_8b_has_slower_attention() -> None:
    found = pace(step(matrix=353, attention=90, memory=124), H100)
    assert found.slowdown[MATRIX] == pytest.approx(1.08, abs=0.04)
    assert found.slowdown[ATTENTION] == pytest.approx(1.26, abs=0.05)
    assert found.slowdown[MEMORY] == 1.0


@pytest.mark.parametrize(
    ("name", "work", "mhz"),
    [
        ("a quarter GEMM, the rest memory", step(matrix=25, memory=75), 1_965),
        ("GPT-2", step(matrix=21.8, attention=2.3, memory=33), 1_980),
        ("Llama 1B", step(matrix=28.6, attention=5.3, memory=39), 1_965),
        ("four layers of Llama 7B", step(matrix=29.5, attention=4.1, memory=28.7), 1_830),
        ("fp32 GEMMs", step(plain=100), 1_980),
    ],
)
def test_steps_of_an_h200(name: str, work: list[float], mhz: float) -> None:
    assert pace(work, H200).clock * 1_980 == pytest.approx(mhz, rel=0.05), name


def test_a_step_that_waits_draws_less_and_needs_no_lower_clock() -> None:
    work = step(matrix=353, attention=90, memory=124)
    always, sometimes, often = (pace(work, H100, idle_ns=ms * 1e6) for ms in (0, 80, 850))
    assert always.clock < sometimes.clock < often.clock == 1.0
    assert always.slowdown[ATTENTION] > sometimes.slowdown[ATTENTION] > often.slowdown[ATTENTION] == 1.0
    busy = sum(work[kind] * sometimes.slowdown[kind] for kind in range(CLASSES))
    mean = (busy * sometimes.power + 80e6 * GAP_POWER) / (busy + 80e6)
    assert always.power == pytest.approx(1.0)  # the limit
    assert mean == pytest.approx(1.0, abs=0.01)


def test_little_work_says_nothing_about_a_step() -> None:
    assert pace(step(matrix=0.5), H100) is FULL
