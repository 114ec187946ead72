"""Predictions: runs on a server with eight GPUs, which are simulated and written down before anybody measures them.

For every other figure of this package the truth was there when the simulator was made. Here it is not. The lines of
`predicted/GPU_xN.jsonl` are what the simulator says, in the form in which those of a real machine go into
`bench/truth/GPU_xN.jsonl`, and they are committed first.

    python -m bench.fidelity.predictions simulate [--gpu h200] [--only TEXT]      writes predicted/h200_x8.jsonl
    python -m bench.fidelity.predictions measure --out FILE [--only TEXT]         the same on this machine's own GPUs
    python -m bench.fidelity.predictions compare [--gpu h200]                     prints the errors

All of them start the scripts of `bench/truth` in the same way. `simulate` and `measure` add to their file after each
run, and do not repeat a run whose lines are there. So a series that was cut off goes on where it stopped. `measure`
needs nothing of Eidolon but `bench`. `--world 2` is for trying it on a smaller machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fidelity import frameworks, running, truth
from bench.fidelity.frameworks import Line
from bench.fidelity.truth import TRUTH

Fields = dict[str, Any]

PREDICTED = Path(__file__).with_name("predicted")
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


def title(line: Line) -> str:
    """The name of a run."""
    return f"{line.name} x{line.fields['world']}"


def of_run(run: Line, fields: Mapping[str, Any]) -> bool:
    """Whether a line of a file belongs to this run."""
    return all(fields.get(key) == value for key, value in run.fields.items())


def torchrun(run: Line) -> list[str]:
    """The command for a machine that has the GPUs, without Eidolon."""
    command = run.command()
    if run.titan:
        return command
    return ["torchrun", "--standalone", "--nproc-per-node", str(run.fields["world"]), *command]


def runs(gpu: str, world: int = WORLD) -> list[Line]:
    """All runs, those of `train.py` first, as lines of the truth without figures."""
    every: list[Fields] = [{"script": "train.py", "args": arguments} for arguments in TRAIN]
    every += [{"script": script, "args": arguments} for script, arguments in OTHERS]
    every += [{"script": "torchtitan.train", "name": name, "args": arguments} for name, arguments in TITAN.items()]
    every += [{"script": COLLECTIVES, "args": ""}]
    return [Line({**one, "world": world}, gpu) for one in every]


# ---- both sides ------------------------------------------------------------------------------------------------------


def _collect(chosen: list[Line], out: Path, start: Callable[[Line], running.Done], jobs: int = 1) -> None:
    """Adds to a file the lines of all runs that are not in it."""
    out.parent.mkdir(exist_ok=True)
    there = _lines(out)
    missing = [run for run in chosen if not any(of_run(run, fields) for fields in there)]
    failed = []
    for run, done in zip(missing, ThreadPoolExecutor(jobs).map(start, missing), strict=True):
        # half of the collectives must not pass for all of them
        found = run.printed(done.out + done.err) if done.code == 0 else []
        with out.open("a") as file:
            file.writelines(json.dumps({**run.fields, **one}) + "\n" for one in found)
        print(f"{title(run)}: {len(found)} lines" if found else f"{title(run)}: failed: {done.reason}", flush=True)
        if not found:
            failed.append(title(run))
    if failed:
        raise SystemExit("no result: " + "; ".join(failed))


def _lines(path: Path) -> list[Fields]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def _simulated(run: Line, limit_s: float, options: Sequence[str]) -> running.Done:
    with tempfile.TemporaryDirectory() as out:
        return frameworks.run(run, Path(out), limit_s, options)


def _measured(run: Line, limit_s: float) -> running.Done:
    return running.ended(torchrun(run), limit_s, run.cwd)


# ---- compared --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compared:
    """A prediction beside its measurement. Errors are relative. That of a run bound by its host is the distance outside
    of the times that its steps took.
    """

    name: str
    collective: bool
    host_bound: bool
    predicted: float
    real: float
    error: float


def compared(chosen: list[Line], predicted: list[Fields], real: list[Fields]) -> Iterator[Compared]:
    """All runs that both sides have."""
    for run in chosen:
        ours, theirs = ([fields for fields in of if of_run(run, fields)] for of in (predicted, real))
        for here, there in ((a, b) for a in ours for b in theirs if a.get("bytes") == b.get("bytes")):
            if run.fields["script"] == COLLECTIVES:
                for operation in OPERATIONS:
                    name, a, b = f"{operation} {here['bytes']}", here[operation], there[operation]
                    yield Compared(name, True, False, a, b, a / b - 1)
            elif run.fields["script"] == "train.py":
                step = truth.Line(run.fields["args"], run.fields["world"], run.gpu, there)
                a, b = here["step_ms_median"], there["step_ms_median"]
                yield Compared(title(run), False, step.host_bound, a, b, truth.step_error(step, here))
            else:
                told, line = Line(here).real(), Line(there)
                error = frameworks.speed_error(line, told)
                yield Compared(title(run), False, line.host_bound, told.speed, line.real().speed, error)


def _compare(chosen: list[Line], predicted: Path, real: Path) -> None:
    for path in (predicted, real):
        if not path.exists():
            raise SystemExit(f"nothing to compare: {path} is not there")
    found = list(compared(chosen, _lines(predicted), _lines(real)))
    for one in found:
        bound = "h" if one.host_bound else " "
        print(f"{one.name:<72} {one.predicted:>10.2f} {one.real:>10.2f} {one.error:>+7.1%}{bound}")
    for kind, errors in (
        ("collectives", [abs(one.error) for one in found if one.collective]),
        ("steps", [abs(one.error) for one in found if not one.collective]),
    ):
        if errors:
            print(f"{kind}: {len(errors)}, mean error {sum(errors) / len(errors):.1%}, greatest {max(errors):.1%}")


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity.predictions", description="Runs on eight GPUs.")
    parser.add_argument("what", choices=["simulate", "measure", "compare"])
    parser.add_argument("--gpu", choices=truth.RUNS, default="h100", help="which is simulated, or compared")
    parser.add_argument("--only", default="", help="runs whose script, arguments or name contain this text")
    parser.add_argument("--world", type=int, default=WORLD, help="GPUs of the server")
    parser.add_argument("--limit-s", type=float, default=3600, help="real time allowed to one run")
    parser.add_argument("--jobs", type=int, default=1, help="simulated runs side by side")
    parser.add_argument("--host-memory", help="for all ranks of a simulated run together, as of `eidolon run`")
    parser.add_argument("--out", type=Path, help="the file for the lines; `measure` has no other")
    arguments = parser.parse_args()
    chosen = [
        run
        for run in runs(arguments.gpu, arguments.world)
        if arguments.only in " ".join((run.fields["script"], run.fields["args"], run.name))
    ]
    file = f"{arguments.gpu}_x{arguments.world}.jsonl"
    if arguments.what == "simulate":
        out = arguments.out or PREDICTED / file
        options = ["--host-memory", arguments.host_memory] if arguments.host_memory else []
        _collect(chosen, out, lambda run: _simulated(run, arguments.limit_s, options), arguments.jobs)
    elif arguments.what == "measure":
        if arguments.out is None:
            sys.exit("measure: --out names the file for its lines, such as bench/truth/h100_x8.jsonl")
        _collect(chosen, arguments.out, lambda run: _measured(run, arguments.limit_s))
    else:
        _compare(chosen, PREDICTED / file, TRUTH / file)


if __name__ == "__main__":
    main()
