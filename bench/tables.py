"""Makes the cost tables that come with the package from profiler traces and published measurements.

    python -m bench.tables --gpu h200 --traces TRACE ... [--add] --operators operators.parquet ...
    python -m bench.tables --gemm gemm_perf.parquet
    python -m bench.tables --gpu h200 --copies operators.parquet
    python -m bench.tables --gpu h200 --solvers bench/solvers_h200.json

A trace's kernels become a point for each signature: the mean of those that no collective ran beside, without hiccups.
``--add`` keeps the points that the table has; traces then only add signatures that it does not know. ``--operators``
takes what ``eidolon profile operators`` left. ``--gemm`` takes a GEMM table of aiconfigurator-core (Apache-2.0;
``systems/data/h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet``): bf16 linear layers through PyTorch and cuBLAS on an H100.
It leaves out odd row counts beside even ones. ``--copies`` takes copies and sets from what ``eidolon profile
operators`` left, and for the H100 from the traces of ``bench/truth``. ``--solvers`` takes dense solvers, which the
file lists with their signatures."""

from __future__ import annotations

import argparse
import bisect
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from bench import operator_table, trace_signatures
from bench.trace_files import complete_events
from eidolon_simcore import catalogue
from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs import published
from eidolon_simcore.costs.model import analyse
from eidolon_simcore.costs.roofline import Analysis, Roofline
from eidolon_simcore.costs.sm_clock import CLASSES, FULL, Pace, pace
from eidolon_simcore.signature import Signature

TABLES = Path(__file__).parents[1] / "simcore" / "eidolon_simcore" / "data" / "tables"
KEY = ("kind", "name", "attributes", "operator")
HICCUP = 4.0
BESIDE = 0.05  #: share of a kernel's time with a collective beside it that makes it no clean measurement

#: Values of :data:`KEY`, in that order.
Key = tuple[str, ...]
#: Nanoseconds, and how many launches they are the mean of.
Point = tuple[float, int]


def collectives(path: Path) -> list[tuple[float, float]]:
    """(begin, end) in nanoseconds of the collectives of a trace, in order."""
    return sorted(
        (1e3 * float(e["ts"]), 1e3 * (float(e["ts"]) + float(e["dur"])))
        for e in complete_events(path)
        if e.get("cat") == "kernel" and "nccl" in e["name"]
    )


def idle_ns(path: Path) -> float:
    """Time from a trace's first kernel to its last with no kernel but collectives under way."""
    spans = sorted((row.begin_ns, row.end_ns) for row in trace_signatures.read(path))
    idle, reached = 0.0, spans[0][0]
    for begin, end in spans:
        idle, reached = idle + max(0.0, begin - reached), max(reached, end)
    return idle


