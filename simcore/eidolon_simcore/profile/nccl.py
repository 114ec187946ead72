"""Measures collectives on the GPUs of a machine.

It is started with ``torchrun --nproc-per-node N -m eidolon_simcore.profile nccl --out DIR``.

Three kinds of rows, told apart by ``what``:

``graph``   each operation, size and type, captured many times in one CUDA graph: what NCCL and the wires take
``issued``  the same one after another from the host; under about 16 MiB that shows how fast a host issues (``ns``), of
            which the calling thread was on a CPU for ``cpu_ns``
``memory``  device memory that this rank lost since the row before: to a communicator, to its first operations (NCCL
            connects an algorithm at its first use), to its end

Tensors are zeros and reductions are sums, as in nccl-tests' own measure of a wire."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

CALLS, ROUNDS = 20, 5
#: Bytes of the whole tensor. They are powers of two and, between these, three halves of each.
SIZES = tuple(sorted({1 << p for p in range(10, 31)} | {3 << p for p in range(9, 29)}))
ISSUED = tuple(1 << p for p in range(10, 31, 2))
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
TYPE = "bf16"  #: of the tensors that are issued from the host, and of those that memory is measured with

Work = Callable[[], Any]


def measure() -> Iterator[dict[str, Any]]:
    """The rows of the table. Times are medians over some rounds of the slowest rank, in nanoseconds of one call."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    torch.zeros(1, device="cuda")
    memory = _Memory()
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    world = dist.get_world_size()
    try:
        yield memory.row("init", world)
        operations = _operations(world, TYPE)
        yield from memory.of_operations("first", operations, world)
        group = dist.new_group(list(range(world)))
        dist.barrier(group)
        yield memory.row("second communicator and its barrier", world)
        dist.destroy_process_group(group)
        yield memory.row("its end", world)
        for kind, dtype in TYPES.items():
            for name, make in _operations(world, kind).items():
                for size in SIZES:
                    if size % (dtype.itemsize * world) == 0:
                        yield {"what": "graph", **_about(name, size, world, kind), "ns": _in_graph(make(size))}
        for name, make in operations.items():
            for size in ISSUED:
                yield {"what": "issued", **_about(name, size, world, TYPE), **_from_host(make(size))}
        yield memory.row("all of the above", world)
    finally:
        dist.destroy_process_group()


class _Memory:
    """Free device memory, from row to row. What torch itself holds is given back first."""

    def __init__(self) -> None:
        self._free = self._now()

    @staticmethod
    def _now() -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])

    def row(self, after: str, world: int) -> dict[str, Any]:
        before, self._free = self._free, self._now()
        return {"what": "memory", "op": after, "world": world, "bytes": before - self._free}

    def of_operations(
        self, prefix: str, operations: dict[str, Callable[[int], Work]], world: int
    ) -> Iterator[dict[str, Any]]:
        for name, make in operations.items():
            for size in (1 << 10, 1 << 18, 1 << 26):
                make(size)()
                yield self.row(f"{prefix} {name} of {size}", world)


def _about(name: str, size: int, world: int, kind: str) -> dict[str, Any]:
    return {"op": name, "bytes": size, "world": world, "dtype": kind}


def _operations(world: int, kind: str) -> dict[str, Callable[[int], Work]]:
    """For each name, the function that makes an operation of a number of bytes."""
    dtype = TYPES[kind]

    def zeros(size: int) -> torch.Tensor:
        return torch.zeros(size // dtype.itemsize, dtype=dtype, device="cuda")

    def all_reduce(n: int) -> Work:
        x = zeros(n)
        return lambda: dist.all_reduce(x)

    def all_gather(n: int) -> Work:
        whole, part = zeros(n), zeros(n // world)
        return lambda: dist.all_gather_into_tensor(whole, part)

    def reduce_scatter(n: int) -> Work:
        whole, part = zeros(n), zeros(n // world)
        return lambda: dist.reduce_scatter_tensor(part, whole)

    def all_to_all(n: int) -> Work:
        x, y = zeros(n), zeros(n)
        return lambda: dist.all_to_all_single(x, y)

    def broadcast(n: int) -> Work:
        x = zeros(n)
        return lambda: dist.broadcast(x, 0)

    def sendrecv(n: int) -> Work:
        x, y, rank = zeros(n), zeros(n), dist.get_rank()

        def exchange() -> None:
            ways = [
                dist.P2POp(dist.isend, x, (rank + 1) % world),
                dist.P2POp(dist.irecv, y, (rank - 1) % world),
            ]
            for request in dist.batch_isend_irecv(ways):
                request.wait()

        return exchange

    return {
        "all_reduce": all_reduce,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "all_to_all": all_to_all,
        "broadcast": broadcast,
        "sendrecv": sendrecv,
    }


def _slowest(value: float) -> float:
    every = torch.tensor([value], device="cuda", dtype=torch.float64)
    dist.all_reduce(every, op=dist.ReduceOp.MAX)
    return float(every.item())


def _between(work: Work, calls: int) -> float:
    """The nanoseconds of one of the ``calls`` that ``work`` makes, by the device's clock."""
    dist.barrier()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return 1e6 * begin.elapsed_time(end) / calls


def _in_graph(work: Work) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            work()
    times = [_between(graph.replay, CALLS) for _ in range(ROUNDS + 1)]
    return _slowest(statistics.median(times[1:]))


def _from_host(work: Work) -> dict[str, float]:
    on_cpu = 0.0

    def many() -> None:
        nonlocal on_cpu
        started = time.thread_time_ns()
        for _ in range(CALLS):
            work()
        on_cpu = (time.thread_time_ns() - started) / CALLS

    times = [_between(many, CALLS) for _ in range(ROUNDS + 1)]
    return {"ns": _slowest(statistics.median(times[1:])), "cpu_ns": on_cpu}
