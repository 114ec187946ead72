"""Measures the durations of the kernels that a piece of work launches, with CUPTI, and the SM clock at that time.

One profiler session holds many cases. Kernels of a stream stand in it in order, and spin kernels separate the cases. So
no annotation on the host is needed, and none of its cost is in the figures::

    spin  work work work  spin  flush work flush work flush work  spin  next case ...
          warm                  cold

A spin of ``n`` cycles that took the time ``t`` ran at the clock ``n / t``, which is the clock right before and right
after the work. Kernels that a case launches the same number of times in each repetition are matched by position, and
their medians become its rows.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

REPEATS = 3
SPIN_CYCLES = 100_000
FLUSH_BYTES = 192 << 20  #: more than any L2 cache
BATCH = 200  #: cases of one profiler session


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement. ``make()`` builds the inputs and returns the work."""

    family: str
    op: str
    facts: dict[str, Any]
    make: Callable[[], Callable[[], Any]]


@dataclass(slots=True)
class Kernel:
    """One kernel of a case. Times are nanoseconds."""

    name: str
    grid: list[int]
    block: list[int]
    warm_ns: float
    cold_ns: float


@dataclass(slots=True)
class Result:
    """Kernels of a case, and the SM clock in MHz beside it."""

    case: Case
    kernels: list[Kernel]
    before_mhz: float
    after_mhz: float  #: right after the warm repetitions


def measure(cases: list[Case], report: Callable[[str], None]) -> Iterator[Result]:
    """Measures all cases. One that cannot run here is reported and left out."""
    flush = torch.zeros(FLUSH_BYTES, dtype=torch.bool, device="cuda")
    for begin in range(0, len(cases), BATCH):
        yield from _batch(cases[begin : begin + BATCH], flush, report)
        gc.collect()


def rehearse(cases: list[Case], report: Callable[[str], None]) -> int:
    """Runs every case once without measuring, to try the set out. Returns how many ran."""
    ran = 0
    for case in cases:
        try:
            work = case.make()
            work()
            torch.cuda.synchronize()
            ran += 1
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            report(f"{case.op} {case.facts}: {str(error).splitlines()[0]}")
    return ran


def _batch(cases: list[Case], flush: torch.Tensor, report: Callable[[str], None]) -> Iterator[Result]:
    ran: list[Case] = []
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for case in cases:
            try:
                work = case.make()
                work()
                work()
                torch.cuda.synchronize()
            except (RuntimeError, TypeError, ValueError, AttributeError) as error:
                report(f"{case.op} {case.facts}: {str(error).splitlines()[0]}")
                torch.cuda.synchronize()
                continue
            ran.append(case)
            torch.cuda._sleep(4 * SPIN_CYCLES)  # time for the host to get ahead, and for the clock to come up
            torch.cuda._sleep(SPIN_CYCLES)
            for _ in range(REPEATS):
                work()
            torch.cuda._sleep(SPIN_CYCLES)
            for _ in range(REPEATS):
                flush.logical_not_()
                work()
            torch.cuda._sleep(SPIN_CYCLES)
            del work
        torch.cuda.synchronize()
    segments = _segments(_kernels(profiler))
    if len(segments) != len(ran):
        report(f"a profiler session lost kernels: {len(segments)} of {len(ran)} cases in it")
        return
    for case, segment in zip(ran, segments, strict=True):
        result = _result(case, *segment)
        if result is None:
            report(f"{case.op} {case.facts}: its repetitions launch different kernels")
        else:
            yield result


def _kernels(profiler: Any) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    wanted = ("kernel", "gpu_memcpy", "gpu_memset")
    return sorted((e for e in events if e.get("ph") == "X" and e.get("cat") in wanted), key=lambda e: float(e["ts"]))


def _segments(events: list[dict[str, Any]]) -> list[tuple[list[Any], list[Any], list[Any]]]:
    """The kernels (spins, warm, cold) of each case. A case begins with two spins in a row."""
    found: list[tuple[list[Any], list[Any], list[Any]]] = []
    spins: list[Any] = []
    parts: list[list[Any]] = [[]]
    for event in events:
        if "spin_kernel" not in event["name"]:
            parts[-1].append(event)
            continue
        spins.append(event)
        parts.append([])
        if len(spins) == 4:
            found.append((spins[1:], parts[2], parts[3]))
            spins, parts = [], [[]]
    return found


def _result(case: Case, spins: list[Any], warm: list[Any], cold: list[Any]) -> Result | None:
    cold = [event for event in cold if "logical_not" not in event["name"]]
    if not warm or len(warm) != len(cold) or len(warm) % REPEATS:
        return None
    count = len(warm) // REPEATS
    kernels = []
    for i in range(count):
        first = warm[i]
        again = [warm[i + r * count] for r in range(REPEATS)]
        if any(event["name"] != first["name"] for event in again):
            return None
        kernels.append(
            Kernel(
                first["name"],
                first["args"].get("grid", []),
                first["args"].get("block", []),
                statistics.median(1e3 * float(event["dur"]) for event in again),
                statistics.median(1e3 * float(cold[i + r * count]["dur"]) for r in range(REPEATS)),
            )
        )
    before, after = (SPIN_CYCLES / float(spin["dur"]) for spin in spins[:2])
    return Result(case, kernels, before, after)


class Deadline:
    """A budget of seconds that parts of a program share."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """The seconds that are left, which are negative once the budget is spent."""
        return self._end - time.monotonic()
