"""How fast kinds of work go beside a collective: the classes that the engine rates.

NCCL's kernels take multiprocessors and bandwidth from what runs beside them. A GEMM or attention kernel fills the whole
chip in waves, so that a few missing multiprocessors cost it a wave; kernels bound by memory hardly notice. Measured in
a profiler trace of TorchTitan's Llama-3-8B under FSDP on four H100s: the same kernels with a collective beside them
all the time over those with none (GEMM 148 kernels, 1.42; attention 34, 1.27; others 610, 1.07)."""

from __future__ import annotations

from eidolon_simcore.engine.interface import REFERENCE_RATE, Rates
from eidolon_simcore.roofline import ATTENTION, MATRIX, MEMORY

SLOWDOWN = {MEMORY: 1.07, MATRIX: 1.42, ATTENTION: 1.27}  #: of a kernel with a collective beside it


def beside_collectives() -> tuple[Rates, ...]:
    """The engine's table: a rate for each class of work; class 0 is never slowed."""
    table = [Rates()]
    for kind in range(1, max(SLOWDOWN) + 1):
        slowed = round(REFERENCE_RATE / SLOWDOWN[kind])
        table.append(Rates(with_collective=slowed, with_both=slowed))
    return tuple(table)
