"""The files that a run leaves behind: ``summary.json`` at its end, and ``progress.jsonl`` with a line for every final
step.

The summary is bounded, however long the run was. It has the last steps in full (:data:`MOST_STEPS`), figures over all
of them, and ``steps.parquet`` beside it has every one (:mod:`.steps_file`).

A full disk loses no summary, since room for it is set aside when the run begins. Whatever else cannot be written is
said in the summary (``not_written``), and the run goes on.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eidolon_simcore.core_plan import Plan
from eidolon_simcore.export import steps_file
from eidolon_simcore.fabric.network import Port
from eidolon_simcore.ledger.accounts import Ledger, flops, mfu
from eidolon_simcore.ledger.books import Books
from eidolon_simcore.ledger.steps import STARTUP, Step

FORMAT = 1  #: of the summary; it goes up when a reader of the format before would read something wrong
MOST_STEPS = 256  #: steps that the summary has in full, if they take no more than ...
MOST_STEPS_BYTES = 1 << 20
RESERVED_BYTES = 4 << 20  #: of the disk, for the summary


class Report:
    """Collects the final steps and writes the files in ``out``."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self._plan = plan
        self._multiplicity = plan.class_sizes
        self._out = out
        self.steps: list[dict[str, Any]] = []
        out.mkdir(parents=True, exist_ok=True)
        self._not_written: list[str] = []
        (out / steps_file.NAME).unlink(missing_ok=True)  # of an earlier run
        self._partial = out / "summary.partial"
        _reserve(self._partial, RESERVED_BYTES)
        self._progress: Path | None = out / "progress.jsonl"
        self._progress.write_text("", "utf-8")

    def step(self, step: Step, ledger: Ledger) -> dict[str, Any]:
        """Adds a step that has become final. ``ledger`` says where its time went. Returns its entry."""
        work = flops(ledger, self._multiplicity)
        tokens = step.reports.get("tokens", self._plan.tokens_per_step)
        samples = step.reports.get("samples", self._plan.samples_per_step)
        models = {
            port: (self._plan.devices[port.server].gpu, self._multiplicity.get(rank, 1))
            for port, rank in zip(ledger.ports, ledger.ranks, strict=True)
        }
        entry = {
            "index": step.index,
            "name": step.name,
            "end_ns": step.end_ns,
            "time_ns": step.time_ns,
            "tokens": tokens,
            "samples": samples,
            "tokens_per_s": _rate(tokens, step.time_ns),
            "samples_per_s": _rate(samples, step.time_ns),
            "flops": work,
            "mfu": mfu(work, step.time_ns, models.values()),
            "split": ledger.split(),
            "peak_bytes": {device(port): peak for port, peak in step.peak_bytes.items()},
        }
        if len(step.cuts) > 1:
            entry["lag"] = _lag(step)
        reports = {name: value for name, value in sorted(step.reports.items()) if name not in ("tokens", "samples")}
        if reports:
            entry["reports"] = reports
        self.steps.append(entry)
        if self._progress is not None:
            try:
                with self._progress.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
            except OSError as error:
                self._lost(self._progress, f"from step {step.index} on", error)
                self._progress = None  # a line may have been cut short, so none can follow
        return entry

    def _fold(self) -> dict[str, Any] | None:
        """For how many ranks each process stood; None if every rank was one."""
        if self._plan.fold is None:
            return None
        classes = [{"rank": rank, "ranks": ranks} for rank, ranks in self._multiplicity.items()]
        return {"world": self._plan.world, "classes": classes}

    def _lost(self, path: Path, what: str, error: OSError) -> None:
        text = f"{path.name} {what}: {error.strerror or error}"
        self._not_written.append(text)
        print(f"eidolon: not written: {text}", file=sys.stderr, flush=True)

    def finish(self, end: Mapping[str, Any], books: Books) -> None:
        """Writes the summary. ``end`` holds what only the run as a whole knows."""
        last = _last(self.steps)
        if len(last) < len(self.steps):
            try:
                steps_file.write(self._out / steps_file.NAME, self.steps)
            except OSError as error:
                self._lost(self._out / steps_file.NAME, "with all steps", error)
        summary = {
            "format": FORMAT,
            **end,
            "gpu": self._plan.gpu.key,
            "fold": self._fold(),
            "host_cost": self._plan.host_cost,
            "steps": last,
            "steps_left_out": len(self.steps) - len(last),
            "step_figures": _figures(self.steps),
            "not_written": self._not_written,
            "host_waits": [
                {"site": site, "count": count, "ns": ns}
                for site, (count, ns) in sorted(books.host_waits().items(), key=lambda item: (-item[1][1], item[0]))
            ],
            "unmodelled": [{"name": name, "count": count} for name, count in sorted(books.unmodelled().items())],
            "unknown_reads": books.tally.reads.entries(),
            "peak_bytes": {device(port): peak for port, peak in sorted(books.memory.peaks().items())},
            "oom": [
                {
                    "server": refusal.port.server,
                    "device": refusal.port.device,
                    "step": refusal.step,
                    "requested_bytes": refusal.requested_bytes,
                    "allocated_bytes": refusal.allocated_bytes,
                    "capacity_bytes": self._plan.devices[refusal.port.server].memory_bytes,
                    "cured": refusal.cured,
                }
                for refusal in books.memory.refusals
            ],
        }
        with self._partial.open("r+b") as file:  # in place: the room is ours
            file.write(json.dumps(summary, indent=1).encode() + b"\n")
            file.truncate()
        self._partial.replace(self._out / "summary.json")


