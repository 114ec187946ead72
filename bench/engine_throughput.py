"""Operations per second of an engine, on a stream like a training step's. Run: ``python bench/engine_throughput.py``.

The baseline is the goal of the plain engine, 500,000 operations a second of one core (processor time is counted, so
that a busy machine changes little).
"""

from __future__ import annotations

import time

import numpy as np

from eidolon_simcore.engine.dataflow import DataflowEngine
from eidolon_simcore.engine.interface import OPERATION, Flag, Op

GOAL = 500_000
RANKS = 4
OPERATIONS = 100_000  # per rank
BATCH = 2_000


def step_like(rank: int, rng: np.random.Generator, run: int, handles: list[int]) -> np.ndarray:
    """Runs of ``run`` kernels, each followed by an event that a second lane waits for and a collective there."""
    ops = np.zeros(OPERATIONS, OPERATION)
    ops["seq"] = np.arange(OPERATIONS)
    ops["op"] = Op.WORK
    ops["lane"] = 1
    ops["host_ns"] = rng.integers(3_000, 30_000, OPERATIONS)
    ops["work_ns"] = rng.integers(1_000, 80_000, OPERATIONS)
    for n, i in enumerate(range(run, OPERATIONS - 3, run + 4)):
        ops["op"][i : i + 4] = (Op.RECORD, Op.WAIT, Op.COLLECTIVE, Op.QUERY_KEY)
        ops["lane"][i : i + 4] = (1, 2, 2, 0)
        ops["value"][i : i + 4] = (n, n, handles[n], max(0, n - 8))
        ops["flags"][i + 3] = Flag.ASK
    return ops


def measure(run: int) -> float:
    engine = DataflowEngine()
    wire = engine.link(1)
    assert wire == 0
    for rank in range(RANKS):
        engine.add_rank(rank)
        for lane in (0, 1, 2):
            engine.add_lane(rank, lane, 0)
    everyone = tuple(range(RANKS))
    handles = [engine.collective(everyone, 30_000, ()) for _ in range(OPERATIONS // run + 1)]
    programs = [step_like(rank, np.random.default_rng(rank), run, handles) for rank in everyone]
    begin = time.process_time()
    for start in range(0, OPERATIONS, BATCH):
        for rank in everyone:
            engine.ingest(rank, programs[rank][start : start + BATCH])
        engine.answers()
        for rank in everyone:
            engine.spans(rank)
    return RANKS * OPERATIONS / (time.process_time() - begin)


def main() -> None:
    print(f"baseline (goal): {GOAL:,} operations/s; {RANKS} ranks, batches of {BATCH:,}")
    for run in (4, 16, 64, 400):
        rate = measure(run)
        print(f"collective after every {run:3d} kernels: {rate:12,.0f} operations/s = {rate / GOAL:4.1f} x goal")


if __name__ == "__main__":
    main()
