"""Measures what recording costs. Run: ``python -m bench.recording``.

It compares the core's speed with a recorder and without, taking turns in one process as :mod:`bench.metrics` does. It
counts processor time of the simulation's thread, and of the whole process, in which a thread of its own compresses and
writes the recording. It also prints the size of the recording.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.metrics import GPUS, Run
from eidolon_simcore.export.timeline.recorder import Recorder

PAIRS = 30


def speed(run: Run) -> tuple[float, float, int]:
    """Records per second of processor time of this thread and of the process, and the number of records."""
    rounds = run.step()
    thread, process = time.thread_time(), time.process_time()
    sent = run.play(rounds)
    return sent / (time.thread_time() - thread), sent / (time.process_time() - process), sent


def main() -> None:
    """Prints the core's speed with a recorder and without, and the size of a recording."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        recorders: list[Recorder] = []

        def recorder(labels: Any, network: Any) -> Recorder:
            recorders.append(Recorder(out / "recording", 1 << 30, labels, network, dict))
            return recorders[0]

        runs = {
            "with": Run(out / "with", GPUS, account=True, sinks=(recorder,)),
            "without": Run(out / "without", GPUS, account=True),
        }
        rates: dict[str, list[tuple[float, float, int]]] = {name: [] for name in runs}
        records = sum(speed(run)[2] for run in runs.values()) // len(runs)  # the first are warm-up
        for pair in range(PAIRS):
            for name, run in list(runs.items())[:: 1 if pair % 2 else -1]:
                rates[name].append(speed(run))
        records += sum(sent for _, _, sent in rates["with"])
        recorders[0].close()
        size = sum(path.stat().st_size for path in (out / "recording").iterdir())
    for column, what in enumerate(("simulation's thread", "process")):
        medians = {name: statistics.median(row[column] for row in rows) for name, rows in rates.items()}
        pairs = zip(rates["with"], rates["without"], strict=True)
        ratio = statistics.median(a[column] / b[column] for a, b in pairs)
        print(
            f"{what}: {medians['with']:,.0f} records/s of processor time with, {medians['without']:,.0f} without: "
            f"ratio {ratio:.3f} (median of {PAIRS} pairs; baseline: 1, without recording)"
        )
    print(f"{size:,} bytes for {records:,} records: {size / records:.2f} bytes a record")


if __name__ == "__main__":
    main()
