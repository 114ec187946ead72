"""Collectives on the GPUs of a machine: ``torchrun --nproc-per-node N -m eidolon_simcore.profile nccl --out DIR``.

Each operation and size is captured many times in one CUDA graph. Issued one by one from the host, collectives under
about 16 MiB take as long as the host needs to issue them; a graph shows what NCCL and the wires take."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

CALLS, ROUNDS = 20, 5
SIZES = tuple(1 << p for p in range(10, 31))  #: bytes of the whole tensor


def measure() -> Iterator[dict[str, Any]]:
    """One row an operation and size: nanoseconds of a call, the median over some rounds, the slowest rank."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    world = dist.get_world_size()
    try:
        for name, make in _operations(world).items():
            for size in SIZES:
                if size // 2 % world == 0:
                    yield {"op": name, "bytes": size, "world": world, "dtype": "bf16", "ns": _time(make(size // 2))}
    finally:
        dist.destroy_process_group()


def _operations(world: int) -> dict[str, Callable[[int], Callable[[], Any]]]:
    def tensors(count: int, *divisors: int) -> list[torch.Tensor]:
        return [torch.randn(count // d, dtype=torch.bfloat16, device="cuda") for d in divisors]

    def all_reduce(n: int) -> Callable[[], Any]:
        (x,) = tensors(n, 1)
        return lambda: dist.all_reduce(x, op=dist.ReduceOp.AVG)

    def all_gather(n: int) -> Callable[[], Any]:
        whole, part = tensors(n, 1, world)
        return lambda: dist.all_gather_into_tensor(whole, part)

    def reduce_scatter(n: int) -> Callable[[], Any]:
        whole, part = tensors(n, 1, world)
        return lambda: dist.reduce_scatter_tensor(part, whole)

    def all_to_all(n: int) -> Callable[[], Any]:
        x, y = tensors(n, 1, 1)
        return lambda: dist.all_to_all_single(x, y)

    def broadcast(n: int) -> Callable[[], Any]:
        (x,) = tensors(n, 1)
        return lambda: dist.broadcast(x, 0)

    return {
        "all_reduce": all_reduce,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "all_to_all": all_to_all,
        "broadcast": broadcast,
    }


def _time(work: Callable[[], Any]) -> float:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            work()
    times = []
    for _ in range(ROUNDS + 1):
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e6 * begin.elapsed_time(end) / CALLS)
    slowest = torch.tensor([statistics.median(times[1:])], device="cuda", dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())
