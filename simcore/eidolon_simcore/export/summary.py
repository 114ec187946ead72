"""The files that a run leaves behind: ``summary.json`` at its end, and ``progress.jsonl`` with a line for every final
step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eidolon_simcore.core_plan import Plan
from eidolon_simcore.fabric.network import Port
from eidolon_simcore.ledger.accounts import Ledger, flops, mfu
from eidolon_simcore.ledger.books import Books
from eidolon_simcore.ledger.steps import Step


class Report:
    """Collects the final steps and writes the files in ``out``."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self._plan = plan
        self._out = out
        self.steps: list[dict[str, Any]] = []
        out.mkdir(parents=True, exist_ok=True)
        self._progress = out / "progress.jsonl"
        self._progress.write_text("", "utf-8")

    def step(self, step: Step, ledger: Ledger) -> dict[str, Any]:
        """Adds a step that has become final. ``ledger`` says where its time went. Returns its entry."""
        work = flops(ledger)
        tokens = step.reports.get("tokens", self._plan.tokens_per_step)
        samples = step.reports.get("samples", self._plan.samples_per_step)
        gpus = (self._plan.devices[port.server].gpu for port in set(ledger.ports))
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
            "mfu": mfu(work, step.time_ns, gpus),
            "split": ledger.split(),
            "peak_bytes": {device(port): peak for port, peak in step.peak_bytes.items()},
        }
        if len(step.cuts) > 1:
            entry["lag"] = _lag(step)
        reports = {name: value for name, value in sorted(step.reports.items()) if name not in ("tokens", "samples")}
        if reports:
            entry["reports"] = reports
        self.steps.append(entry)
        with self._progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        return entry

    def finish(self, end: Mapping[str, Any], books: Books, source_ns: Mapping[str, int]) -> None:
        """Writes the summary. ``end`` holds what only the run as a whole knows; ``source_ns`` is device time by the
        source of its cost."""
        summary = {
            **end,
            "gpu": self._plan.gpu.key,
            "host_cost": self._plan.host_cost,
            "steps": self.steps,
            "cost_share": shares(source_ns),
            "host_waits": [
                {"site": site, "count": count, "ns": ns}
                for site, (count, ns) in sorted(books.host_waits().items(), key=lambda item: (-item[1][1], item[0]))
            ],
            "unmodelled": [{"name": name, "count": count} for name, count in sorted(books.unmodelled().items())],
            "unknown_reads": books.tally.reads.entries(),
            "oom": [
                {
                    "server": refusal.port.server,
                    "device": refusal.port.device,
                    "step": refusal.step,
                    "requested_bytes": refusal.requested_bytes,
                    "allocated_bytes": refusal.allocated_bytes,
                    "capacity_bytes": self._plan.devices[refusal.port.server].memory_bytes,
                }
                for refusal in books.memory.refusals
            ],
        }
        target = self._out / "summary.json"
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
        partial.replace(target)


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
