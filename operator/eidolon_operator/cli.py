"""The command line: ``eidolon run``, ``eidolon validate``, ``eidolon gpus``.

``eidolon run`` takes the YAML of a ``SimulatedCluster``, or options and a command after ``--``. Options make the same
object that a file would hold (and override fields of a file), so there is one set of rules and one set of messages.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from eidolon_operator import plan as planning
from eidolon_operator import report
from eidolon_operator import spec as specs
from eidolon_operator.spec import Spec, SpecError

EXIT_USAGE: Final = 2

#: Option -> field of the object. Types and bounds are the schema's business; here only text becomes a number.
_OPTIONS: Final[tuple[tuple[str, str, type, str], ...]] = (
    ("--servers", "servers", int, "number of emulated servers (1)"),
    ("--gpus-per-server", "gpusPerServer", int, "emulated GPUs in each server (1)"),
    ("--gpu", "gpu.model", str, "GPU model, see `eidolon gpus` (h100-sxm)"),
    ("--gpu-memory", "gpu.memory", str, "memory of each GPU, e.g. 8GiB (that of the model)"),
    ("--gpu-context", "gpu.contextMemory", str, "memory that each process's CUDA context takes (that of the model)"),
    ("--inter-bandwidth", "network.interServer.bandwidth", str, "of each GPU between servers (that of the model)"),
    ("--inter-latency", "network.interServer.latency", str, "between servers, e.g. 5us (5us)"),
    ("--intra-bandwidth", "network.intraServer.bandwidth", str, "of each GPU within its server (that of the model)"),
    ("--ranks-per-server", "workload.ranksPerServer", int, "framework processes on each server (one per GPU)"),
    ("--launcher", "workload.launcher", str, "none, plain or torchrun: how ranks start (none)"),
    ("--tokens-per-step", "workload.tokensPerStep", int, "makes tokens/s known"),
    ("--samples-per-step", "workload.samplesPerStep", int, "makes samples/s known"),
    ("--steps", "steps", int, "end the run after this many steps"),
    ("--time-sync", "timeSync", str, "conservative or optimistic (conservative)"),
    ("--host-cost", "cost.host", str, "table or measured (table)"),
    ("--unknown-limit", "cost.unknownLimit", float, "largest share of device time of unknown cost (0.05)"),
    ("--startup-timeout", "startupTimeout", str, "real time for all ranks to join (10m)"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command: list[str] | None = None
    if "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    options = _parser().parse_args(words)
    try:
        match options.verb:
            case "run":
                return _run(options, command)
            case "validate":
                return _validate(options.file)
            case "topology":
                return _topology(options.file, options.svg)
            case _:
                return _gpus()
    except SpecError as error:
        for problem in error.problems:
            _complain(f"{error.source}: {problem}")
        return EXIT_USAGE
    except KeyboardInterrupt:  # before or after the run itself, which handles signals
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eidolon", description="Runs a GPU cluster that is not there.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"eidolon {importlib.metadata.version('eidolon')}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    run = verbs.add_parser(
        "run",
        help="run a simulated cluster on this machine",
        usage="eidolon run [OPTIONS] FILE\n       eidolon run [OPTIONS] -- COMMAND...",
        description="Runs a simulated cluster on this machine: the one in FILE, or one made of options and a command.",
        allow_abbrev=False,
    )
    run.add_argument("file", nargs="?", type=Path, metavar="FILE", help="YAML of a SimulatedCluster")
    for option, field, kind, text in _OPTIONS:
        run.add_argument(option, dest=field, type=kind, metavar=kind.__name__.upper()[:5], help=text)
    run.add_argument(
        "--strict", dest="cost.strict", action="store_true", default=None, help="fail where a warning would do"
    )
    run.add_argument("--out", type=Path, metavar="DIR", help="for summary, plan and logs (eidolon-runs/NAME-TIME)")
    run.add_argument(
        "--null-core", action="store_true", help="no simulation: the shim answers at once (baseline of its overhead)"
    )

    validate = verbs.add_parser("validate", help="check the YAML of a SimulatedCluster", allow_abbrev=False)
    validate.add_argument("file", type=Path, metavar="FILE")
    topology = verbs.add_parser("topology", help="show the fabric of a SimulatedCluster", allow_abbrev=False)
    of_topology = topology.add_subparsers(dest="what", required=True, metavar="show")
    show = of_topology.add_parser("show", help="print its cables and draw it", allow_abbrev=False)
    show.add_argument("file", type=Path, metavar="FILE", help="YAML of a SimulatedCluster")
    show.add_argument("--svg", type=Path, metavar="OUT", help="where to draw it (NAME-topology.svg)")
    verbs.add_parser("gpus", help="list the GPU catalogue", allow_abbrev=False)
    return parser


def _run(options: argparse.Namespace, command: list[str] | None) -> int:
    from eidolon_operator import local  # starts no process, but imports much

    given = {field: value for _, field, *_ in _OPTIONS if (value := getattr(options, field)) is not None}
    if options.__dict__["cost.strict"]:
        given["cost.strict"] = True
    if (options.file is None) == (not command):
        _complain("run: needs either the FILE of a SimulatedCluster or a command after --")
        return EXIT_USAGE
    if options.file is not None:
        document = specs.read(options.file)
        source = str(options.file)
    else:
        assert command
        document = {
            "apiVersion": specs.API_VERSION,
            "kind": specs.KIND,
            "metadata": {"name": _name_of(command)},
            "spec": {"workload": {"command": command}},
        }
        source = "command line"
    _override(document, given)
    spec = specs.parse(document, source=source)
    plan = planning.build(spec, source=source)
    if aside := specs.only_in_kubernetes(spec):
        _complain(f"{source}: only in Kubernetes, ignored here: {', '.join(aside)}")
    out = options.out or Path("eidolon-runs") / f"{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        outcome = local.run(spec, plan, out=out, null_core=options.null_core)
    except local.RunError as error:
        _complain(str(error))
        return error.exit_code
    if outcome.summary is not None and outcome.summary["ranks"]:
        print(f"\n{report.render(outcome.summary, title=_title(spec))}Summary: {out / 'summary.json'}", flush=True)
    if outcome.message is not None:
        _complain(outcome.message)
    return outcome.exit_code


def _validate(file: Path) -> int:
    spec = specs.load(file)
    planning.build(spec, source=str(file))
    print(f"{file}: valid: {_title(spec)}, {spec.world} ranks")
    return 0


def _topology(file: Path, svg: Path | None) -> int:
    from eidolon_simcore.fabric import draw

    spec = specs.load(file)
    settings, fabric = planning.fabric(spec, planning.gpu_of(spec, str(file)), str(file))
    for line in draw.text(fabric, settings):
        print(line)
    out = svg or Path(f"{spec.name}-topology.svg")
    out.write_text(draw.svg(fabric, f"{_title(spec)}: {settings.type}"), "utf-8")
    print(f"drawn in {out}")
    return 0


def _gpus() -> int:
    for line in planning.catalogue_lines():
        print(line)
    return 0


def _title(spec: Spec) -> str:
    servers = f"{spec.servers} server{'s' if spec.servers > 1 else ''}"
    return f"{spec.name} on {servers} x {spec.gpus_per_server} {spec.gpu}"


def _name_of(command: Sequence[str]) -> str:
    """A name for an ad hoc run: the script's, else the program's, as far as it makes a valid object name."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    label = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-0123456789")
    return label[:51].rstrip("-") or "run"


def _override(document: Any, given: dict[str, Any]) -> None:
    """Sets fields of the object's spec; where the object has no such shape, validation will say so."""
    for field, value in given.items():
        node = document.get("spec") if isinstance(document, dict) else None
        *parents, last = field.split(".")
        for parent in parents:
            node = node.setdefault(parent, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node[last] = value


def _complain(message: str) -> None:
    print(f"eidolon: {message}", file=sys.stderr, flush=True)
