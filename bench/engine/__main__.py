"""Measures the engine against its bars, and its baselines in the same run.

    python -m bench.engine [case ...]

Cases: stream, churn, ring, late, memory, ranks, coupled. Rates are per second of CPU time of this process, so that a
busy machine does not count against either side; SimGrid's are of its own process, wall time of ``run()`` on a machine
that is as busy.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.engine.fabric import LINK_BYTES_PER_S, FatTree, Flows, churn, numbers
from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.engine.interface import OPERATION, Engine, Flag, Flow, Op, Rates
from eidolon_simcore.engine.native import NativeEngine

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/simcore/engine"))
import simgrid_oracle


def line(name: str, ours: float, unit: str, bar: float | None, baseline: str) -> None:
    """Prints a rate, its bar (None if it has none) and what is known of the baseline."""
    verdict = "" if bar is None else f"  bar {bar:>12,.0f}  {'met' if ours >= bar else 'MISSED'}"
    print(f"{name:44} {ours:>14,.0f} {unit:9}{verdict:32} {baseline}", flush=True)


def cpu(work: Callable[[], object]) -> float:
    """Seconds of processor time of this process for some work."""
    gc.collect()
    begin = time.process_time()
    work()
    return time.process_time() - begin


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


# ---- kernels --------------------------------------------------------------------------------------------------------


def kernels(count: int, every: int) -> NDArray[np.void]:
    """Operations of one stream, which are kernels, with a synchronisation in place of each ``every``-th."""
    rng = np.random.default_rng(0)
    ops = np.zeros(count, OPERATION)
    ops["seq"], ops["op"] = np.arange(count), Op.WORK
    ops["host_ns"], ops["work_ns"] = rng.integers(1000, 5000, count), rng.integers(500, 6000, count)
    ops["op"][every - 1 :: every], ops["flags"][every - 1 :: every] = Op.SYNC_LANE, Flag.ASK
    return ops


def feed(engine: Engine, ops: NDArray[np.void], every: int) -> int:
    """Gives operations to an engine in blocks and takes the answers. Returns how many spans came out."""
    engine.add_rank(0)
    engine.add_lane(0, 0, 0)
    spans = 0
    for at in range(0, len(ops), every):
        engine.ingest(0, ops[at : at + every])
        engine.answers()
        spans += len(engine.spans(0))
    return spans


def stream() -> None:
    """One rank with one stream and a synchronisation every 1,000 kernels. It is measured from columns in to final spans
    out.
    """
    ops = kernels(2_000_000, 1000)
    for name, optimistic in (("conservative", False), ("optimistic", True)):
        rate = len(ops) / cpu(lambda o=optimistic: feed(NativeEngine(optimistic=o), ops, 1000))  # type: ignore[misc]
        line(f"kernel events, {name}", rate, "events/s", 5e6, "")


def coupled() -> None:
    """The same stream on a device whose rates depend on what else runs. There are no prefix sums, and each kernel is an
    event.
    """
    ops = kernels(500_000, 1000)

    def run() -> None:
        engine = NativeEngine()
        engine.add_rank(0)
        engine.add_lane(0, 0, 0)
        engine.set_rates(0, engine.rates((Rates(with_collective=900_000),)))
        for at in range(0, len(ops), 1000):
            engine.ingest(0, ops[at : at + 1000])
            engine.answers()
            engine.spans(0)

    line("kernel events, device with rates", len(ops) / cpu(run), "events/s", None, "")


# ---- flows ----------------------------------------------------------------------------------------------------------


def replay(tree: FatTree, flows: Flows, *, journal: bool = False, block: int = 1000) -> tuple[float, NDArray[np.int64]]:
    """The CPU seconds to simulate the flows, which are given in blocks in order, and their ends."""
    network = tree.network(journal=journal)
    routes, ones = numbers(network, flows), np.ones(len(flows), np.int64)

    def run() -> None:
        for at in range(0, len(flows), block):
            part = slice(at, at + block)
            network.add(flows.starts[part], routes[part], flows.sizes[part], ones[part])
            present = int(flows.starts[part][-1])
            network.advance(present)
            network.forget(present - 10**6)
        network.advance(_engine.NEVER)

    return cpu(run), network.ends()


def simgrid(tree: FatTree, flows: Flows) -> str:
    """What SimGrid does with the same flows, beside this engine, as text."""
    if reason := simgrid_oracle.missing():
        return f"SimGrid: not measured: {reason}"
    told = [
        (start / 1e9, route, int(size))
        for start, route, size in zip(flows.starts, flows.routes, flows.sizes, strict=True)
    ]
    wall = simgrid_oracle.ask([LINK_BYTES_PER_S] * tree.links, told)["wall_s"]
    seconds, _ = replay(tree, flows)
    return f"SimGrid {len(flows) / wall:,.0f}, ours {len(flows) / seconds:,.0f} on its {len(flows):,} flows"


def churns() -> None:
    """Random flows on fat trees. As one ends, another begins."""
    for hosts, concurrent, count, few, bar in ((1024, 4096, 24_096, 4_596, 20_000), (128, 512, 60_512, 3_512, 100_000)):
        tree = FatTree(hosts)
        flows = churn(tree, concurrent, count)
        seconds, _ = replay(tree, flows)
        line(
            f"churn, {hosts} hosts, {concurrent} at once",
            count / seconds,
            "flows/s",
            bar,
            simgrid(tree, flows.first(few)),
        )


def ring() -> None:
    """Ring steps of 1,024 hosts, as collectives of one rank. Every host sends to the next, and all wait for all."""
    tree = FatTree(1024)
    steps = 2000

    def prepared() -> tuple[NativeEngine, NDArray[np.void]]:
        engine = NativeEngine(launch_queue=0)
        engine.add_rank(0)
        engine.add_lane(0, 0, 0)
        for _ in range(tree.links):
            engine.link(LINK_BYTES_PER_S)
        pattern = engine.pattern(tuple(Flow(route, 1_000_000) for route in tree.ring()))
        ops = np.zeros(steps + 1, OPERATION)
        ops["op"] = Op.COLLECTIVE
        for at in range(steps):
            handle = engine.reserve()
            engine.define_as(handle, (0,), 0, pattern)
            ops["value"][at] = handle
        ops[-1]["op"] = Op.SYNC_LANE
        return engine, ops

    engine, ops = prepared()

    def run() -> None:
        engine.ingest(0, ops)
        engine.answers()

    seconds = cpu(run)
    assert engine.clock(0) == steps * 20_000
    few = Flows(
        np.repeat(np.arange(20, dtype=np.int64) * 20_000, 1024),
        tree.ring() * 20,
        np.full(20 * 1024, 1_000_000, np.int64),
    )
    line("ring steps, 1,024 hosts", steps * 1024 / seconds, "flows/s", 2e6, simgrid(tree, few))


def late() -> None:
    """10^5 flows of the churn of 1,024 hosts. 1 % of them come up to 500 arrivals late, and a time is asked for every
    1,000.
    """
    tree = FatTree(1024)
    flows = churn(tree, 4096, 104_096)
    routes_of = flows.routes
    in_order, ends = replay(tree, flows, journal=True)
    line("churn in order, with history", len(flows) / in_order, "flows/s", None, "")

    def run(share: float, most: int) -> tuple[float, NDArray[np.int64], dict[str, int]]:
        rng = random.Random(3)
        place = [i + (rng.randint(1, most) if i >= 4096 and rng.random() < share else 0) for i in range(len(flows))]
        order = np.array(sorted(range(len(flows)), key=lambda i: (place[i], i)))
        network = tree.network(journal=True)
        routes = np.array([network.route(route) for route in routes_of], np.int64)[order]
        starts, sizes, ones = flows.starts[order], flows.sizes[order], np.ones(len(flows), np.int64)
        # The horizon: whatever is still to come begins no earlier than this.
        bound = np.minimum.accumulate(starts[::-1])[::-1]

        def play() -> None:
            latest = 0
            for at in range(0, len(flows), 1000):
                part = slice(at, at + 1000)
                network.add(starts[part], routes[part], sizes[part], ones[part])
                latest = max(latest, int(starts[part].max()))
                network.advance(latest)
                if at + 1000 < len(flows):
                    network.forget(min(int(bound[at + 1000]), latest) - 1)
            network.advance(_engine.NEVER)

        seconds = cpu(play)
        result = np.empty(len(flows), np.int64)
        result[order] = network.ends()
        return seconds, result, network.counters()

    for share, most, bar in ((0.01, 500, 2.0), (0.01, len(flows) // 10, None)):
        seconds, told, counters = run(share, most)
        same = bool(np.array_equal(told, ends))
        verdict = "" if bar is None else f"bar {bar:.1f}x, {'met' if seconds / in_order <= bar else 'MISSED'}; "
        print(
            f"  1 % up to {most:,} arrivals late: {len(flows) / seconds:,.0f} flows/s = {seconds / in_order:.2f}x "
            f"the time in order; {verdict}{counters['rollbacks']} rollbacks, {counters['changes_undone']:,} undone, "
            f"ends {'equal' if same else 'DIFFERENT'}",
            flush=True,
        )


# ---- memory and size ------------------------------------------------------------------------------------------------


def memory() -> None:
    """10^7 operations of two ranks: kernels, recordings (keys are never reused), collectives and synchronisations."""
    for optimistic in (False, True):
        engine = NativeEngine(optimistic=optimistic, expected_ranks=2)
        link = engine.link(10**10)
        for rank in (0, 1):
            engine.add_rank(rank)
            engine.add_lane(rank, 0, 0)
            engine.add_lane(rank, 1, 0)
        flows = (Flow((link,), 10**6), Flow((link,), 10**6))
        block = kernels(1000, 10**9)
        block["op"][100:900:20], block["lane"][100:900:20] = Op.RECORD, 0
        block["op"][-3:] = (Op.WAIT, Op.COLLECTIVE, Op.SYNC_LANE)
        block["lane"][-3:] = 1
        block["flags"][-1] = Flag.ASK
        keys = block["op"] == Op.RECORD
        series = []
        total = 10_000_000
        for at in range(0, total, 2000):
            handle = engine.collective((0, 1), 1000, flows)
            for rank in (0, 1):
                block["seq"] = np.arange(at, at + 1000)
                block["value"][keys] = np.arange(at, at + int(keys.sum()))
                block["value"][-3:] = (at, handle, 0)
                engine.ingest(rank, block)
            engine.answers()
            for rank in (0, 1):
                engine.spans(rank)
            if (at // 2000) % (total // 20_000) == total // 20_000 - 1:
                series.append(resident_mib())
        counters = engine.counters()
        print(
            f"10^7 operations, {'optimistic' if optimistic else 'conservative'}: resident MiB at every tenth: "
            + " ".join(f"{mib:.1f}" for mib in series)
            + f"; from 2nd to last {series[-1] - series[1]:+.1f}; history {counters['live_bytes'] / 2**20:.1f} MiB"
        )


def ranks() -> None:
    """One step of 1,024 ranks with 4,000 kernels and 300 collectives each (event, wait, collective on stream 2)."""
    world, runs, each = 1024, 300, 13
    engine = NativeEngine(expected_ranks=world)
    tree = FatTree(world)
    for _ in range(tree.links):
        engine.link(LINK_BYTES_PER_S)
    pattern = engine.pattern(tuple(Flow(route, 8_000_000) for route in tree.ring()))
    program = np.zeros(runs * (each + 5) + 100, OPERATION)
    for at in range(runs):
        part = program[at * (each + 5) : (at + 1) * (each + 5)]
        part["op"] = (*[Op.WORK] * each, Op.RECORD, Op.WAIT, Op.COLLECTIVE, Op.RECORD, Op.WAIT)
        part["lane"] = (*[0] * each, 0, 1, 1, 1, 0)
        part["value"][each:] = (2 * at, 2 * at, 0, 2 * at + 1, 2 * at + 1)
        part["host_ns"], part["work_ns"][:each] = 3000, 30_000
    tail = program[runs * (each + 5) :]
    tail["op"], tail["work_ns"], tail["host_ns"] = Op.WORK, 30_000, 3000
    tail["op"][-2:] = (Op.MARK, Op.SYNC_DEVICE)
    program["seq"] = np.arange(len(program))
    joins = np.flatnonzero(program["op"] == Op.COLLECTIVE)
    for rank in range(world):
        engine.add_rank(rank)
        engine.add_lane(rank, 0, 0)
        engine.add_lane(rank, 1, 0)
    everyone = tuple(range(world))
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for at in joins:
        handle = engine.reserve()
        engine.define_as(handle, everyone, 5000, pattern)
        program["value"][at] = handle
    for at in range(0, len(program), 1000):
        for rank in everyone:
            engine.ingest(rank, program[at : at + 1000])
        engine.answers()
    for rank in everyone:
        engine.end_rank(rank)
    engine.answers()
    spans = sum(len(engine.spans(rank)) for rank in everyone)
    wall, used = time.perf_counter() - begin, time.process_time() - begin_cpu
    print(
        f"1,024 ranks x {int((program['op'] == Op.WORK).sum()):,} kernels x {runs} collectives of 1,024 flows: "
        f"{wall:.1f} s wall, {used:.1f} s CPU (goal 5.0 s: {'met' if used <= 5 else 'MISSED'}); {spans:,} spans, "
        f"{engine.counters()['flows']:,} flows"
    )


CASES: dict[str, Callable[[], None]] = {
    "stream": stream,
    "coupled": coupled,
    "churn": churns,
    "ring": ring,
    "late": late,
    "memory": memory,
    "ranks": ranks,
}


def main() -> None:
    """Runs the cases that the command line names, or all."""
    wanted = sys.argv[1:] or list(CASES)
    if unknown := set(wanted) - set(CASES):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    for name in wanted:
        CASES[name]()


if __name__ == "__main__":
    main()
