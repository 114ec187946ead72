"""The command line: ``eidolon run``, ``validate``, ``gpus``, ``fetch``; other verbs: :mod:`.commands`, :mod:`.tracing`.

``eidolon run`` takes the YAML of a ``SimulatedCluster``, or options and a command after ``--``. Options make the same
object that a file would hold (and override fields of a file), so there is one set of rules and one set of messages.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from eidolon_operator import launching, machine, report, rundir, units
from eidolon_operator import plan as planning
from eidolon_operator import spec as specs
from eidolon_operator.machine import HOST_MEMORY_PERCENT, RunError
from eidolon_operator.reporting import commands, tracing
from eidolon_operator.spec import Spec, SpecError

EXIT_USAGE: Final = 2


class UsageError(Exception):
    """The arguments make no sense; the message is one line for the user."""


#: Options of ``run`` that mean nothing without a simulation, and where the parser puts them.
_NEED_A_CORE: Final = (
    *(("--record", "recording.enabled"), ("--strict", "cost.strict"), ("--steps", "steps")),
    *(("--unknown-limit", "cost.unknownLimit"), ("--metrics", "metrics"), ("--dcgm", "dcgm")),
)

#: Options and the fields of the object that they set. Types, bounds and defaults come from the schema.
_OPTIONS: Final[tuple[tuple[str, str, type, str], ...]] = (
    ("--servers", "servers", int, "number of emulated servers"),
    ("--gpus-per-server", "gpusPerServer", int, "emulated GPUs in each server"),
    ("--gpu", "gpu.model", str, "GPU model, see `eidolon gpus`"),
    ("--gpu-memory", "gpu.memory", str, "memory of each GPU, e.g. 8GiB (that of the model)"),
    ("--gpu-context", "gpu.contextMemory", str, "memory that each process's CUDA context takes (that of the model)"),
    ("--inter-bandwidth", "network.interServer.bandwidth", str, "of each GPU between servers (that of the model)"),
    ("--inter-latency", "network.interServer.latency", str, "between servers, e.g. 5us"),
    ("--intra-bandwidth", "network.intraServer.bandwidth", str, "of each GPU within its server (that of the model)"),
    ("--ranks-per-server", "workload.ranksPerServer", int, "framework processes on each server (one per GPU)"),
    ("--launcher", "workload.launcher", str, "none, plain or torchrun: how ranks start"),
    ("--tokens-per-step", "workload.tokensPerStep", int, "makes tokens/s known"),
    ("--samples-per-step", "workload.samplesPerStep", int, "makes samples/s known"),
    ("--steps", "steps", int, "end the run after this many steps"),
    ("--time-sync", "timeSync", str, "conservative or optimistic"),
    ("--host-cost", "cost.host", str, "table or measured"),
    ("--unknown-limit", "cost.unknownLimit", float, "largest share of device time whose cost may be unknown"),
    ("--fold", "fold.mode", str, "none, replica or stage: run one rank of each class of equal ranks"),
    ("--time-limit", "timeLimit", str, "end the run, with who waits for what, after this much real time (no limit)"),
    ("--startup-timeout", "startupTimeout", str, "real time for all ranks to join"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["profile"]:  # a program of its own that also runs without the rest of Eidolon
        return _profile(words[1:])
    if words[:2] == ["calibrate", "host"]:
        return _profile([*words[2:], "calibrate"])
    command: list[str] | None = None
    if "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    options = _parser().parse_args(words)
    try:
        return _dispatch(options, command)
    except UsageError as error:
        complain(f"{options.verb}: {error}")
        return EXIT_USAGE
    except SpecError as error:
        for problem in error.problems:
            complain(f"{error.source}: {problem}")
        return EXIT_USAGE
    except OSError as error:
        if error.filename is None:  # no file of ours: the output, of which the program as a whole takes care
            raise
        complain(f"{error.filename}: {error.strerror}")
        return 1
    except KeyboardInterrupt:  # it came before or after the run itself, which handles signals
        return 130


def _dispatch(options: argparse.Namespace, command: list[str] | None) -> int:
    if command is not None and options.verb != "run":
        raise UsageError("nothing is allowed after --")
    match options.verb:
        case "run":
            return _run(options, command)
        case "explain":
            return _explain(options.run, wall=options.wall)
        case "validate":
            return _validate(options.file, cluster=not options.local)
        case "fetch":
            return _fetch(options)
        case "report" | "compare":
            return commands.run(options)
        case "trace":
            return tracing.run(options)
        case "topology":
            return _topology(options.file, options.svg)
        case _:
            return _gpus()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eidolon", description="Runs a GPU cluster that is not there.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"eidolon {importlib.metadata.version('eidolon')}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_run(verbs)
    validate = verbs.add_parser(
        "validate",
        help="check the YAML of a SimulatedCluster",
        description="Checks the YAML of a SimulatedCluster, without a cluster, by the rules of the API server.",
        allow_abbrev=False,
    )
    validate.add_argument("file", type=_path, metavar="FILE")
    explain = verbs.add_parser("explain", help="where a run's times come from", allow_abbrev=False)
    explain.add_argument("run", type=_path, metavar="RUN", help="folder of the run, or its summary.json")
    explain.add_argument("--wall", action="store_true", help="what the ranks waited for in real time instead")
    verbs.add_parser("profile", help="measure a real GPU for the cost tables (needs PyTorch)", add_help=False)
    calibrate = verbs.add_parser("calibrate", help="make the host cost table of a machine with a GPU (needs PyTorch)")
    calibrate.add_argument("what", choices=["host"])
    validate.add_argument(
        "--local", action="store_true", help="check for `eidolon run`, which does without what only a cluster needs"
    )
    topology = verbs.add_parser("topology", help="show the fabric of a SimulatedCluster", allow_abbrev=False)
    of_topology = topology.add_subparsers(dest="what", required=True, metavar="show")
    show = of_topology.add_parser("show", help="print its cables and draw it", allow_abbrev=False)
    show.add_argument("file", type=_path, metavar="FILE", help="YAML of a SimulatedCluster")
    show.add_argument("--svg", type=_path, metavar="OUT", help="where to draw it (NAME-topology.svg)")
    verbs.add_parser("gpus", help="list the GPU catalogue", allow_abbrev=False)
    _add_fetch(verbs)
    commands.add_verbs(verbs)
    tracing.add_verb(verbs)
    return parser


def _add_run(verbs: Any) -> None:
    run = verbs.add_parser(
        "run",
        help="run a simulated cluster on this machine",
        usage="eidolon run [OPTIONS] FILE\n       eidolon run [OPTIONS] -- COMMAND...",
        description="Runs a simulated cluster on this machine: the one in FILE, or one made of options and a command.",
        allow_abbrev=False,
    )
    run.add_argument("file", nargs="?", type=_path, metavar="FILE", help="YAML of a SimulatedCluster")
    for option, field, kind, text in _OPTIONS:
        parse = _whole if kind is int else kind
        run.add_argument(option, dest=field, type=parse, metavar=kind.__name__.upper()[:5], help=text + _default(field))
    run.add_argument(
        "--parallel",
        dest="fold.parallel",
        type=_axes,
        metavar="AXIS=SIZE,...",
        help="with --fold: the mesh of the ranks, outermost axis first, e.g. pp=8,dp=16,tp=8 (all is dp)",
    )
    run.add_argument(
        "--keep", dest="fold.keep", type=_ranks, metavar="RANK,...", help="with --fold: further ranks that run"
    )
    run.add_argument(
        "--strict", dest="cost.strict", action="store_true", default=None, help="fail for what is otherwise a warning"
    )
    run.add_argument(
        "--record",
        dest="recording.enabled",
        action="store_true",
        default=None,
        help="keep the timeline of the run, for `eidolon trace`",
    )
    run.add_argument(
        "--host-memory",
        metavar="SIZE",
        help="memory of this machine for large allocations of all ranks; a rank that would exceed it waits until"
        f" another frees ({HOST_MEMORY_PERCENT}%% of all)",
    )
    run.add_argument(
        "--host-table",
        type=_path,
        metavar="FILE",
        help="host costs made by `eidolon calibrate host` on a machine with a GPU (the package's own)",
    )
    run.add_argument("--out", type=_path, metavar="DIR", help="for summary, plan and logs (eidolon-runs/NAME-TIME)")
    run.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics (and /status) while it runs")
    run.add_argument("--dcgm", metavar="HOST:PORT", help="serve metrics as NVIDIA's dcgm-exporter would")
    run.add_argument(
        "--null-core", action="store_true", help="no simulation: the shim answers at once (baseline of its overhead)"
    )


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _axes(text: str) -> list[dict[str, Any]]:
    axes = [re.fullmatch(r"([a-z_]+)=([0-9]{1,9})", part) for part in text.split(",")]
    if not all(axes):
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,... such as pp=8,dp=16,tp=8")
    return [{"axis": axis[1], "size": int(axis[2])} for axis in axes if axis]


def _ranks(text: str) -> list[int]:
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of ranks such as 7,1023")
    return [int(rank) for rank in text.split(",")]


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no path")
    return Path(text)


def _default(field: str) -> str:
    """The schema's default for a field as the help shows it. Empty if there is none."""
    try:
        return f" ({specs.default(field)})"
    except KeyError:
        return ""


