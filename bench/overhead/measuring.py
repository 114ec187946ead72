"""One run of a workload, and what it took."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.overhead.marked import EPOCH_OFFSET, now_s
from bench.overhead.workloads import WARMUP, Workload
from eidolon_interposer.abi import RING_HEADER, offset_of

MODES: Final = ("floor", "null", "core")
LIMIT_S: Final = 900.0
BUSY: Final = 0.05  #: share of the processors that others may have before a line says so
MARKED: Final = Path(__file__).with_name("marked.py")
#: How the start is divided: what a moment is the end of, in order, with the name of the moment in a rank's report.
PARTS: Final = {
    "core": "command to core",
    "launcher": "core ready",
    "rank": "launched",
    "script": "Python",
    "torch": "import torch",
    "context": "context",
    "step": "first step",
}


class RunError(Exception):
    """A run failed; the message holds its output."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run took.

    Attributes:
        step_ms: real milliseconds of a step on rank 0, the median; what the script prints as ``WALL_MS``, if it does.
        used_ms: processor time of a step in milliseconds: ``rank`` (all of them), ``core`` (with the agent).
        start_s: seconds from the command to the end of the first step, or of the import where there is none.
        start_used_s: processor time of everything until the run's end, less that of the steps that count.
        parts_s: the start in parts, see :data:`PARTS`.
        others: share of the machine's processors that was used by others.
        stolen: share that the machine's host took.
    """

    step_ms: float
    used_ms: dict[str, float]
    start_s: float
    start_used_s: float
    parts_s: dict[str, float]
    others: float
    stolen: float

    @property
    def idle(self) -> bool:
        """Whether the machine had nothing else to do."""
        return self.others <= BUSY and self.stolen <= BUSY


def measure(workload: Workload, mode: str, ranks: int, steps: int) -> Measured:
    """Runs the workload once. Raises :class:`RunError`."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as made:
        out, reports = Path(made), Path(made) / "reports"
        reports.mkdir()
        command = ["torchrun", "--nproc-per-node", str(ranks), str(MARKED), str(reports)]
        if mode == "floor":
            command[:1] = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]  # on a port that is free
            command += ["floor", workload.imports]
        else:
            eidolon = [str(Path(sys.executable).with_name("eidolon")), "run", "--gpus-per-server", str(ranks)]
            eidolon += ["--out", str(out), *(["--null-core"] if mode == "null" else []), "--"]
            command = [*eidolon, *command, str(WARMUP), str(WARMUP + steps), *workload.command(ranks, steps)]
        before, used_before, began_s = _processors_s(), _children_s(), now_s()
        variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        variables[EPOCH_OFFSET] = str(offset_of(RING_HEADER, "epoch_ns"))
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=variables, cwd=workload.folder()
        )
        machine = {name: after - before[name] for name, after in _processors_s().items()}
        found = [json.loads(file.read_text()) for file in sorted(reports.glob("*.json"))]
        if done.returncode != 0 or len(found) != ranks:
            tail = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            raise RunError(f"{' '.join(command)} exited with {done.returncode}, {len(found)} reports:\n{tail}")
        printed = re.search(r"WALL_MS ([0-9.]+)", done.stdout)
        return _measured(found, began_s, float(printed[1]) if printed else None, machine, _children_s() - used_before)


def _measured(
    reports: list[dict[str, Any]], began_s: float, printed_ms: float | None, machine: dict[str, float], used_s: float
) -> Measured:
    first = reports[0]
    ends_s = first["ends_s"][WARMUP - 1 :]
    steps_s = [after - before for before, after in itertools.pairwise(ends_s)]
    used_ms: dict[str, float] = {}
    for report in reports:
        for name, at in report["used_s"].items():
            if len(at) == 2:
                used_ms[name] = used_ms.get(name, 0.0) + (at[1] - at[0]) / len(steps_s) * 1e3
    step_ms = printed_ms or (statistics.median(steps_s) * 1e3 if steps_s else 0.0)
    total_s = sum(machine.values())
    return Measured(
        step_ms=step_ms,
        used_ms=used_ms,
        start_s=max(report["ends_s"][0] for report in reports) - began_s,
        start_used_s=used_s - sum(used_ms.values()) * len(steps_s) / 1e3,
        parts_s=_parts_s({**first["times_s"], "step": first["ends_s"][0]}, began_s),
        others=max(0.0, machine["busy"] - used_s) / total_s,
        stolen=machine["stolen"] / total_s,
    )


def _parts_s(times_s: dict[str, float], began_s: float) -> dict[str, float]:
    parts, before_s = {}, began_s
    for moment, part in PARTS.items():
        if moment in times_s:
            parts[part] = times_s[moment] - before_s
            before_s = times_s[moment]
    return parts


def _processors_s() -> dict[str, float]:
    """What all processors did since the machine was started: ``busy``, ``idle``, and ``stolen`` by its host."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, idle, waiting, irq, soft_irq, stolen = (int(f) / os.sysconf("SC_CLK_TCK") for f in fields)
    return {"busy": user + nice + system + irq + soft_irq, "idle": idle + waiting, "stolen": stolen}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
