"""Measures what a blocking call takes in a local run: from `cudaStreamSynchronize` to its answer and back.

    python -m bench.blocking_call [--calls 3000] [--rounds 3]

One rank launches a kernel and synchronises, again and again, under `eidolon run`. The clock is one that the simulation
leaves real. The baseline is the same with `--null-core`: framework and shim, with nobody to ask.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import sys, time
import torch
x = torch.zeros(1024, device="cuda")
took_ns = []
for _ in range(int(sys.argv[1])):
    x.add_(1)
    began_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    torch.cuda.synchronize()
    took_ns.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC) - began_ns)
took_ns.sort()
print("TOOK_NS", took_ns[len(took_ns) // 2], took_ns[len(took_ns) * 9 // 10])
"""


def measure(calls: int, *, null_core: bool) -> tuple[float, float]:
    """Median and 90th percentile of a run's calls, in microseconds."""
    with tempfile.TemporaryDirectory(prefix="blocking-") as made:
        script = Path(made) / "script.py"
        script.write_text(SCRIPT)
        eidolon = [str(Path(sys.executable).with_name("eidolon")), "run", "--gpus-per-server", "1"]
        eidolon += ["--out", f"{made}/out", *(["--null-core"] if null_core else [])]
        done = subprocess.run(
            [*eidolon, "--", sys.executable, str(script), str(calls)], capture_output=True, text=True, timeout=300
        )
    printed = re.search(r"TOOK_NS (\d+) (\d+)", done.stdout)
    if printed is None:
        raise SystemExit(f"the run ended with exit code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return int(printed[1]) / 1e3, int(printed[2]) / 1e3


def main() -> None:
    """Runs both in alternation and prints the medians of the rounds."""
    parser = argparse.ArgumentParser(prog="python -m bench.blocking_call", description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds = [
        (measure(arguments.calls, null_core=True), measure(arguments.calls, null_core=False))
        for _ in range(arguments.rounds)
    ]
    print("a blocking call, microseconds (median, 90th percentile of the calls; medians of the rounds)")
    for at, name in enumerate(("without a core (baseline)", "with the core")):
        middle, late = (statistics.median(one[at][i] for one in rounds) for i in (0, 1))
        print(f"  {name:26} {middle:8.1f} {late:8.1f}")


if __name__ == "__main__":
    main()