def _add_fetch(verbs: Any) -> None:
    fetch = verbs.add_parser(
        "fetch",
        help="bring summary, recording, trace and logs of a run in Kubernetes here",
        description="Brings the files of a run in Kubernetes (summary, recording, logs) to this machine. If the run "
        "was recorded and has ended, writes its trace too, as `eidolon trace` does.",
        allow_abbrev=False,
    )
    fetch.add_argument("target", metavar="simc/NAME")
    fetch.add_argument("-n", "--namespace", metavar="NS", help="namespace of the object (that of the kubeconfig)")
    fetch.add_argument("--context", metavar="NAME", help="context of the kubeconfig (the current one)")
    fetch.add_argument("--out", type=_path, metavar="DIR", help="where to (eidolon-runs/NAME-TIME)")
    fetch.add_argument("--no-recording", action="store_true", help="leave the recording, which may be large, there")
    fetch.add_argument(
        "--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="limit of each wait for the cluster (30)"
    )


def _run(options: argparse.Namespace, command: list[str] | None) -> int:
    from eidolon_operator import local  # starts no process, but imports much
    from eidolon_simcore.costs import hostcost

    _check(options, command)
    document, source = _document(options, command)
    spec = specs.parse(document, source=source)
    try:
        table = hostcost.read(options.host_table) if options.host_table is not None else None
        plan = planning.build(spec, source=source, host_table=table)
    except hostcost.HostTableError as error:
        raise UsageError(f"--host-table: {error}") from None
    host_memory_bytes = _host_memory(options.host_memory)
    if aside := specs.only_in_kubernetes(spec):
        complain(f"{source}: only in Kubernetes, ignored here: {', '.join(aside)}")
    if options.null_core and spec.fold is not None:
        raise UsageError("--null-core simulates nothing, so it excludes --fold (spec.fold)")
    try:
        words = machine.workload_command(spec.workload)
        for line in machine.fold_needs(spec):
            complain(line)
        with _run_directory(options.out, f"{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}") as out:
            outcome = local.run(
                spec,
                plan,
                words,
                out=out,
                null_core=options.null_core,
                endpoints=local.Endpoints(options.metrics, options.dcgm),
                host_memory_bytes=host_memory_bytes,
            )
    except RunError as error:
        complain(str(error))
        return error.exit_code
    if outcome.summary is not None and outcome.summary["ranks"]:
        text = f"\n{report.render(outcome.summary, title=_title(spec))}Summary: {out / launching.SUMMARY}"
        with contextlib.suppress(BrokenPipeError):  # nobody reads on, but how the run ended still counts
            print(text, flush=True)
    if outcome.message is not None:
        complain(outcome.message)
    return outcome.exit_code


