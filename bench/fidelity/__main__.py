"""Prints the table of errors, their means against the bars, and how much of the device time has a measured or
interpolated cost."""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.fidelity import truth

ALLOCATED_BAR, RESERVED_BAR = 0.005, 0.03


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity", description="Errors against real H100 runs.")
    parser.add_argument("--only", default="", help="lines whose arguments contain this text")
    parser.add_argument("--world", type=int, help="lines with this many GPUs")
    parser.add_argument("--limit-s", type=float, default=900, help="real time allowed to one line")
    parser.add_argument("--gpu", choices=truth.RUNS, default="h100", help="whose real runs")
    parser.add_argument("--jobs", type=int, default=1, help="lines that run side by side")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--check", action="store_true", help="fail where a memory peak misses its bar")
    parser.add_argument("--subset", action="store_true", help="only the lines of the short report for CI")
    parser.add_argument("--regressions", action="store_true", help="fail where a step time is worse than it was")
    arguments = parser.parse_args()
    chosen = [
        line
        for line in truth.lines(arguments.gpu)
        if arguments.only in line.args
        and arguments.world in (None, line.world)
        and (not arguments.subset or line.name in truth.SUBSET)
    ]
    head = f"{'step ms':>9} {'real':>9} {'error':>7}  {'allocated MiB':>13} {'error':>8}  {'reserved MiB':>12}"
    print(f"{'run':<64} {head} {'error':>8}  {'wall s':>6}")
    figures: list[dict[str, Any]] = []
    missed = []
    pool = ThreadPoolExecutor(arguments.jobs)
    for line, outcome in zip(chosen, pool.map(lambda one: truth.run(one, arguments.limit_s), chosen), strict=True):
        result = outcome.result
        if result is None:
            print(f"{line.name:<64} failed: {outcome.reason}", flush=True)
            missed.append(line.name)
            continue
        step = truth.step_error(line, result)
        allocated = truth.relative(result, line, "peak_alloc_mib")
        reserved = truth.relative(result, line, "peak_reserved_mib")
        bound = "h" if line.host_bound else " "
        times = f"{result['step_ms_median']:>9.2f} {line.fields['step_ms_median']:>9.2f} {step:>6.1%}{bound}"
        print(
            f"{line.name:<64} {times}  {result['peak_alloc_mib']:>13.1f} {allocated:>8.2%}"
            f"  {result['peak_reserved_mib']:>12.1f} {reserved:>8.2%}"
            f"  {outcome.wall_s:>6.0f}",
            flush=True,
        )
        figures.append(
            {
                "line": line.name,
                "host_bound": line.host_bound,
                "result": result,
                "real": line.fields,
                "step_error": step,
                "median_error": result["step_ms_median"] / line.fields["step_ms_median"] - 1,
                "allocated_error": allocated,
                "reserved_error": reserved,
                "known_share": truth.known_share(outcome.summary),
                "free": outcome.summary.get("coverage", {}).get("free", {}),
                "summary": outcome.summary,
            }
        )
        if abs(allocated) > ALLOCATED_BAR or abs(reserved) > RESERVED_BAR:
            missed.append(line.name)
    print("h: bound by the host; its error is the distance outside [min, max] of the real steps")
    for text in truth.means(figures):
        print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    worse = truth.regressions(arguments.gpu, {one["line"]: one["step_error"] for one in figures})
    if arguments.regressions and (worse or len(figures) < len(chosen)):
        raise SystemExit("worse than bench/fidelity/baseline.json, or no result: " + "; ".join(worse + missed))
    if arguments.check and missed:
        raise SystemExit("memory peaks off, or no result: " + "; ".join(missed))


main()
