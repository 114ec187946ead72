"""The command line of the profiler; see the package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from . import calibrate, host, measure, nccl, operators, output, script, sustained


def main(argv: list[str] | None = None) -> None:
    """Runs one kind of measurement and writes its table."""
    arguments = _parser().parse_args(argv)
    if not torch.cuda.is_available():
        raise SystemExit("eidolon profile: PyTorch sees no CUDA GPU")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.kind == "calibrate":
        calibrate.run(arguments.out / "host.yaml", arguments.note, _say)
        return
    if arguments.kind == "operators" and arguments.rehearse:
        cases = _cases(arguments)
        print(f"{measure.rehearse(cases, _say)} of {len(cases)} cases run")
        return
    rank = int(os.environ.get("RANK", "0"))
    if arguments.kind == "script":
        target = arguments.out / f"script-{rank}.trace.json.gz"
        script.record(arguments.script, arguments.arguments, target, steps=arguments.steps)
        if rank:
            return
    table = output.Table(arguments.out / arguments.kind, output.provenance(arguments.note))
    for row in _rows(arguments):
        table.add(**row)
    if not rank:
        table.save()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eidolon profile", description="Measures a real GPU for the cost tables.")
    parser.add_argument("--out", type=Path, default=Path("eidolon-profile"), help="folder of the tables")
    parser.add_argument("--note", default="", help="what else to remember of this machine")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="stop after this time with what there is")
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("operators", help="the operator set")
    one.add_argument("--quick", action="store_true", help="a thirtieth of it")
    one.add_argument("--families", nargs="+", default=(), metavar="FAMILY", help="these only, as: gemm copy set")
    one.add_argument("--rehearse", action="store_true", help="run every case once and measure nothing")
    kinds.add_parser("sustained", help="clock and power under load").add_argument("--seconds", type=float, default=2.0)
    kinds.add_parser("host", help="what operators cost on the host")
    kinds.add_parser("calibrate", help="the host cost table: `eidolon calibrate host`")
    kinds.add_parser("nccl", help="collectives; start it with torchrun")
    one = kinds.add_parser("script", help="the kernels of a training script")
    one.add_argument("--steps", type=int, default=script.SKIP, help="optimizer steps before the recorded one")
    one.add_argument("script")
    one.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _cases(arguments: argparse.Namespace) -> list[measure.Case]:
    cases = operators.operator_set(arguments.quick, arguments.families)
    if not cases:
        raise SystemExit(f"eidolon profile: --families {' '.join(arguments.families)}: no such family of operators")
    return cases


def _rows(arguments: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """The rows of the table of this kind, as they are measured."""
    match arguments.kind:
        case "operators":
            yield from _operator_rows(_cases(arguments), measure.Deadline(arguments.budget_s))
        case "sustained":
            yield from sustained.measure(arguments.seconds)
        case "host":
            yield from host.measure()
        case "nccl":
            yield from nccl.measure()
        case "script":
            yield from script.kernels(arguments.out / "script-0.trace.json.gz")


def _operator_rows(cases: list[measure.Case], deadline: measure.Deadline) -> Iterator[Mapping[str, Any]]:
    """A row for each kernel of each case, until the time is over."""
    for result in measure.measure(cases, _say):
        for index, kernel in enumerate(result.kernels):
            yield {
                "family": result.case.family,
                "op": result.case.op,
                "facts": result.case.facts,
                "index": index,
                "kernel": kernel.name,
                "grid": kernel.grid,
                "block": kernel.block,
                "warm_ns": kernel.warm_ns,
                "cold_ns": kernel.cold_ns,
                "before_mhz": result.before_mhz,
                "after_mhz": result.after_mhz,
            }
        if deadline.left_s < 0:
            return


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
