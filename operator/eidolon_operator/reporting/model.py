"""What is known about a run, finished or still under way, from the files in its directory.

``summary.json`` is written at the end of a run. A run that has not ended has ``plan.json`` and the steps in
``progress.jsonl``. Fields that an older version did not write are empty here, and their sections are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from eidolon_operator import folding, launching
from eidolon_operator import summary as summaries
from eidolon_operator.plan import capacities

_Document = TypeVar("_Document")

STARTUP: Final = "startup"
#: Parts of a step, in the order in which they are shown. They add up to the step.
PARTS: Final = (
    ("compute_ns", "compute"),
    ("communication_ns", "exposed communication"),
    ("copy_ns", "host copies"),
    ("host_ns", "waiting for the host"),
    ("idle_ns", "idle"),
)


class ReportError(Exception):
    """The directory holds no run. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    directory: Path
    plan: Mapping[str, Any]
    summary: Mapping[str, Any]
    label: str = ""  #: what to call it instead of its name

    @property
    def name(self) -> str:
        """What the run is called: its label, else the name of its cluster, else that of its folder."""
        return self.label or str(self.plan.get("name") or self.directory.name)

    @property
    def core(self) -> Mapping[str, Any]:
        """The plan's section for the simulation core; empty if the plan is not there."""
        core: Mapping[str, Any] = self.plan.get("core", {})
        return core

    @property
    def state(self) -> str:
        """``Succeeded`` or ``Failed``, as the summary says; ``unfinished`` if there is no summary yet."""
        return str(self.summary.get("state", "unfinished"))

    @property
    def cluster(self) -> str:
        """The hardware in a phrase, such as ``2 servers x 8 h100-sxm``."""
        servers = self.core.get("servers", 1)
        groups = self.core.get("server_groups") or [self.core]
        gpu = "/".join(dict.fromkeys(group.get("gpu", "GPU") for group in groups))
        return f"{servers} server{'s' if servers != 1 else ''} x {self.core.get('gpus_per_server', 1)} {gpu}"

    @property
    def classes(self) -> Mapping[int, int] | None:
        """Of a folded run, by the ranks that ran, how many ranks each of them stands for. None if every rank ran."""
        return folding.of_summary(self.summary) or folding.of_core(self.core)

    @property
    def ranks(self) -> str:
        """How many ranks ran, such as ``8 ranks`` or ``2 of 1,024 ranks ran``; empty if that is not known."""
        count = self.summary.get("ranks")
        return "" if count is None else folding.ran(count, self.classes)

    def capacity_bytes(self, device: str) -> int:
        """Memory of the device ``server/device``. It is 0 if the plan is not there, or has no such server."""
        known = capacities(self.core) if self.core else []
        server = int(device.partition("/")[0])
        return known[server] if server < len(known) else 0

    @property
    def steps(self) -> Sequence[Mapping[str, Any]]:
        """All final steps."""
        steps: Sequence[Mapping[str, Any]] = self.summary.get("steps", ())
        return steps

    @property
    def training(self) -> Sequence[Mapping[str, Any]]:
        """All final steps but the start-up."""
        return [step for step in self.steps if step["name"] != STARTUP]

    def median(self, field: str) -> float | None:
        """Median of a field over the training steps that have it. None if none has."""
        values = [step[field] for step in self.training if step.get(field) is not None]
        return statistics.median(values) if values else None

    def peaks(self) -> dict[str, int]:
        """Greatest memory of each device (``server/device``) over the run."""
        found: dict[str, int] = {}
        for step in self.steps:
            for device, count in step.get("peak_bytes", {}).items():
                found[device] = max(count, found.get(device, 0))
        return dict(sorted(found.items(), key=lambda item: device_order(item[0])))

    def split(self) -> dict[str, float]:
        """Mean of each part over the training steps, in ns. Empty if the parts were not recorded."""
        splits = [step["split"] for step in self.training if step.get("split")]
        if not splits:
            return {}
        return {field: statistics.fmean(split.get(field, 0) for split in splits) for field, _ in PARTS}

    def real_ratio(self) -> float | None:
        """Simulated seconds per real second. None if it is not known."""
        wall, virtual = self.summary.get("wall_s"), self.summary.get("virtual_ns")
        return virtual / 1e9 / wall if wall and virtual else None


def read(directory: Path) -> Run:
    """The run in a directory. Raises :class:`ReportError`."""
    if not directory.is_dir():
        raise ReportError(f"{directory}: no such directory")
    try:
        plan = _found(summaries.plan, directory / launching.PLAN)
        summary = _found(summaries.summary, directory / launching.SUMMARY)
        if summary is None:
            steps = _found(summaries.steps, directory / launching.PROGRESS)
            if plan is None and steps is None:
                raise ReportError(
                    f"{directory}: not the directory of a run: it holds neither summary.json nor plan.json"
                )
            summary = {"steps": steps or [], "reason": "the run has not ended: what is shown is what is final so far"}
    except summaries.UnreadableError as error:
        raise ReportError(str(error)) from error
    plan = dict(plan or {})
    plan.get("core", {}).pop("token", None)  # no report shows the secret of a run
    return Run(directory, plan, summary)


def device_order(device: str) -> tuple[int, ...]:
    """Key that sorts ``server/device`` by numbers."""
    return tuple(int(part) for part in device.split("/"))


def _found(read: Callable[[Path], _Document], path: Path) -> _Document | None:
    try:
        return read(path)
    except FileNotFoundError:
        return None
