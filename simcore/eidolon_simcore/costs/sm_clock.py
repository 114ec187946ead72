"""The SM clock of a step, from what the step before it did: power decides the clock, and the clock decides the time.

A GPU at its power limit lowers its clock within a tenth of a second until the mean power of its work meets the limit
(an H200 does so every 50 ms). So the clock of a step is a pure function of the work list of the step before it: of the
time at the greatest clock by class of work, and of the gaps between work, in which the host has issued nothing or all
waits for a collective. Simulated times would tell the gaps better. But they come too late, and a clock must not depend
on when they come. So an outline of the rank's own operations gives the gaps (``native/src/outline.h``), without what
waiting for other ranks adds.

Each class draws a known power at the greatest clock ``f = 1``. Power falls with the clock as ``f ** EXPONENT``, and
time grows as ``f ** -SENSITIVITY`` of the class. Attention and fp32 GEMMs follow the clock. Tensor-core GEMMs, which
the chip's own limits hold back already, follow it less, and kernels bound by memory not at all. Tables hold times at
the greatest clock.

The figures come from:

* H100 SXM: bf16 GEMMs back to back run at 1,320 MHz and 697 W. TorchTitan's Llama 8B (61 % GEMM, 15 % attention of a
  step) has attention 1.22, its largest GEMMs 1.04 and all of them 1.11 times as long as on a GPU of the same SMs at
  1,980 MHz.
* H200: GEMMs 1,360 to 1,480 MHz and 1.17 times as long as alone, attention 1,740 to 1,800 MHz and 1.11 to 1.16, fp32
  GEMMs 560 W and memory-bound kernels 440 to 500 W at 1,980 MHz; half GEMM and half memory 1,680 MHz, a quarter GEMM
  1,965 MHz; steps of GPT-2, BERT and ResNet-50 1,980 MHz, Llama 1B and ViT-L 1,950 to 1,965, four layers of Llama 7B
  1,800 to 1,845.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs.roofline import ATTENTION, MATRIX, MEMORY, PLAIN

CLASSES = max(MEMORY, MATRIX, ATTENTION, PLAIN) + 1
EXPONENT = 0.86
#: How time follows the clock, by class: ``time ~ f ** -(a + b (1 - f))``. Other classes keep their time. The lower the
#: clock, the more it matters, because a step's clock is a mean of clocks that swing by 100 MHz with its parts.
SENSITIVITY = {MATRIX: (0.43, 0.05), ATTENTION: (0.25, 3.0), PLAIN: (1.0, 0.0)}
#: Power at the greatest clock as a share of the limit. Those of an H100 serve all models without figures of their own.
POWER = {MEMORY: 0.71, MATRIX: 1.42, ATTENTION: 1.19, PLAIN: 0.81}
OWN_POWER = {"h200-sxm": {MEMORY: 0.73, MATRIX: 1.36, ATTENTION: 1.12, PLAIN: 0.81}}
GAP_POWER = 0.25  #: power in a step while nothing or only a collective runs, as a share of the limit
LEAST_SHARE = 0.55  #: the lowest clock, as a share of the greatest
LEAST_WORK_NS = 1_000_000  #: a list with less work says nothing about a step
_ROUNDS = 4  #: iterations to the fixed point below, which converges within 0.1 %


@dataclass(frozen=True, slots=True)
class Pace:
    """The clock as a share of the greatest, how many times as long the work of each class takes at it, and the power
    that the work draws at it, as a share of the limit."""

    clock: float = 1.0
    slowdown: tuple[float, ...] = (1.0,) * CLASSES
    power: float = POWER[MEMORY]


FULL = Pace()


def pace(work_ns: Sequence[float], gpu: Gpu, idle_ns: float = 0.0) -> Pace:
    """The pace of the step after one with this device time at the greatest clock, by class of work, and with this time
    without work."""
    if sum(work_ns) < LEAST_WORK_NS:
        return FULL
    power = OWN_POWER.get(gpu.key, POWER)
    found = FULL
    for _ in range(_ROUNDS):
        times = [ns * slow for ns, slow in zip(work_ns, found.slowdown, strict=True)]
        busy = sum(times)
        drawn = sum(ns * power.get(kind, power[MEMORY]) for kind, ns in enumerate(times))
        mean = (drawn + idle_ns * GAP_POWER) / (busy + idle_ns)
        clock = max(LEAST_SHARE, min(1.0, mean ** (-1.0 / EXPONENT)))
        slowdown = tuple(_slowdown(clock, kind) for kind in range(CLASSES))
        most = (busy + idle_ns * (1.0 - GAP_POWER)) / busy  # so that the mean meets the limit
        found = Pace(clock, slowdown, min(most, drawn / busy * clock**EXPONENT))
    return found


def _slowdown(clock: float, kind: int) -> float:
    shallow, deep = SENSITIVITY.get(kind, (0.0, 0.0))
    return float(clock ** -(shallow + deep * (1.0 - clock)))
