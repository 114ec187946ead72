"""How fast kinds of work go beside a collective: the classes that the engine rates.

NCCL's kernels take multiprocessors and bandwidth from what runs beside them. A GEMM or attention kernel fills the whole
chip in waves, so that a few missing multiprocessors cost it a wave; kernels bound by memory hardly notice.
"""

from __future__ import annotations

from eidolon_simcore.engine.interface import REFERENCE_RATE, Rates
from eidolon_simcore.roofline import ATTENTION, MATRIX, MEMORY, PLAIN

SLOWDOWN = {MEMORY: 1.12, MATRIX: 1.33, ATTENTION: 1.17, PLAIN: 1.33}  #: of a kernel with a collective beside it


def beside_collectives() -> tuple[Rates, ...]:
    """The engine's table: a rate for each class of work; class 0 is never slowed."""
    table = [Rates()]
    for kind in range(1, max(SLOWDOWN) + 1):
        slowed = round(REFERENCE_RATE / SLOWDOWN[kind])
        table.append(Rates(with_collective=slowed, with_both=slowed))
    return tuple(table)
