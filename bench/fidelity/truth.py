"""Lines of the truth, and how one is run and compared."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.fidelity import running

TRUTH = Path(__file__).parents[1] / "truth"
#: The real runs by GPU. Those of the H100 are the shared truth, and those of the H200 were measured with its scripts.
RUNS = {"h100": TRUTH / "h100.jsonl", "h200": Path(__file__).with_name("h200.jsonl")}
#: Errors of step times as they were when docs/fidelity.md was written, and how much worse a change may make them.
BASELINE, MARGIN = Path(__file__).with_name("baseline.json"), 0.01
#: The lines of the short report. They use single GPUs and are bound by the GPU, one for each kind of kernels.
SUBSET = (
    "gpt2 --batch 8 --seq 1024 --mode amp x1",
    "resnet50 --batch 256 --optim sgd --mode amp x1",
    "vitl --batch 64 x1",
)
#: A run counts as bound by its host if issuing a step takes more than this share of the step.
HOST_BOUND_SHARE = 0.80


@dataclass(frozen=True)
class Line:
    """One real run of `train.py`."""

    args: str
    world: int
    gpu: str
    fields: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of a run: its arguments and GPUs."""
        return f"{self.args.removeprefix('--model ')} x{self.world}"

    @property
    def host_bound(self) -> bool:
        """Whether the host takes most of the step to issue it."""
        return bool(self.fields["cpu_issue_ms_median"] > HOST_BOUND_SHARE * self.fields["step_ms_median"])


@dataclass(frozen=True)
class Outcome:
    """What the simulated run printed, and the real seconds that it took. If it failed there is None, and `reason` says
    how.
    """

    result: dict[str, Any] | None
    reason: str
    wall_s: float
    summary: dict[str, Any] = field(default_factory=dict)  #: the simulator's own


def lines(gpu: str) -> list[Line]:
    """All real runs on that GPU, in file order."""
    loaded = [json.loads(text) for text in RUNS[gpu].read_text().splitlines()]
    return [Line(args=one["args"], world=one["world"], gpu=gpu, fields=one) for one in loaded]


def arguments(line: Line) -> tuple[list[str], list[str]]:
    """The options of `eidolon run`, and the command."""
    cluster = ["--gpu", f"{line.gpu}-sxm", "--gpus-per-server", str(line.world)]
    script = [str(TRUTH / "train.py"), *shlex.split(line.args)]
    if line.world == 1:
        return cluster, ["python", *script]
    # standalone takes a port of its own, so that lines can run side by side
    return cluster, ["torchrun", "--standalone", "--nproc-per-node", str(line.world), *script]


def run(line: Line, limit_s: float) -> Outcome:
    """Runs a line on emulated GPUs. Never raises for a run that fails."""
    with tempfile.TemporaryDirectory() as out:
        done = running.run(*arguments(line), out=Path(out), limit_s=limit_s)
    for text in done.out.splitlines():
        _, found, rest = text.partition("RESULT ")
        if found:
            return Outcome(json.loads(rest), "", done.wall_s, done.summary)
    return Outcome(None, done.reason, done.wall_s)


def outside(value: float, low: float, high: float) -> float:
    """The signed distance of a value from a range. It is 0 within the range."""
    return value - min(max(value, low), high)


def step_error(line: Line, result: dict[str, Any]) -> float:
    """The signed relative error of the step time against the median. For a run bound by its host it is the distance
    outside of [min, max], over the median.
    """
    got, median = result["step_ms_median"], line.fields["step_ms_median"]
    if not line.host_bound:
        return float(got / median - 1)
    return float(outside(got, line.fields["step_ms_min"], line.fields["step_ms_max"]) / median)


def relative(result: dict[str, Any], line: Line, field: str) -> float:
    """The signed relative error of a field that both have."""
    return float(result[field] / line.fields[field] - 1)


def known_share(summary: dict[str, Any]) -> float:
    """The share of the device time of a run's steps whose cost is measured or interpolated, without collectives."""
    families = {
        name: by for name, by in summary.get("coverage", {}).get("families", {}).items() if name != "collective"
    }
    total = sum(sum(by_source.values()) for by_source in families.values())
    known = sum(by_source.get(source, 0) for by_source in families.values() for source in ("measured", "interpolated"))
    return float(known / total) if total else 0.0


def regressions(gpu: str, errors: Mapping[str, float]) -> list[str]:
    """The lines whose step error (by name) is farther from zero than in the baseline by more than the margin."""
    baseline = json.loads(BASELINE.read_text())
    return [
        f"{name}: {error:+.1%} (was {was:+.1%}, margin {MARGIN:.0%})"
        for name, error in errors.items()
        if (was := baseline.get(f"{gpu} {name}")) is not None and abs(error) > abs(was) + MARGIN
    ]


def means(figures: list[dict[str, Any]]) -> list[str]:
    """Lines of text with the mean and greatest errors of both kinds of runs, the coverage, and operations without a
    cost.
    """
    texts = []
    for bound, bars in ((False, "bars: 2 %, 5 %"), (True, "bar: 8 %")):
        errors = [abs(one["error"]) for one in figures if one["host_bound"] == bound]
        if errors:
            kind = "bound by the host" if bound else "bound by the GPU"
            mean, most = sum(errors) / len(errors), max(errors)
            texts.append(f"{kind}: {len(errors)} runs, mean error {mean:.1%}, greatest {most:.1%} ({bars})")
    if figures:
        least = min(figures, key=lambda one: float(one["known_share"]))
        share = sum(one["known_share"] for one in figures) / len(figures)
        text = f"device time with a measured or interpolated cost: mean {share:.1%}, least {least['known_share']:.1%}"
        texts.append(f"{text} ({least['line']}) (bar: 95 %)")
        free = sum(one["free"] for one in figures)
        texts.append(f"operations that took no time: {free} (bar: 0)")
    return texts