def _check(options: argparse.Namespace, command: list[str] | None) -> None:
    """Raises :class:`UsageError` if the options of ``run`` make no sense, alone or together."""
    if (options.file is None) == (not command):
        raise UsageError("needs either the FILE of a SimulatedCluster or a command after --")
    useless = [option for option, name in _NEED_A_CORE if options.__dict__[name] not in (None, False)]
    if options.null_core and useless:
        raise UsageError(f"--null-core simulates nothing, so it excludes {', '.join(useless)}")
    for option, address in (("--metrics", options.metrics), ("--dcgm", options.dcgm)):
        host, _, port = (address or "localhost:0").rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
            raise UsageError(f"{option}: {address!r} is not HOST:PORT, such as 127.0.0.1:9090")
    if options.metrics is not None and options.metrics == options.dcgm and not options.metrics.endswith(":0"):
        raise UsageError(f"--metrics and --dcgm are both {options.metrics}; each needs an address of its own")


def _host_memory(text: str | None) -> int | None:
    try:
        return units.SIZE(text) if text is not None else None
    except ValueError as error:
        raise UsageError(f"--host-memory: {error}") from None


def _document(options: argparse.Namespace, command: list[str] | None) -> tuple[Any, str]:
    """The object that is to be run, with the options in it, and what messages call it."""
    given = {field: value for _, field, *_ in _OPTIONS if (value := getattr(options, field)) is not None}
    given |= {field: True for field in ("cost.strict", "recording.enabled") if options.__dict__[field]}
    given |= {field: value for field in ("fold.parallel", "fold.keep") if (value := options.__dict__[field])}
    if options.file is not None:
        document, source = specs.read(options.file), str(options.file)
    else:
        assert command
        source = "command line"
        document = {
            "apiVersion": specs.API_VERSION,
            "kind": specs.KIND,
            "metadata": {"name": _name_of(command)},
            "spec": {"workload": {"command": command}},
        }
    _override(document, given)
    return document, source


