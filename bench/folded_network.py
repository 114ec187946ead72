"""Measures what calls of a folded run cost the network, when a few ranks stand for thousands.

    python -m bench.folded_network [servers ...]        # 16, 128 and 1,024 servers of 8 GPUs unless given

For each fabric it prints, in processor time of this process:

* the topology, and the first call of each kind: routes of all flows, their classes, and the engine's pattern,
* a later call, mean of many: alone, beside kernels, and beside a call of another family,
* the same of one server of 8 GPUs that is not folded, which is the baseline, and of all flows without classes
  (``full``), for up to 128 servers.

The order of the first calls matters. A pattern that is not regular, such as a tree over a fabric that hashes, divides
classes for all that come later, so the later calls are measured before and after it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from eidolon_simcore import catalogue
from eidolon_simcore.engine.interface import OPERATION, REFERENCE_RATE, Op, Rates
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.fabric import settings, tuner
from eidolon_simcore.fabric.network import Network, Pattern
from eidolon_simcore.fabric.topology import Port

MIB = 1 << 20
GPUS = 8
FABRICS: dict[str, dict[str, Any]] = {
    "crossbar": {},
    "rail": {"type": "rail", "servers_per_pod": 32},
    "leaf-spine": {"type": "leaf-spine", "servers_per_leaf": 4, "oversubscription": 4},
}
RING = tuner.options({"NCCL_ALGO": "Ring"})
FULL_UP_TO = 128  #: servers of which all flows are solved too


def cpu(work: Callable[[], object]) -> float:
    """Seconds of processor time of this process for some work."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


class Run:
    """A network, and one rank on whose lanes calls and kernels go."""

    def __init__(self, servers: int, *, folded: bool, **fields: Any) -> None:
        gpu = catalogue.gpu("h100-sxm")
        self.engine = NativeEngine(expected_ranks=1)
        table = self.engine.rates((Rates(), Rates(leaves=REFERENCE_RATE // 2)))
        self.engine.add_rank(0)
        for lane in range(3):
            self.engine.add_lane(0, lane, 0)
        self.engine.set_rates(0, table)
        plan = settings.parse(
            (fields or None) if servers > 1 else None,
            gpus=[gpu] * servers,
            gpus_per_server=GPUS,
            inter_bytes_per_s=gpu.nic_bytes_per_s,
            inter_latency_ns=2_000,
        )
        self.network = Network(self.engine, gpu, plan, folded=folded)
        self.world = [Port(s, g) for s in range(servers) for g in range(GPUS)]
        self.inside = [[Port(s, g) for g in range(GPUS)] for s in range(servers)]
        self.engine.set_ports(0, 0, self.network.ports(*self.world))
        self.seq = 0

    def send(self, rows: list[tuple[Op, int, int, int, int]]) -> None:
        """Rows of operation, lane, host time, work, and collective or class of work."""
        table = np.zeros(len(rows), OPERATION)
        for i, (op, lane, host, work, value) in enumerate(rows):
            kind = value if op == Op.WORK else 0
            table[i] = (self.seq + i, op, 0, kind, lane, host, work, 0 if op == Op.WORK else value, 0, 0)
        self.seq += len(rows)
        self.engine.ingest(0, table)
        self.engine.answers()

    def us(self, call: Pattern, *, kernels: int = 0, beside: Pattern | None = None, count: int = 200) -> float:
        """Microseconds of a call, with so many kernels while it is under way, and with another call."""

        def go() -> None:
            for _ in range(count):
                rows = []
                for lane, pattern in ((0, call), (1, beside)):
                    if pattern is not None:
                        handle = self.engine.reserve()
                        self.engine.define_as(handle, (0,), pattern.latency_ns, pattern.number)
                        rows.append((Op.COLLECTIVE, lane, 0, 0, handle))
                each = max(1, call.alone_ns // (2 * kernels)) if kernels else 0
                rows += [(Op.WORK, 2, 2 * each, each, 1)] * kernels
                rows.append((Op.RECORD, 2, call.alone_ns * 3, 0, 7))
                self.send(rows)
            self.engine.spans(0)

        return cpu(go) / count * 1e6


def later(name: str, run: Run, call: Pattern, beside: Pattern, count: int) -> None:
    alone, kernels, both = (
        run.us(call, count=count),
        run.us(call, kernels=20, count=count),
        run.us(call, beside=beside, count=count),
    )
    print(
        f"  {name:44} {len(call.flows):7} flows   alone {alone:9,.0f} us   with 20 kernels {kernels:9,.0f} us   "
        f"with a call inside servers {both:9,.0f} us",
        flush=True,
    )


def measure(name: str, servers: int, *, folded: bool) -> None:
    """Prints a fabric's lines."""
    count = 200 if folded and servers < 1024 else 20
    begin = time.process_time()
    run = Run(servers, folded=folded, **FABRICS[name])
    kind = "by classes" if folded else "full"
    print(f"{name}, {servers * GPUS:,} GPUs, {kind}: made in {time.process_time() - begin:.2f} s")
    network = run.network
    world = network.team(run.world, RING)
    inside = network.team(run.inside[0], None, run.inside[1:])

    def first(what: str, op: str, size: int, team: Any) -> Pattern:
        found: list[Pattern] = []
        seconds = cpu(lambda: found.append(network.collective(op, size, team)))
        print(f"  first {what:38} {len(found[0].flows):7} flows   {seconds:6.2f} s", flush=True)
        return found[0]

    gather = first("all-gather of the world (ring)", "all_gather", 256 * MIB, world)
    tensor = first("all-reduce inside servers", "all_reduce", 16 * MIB, inside)
    later("all-gather of the world", run, gather, tensor, count)
    later("all-reduce inside servers", run, tensor, gather, count)
    first("all-reduce of the world (tree)", "all_reduce", 4, network.team(run.world))
    gather = network.collective("all_gather", 256 * MIB, world)
    later("all-gather of the world, after the tree", run, gather, tensor, count)
    tree = network.collective("all_reduce", 4, network.team(run.world))
    later("all-reduce of the world (tree)", run, tree, tensor, count)


def main() -> None:
    """Prints all lines."""
    lone = Run(1, folded=False)
    team = lone.network.team(lone.world, RING)
    call = lone.network.collective("all_gather", 256 * MIB, team)
    print("8 GPUs, the baseline")
    later("all-gather", lone, call, lone.network.collective("all_reduce", 16 * MIB, team), 200)
    for servers in [int(word) for word in sys.argv[1:]] or [16, 128, 1024]:
        for name in FABRICS:
            measure(name, servers, folded=True)
            if servers <= FULL_UP_TO:
                measure(name, servers, folded=False)


if __name__ == "__main__":
    main()
