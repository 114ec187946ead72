"""How fast kinds of work and collectives go beside each other: the classes that the engine rates.

NCCL's channels are thread blocks. They take multiprocessors and bandwidth from the kernels beside them, and the kernels
take both from them. A GEMM or attention kernel fills the chip in waves, so a few missing multiprocessors cost it a
wave. Kernels bound by memory share its bandwidth with the channels, and leave them the least.

Both directions were measured on two H200 (NCCL 2.28, no NVLink multicast): all-reduce, all-gather and reduce-scatter of
4 to 416 MiB beside eleven streams of kernels. Figures are the profiler's durations divided by the durations alone. The
figure of a collective tells how much longer its bytes take (from 128 to 416 MiB); besides that, it waits 5 to 120 us
for its first multiprocessors if all are in use.

=========================================== ================ ================
times as long, beside each other            kernels          collectives
=========================================== ================ ================
GEMM of 615 and of 61 us, convolution       1.36, 1.36, 1.35 1.2, 1.3, 1.2
GEMM of 16 us                               1.95             1.07
attention forward, backward                 1.17, 1.22       1.03, 1.1
additions: fp32, bf16, in the L2 cache      1.13, 1.26, 1.7  2.6, 1.6, 1.4
layer norm, sums                            1.5, 1.32        1.1, 1.2
=========================================== ================ ================

In traces of DDP and FSDP on two H200, kernels bound by memory took 1.12 (GPT-2 under autocast), 1.17 to 1.24 (Llama),
1.29 (BERT) and 1.47 (Mixtral) times as long, and the collectives beside them 2.7, 1.3 to 1.6, 1.1 and 1.1 times.
"""

from __future__ import annotations

from eidolon_simcore.costs.roofline import ATTENTION, MATRIX, MEMORY, PLAIN
from eidolon_simcore.engine.interface import REFERENCE_RATE, Rates

#: How many times as long a kernel takes with a collective beside it.
SLOWDOWN = {MEMORY: 1.22, MATRIX: 1.36, ATTENTION: 1.20, PLAIN: 1.36}
#: How many times as long a collective takes with such a kernel beside it, on any of its GPUs.
OF_COLLECTIVES = {MEMORY: 1.6, MATRIX: 1.22, ATTENTION: 1.07, PLAIN: 1.22}


def beside_collectives() -> tuple[Rates, ...]:
    """The engine's table of rates for each class of work. Class 0 neither slows a collective down nor is slowed."""
    table = [Rates()]
    for kind in range(1, max(SLOWDOWN) + 1):
        slowed = round(REFERENCE_RATE / SLOWDOWN[kind])
        leaves = round(REFERENCE_RATE / OF_COLLECTIVES[kind])
        table.append(Rates(with_collective=slowed, with_both=slowed, leaves=leaves))
    return tuple(table)
