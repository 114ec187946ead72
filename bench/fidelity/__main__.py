"""Prints tables of errors: of whole steps (with their means against the bars, and how much of the device time has a
measured or interpolated cost), of kernels against traces (``--traces``), of frameworks (``--frameworks``)."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.fidelity import frameworks, results, running, traces, truth

ALLOCATED_BAR, RESERVED_BAR = 0.005, 0.03
SHOWN, SHOWN_CHARACTERS = 5, 110  #: differences of a trace, and how much of a name
#: What the result of a trace names: families of device time by their names in it, and parts of the step.
FAMILIES, TIMES = {"gemm": "gemm", "attention": "attention", "nccl": traces.NCCL}, ("exposed", "idle", "span")


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity", description="Errors against real H100 runs.")
    parser.add_argument("--only", default="", help="lines whose arguments (or names) contain this text")
    parser.add_argument("--world", type=int, help="lines with this many GPUs")
    parser.add_argument("--limit-s", type=float, default=900, help="real time allowed to one line")
    parser.add_argument("--gpu", choices=truth.RUNS, default="h100", help="whose real runs")
    parser.add_argument("--jobs", type=int, default=1, help="lines that run side by side")
    parser.add_argument("--json", type=Path, help="put the results into this file of JSON lines")
    parser.add_argument("--check", action="store_true", help="fail where a memory peak misses its bar")
    parser.add_argument("--subset", action="store_true", help="only the lines of the short report for CI")
    parser.add_argument("--regressions", action="store_true", help="fail where a step time is worse than it was")
    parser.add_argument("--traces", action="store_true", help="kernel by kernel against profiler traces")
    parser.add_argument("--frameworks", action="store_true", help="runs of TorchTitan, DeepSpeed, Megatron")
    parser.add_argument("--host-memory", help="for all ranks of a framework's run together, as of `eidolon run`")
    arguments = parser.parse_args()
    if arguments.traces:
        _traces(arguments)
    elif arguments.frameworks:
        _frameworks(arguments)
    else:
        _steps(arguments)


def _each(run: Callable[[Any], Any], chosen: list[Any], jobs: int) -> Any:
    """Yields pairs of what was to be run and its result, each as soon as it and all before it are there."""
    return zip(chosen, ThreadPoolExecutor(jobs).map(run, chosen), strict=True)


# ---- steps of train.py -----------------------------------------------------------------------------------------------


def _steps(arguments: argparse.Namespace) -> None:
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
    for line, outcome in _each(lambda one: truth.run(one, arguments.limit_s), chosen, arguments.jobs):
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
                "kind": "step",
                "line": line.name,
                "gpus": line.world,
                "host_bound": line.host_bound,
                "here_ms": result["step_ms_median"],
                "real_ms": line.fields["step_ms_median"],
                "real_min_ms": line.fields["step_ms_min"],
                "real_max_ms": line.fields["step_ms_max"],
                "error": step,
                "median_error": result["step_ms_median"] / line.fields["step_ms_median"] - 1,
                "allocated_error": allocated,
                "reserved_error": reserved,
                "known_share": truth.known_share(outcome.summary),
                "free": sum(outcome.summary.get("coverage", {}).get("free", {}).values()),
                "wall_s": round(outcome.wall_s, 1),
                **results.provenance(),
            }
        )
        if abs(allocated) > ALLOCATED_BAR or abs(reserved) > RESERVED_BAR:
            missed.append(line.name)
    print("h: bound by the host; its error is the distance outside [min, max] of the real steps")
    for text in truth.means(figures):
        print(text)
    _write(arguments.json, figures)
    worse = truth.regressions(arguments.gpu, {one["line"]: one["error"] for one in figures})
    if arguments.regressions and (worse or len(figures) < len(chosen)):
        raise SystemExit("worse than bench/fidelity/baseline.json, or no result: " + "; ".join(worse + missed))
    if arguments.check and missed:
        raise SystemExit("memory peaks off, or no result: " + "; ".join(missed))


def _write(path: Path | None, figures: list[results.Record]) -> None:
    if path is not None:
        results.write(path, figures)


# ---- kernels of traces -----------------------------------------------------------------------------------------------


def _traces(arguments: argparse.Namespace) -> None:
    chosen = [name for name in (*traces.TRAINED, *traces.TITAN) if arguments.only in name]
    figures, failed = [], []
    for name, found in _each(lambda one: traces.run(one, arguments.limit_s), chosen, arguments.jobs):
        if isinstance(found, running.Done):
            print(f"{name}: failed: {found.reason}\n", flush=True)
            failed.append(name)
        else:
            figures.append(_one_trace(name, found))
    _write(arguments.json, figures)
    if failed:
        raise SystemExit("no result: " + "; ".join(failed))


def _one_trace(name: str, found: traces.Comparison) -> dict[str, Any]:
    launched, here = (sum(one.launched for one in of) for of in (found.real, found.here))
    print(f"{name}: torch's launches: {launched} real, {here} here, {found.equal} equal in order")
    for one in found.differences[:SHOWN]:
        print(f"    stream {one.stream}, at {one.at}: real {_names(one.real)}, here {_names(one.here)}")
    if len(found.differences) > SHOWN:
        print(f"    and {len(found.differences) - SHOWN} more differences")
    print(f"    {'':<24} {'count':>6} {'here':>6} {'real ms':>9} {'here ms':>9} {'error':>7}")
    calls = [[one for one in of if not one.launched] for of in (found.real, found.here)]
    kinds = traces.both(*(traces.sums(of, lambda one: one.kind) for of in calls))
    families = traces.both(*(traces.sums(of, lambda one: one.family) for of in (found.real, found.here)))
    for title, rows in (("library calls", kinds), ("device time by family", families)):
        print(f"    {title}")
        for key, ((count, ms), (other, other_ms)) in rows.items():
            print(f"    {key:<24} {count:>6} {other:>6} {ms:>9.2f} {other_ms:>9.2f} {_error(ms, other_ms):>7}")
    real_times, here_times = traces.times(found.real), traces.times(found.here)
    print("    time of the device")
    for title in ("span", "nccl", "exposed", "idle"):
        ms, other_ms = getattr(real_times, title), getattr(here_times, title)
        print(f"    {title:<24} {'':>6} {'':>6} {ms:>9.2f} {other_ms:>9.2f} {_error(ms, other_ms):>7}")
    print(flush=True)
    computing = [pair for family, pair in families.items() if family != traces.NCCL]
    return {
        "kind": "trace",
        "line": name,
        "launches": launched,
        "here_launches": here,
        "equal": found.equal,
        "calls": sum(count for (count, _), _ in kinds.values()),
        "device_error": _relative(computing),
        **{f"{title}_error": _relative([families[key]] if key in families else []) for title, key in FAMILIES.items()},
        **{f"{title}_ms": [getattr(real_times, title), getattr(here_times, title)] for title in TIMES},
        **results.provenance(running.FRAMEWORKS if name in traces.TITAN else None),
    }


def _relative(pairs: list[tuple[traces.Sum, traces.Sum]]) -> float | None:
    """The relative error of a sum of device time. None if the real step has none of it."""
    real, here = (sum(pair[side][1] for pair in pairs) for side in (0, 1))
    return here / real - 1 if real else None


def _names(names: tuple[str, ...]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0][:SHOWN_CHARACTERS]}{more}"


def _error(real: float, here: float) -> str:
    return f"{here / real - 1:+.1%}" if real else "-"


# ---- frameworks ------------------------------------------------------------------------------------------------------


def _frameworks(arguments: argparse.Namespace) -> None:
    chosen = [
        line
        for line in frameworks.lines(arguments.gpu)
        if arguments.only in line.name and arguments.world in (None, line.fields["world"])
    ]
    print(f"{'run':<35} {'speed':>9} {'real':>9} {'real min to max':>19} {'error':>7}")
    figures, failed = [], []
    options = ["--host-memory", arguments.host_memory] if arguments.host_memory else []

    def run(line: frameworks.Line) -> running.Done:
        with tempfile.TemporaryDirectory() as out:
            return frameworks.run(line, Path(out), arguments.limit_s, options)

    for line, done in _each(run, chosen, arguments.jobs):
        real, here, name = line.real(), line.read(done.out + done.err), f"{line.name} x{line.fields['world']}"
        if here is None:
            print(f"{name:<35} failed: {done.reason}", flush=True)
            failed.append(name)
            continue
        error = frameworks.speed_error(line, here)
        between = f"{min(real.speeds):.6g} to {max(real.speeds):.6g}"
        bound = "h" if line.host_bound else " "
        print(
            f"{name:<35} {here.speed:>9.6g} {real.speed:>9.6g} {between:>19} {error:>+6.1%}{bound} {real.unit}",
            flush=True,
        )
        peaks: results.Record = {"memory_unit": "GiB" if line.titan else "MiB"}
        for title in ("allocated", "reserved"):
            before, after = getattr(real, title), getattr(here, title)
            off = frameworks.memory_error(before, after)
            peaks |= {title: [max(before)] if line.titan and before else list(before), f"{title}_error": off}
            if off is not None:
                print(f"    {title}: real {_list(before)}; here {_list(after)}; worst {off:+.3%}", flush=True)
        figures.append(
            {
                "kind": "framework",
                "line": name,
                "gpus": line.fields["world"],
                "host_bound": line.host_bound,
                "unit": real.unit,
                "here": here.speed,
                "real": real.speed,
                "real_min": min(real.speeds),
                "real_max": max(real.speeds),
                "error": error,
                **peaks,
                "wall_s": round(done.wall_s, 1),
                **results.provenance(line.site),
            }
        )
    print("h: bound by the host; its error is the distance outside [min, max] of the real steps, over their median")
    _write(arguments.json, figures)
    if failed:
        raise SystemExit("no result: " + "; ".join(failed))


def _list(values: tuple[float, ...]) -> str:
    """A list of values in which those that repeat stand once."""
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))


if __name__ == "__main__":
    main()