def overlap(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Share of [begin, end] with one of ``spans`` under way (they seldom overlap each other)."""
    at = max(0, bisect.bisect_right(spans, (begin, 0.0)) - 4)
    covered = 0.0
    while at < len(spans) and spans[at][0] < end:
        covered += max(0.0, min(end, spans[at][1]) - max(begin, spans[at][0]))
        at += 1
    return min(1.0, covered / max(1.0, end - begin))


def points(traces: Iterable[Path], gpu: Gpu) -> dict[Key, list[float]]:
    """Clean durations at the greatest clock, by (kind, name, attributes, operator)."""
    found: dict[Key, list[float]] = defaultdict(list)
    roofline = Roofline(gpu)
    for path in traces:
        busy = collectives(path)
        rows = [row for row in trace_signatures.read(path) if overlap(busy, row.begin_ns, row.end_ns) < BESIDE]
        classes = [analysis.kind if (analysis := _analysis(roofline, row)) else 0 for row in rows]
        slowdown = step_pace(zip(classes, (row.ns for row in rows), strict=True), gpu, idle_ns(path)).slowdown
        for row, kind in zip(rows, classes, strict=True):
            found[_key(row.signature, row.operator)].append(row.ns / slowdown[kind])
    return found


def _analysis(roofline: Roofline, row: trace_signatures.Recorded) -> Analysis | None:
    return analyse(roofline, row.signature, row.operator)


def step_pace(measured: Iterable[tuple[int, float]], gpu: Gpu, idle: float = 0.0) -> Pace:
    """The clock that a step ran at, from pairs of class of work and measured nanoseconds. :func:`pace` wants the times
    at the greatest clock, which follow from the pace in turn, so the pace is found by iterating."""
    times = [0.0] * CLASSES
    for kind, ns in measured:
        times[kind] += ns
    found = FULL
    for _ in range(6):
        found = pace([ns / slow for ns, slow in zip(times, found.slowdown, strict=True)], gpu, idle)
    return found


def _key(signature: Signature, operator: Signature | None) -> Key:
    parent = ""
    if operator is not None and signature.kind == "kernel":
        parent = json.dumps({"name": operator.name, "attributes": dict(operator.attributes)})
    return signature.kind, signature.name, json.dumps(dict(signature.attributes)), parent


def _write(name: str, columns: dict[str, list[Any]], provenance: dict[str, str]) -> None:
    TABLES.mkdir(parents=True, exist_ok=True)
    types = {"ns": pa.float32(), "m": pa.int32(), "n": pa.int32(), "k": pa.int32()}
    arrays = {key: pa.array(values, types.get(key)) for key, values in columns.items()}
    table = pa.table(arrays).replace_schema_metadata({"eidolon.table": "1", **provenance})
    parquet.write_table(table, TABLES / name, compression="zstd", compression_level=19)
    print(f"{TABLES / name}: {table.num_rows} rows, {(TABLES / name).stat().st_size} bytes")


GPUS = {
    "h100": {"gpu": "NVIDIA H100 80GB HBM3 (SXM, 700 W)", "date": "2026-11-27"},
    "h200": {"gpu": "NVIDIA H200 (SXM, 700 W)", "date": "2026-11-28"},
}
SOFTWARE = {"torch": "2.11.0+cu130", "driver": "580.159.04"}


def mean(ns: list[float]) -> float:
    """The mean, because a step's sum counts: one signature may stand for launches of two lengths. Something else held
    up what took more than :data:`HICCUP` times the median, so this is left out."""
    bound = HICCUP * statistics.median(ns)
    return statistics.fmean(min(one, bound) for one in ns)


def _columns(found: Mapping[Key, list[float]], known: Mapping[Key, Point] | None = None) -> dict[str, list[Any]]:
    points = {key: (mean(ns), len(ns)) for key, ns in found.items()} | dict(known or {})
    rows = sorted((key, *point) for key, point in points.items())
    columns: dict[str, list[Any]] = {key: [row[0][i] for row in rows] for i, key in enumerate(KEY)}
    return columns | {"ns": [row[1] for row in rows], "count": [row[2] for row in rows]}


def _known(name: str) -> tuple[dict[Key, Point], dict[str, str]]:
    """The points of an existing table, and its provenance."""
    table = parquet.read_table(TABLES / name)
    rows = table.to_pylist()
    about = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    return {tuple(row[key] for key in KEY): (row["ns"], row["count"]) for row in rows}, about


TRACES = Path(__file__).parent / "truth" / "traces"
TRACED = "h100-sxm"  #: what they were made on

#: kind, name, pinned, bytes, GPU
Sort = tuple[str, str, int, int, str]


def traced_copies(traces: Iterable[Path]) -> dict[Sort, list[float]]:
    """Nanoseconds of the copies and sets of traces that no collective ran beside."""
    found: dict[Sort, list[float]] = defaultdict(list)
    for path in traces:
        busy = collectives(path)
        for signature, size, begin, end in trace_signatures.copies(path):
            if overlap(busy, begin, end) < BESIDE:
                pinned = signature.get("pinned", 1)
                found[signature.kind, signature.name, pinned, size, TRACED].append(end - begin)
    return found


def measured_copies(paths: list[Path], gpu: str) -> dict[Sort, list[float]]:
    """Nanoseconds of the copies and sets of the operator set."""
    found: dict[Sort, list[float]] = defaultdict(list)
    for signature, size, ns in operator_table.copies(paths):
        found[signature.kind, signature.name, signature.get("pinned", 1), size, gpu].append(ns)
    return found


def write_copies(paths: list[Path], gpu: str, note: str) -> None:
    """The table of copies: the operator set's of a GPU and those of the traces."""
    found = traced_copies(sorted(TRACES.glob("*.parquet"))) | measured_copies(paths, f"{gpu}-sxm")
    rows = sorted((key, mean(ns), len(ns)) for key, ns in found.items())
    columns: dict[str, list[Any]] = {
        key: [row[0][i] for row in rows] for i, key in enumerate(("kind", "name", "pinned", "bytes", "gpu"))
    }
    provenance = {
        "gpu": f"{GPUS[gpu]['gpu']}; {GPUS['h100']['gpu']}",
        "clock": "as it was: the memory's is always the same",
        "source": f"{gpu}-sxm: eidolon profile operators, median of three, mean of L2 warm and cold; {TRACED}: copies"
        " and sets of the PyTorch profiler traces in bench/truth that no collective ran beside",
        "note": note,
    }
    columns |= {"ns": [row[1] for row in rows], "count": [row[2] for row in rows]}
    _write("copies.parquet", columns, {**SOFTWARE, **provenance})


def write_solvers(path: Path, gpu: str, note: str) -> None:
    """The table of dense solvers, from a list of calls with their signatures."""
    measured = json.loads(path.read_text("utf-8"))
    found: dict[Key, list[float]] = defaultdict(list)
    for row in measured["rows"]:
        signature = Signature("library", row["name"], {"bytes": row["bytes"], "flops": row["flops"]})
        found[_key(signature, None)].append(row["ns"])
    provenance = {"source": measured["what"], "clock": "as it was: solvers wait more than they compute", "note": note}
    _write(f"solvers_{gpu}.parquet", _columns(found), {**GPUS[gpu], **SOFTWARE, **provenance})


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(prog="python -m bench.tables", description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", choices=GPUS, default="h100", help="what the traces and operators were measured on")
    parser.add_argument("--traces", type=Path, nargs="*", default=[])
    parser.add_argument("--add", action="store_true", help="traces add to what the table has")
    parser.add_argument("--operators", type=Path, nargs="*", default=[])
    parser.add_argument(
        "--copies", type=Path, nargs="*", help="of the operator set; those of the traces come with them"
    )
    parser.add_argument("--solvers", type=Path)
    parser.add_argument("--gemm", type=Path)
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    if arguments.traces:
        names = ", ".join(p.name.split(".")[0] for p in arguments.traces)
        provenance = {
            "source": f"PyTorch profiler traces of training steps: {names}",
            "clock": "brought to 1,980 MHz from the clock that each step's mix of work gives (costs.sm_clock)",
            "note": arguments.note,
        }
        table = f"kernels_{arguments.gpu}.parquet"
        known: dict[Key, Point] = {}
        if arguments.add:
            known, about = _known(table)
            for key in ("source", "note"):
                provenance[key] = "; ".join(filter(None, (about[key], provenance[key])))
        columns = _columns(points(arguments.traces, catalogue.gpu(f"{arguments.gpu}-sxm")), known)
        _write(table, columns, {**GPUS[arguments.gpu], **SOFTWARE, **provenance})
    if arguments.operators:
        found: dict[Key, list[float]] = defaultdict(list)
        for signature, operator, ns in operator_table.rows(arguments.operators):
            found[_key(signature, operator)].append(ns)
        provenance = {
            "source": "eidolon profile operators: median of three, L2 warm",
            "clock": "1,980 MHz: short work between pauses; spin kernels before the cases read 1,940 to 1,960",
            "note": arguments.note,
        }
        columns = _columns(found)
        _write(f"operators_{arguments.gpu}.parquet", columns, {**GPUS[arguments.gpu], **SOFTWARE, **provenance})
    if arguments.copies is not None:
        write_copies(arguments.copies, arguments.gpu, arguments.note)
    if arguments.solvers:
        write_solvers(arguments.solvers, arguments.gpu, arguments.note)
    if arguments.gemm:
        rows = published.select(arguments.gemm)
        _write(
            "gemm.parquet",
            dict(zip(("m", "n", "k", "ns"), map(list, zip(*rows, strict=True)), strict=True)),
            {
                "gpu": "NVIDIA H100 80GB HBM3 (SXM)",
                "source": "aiconfigurator-core 0.12.0 (NVIDIA Corporation, Apache-2.0), h100_sxm/gemm/vllm/0.24.0:"
                " torch.nn.functional.linear, bfloat16; rows selected, milliseconds turned into nanoseconds",
                "clock": "not recorded",
            },
        )


if __name__ == "__main__":
    main()
