"""Compares estimated with measured device times: of traces of real H100s, and of GEMMs left out of their table.

    python -m bench.cost_fit TRACE ...

Each trace is estimated twice. With the tables as they are made from all traces, the error says how well a table gives
back what it holds. With only the other traces' points, it says how well a table carries over to another model. Traces
whose names begin alike (``llama1b``, ``llama1b_fsdp2``) are of the same model and are left out together. Kernels beside
collectives do not count. A fifth of the published table's GEMMs, drawn at random, is predicted from the rest."""

from __future__ import annotations

import collections
import random
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from bench import trace_signatures
from bench.tables import BESIDE, collectives, overlap
from eidolon_simcore.catalogue import gpu
from eidolon_simcore.costs import package_tables
from eidolon_simcore.costs.interpolation import Known, Points
from eidolon_simcore.costs.model import LAUNCH_GAP_NS, CostModel, analyse
from eidolon_simcore.costs.roofline import Roofline
from eidolon_simcore.signature import Signature

GPU = gpu("h100-sxm")
ROOFLINE = Roofline(GPU)
Row = tuple[Signature, Signature | None, float]


def rows(path: Path) -> list[Row]:
    """Work of a trace that no collective ran beside, with nanoseconds."""
    busy = collectives(path)
    return [
        (row.signature, row.operator, row.ns)
        for row in trace_signatures.read(path)
        if overlap(busy, row.begin_ns, row.end_ns) < BESIDE
    ]


def points(all_rows: Iterable[Row]) -> list[Known]:
    """The same rows as points of a table, as far as the roofline knows their work."""
    analysed = ((analyse(ROOFLINE, signature, operator), ns) for signature, operator, ns in all_rows)
    return [Known(analysis.work, ns) for analysis, ns in analysed if analysis is not None]


def gemms() -> list[Known]:
    """GEMMs of the published table."""
    found = []
    for point in package_tables.load():
        if point.signature.kind == "gemm" and point.operator is None and point.signature.get("ta", 0):
            analysis = analyse(ROOFLINE, point.signature, None)
            assert analysis is not None
            found.append(Known(analysis.work, point.ns))
    return found


def compare(title: str, of: list[Row], model: CostModel) -> None:
    """Prints measured and estimated times of these rows, in all and by kind of work."""
    measured = estimated = 0.0
    families: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    sources: collections.Counter[str] = collections.Counter()
    for signature, operator, ns in of:
        cost = model.cost(signature, operator)
        guess = cost.base_ns - LAUNCH_GAP_NS
        measured, estimated = measured + ns, estimated + guess
        sources[cost.source] += guess
        families[signature.kind][0] += ns
        families[signature.kind][1] += guess
    by_source = ", ".join(f"{source} {ns / estimated:.1%}" for source, ns in sources.most_common())
    print(f"{title:38} {measured / 1e6:9.2f} ms measured {estimated / measured - 1:+6.1%}   {by_source}")
    for kind, (real, total) in sorted(families.items(), key=lambda item: -item[1][0]):
        print(f"    {kind:34} {real / 1e6:9.2f} ms          {total / real - 1:+6.1%}")


def held_out_gemms(seed: int = 8) -> None:
    """Prints the errors of GEMMs that were drawn at random and left out of the table."""
    table = gemms()
    random.Random(seed).shuffle(table)
    cut = len(table) // 5
    known = Points(table[cut:])
    errors = []
    for one in table[:cut]:
        estimate = known.estimate(one.work)
        assert estimate is not None
        errors.append(abs(estimate.ns / one.ns - 1))
    print(f"{len(errors)} GEMMs held out: mean {statistics.mean(errors):.1%}, median {statistics.median(errors):.1%}")


def main() -> None:
    """Runs what the command line asks for and prints it."""
    traces = {Path(path): rows(Path(path)) for path in sys.argv[1:]}
    base = gemms()
    for path, own in traces.items():
        everything = Points(base + points(row for other in traces.values() for row in other))
        compare(f"{path.name}, in the tables", own, CostModel(GPU, everything))
        model = path.name.split(".")[0].split("_")[0]
        related = path.name if model == "titan" else model
        others = (row for other, known in traces.items() if not other.name.startswith(related) for row in known)
        compare(f"{path.name}, left out", own, CostModel(GPU, Points(base + points(others))))
    held_out_gemms()


if __name__ == "__main__":
    main()
