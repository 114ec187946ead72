"""Measures how long it takes to look a cost up, in nanoseconds of thread CPU time for each record of device work.

    python -m bench.cost_lookup [--check]

A session takes batches of records as they come from a training step: 300 signatures, a mark every 2,000 launches. What
is timed is the whole way of a record to its operation: the checks, host time, price, pace of the step, label and class
of work, and the counts for the summary. The first look at a signature (its roofline, the tables) is timed apart, and
spread over the launches of eight ranks in 500 steps. The bar is 50 ns a record."""

from __future__ import annotations

import argparse
import random
import time

import numpy as np

from eidolon_simcore import catalogue
from eidolon_simcore.costs import package_tables
from eidolon_simcore.costs.model import CROWDED_LANES, CROWDED_NS, SOURCES, CostModel, measured_points
from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.run.event_records import RECORD
from eidolon_simcore.vocabulary import Kind, RecordFlag

SIGNATURES, LAUNCHES, STEPS, RANKS = 300, 2_000, 500, 8
BATCHES = (64, 512, 4_096)
BAR_NS = 50.0


def define(prices: _engine.Prices) -> float:
    """Defines signatures of a training step; returns the nanoseconds that finding their costs took."""
    measured_points("h100-sxm")  # the tables are read once for all runs of a process
    model = CostModel(catalogue.gpu("h100-sxm"))
    points = [point for point in package_tables.load() if point.count > 1]
    chosen = random.Random(8).sample(points, SIGNATURES)
    begin = time.thread_time_ns()
    for _ in range(RANKS):
        costs = [model.cost(point.signature, point.operator) for point in chosen]
    spent = time.thread_time_ns() - begin
    for number, cost in enumerate(costs, 1):
        prices.define(number, cost.base_ns, cost.by_bytes, number, cost.work_class, SOURCES.index(cost.source))
    return float(spent)


def lookup(prices: _engine.Prices, batch: int) -> float:
    """Nanoseconds for each record in batches of this size."""
    generator = np.random.default_rng(8)
    records = np.zeros(batch, RECORD)
    records["kind"], records["flags"], records["stream"] = int(Kind.KERNEL), int(RecordFlag.FOREGROUND), 1
    records["sig"] = generator.integers(1, SIGNATURES + 1, batch)
    records["seq"] = np.arange(batch)
    data = records.tobytes()
    prices.set_pace([1.0, 1.0, 1.05, 1.1, 1.1])
    host = {"measured": False, "factor": 1.0, "poll_ns": 1_000, "compiled_entry_ns": 0}
    parts = prices, _engine.Meter(), _engine.Outline()
    intake = _engine.Intake(*parts, **host, crowded_lanes=CROWDED_LANES, crowded_ns=CROWDED_NS)
    for number in range(1, SIGNATURES + 1):
        intake.define(number, number)
    rounds = max(20, 400_000 // batch)
    begin = time.thread_time_ns()
    for _ in range(rounds):
        intake.open(0, data)
        intake.translate()
        intake.close()
    return (time.thread_time_ns() - begin) / (rounds * batch)


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(prog="python -m bench.cost_lookup", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where the bar is missed")
    arguments = parser.parse_args()
    prices = _engine.Prices()
    first = define(prices)
    once = first / (LAUNCHES * STEPS * RANKS)
    where = f"{RANKS} ranks in {STEPS} steps"
    print(f"first looks: {first / SIGNATURES / 1e3:.0f} us a signature in all ranks, {once:.1f} ns a record of {where}")
    missed = False
    for batch in BATCHES:
        ns = lookup(prices, batch)
        missed |= ns + once > BAR_NS
        print(f"batches of {batch:5}: {ns:.1f} ns a record, {ns + once:.1f} with the first look (bar {BAR_NS:.0f})")
    if arguments.check and missed:
        raise SystemExit("over the bar")


if __name__ == "__main__":
    main()
