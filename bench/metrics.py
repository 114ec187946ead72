"""Measures what metrics cost. Run: ``python -m bench.metrics``.

* It compares the core's speed, from messages of agents to final steps, with accounts and a scraper that asks for both
  pages every second, and without both. The two take turns in one process, a step each, and the ratio is the median
  over the pairs. Messages are made beforehand, and only processor time of the core's thread counts, so a busy machine
  changes little. The goal is a ratio of at least 0.95.
* It measures one scrape of a run of 1,024 ranks. The goal is at most 200 ms and 40,000 series.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import plans
from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.core_plan import parse
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.export import dcgm, metrics
from eidolon_simcore.export.summary import Report
from eidolon_simcore.ledger.snapshot import Snapshot
from eidolon_simcore.run.event_records import RECORD
from eidolon_simcore.run.simulation import Simulation
from eidolon_simcore.vocabulary import PROTOCOL, Kind, RecordFlag

KERNELS = 96  # between two collectives
LAYERS = 20  # collectives of a step
BATCH = 5  # layers that an agent sends at once
FLAGS = RecordFlag.FOREGROUND | RecordFlag.AUTOGRAD
GPUS = 8
SIGNATURES: list[tuple[int, str, str, dict[str, int]]] = [
    (1, "call", "cudaLaunchKernel", {}),
    (2, "call", "ncclAllReduce", {}),
    (1024, "gemm", "cublas", {"m": 4096, "n": 4096, "k": 1024, "batch": 1, "atype": 14, "ctype": 14}),
    (1025, "library", "norm", {"bytes": 1 << 24, "flops": 0}),
    (1026, "mark", "step", {}),
    (1027, "copy", "h2d", {"pinned": 1}),
]


class Run:
    """A simulation with ranks that train. They have kernels on one stream, all-reduces on another, and a mark in each
    step.
    """

    def __init__(self, out: Path, ranks: int, account: bool, kernels: int = KERNELS, sinks: Any = ()) -> None:
        servers = max(1, ranks // GPUS)
        workload = {"command": ["train.py"], "tokensPerStep": 4096}
        document = plans.document(servers=servers, gpusPerServer=GPUS, workload=workload)
        plan = parse(document["core"], name="bench")
        self.simulation = Simulation(
            plan, NativeEngine(), Report(plan, out), version="bench", now=0.0, account=account, sinks=sinks
        )
        self.ranks = ranks
        self.seq = [0] * ranks
        self.position = 0
        self.kernels = kernels
        for server in range(servers):
            hello = pb.Hello(protocol=PROTOCOL, server=server, devices=GPUS, gpu="h100-sxm", token=plans.TOKEN)
            self.simulation.hello(hello, lambda _: None, 0.0)
        for rank in range(ranks):
            joined = pb.RankJoined(session=rank % GPUS + 1, rank=rank, world=ranks)
            self._send(rank, pb.AgentMessage(joined=joined))
        for rank in range(ranks):
            own = (1028, "comm", "all", {"id": 1, "rank": rank, "size": ranks, "device": rank % GPUS})
            reduce = {"comm": 1, "count": 1 << 22, "dtype": 9, "bytes": 1 << 23, "root": 0, "peer": -1, "redop": 0}
            signatures = [*SIGNATURES, own, (1029, "collective", "all_reduce", reduce)]
            made = np.zeros(1, RECORD)
            made["kind"], made["flags"] = Kind.COMM_INIT, FLAGS | RecordFlag.BLOCKING
            made["sig"], made["call"] = 1028, 2
            made["device"] = rank % GPUS
            defined = [pb.Signature(id=i, kind=k, name=n, attributes=a) for i, k, n, a in signatures]
            self._send(rank, self._batch(rank, made, defined))
        self.simulation.advance(0.0)

    def step(self) -> list[list[tuple[int, pb.AgentMessage]]]:
        """One step of every rank, in batches as agents send them. It is a list of rounds of (rank, message), for
        :meth:`play`.
        """
        rounds = []
        for first in range(0, LAYERS, BATCH):
            layers = range(first, first + BATCH)
            rows = (np.concatenate([self._layer(rank, layer) for layer in layers]) for rank in range(self.ranks))
            rounds.append([(rank, self._batch(rank, each, [])) for rank, each in enumerate(rows)])
        self.position += LAYERS
        return rounds

    def play(self, rounds: list[list[tuple[int, pb.AgentMessage]]]) -> int:
        """Gives them to the core, and returns the number of records."""
        for messages in rounds:
            for rank, message in messages:
                self._send(rank, message)
            self.simulation.advance(0.0)
        return sum(message.batch.count for messages in rounds for _, message in messages)

    def _layer(self, rank: int, layer: int) -> Any:
        last = layer == LAYERS - 1
        rows = np.zeros(self.kernels + 1 + 3 * last, RECORD)
        rows["kind"], rows["flags"], rows["call"], rows["stream"] = Kind.KERNEL, FLAGS, 1, 1
        rows["device"] = rank % GPUS
        rows["sig"] = np.where(np.arange(len(rows)) % 3, 1025, 1024)
        at = self.kernels
        rows["kind"][at], rows["sig"][at], rows["call"][at] = Kind.COLLECTIVE, 1029, 2
        rows["stream"][at], rows["value"][at] = 2, self.position + layer
        if last:
            rows["kind"][at + 1], rows["sig"][at + 1], rows["value"][at + 1] = Kind.COPY, 1027, 1 << 20
            rows["kind"][at + 2], rows["sig"][at + 2] = Kind.MARK, 1026
            rows["kind"][at + 3], rows["flags"][at + 3] = Kind.SYNC_DEVICE, FLAGS | RecordFlag.BLOCKING  # loss.item()
            rows["sig"][at + 3] = 0
        return rows

    def _batch(self, rank: int, rows: Any, signatures: list[pb.Signature]) -> pb.AgentMessage:
        first = self.seq[rank]
        rows["seq"] = np.arange(first, first + len(rows))
        self.seq[rank] += len(rows)
        batch = pb.EventBatch(session=rank % GPUS + 1, first_seq=first, count=len(rows), records=rows.tobytes())
        batch.signatures.extend(signatures)
        return pb.AgentMessage(batch=batch)

    def _send(self, rank: int, message: pb.AgentMessage) -> None:
        self.simulation.message(rank // GPUS, message, 0.0)
        assert self.simulation.state is None, self.simulation.reason


def speed(run: Run) -> float:
    """Records per second of processor time of this thread, over one step."""
    rounds = run.step()
    began = time.thread_time()
    return run.play(rounds) / (time.thread_time() - began)


class Scraper(threading.Thread):
    """Asks for both pages every second, of the snapshot that the simulation's thread last published."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.snapshot: Snapshot | None = None
        self.over = threading.Event()

    def run(self) -> None:
        """Asks for the pages until the measurement is over."""
        while not self.over.wait(1.0):
            if self.snapshot is not None:
                metrics.page(self.snapshot)
                dcgm.page(self.snapshot)