@contextlib.contextmanager
def _run_directory(given: Path | None, name: str) -> Iterator[Path]:
    """The folder of a run, which is this run's alone. Raises :class:`RunError`."""
    with contextlib.ExitStack() as stack:
        try:
            out = stack.enter_context(rundir.new(name) if given is None else rundir.given(given))
        except rundir.InUseError as error:
            raise RunError(f"--out: {error}", EXIT_USAGE) from None
        except OSError as error:
            raise RunError(f"--out: {error.filename}: {error.strerror}", EXIT_USAGE) from None
        yield out


def _validate(file: Path, *, cluster: bool) -> int:
    spec = specs.load(file, cluster=cluster)
    planning.build(spec, source=str(file))
    run = f", of which {spec.placement.processes:,} run" if spec.fold is not None else ""
    print(f"{file}: valid: {_title(spec)}, {spec.world} ranks{run}")
    return 0


def _explain(run: Path, *, wall: bool) -> int:
    from eidolon_operator import explain

    try:
        found = explain.load(run)
        print(explain.render_wall(found) if wall else explain.render(found), end="")
    except explain.ExplainError as error:
        complain(f"explain: {error}")
        return EXIT_USAGE
    return 0


def _profile(words: list[str]) -> int:
    try:
        from eidolon_simcore.profile.__main__ import main as profile
    except ImportError as error:
        complain(f"profile: needs PyTorch with CUDA: {error}")
        return EXIT_USAGE
    profile(words)
    return 0


def _fetch(options: argparse.Namespace) -> int:
    from eidolon_operator import fetch

    try:
        name = fetch.object_name(options.target)
        core = fetch.Core(name, namespace=options.namespace, context=options.context, timeout_s=options.timeout)
        source = fetch.RunFiles(core.connect, timeout_s=options.timeout)
        files = [file for file in source.list() if not (options.no_recording and file.name.startswith("recording/"))]
        with rundir.given(options.out or Path(rundir.RUNS) / f"{name}-{core.started}") as out:
            for file in files:
                source.copy(file, out)
                print(f"{out / file.name}: {file.size_bytes:,} bytes", flush=True)
    except BrokenPipeError:
        raise
    except (fetch.FetchError, rundir.InUseError, OSError) as error:
        complain(f"fetch: {error}")
        return 1
    if not any(file.name == launching.SUMMARY for file in files):
        complain(f"fetch: there is no summary.json yet: the run is {core.phase or 'not begun'}")
    elif any(file.name.startswith("recording/") for file in files):
        return tracing.write(out)
    return 0


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def _topology(file: Path, svg: Path | None) -> int:
    from eidolon_simcore.fabric import draw

    spec = specs.load(file)
    settings, fabric = planning.fabric(spec, str(file))
    for line in draw.text(fabric, settings):
        print(line)
    out = svg or Path(f"{spec.name}-topology.svg")
    rundir.write_text(out, draw.svg(fabric, f"{_title(spec)}: {settings.type}"))
    print(f"drawn in {out}")
    return 0


def _gpus() -> int:
    for line in planning.catalogue_lines():
        print(line)
    return 0


def _title(spec: Spec) -> str:
    return f"{spec.name} on {spec.hardware}"


def _name_of(command: Sequence[str]) -> str:
    """A name for a run without a file: that of the script or the program, reduced to a valid object name."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    label = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-0123456789")
    return label[:51].rstrip("-") or "run"


def _override(document: Any, given: dict[str, Any]) -> None:
    """Sets fields of the object's spec. If the object has another shape, validation says so later."""
    for field, value in given.items():
        node = document.get("spec") if isinstance(document, dict) else None
        *parents, last = field.split(".")
        for parent in parents:
            node = node.setdefault(parent, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node[last] = value


def complain(message: str) -> None:
    """A line on stderr, if anybody still reads that."""
    with contextlib.suppress(OSError):
        print(f"eidolon: {message}", file=sys.stderr, flush=True)
