"""Predictions: runs on a server of eight GPUs, simulated and written down before anybody measured them.

Every other figure of this package is of a run whose truth was there when the simulator was made. These are not: the
lines of `predicted/GPU_xN.jsonl` are what the simulator says, in the form in which a real machine's go into
`bench/truth/GPU_xN.jsonl`, and they are committed first.

    python -m bench.fidelity.predictions simulate [--gpu h200] [--only TEXT]      writes predicted/h200_x8.jsonl
    python -m bench.fidelity.predictions measure --out FILE [--only TEXT]         the same on this machine's own GPUs
    python -m bench.fidelity.predictions compare [--gpu h200]                     prints the errors

All of them start the scripts of `bench/truth` in the same way. `simulate` and `measure` add what they have to their
file run by run, and a run whose lines are there is not run again: one that was cut off goes on. `measure` needs nothing
of Eidolon but `bench`; `--world 2` is for trying it on a smaller machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fidelity import frameworks, running, truth
from bench.fidelity.truth import TRUTH

Fields = dict[str, Any]

HERE = Path(__file__).with_name("predicted")
WORLD = 8
TRAIN = (
    "--model gpt2 --batch 8 --seq 1024 --mode amp --parallel ddp",
    "--model llama1b --batch 2 --seq 2048 --parallel ddp",
    "--model llama1b --batch 2 --seq 2048 --parallel fsdp",
    "--model llama8b8l --batch 1 --seq 4096 --parallel fsdp --fused",
    "--model llama8b8l --batch 1 --seq 4096 --parallel fsdp --fused --ac",
    "--model resnet50 --batch 256 --optim sgd --mode amp --parallel ddp",
    "--model vitl --batch 32 --parallel ddp",
)
_LLAMA = "--model.name llama3 --model.flavor 8B"
_LONG = f"{_LLAMA} --training.local_batch_size 1 --training.seq_len 8192"
#: By the name of the run.
TITAN = {
    "llama3-8B-fsdp8": _LONG,
    "llama3-8B-fsdp4-tp2": f"{_LONG} --parallelism.tensor_parallel_degree 2",
    "llama3-8B-fsdp2-tp4": f"{_LONG} --parallelism.tensor_parallel_degree 4",
    "llama3-8B-pp2-fsdp4": f"{_LLAMA} --training.local_batch_size 4 --training.seq_len 4096"
    " --parallelism.pipeline_parallel_degree 2 --activation_checkpoint.mode full",
}
#: Script and arguments.
OTHERS = (("mg.py", "--tp 8"), ("mg.py", "--tp 2 --pp 4"), ("ds.py", "--stage 3"))
COLLECTIVES = "coll_graph.py"
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_STEP = re.compile(r"step: +\d+ .*memory: +([\d.]+)GiB.* tps: +([\d,]+) +tflops: +([\d.,]+) +mfu: +([\d.]+)%")


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what its lines have in common, and how it starts."""

    fields: Mapping[str, Any]
    line: frameworks.Line

    @property
    def name(self) -> str:
        return f"{self.line.name} x{self.fields['world']}"

    def mine(self, line: Mapping[str, Any]) -> bool:
        """Whether a line of a file is of this run."""
        return all(line.get(key) == value for key, value in self.fields.items())

    def torchrun(self) -> list[str]:
        """The command on a machine that has the GPUs: without Eidolon."""
        command = self.line.command()
        if self.line.titan:
            return command
        return ["torchrun", "--standalone", "--nproc-per-node", str(self.fields["world"]), *command]

    def results(self, output: str) -> list[Fields]:
        """The lines that a run's output is worth; none if it did not get to its end."""
        if not self.line.titan:
            found = [json.loads(text) for text in re.findall(r"RESULT (\{.*\})", output)]
            return [{**self.fields, **one} for one in found]
        steps = [[float(text.replace(",", "")) for text in one] for one in _STEP.findall(frameworks.plain(output))]
        if len(steps) != frameworks.STEPS:
            return []
        gib, tps, tflops, mfu = (list(of) for of in zip(*steps, strict=True))
        return [{**self.fields, "tps": tps, "tflops": tflops, "mfu": mfu, "memory_gib": gib}]


def runs(gpu: str, world: int = WORLD) -> list[Run]:
    """All of them, those of `train.py` first."""
    every: list[Fields] = [{"script": "train.py", "args": arguments} for arguments in TRAIN]
    every += [{"script": script, "args": arguments} for script, arguments in OTHERS]
    every += [{"script": "torchtitan.train", "name": name, "args": arguments} for name, arguments in TITAN.items()]
    every += [{"script": COLLECTIVES, "args": ""}]
    return [Run({**one, "world": world}, frameworks.Line({**one, "world": world}, gpu)) for one in every]


# ---- both sides ------------------------------------------------------------------------------------------------------


def _collect(chosen: list[Run], out: Path, run: Callable[[Run], tuple[str, str]], jobs: int = 1) -> None:
    """Adds to a file the lines of all runs that it does not have. ``run`` gives an output, and why it says nothing."""
    out.parent.mkdir(exist_ok=True)
    there = _lines(out)
    missing = [one for one in chosen if not any(map(one.mine, there))]
    failed = []
    for one, (output, reason) in zip(missing, ThreadPoolExecutor(jobs).map(run, missing), strict=True):
        found = one.results(output)
        with out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in found)
        print(f"{one.name}: {len(found)} lines" if found else f"{one.name}: failed: {reason}", flush=True)
        if not found:
            failed.append(one.name)
    if failed:
        raise SystemExit("no result: " + "; ".join(failed))


