"""Real runs of frameworks: how each is started, and what its output says of speed and memory.

The runs on four H100 are the shared truth, `bench/truth/h100_x4_frameworks.jsonl`. Those on one and two H200 were
measured with its scripts.

TorchTitan prints tokens per second and GPU for every step, and the memory that rank 0 has reserved. `ds.py` and `mg.py`
print a step time and both memory peaks; `mg.py` prints those of every rank. The first two steps do not count.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import truth_files
from bench.fidelity import running
from bench.fidelity.truth import TRUTH, outside

RUNS = {"h100": TRUTH / "h100_x4_frameworks.jsonl", "h200": Path(__file__).with_name("h200_frameworks.jsonl")}
FIRST_STEP = 3  #: number of the first step that counts, from 1; a real machine warms up before it
STEPS = 10  #: of a run of TorchTitan
#: Runs that were bound by their GPUs. All others were bound by their hosts: their steps vary by 10 to 50 %, or take far
#: longer than their kernels.
GPU_BOUND = ("llama3-8B-fsdp4", "llama3-8B-fsdp8", "llama3-8B-fsdp2", "llama3-8B-tp2", "llama3-8B-pp2")
_STEP = re.compile(r"step: +(\d+) .*memory: +([\d.]+)GiB.* tps: +([\d,]+) +tflops: +([\d.,]+) +mfu: +([\d.]+)%")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run prints about itself. Memory is a list over steps (TorchTitan, in GiB) or over ranks (the others, in
    MiB).
    """

    unit: str  #: of the speed: tokens/s or ms a step
    speeds: tuple[float, ...]  #: those of the steps that count; or the least, the median and the greatest of them
    speed: float  #: their median
    allocated: tuple[float, ...]  #: empty if the run does not print it
    reserved: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One real run."""

    fields: Mapping[str, Any]
    gpu: str = "h100"

    @property
    def titan(self) -> bool:
        """Whether it is a run of TorchTitan."""
        return "name" in self.fields

    @property
    def name(self) -> str:
        """The name of the run: a name of its own for TorchTitan, script and arguments for the others."""
        return str(self.fields["name"] if self.titan else f"{self.fields['script']} {self.fields['args']}".strip())

    @property
    def host_bound(self) -> bool:
        """Whether the host sets the pace of the run's steps."""
        return self.name not in GPU_BOUND

    @property
    def cwd(self) -> Path:
        """The folder from which the run is started."""
        if self.titan:
            return truth_files.titan()
        return TRUTH if (TRUTH / self.fields["script"]).exists() else TRUTH / "frameworks"

    @property
    def site(self) -> Path | None:
        """The environment that has what the run imports. None stands for the active one."""
        return None if self.cwd == TRUTH else running.FRAMEWORKS

    def cluster(self) -> list[str]:
        """Options of `eidolon run`."""
        options = ["--gpus-per-server", str(self.fields["world"]), "--gpu", f"{self.gpu}-sxm"]
        return options if self.titan else [*options, "--launcher", "torchrun"]

    def command(self, steps: int = STEPS) -> list[str]:
        """The command of the run, in which only TorchTitan's number of steps differs."""
        arguments = shlex.split(self.fields["args"])
        if not self.titan:
            return [str(self.cwd / self.fields["script"]), *arguments]
        # As TorchTitan's own run_train.sh starts it: the log is that of rank 0.
        torchrun = f"torchrun --nproc-per-node {self.fields['world']} --rdzv-backend c10d --rdzv-endpoint localhost:0"
        torchrun += " --local-ranks-filter 0 --role rank --tee 3"
        options = f"-m torchtitan.train --metrics.log_freq 1 --training.steps {steps}"
        return [*torchrun.split(), *options.split(), *arguments]

    def real(self) -> Figures:
        """What the real run said."""
        if self.titan:
            return _of_steps(self.fields["tps"], self.fields["memory_gib"])
        return _of_result(self.fields)

    def printed(self, output: str) -> list[dict[str, Any]]:
        """The lines, in the form of this one, that follow from the output of a run of :meth:`command`. There are none
        if it did not get to its end.
        """
        if not self.titan:
            return [json.loads(text) for text in re.findall(r"RESULT (\{.*\})", output)]
        found = {int(n): row for n, *row in _STEP.findall(_COLOUR.sub("", output))}
        if sorted(found) != list(range(1, STEPS + 1)):
            return []
        steps = [[float(text.replace(",", "")) for text in found[n]] for n in sorted(found)]
        gib, tps, tflops, mfu = (list(of) for of in zip(*steps, strict=True))
        return [{"tps": tps, "tflops": tflops, "mfu": mfu, "memory_gib": gib}]

    def read(self, output: str) -> Figures | None:
        """What a run of :meth:`command` printed. None if it did not get to its end."""
        printed = self.printed(output)
        return Line({**self.fields, **printed[0]}).real() if printed else None


def lines(gpu: str = "h100") -> list[Line]:
    """All real runs on that GPU, in file order."""
    return [Line(json.loads(text), gpu) for text in RUNS[gpu].read_text().splitlines()]


def run(line: Line, out: Path, limit_s: float, options: Sequence[str] = ()) -> running.Done:
    """Runs the same on emulated GPUs, with further options of `eidolon run`."""
    cluster = [*line.cluster(), *options]
    return running.run(cluster, line.command(), out=out, limit_s=limit_s, cwd=line.cwd, site=line.site)


def speed_error(line: Line, here: Figures) -> float:
    """The relative error of tokens/s or of the step time. It is taken against the median, or for a run bound by its
    host as the distance outside of what was measured.
    """
    real = line.real()
    if not line.host_bound:
        return here.speed / real.speed - 1
    return outside(here.speed, min(real.speeds), max(real.speeds)) / real.speed


def memory_error(real: Sequence[float], here: Sequence[float]) -> float | None:
    """The relative error of the memory in the step or on the rank where it is greatest. None if the real run does not
    state it.
    """
    if not real:
        return None
    return max((b / a - 1 for a, b in zip(real, here, strict=True)), key=abs)


def _of_steps(tps: Sequence[float], memory_gib: Sequence[float]) -> Figures:
    speeds = tuple(tps[FIRST_STEP - 1 :])
    return Figures("tokens/s", speeds, sorted(speeds)[len(speeds) // 2], (), tuple(memory_gib))


def _of_result(fields: Mapping[str, Any]) -> Figures:
    speeds = tuple(fields[f"step_ms_{which}"] for which in ("min", "median", "max"))
    peaks = [fields[f"peak_{which}_mib"] for which in ("alloc", "reserved")]
    allocated, reserved = (tuple(of) if isinstance(of, list) else (of,) for of in peaks)
    return Figures("ms", speeds, fields["step_ms_median"], allocated, reserved)
