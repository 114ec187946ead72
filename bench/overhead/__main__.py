"""Runs the workloads in all modes, alternating, and prints the tables."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

import bench.overhead
from bench.overhead.measuring import MODES, PARTS, Measured, RunError, measure
from bench.overhead.workloads import WORKLOADS

_HEAD = (
    f"{'workload':>8} {'ranks':>5} | {'ms a step':^23} | {'processor ms a step':^35} | {'s to the first step':^20}\n"
    f"{'':>8} {'':>5} | {'null':>7} {'core':>7} {'ratio':>7} | "
    f"{'ranks null':>10} {'ranks':>7} {'core':>7} {'share':>8} | {'floor':>6} {'null':>6} {'core':>6}"
)


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead",
        description=bench.overhead.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["tiny"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--steps", type=int, default=20, help="steps that count, behind the warm-up (default 20)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="what is run (default: all three)")
    parser.add_argument("--parts", action="store_true", help="print how the time to the first step is spent")
    arguments = parser.parse_args()
    print("share: processor time of core and agent, divided by that of the ranks. Medians.\n" + _HEAD, flush=True)
    for name in arguments.workloads:
        for ranks in arguments.ranks:
            without = {"null"} if WORKLOADS[name].broadcasts and ranks > 1 else set()
            runs: dict[str, list[Measured]] = {mode: [] for mode in arguments.modes if mode not in without}
            for _ in range(arguments.rounds):
                for mode in list(runs):
                    try:
                        runs[mode].append(measure(WORKLOADS[name], mode, ranks, arguments.steps))
                    except RunError as error:
                        print(f"{name}, {ranks} ranks, {mode}: {error}", flush=True)
                        del runs[mode]
            print(_line(name, ranks, runs), flush=True)
            print(*_notes(runs, parts=arguments.parts), sep="\n", end="", flush=True)


def _line(name: str, ranks: int, runs: dict[str, list[Measured]]) -> str:
    null, core, floor = (runs.get(mode, []) for mode in ("null", "core", "floor"))
    ratio = _median([b.step_ms / a.step_ms for a, b in zip(null, core, strict=False)])
    share = _median([m.used_ms["core"] / m.used_ms["rank"] for m in core])
    used = (
        f"{_of(null, lambda m: m.used_ms['rank']):10.1f} "
        f"{_of(core, lambda m: m.used_ms['rank']):7.1f} "
        f"{_of(core, lambda m: m.used_ms['core']):7.2f} {share:8.1%}"
    )
    starts = " ".join(f"{_of(one, lambda m: m.start_s):6.2f}" for one in (floor, null, core))
    steps = f"{_of(null, lambda m: m.step_ms):7.2f} {_of(core, lambda m: m.step_ms):7.2f} {ratio:7.2f}"
    return f"{name:>8} {ranks:5} | {steps} | {used} | {starts}"


def _notes(runs: dict[str, list[Measured]], *, parts: bool) -> list[str]:
    lines = []
    if parts:
        for mode, measured in runs.items():
            named = {part: [m.parts_s[part] for m in measured if part in m.parts_s] for part in PARTS.values()}
            spent = ", ".join(f"{part} {_median(seconds):.2f}" for part, seconds in named.items() if seconds)
            lines.append(
                f"{'':>14} | start, {mode} (s): {spent}; processors {_of(measured, lambda m: m.start_used_s):.1f}"
            )
    busy = [m for measured in runs.values() for m in measured if not m.idle]
    if busy:
        lines.append(
            f"{'':>14} | not idle in {len(busy)} of {sum(map(len, runs.values()))} runs: others used up to "
            f"{max(m.others for m in busy):.0%} of the processors, the machine's host up to "
            f"{max(m.stolen for m in busy):.0%}"
        )
    return [*lines, ""] if lines else []


def _of(measured: Sequence[Measured], figure: Callable[[Measured], float]) -> float:
    return _median([figure(one) for one in measured])


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


if __name__ == "__main__":
    main()