def compare(out: Path, pairs: int = 100) -> None:
    """Prints the core's speed with metrics and without, in pairs that take turns."""
    runs = {name: Run(out / name, GPUS, account=name == "with") for name in ("with", "without")}
    rates: dict[str, list[float]] = {"with": [], "without": []}
    scraper = Scraper()
    scraper.start()
    for run in runs.values():
        for _ in range(3):  # the first are warm-up
            speed(run)
    for pair in range(pairs):
        for name, run in list(runs.items())[:: 1 if pair % 2 else -1]:
            rates[name].append(speed(run))
            if name == "with":
                scraper.snapshot = run.simulation.snapshot(1.0)
    scraper.over.set()
    ratio = statistics.median(a / b for a, b in zip(rates["with"], rates["without"], strict=True))
    for name, values in rates.items():
        print(f"{name:>8} metrics: {statistics.median(values):12,.0f} records/s of processor time")
    print(f"   ratio: {ratio:.3f} (median of {pairs} pairs; goal 0.95)")


def scrape(out: Path, ranks: int = 1024) -> None:
    """Prints what the pages of many ranks take."""
    run = Run(out, ranks, account=True, kernels=4)
    for _ in range(3):
        run.play(run.step())
    began = time.thread_time()
    snapshot = run.simulation.snapshot(1.0)
    publish_ms = (time.thread_time() - began) * 1e3
    assert snapshot.progress.count >= 2, snapshot.progress.count
    for name, page in (("/metrics", metrics.page), ("DCGM", dcgm.page)):
        took = []
        for _ in range(5):
            wall, cpu = time.perf_counter(), time.thread_time()
            text = page(snapshot)
            took.append(((time.thread_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3))
        cpu_ms, wall_ms = (statistics.median(column) for column in zip(*took, strict=True))
        series = sum(1 for line in text.splitlines() if not line.startswith(b"#"))
        print(
            f"{ranks} ranks, {name}: {cpu_ms:.0f} ms of processor time, {wall_ms:.0f} ms (goal 200), {series:,} series"
        )
    print(f"{ranks} ranks, publishing a snapshot: {publish_ms:.1f} ms of the simulation's thread")


def main() -> None:
    """Runs both measurements in a temporary folder."""
    with tempfile.TemporaryDirectory() as out:
        compare(Path(out))
        scrape(Path(out) / "many")


if __name__ == "__main__":
    main()