def _lines(path: Path) -> list[Fields]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def _simulated(run: Run, limit_s: float, host_memory: str | None) -> tuple[str, str]:
    line = run.line
    cluster = [*line.cluster(), *(["--host-memory", host_memory] if host_memory else [])]
    site = running.FRAMEWORKS if line.cwd != TRUTH else None  # train.py's own transformers is not the frameworks'
    with tempfile.TemporaryDirectory() as out:
        done = running.run(cluster, line.command(), out=Path(out), limit_s=limit_s, cwd=line.cwd, site=site)
    return _whole(done)


def _measured(run: Run, limit_s: float) -> tuple[str, str]:
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            run.torchrun(), capture_output=True, text=True, timeout=limit_s, env=environment, cwd=run.line.cwd
        )
    except subprocess.TimeoutExpired:
        return "", f"no result within {limit_s:.0f} s"
    return _whole(running.Done(done.returncode, done.stdout, done.stderr, 0, {}))


def _whole(done: running.Done) -> tuple[str, str]:
    """What it printed, if it got to its end: half of the collectives would pass for all of them."""
    return (done.out + done.err if done.code == 0 else ""), done.reason


# ---- compared --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compared:
    """A prediction and what came of it. Errors are relative; that of a run bound by its host is the distance outside of
    what its steps took."""

    name: str
    collective: bool
    host_bound: bool
    predicted: float
    real: float
    error: float


def compared(chosen: list[Run], predicted: list[Fields], real: list[Fields]) -> Iterator[Compared]:
    """All that both sides have."""
    for run in chosen:
        pairs = [
            (a, b) for a in predicted if run.mine(a) for b in real if run.mine(b) and a.get("bytes") == b.get("bytes")
        ]
        for here, there in pairs:
            if run.fields["script"] == COLLECTIVES:
                for operation in OPERATIONS:
                    name, a, b = f"{operation} {here['bytes']}", here[operation], there[operation]
                    yield Compared(name, True, False, a, b, a / b - 1)
            elif run.fields["script"] == "train.py":
                line = truth.Line(run.fields["args"], run.fields["world"], run.line.gpu, there)
                a, b = here["step_ms_median"], there["step_ms_median"]
                yield Compared(run.name, False, line.host_bound, a, b, truth.step_error(line, here))
            else:
                a, b = (frameworks.Line(one, run.line.gpu) for one in (here, there))
                error = frameworks.speed_error(b, a.real())
                yield Compared(run.name, False, b.host_bound, a.real().speed, b.real().speed, error)


def _compare(chosen: list[Run], predicted: Path, real: Path) -> None:
    for path in (predicted, real):
        if not path.exists():
            raise SystemExit(f"nothing to compare: {path} is not there")
    found = list(compared(chosen, _lines(predicted), _lines(real)))
    for one in found:
        bound = "h" if one.host_bound else " "
        print(f"{one.name:<72} {one.predicted:>10.2f} {one.real:>10.2f} {one.error:>+7.1%}{bound}")
    for title, errors in (
        ("collectives", [abs(one.error) for one in found if one.collective]),
        ("steps", [abs(one.error) for one in found if not one.collective]),
    ):
        if errors:
            print(f"{title}: {len(errors)}, mean error {sum(errors) / len(errors):.1%}, greatest {max(errors):.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity.predictions", description="Runs on eight GPUs.")
    parser.add_argument("what", choices=["simulate", "measure", "compare"])
    parser.add_argument("--gpu", choices=truth.RUNS, default="h100", help="which is simulated, or compared")
    parser.add_argument("--only", default="", help="runs whose script, arguments or name contain this text")
    parser.add_argument("--world", type=int, default=WORLD, help="GPUs of the server")
    parser.add_argument("--limit-s", type=float, default=3600, help="real time allowed to one run")
    parser.add_argument("--jobs", type=int, default=1, help="simulated runs side by side")
    parser.add_argument("--host-memory", help="for all ranks of a simulated run together, as of `eidolon run`")
    parser.add_argument("--out", type=Path, help="the file of `measure`")
    arguments = parser.parse_args()
    chosen = [
        run
        for run in runs(arguments.gpu, arguments.world)
        if arguments.only in " ".join((run.fields["script"], run.fields["args"], run.name))
    ]
    file = f"{arguments.gpu}_x{arguments.world}.jsonl"
    if arguments.what == "simulate":
        out = arguments.out or HERE / file
        _collect(chosen, out, lambda run: _simulated(run, arguments.limit_s, arguments.host_memory), arguments.jobs)
    elif arguments.what == "measure":
        if arguments.out is None:
            sys.exit("measure: --out names the file for its lines, such as bench/truth/h100_x8.jsonl")
        _collect(chosen, arguments.out, lambda run: _measured(run, arguments.limit_s))
    else:
        _compare(chosen, HERE / file, TRUTH / file)


if __name__ == "__main__":
    main()
