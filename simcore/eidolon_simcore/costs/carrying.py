"""From one GPU's measured time to another's: a part of the time waits for memory, the rest for the SMs.

How large each part is follows from how near the kernel came to the memory's bandwidth. With ``m`` the share of the
achievable bandwidth that it reached, its time ``t`` is taken as the norm of two parts, ``t^p = (rest)^p + (m t)^p``.
The memory's part scales with the bandwidth, the rest with the rate of the SMs. So a kernel far below the bandwidth,
such as a GEMM or a cast that is bound by its instructions, keeps its time on a GPU with the same SMs and another
memory. A kernel near the bandwidth scales with it.

:data:`NORM` and :data:`REACH` are fitted to the same 350 kernels of three training steps on an H100 and on an H200,
which has the same SMs and 1.43 times the bandwidth. Their times follow within 3.2 % on average, and the sums of the
steps within 0.5 %.
"""

from __future__ import annotations

from eidolon_simcore.catalogue import Gpu

NORM = 2.5
REACH = 0.90  #: share of the data sheet's bandwidth that a kernel can reach


def carried_ns(ns: float, moved_bytes: float, kind: str, source: Gpu, target: Gpu) -> float:
    """Nanoseconds that work takes on ``target`` if it took ``ns`` on ``source`` and moved so many bytes.

    ``kind`` names the peak that stands for the rate of the SMs: a key of :attr:`Gpu.peak`."""
    memory = min(1.0, moved_bytes / (REACH * source.bandwidth_bytes_per_s * ns * 1e-9))
    slower_memory = source.bandwidth_bytes_per_s / target.bandwidth_bytes_per_s
    slower_units = source.peak_flops(kind) / target.peak_flops(kind)
    rest = (1.0 - memory**NORM) * slower_units**NORM
    return float(ns * (rest + (memory * slower_memory) ** NORM) ** (1.0 / NORM))
