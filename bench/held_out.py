"""Measures how far estimates are off at sizes that the tables lack: published GEMMs, and attention that we measured.

    python -m bench.held_out [--check]

The shapes are dealt into five parts by a checksum, so that the split is the same everywhere and all measurements of a
shape are held out together. A part is estimated from the other four. Attention takes all five turns, the many GEMMs
take one. The bars are mean errors of 5 % for GEMMs, 5 % for attention forward and 6 % for attention backward."""

from __future__ import annotations

import argparse
import json
import statistics
import zlib
from collections.abc import Callable

from eidolon_simcore import catalogue
from eidolon_simcore.costs import package_tables
from eidolon_simcore.costs.interpolation import Known, Points, Work
from eidolon_simcore.costs.model import analyse
from eidolon_simcore.costs.roofline import Roofline

PARTS = 5
BARS = {"GEMM": 0.05, "attention forward": 0.05, "attention backward": 0.06}
#: What the cost of a shape depends on besides its group: all attributes of a library call, and those of the operator
#: for a kernel.
Shape = tuple[str, str]


def part(shape: Shape) -> int:
    """Which of the parts this shape is dealt into."""
    return zlib.crc32("".join(shape).encode()) % PARTS


def measured(gpu_key: str, wanted: Callable[[package_tables.Point, Work], bool]) -> dict[Shape, list[Known]]:
    """What was measured on that GPU, by shape."""
    roofline = Roofline(catalogue.gpu(gpu_key))
    found: dict[Shape, list[Known]] = {}
    for point in package_tables.load():
        analysis = analyse(roofline, point.signature, point.operator) if point.gpu == gpu_key else None
        if analysis is not None and wanted(point, analysis.work):
            told = point.operator if point.signature.kind == "kernel" else point.signature
            facts = {} if told is None else {k: v for k, v in told.attributes.items() if k not in ("op", "bytes")}
            shape = analysis.work.group, json.dumps(facts, sort_keys=True)
            found.setdefault(shape, []).append(Known(analysis.work, point.ns, point.count))
    return found


def errors(shapes: dict[Shape, list[Known]], turns: int = PARTS) -> list[float]:
    """Relative errors of the shapes of the first ``turns`` parts, each once."""
    found = []
    for turn in range(turns):
        rest = Points(one for shape, same in shapes.items() if part(shape) != turn for one in same)
        for same in (same for shape, same in shapes.items() if part(shape) == turn):
            estimate = rest.estimate(same[0].work)
            if estimate is not None:
                real = sum(one.ns * one.count for one in same) / sum(one.count for one in same)
                found.append(estimate.ns / real - 1)
    return found


def attention(direction: str) -> list[float]:
    """Errors of fused attention (cuDNN's, flash and memory-efficient kernels) on the H200."""
    start = "attention "
    return errors(measured("h200-sxm", lambda _, work: work.group.startswith(start) and direction in work.group))


def gemms() -> list[float]:
    """Errors of the published table's GEMMs (H100, bf16, linear layers)."""
    return errors(measured("h100-sxm", lambda point, work: work.group.startswith("gemm") and point.count == 1), turns=1)


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(prog="python -m bench.held_out", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    arguments = parser.parse_args()
    missed = []
    for name, found in (
        ("GEMM", gemms()),
        ("attention forward", attention("forward")),
        ("attention backward", attention("backward")),
    ):
        sizes = sorted(abs(error) for error in found)
        mean = statistics.mean(sizes)
        print(
            f"{name:20} {len(sizes):5} shapes held out: mean error {mean:.2%}, median {statistics.median(sizes):.2%},"
            f" 95th of 100 {sizes[int(0.95 * len(sizes))]:.1%}, bias {statistics.mean(found):+.2%}"
            f" (bar {BARS[name]:.0%})"
        )
        if mean > BARS[name]:
            missed.append(name)
    if arguments.check and missed:
        raise SystemExit("over the bar: " + ", ".join(missed))


if __name__ == "__main__":
    main()
