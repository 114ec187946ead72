"""Command line of the profiler; see the package."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from . import calibrate, host, measure, nccl, operators, output, script, sustained


def main(argv: list[str] | None = None) -> None:
    """Runs one kind of measurement and writes its table."""
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
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise SystemExit("eidolon profile: PyTorch sees no CUDA GPU")
    arguments.out.mkdir(parents=True, exist_ok=True)
    deadline = measure.Deadline(arguments.budget_s)
    cases = []
    if arguments.kind == "operators":
        cases = operators.operator_set(arguments.quick, arguments.families)
        if not cases:
            raise SystemExit(f"eidolon profile: --families {' '.join(arguments.families)}: no such family of operators")
    if cases and arguments.rehearse:
        print(f"{measure.rehearse(cases, _say)} of {len(cases)} cases run")
        return
    if arguments.kind == "calibrate":
        calibrate.run(arguments.out / "host.yaml", arguments.note, _say)
        return
    rank = int(os.environ.get("RANK", "0"))
    if arguments.kind == "script":
        target = arguments.out / f"script-{rank}.trace.json.gz"
        script.record(arguments.script, arguments.arguments, target, steps=arguments.steps)
        if rank:
            return
    table = output.Table(arguments.out / arguments.kind, output.provenance(arguments.note))
    match arguments.kind:
        case "operators":
            for result in measure.measure(cases, _say):
                for index, kernel in enumerate(result.kernels):
                    table.add(
                        family=result.case.family,
                        op=result.case.op,
                        facts=result.case.facts,
                        index=index,
                        kernel=kernel.name,
                        grid=kernel.grid,
                        block=kernel.block,
                        warm_ns=kernel.warm_ns,
                        cold_ns=kernel.cold_ns,
                        before_mhz=result.before_mhz,
                        after_mhz=result.after_mhz,
                    )
                if deadline.left_s < 0:
                    break
        case "sustained":
            for row in sustained.measure(arguments.seconds):
                table.add(**row)
        case "host":
            for row in host.measure():
                table.add(**row)
        case "nccl":
            for row in nccl.measure():
                table.add(**row)
        case "script":
            for row in script.kernels(target):
                table.add(**row)
    if not rank:
        table.save()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