def _reserve(path: Path, size_bytes: int) -> None:
    """Makes a file for which the disk has set so much room aside. Raises :class:`OSError`."""
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        except OSError as error:
            text = f"{error.strerror}: the summary of a run needs {size_bytes >> 20} MiB"
            raise OSError(error.errno, text, str(path)) from None


def _last(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last steps that a summary has in full."""
    size, count = 0, 0
    for entry in reversed(steps[-MOST_STEPS:]):
        size += len(json.dumps(entry))
        if count and size > MOST_STEPS_BYTES:
            break
        count += 1
    return list(steps[len(steps) - count :])


def _figures(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures over all steps but the start-up: their number, and for each rate and time least, median, mean and
    greatest. The greatest memory of each device is that of the start-up too."""
    training = [step for step in steps if step["name"] != STARTUP]
    found: dict[str, Any] = {"count": len(training)}
    for field in ("time_ns", "tokens_per_s", "samples_per_s", "mfu"):
        values = [step[field] for step in training if step[field] is not None]
        if values:
            found[field] = {
                "least": min(values),
                "median": statistics.median(values),
                "mean": statistics.fmean(values),
                "greatest": max(values),
            }
    peaks: dict[str, int] = {}
    for step in steps:
        for device_, count in step["peak_bytes"].items():
            peaks[device_] = max(count, peaks.get(device_, 0))
    return {**found, "peak_bytes": peaks}


def _lag(step: Step) -> dict[str, int]:
    """How far apart the ranks end the step, and which rank is last."""
    ends = {rank: cut.end_ns for rank, cut in step.cuts.items()}
    last = max(ends, key=lambda rank: (ends[rank], -rank))
    return {"ns": ends[last] - min(ends.values()), "rank": last}


def device(port: Port) -> str:
    """``server/device``."""
    return f"{port.server}/{port.device}"


def shares(source_ns: Mapping[str, int]) -> dict[str, float]:
    """Fractions of device time by source, the largest first. Sources that were not used are left out."""
    total = sum(source_ns.values())
    used = sorted(((ns, source) for source, ns in source_ns.items() if ns), key=lambda item: (-item[0], item[1]))
    return {source: ns / total for ns, source in used}


def _rate(count: int | None, time_ns: int) -> float | None:
    return count * 1e9 / time_ns if count and time_ns > 0 else None
