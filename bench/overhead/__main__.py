"""Runs the workload with and without the core, alternating, and prints the table."""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOAD = Path(__file__).with_name("workload.py")
LIMIT_S = 600


def wall_ms(ranks: int, steps: int, null_core: bool) -> float:
    """Median wall milliseconds of a step, as the workload measured it. Raises if the run failed."""
    eidolon = Path(sys.executable).with_name("eidolon")
    with tempfile.TemporaryDirectory() as out:
        command = [str(eidolon), "run", "--gpus-per-server", str(ranks), "--out", out]
        command += ["--null-core"] if null_core else []
        command += ["--", "torchrun", "--nproc-per-node", str(ranks), str(WORKLOAD), str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    found = re.search(r"WALL_MS ([0-9.]+)", done.stdout)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return float(found.group(1))


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{'ranks':>5}  {'without ms/step':>15}  {'with ms/step':>12}  {'with / without':>14}")
    for ranks in arguments.ranks:
        without, with_core = [], []
        for _ in range(arguments.rounds):
            without.append(wall_ms(ranks, arguments.steps, null_core=True))
            with_core.append(wall_ms(ranks, arguments.steps, null_core=False))
        ratio = statistics.median(b / a for a, b in zip(without, with_core, strict=True))
        print(
            f"{ranks:>5}  {statistics.median(without):>15.2f}  {statistics.median(with_core):>12.2f}  {ratio:>14.2f}",
            flush=True,
        )


main()
