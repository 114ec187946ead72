"""Checks the model at sizes that it was not fitted to, which lie between those that it was fitted to.

There are three ways, and ``python -m bench.collectives held`` prints all of them:

*Leave one out*: each point of the H100 graphs is predicted from the tables' model, the start of a launch, and what is
left at the **other** sizes, smoothed as in the fit. The nearest neighbours of a size are then a factor of four away,
which is twice as far as any size between the listed ones is.

*Between*: four sweeps on three machines give sizes that no fit has seen, on two H200. The sweeps differ from each other
as much as the model differs from them, and their difference is printed too. The quickest sweep counts, because what
disturbs a measurement makes it longer.

*In the tables*: NCCL alone is compared on two and four H100, at the sizes that were held out of the fit. Their gaps are
as wide as those between the listed sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from bench.collectives import measured
from bench.collectives.measured import GRAPH_LAUNCH_US, Point
from eidolon_simcore import catalogue
from eidolon_simcore.fabric import tuner

_NO_NVLS = tuner.Options(nvls=False)


class Told(NamedTuple):
    """A measured point and the model's error there."""

    point: Point
    error: float


def smoothed(at: Sequence[float], values: Sequence[float], without: int | None = None) -> list[float]:
    """``values`` at the logarithms ``at``, averaged over an octave and drawn towards 0, where one measurement alone
    says little; ``without`` leaves a point out."""
    out = []
    for x in at:
        weights = [0.0 if i == without else math.exp(-0.5 * (x - y) ** 2) for i, y in enumerate(at)]
        out.append(sum(w * v for w, v in zip(weights, values, strict=True)) / (sum(weights) + 1.0))
    return out


def leave_one_out() -> list[Told]:
    """Every point of the H100 graphs that has listed sizes on both sides."""
    chooser = tuner.Tuner.of(catalogue.gpu("h100-sxm"))
    told = []
    series: dict[tuple[str, int], list[Point]] = {}
    for p in measured.graphs():
        series.setdefault((p.op, p.ranks), []).append(p)
    for (op, ranks), points in series.items():
        points.sort(key=lambda p: p.bytes)
        model = [
            chooser.choose(op, p.bytes, tuner.Shape(ranks), _NO_NVLS, launched=False).us + chooser.launch_us(ranks)
            for p in points
        ]
        at = [math.log2(p.bytes) for p in points]
        left = [math.log((p.us - GRAPH_LAUNCH_US) / us) for p, us in zip(points, model, strict=True)]
        for i in range(1, len(points) - 1):
            us = model[i] * math.exp(smoothed(at, left, without=i)[i]) + GRAPH_LAUNCH_US
            told.append(Told(points[i], us / points[i].us - 1))
    return told


def dips(told: Sequence[Told]) -> set[Point]:
    """Points that took less time than a quarter of their bytes did. No curve that rises with size can follow them."""
    at = {(p.op, p.ranks, p.bytes): p.us for p in measured.graphs()}
    return {p for p, _ in told if p.us < at[p.op, p.ranks, p.bytes // 4]}


def between() -> tuple[list[Told], list[float]]:
    """The errors of the H100's model at sizes between the listed ones on two H200, and by how much each sweep is slower
    than the quickest.
    """
    chooser = tuner.Tuner.of(catalogue.gpu("h100-sxm"))
    listed = {p.bytes for p in measured.graphs()}
    own = (p for p in measured.forced() if not p.algorithm and not p.protocol)
    of_sweeps: dict[tuple[str, int], list[float]] = {}
    for p in (*own, *measured.profile("graph"), *measured.sweeps()):
        if p.op != "send":
            of_sweeps.setdefault((p.op, p.bytes), []).append(p.us)
    told, apart = [], []
    for (op, size), times in of_sweeps.items():
        if len(times) > 1:
            apart += sorted(us / min(times) - 1 for us in times)[1:]
            if size not in listed:
                us = chooser.choose(op, size, tuner.Shape(2), _NO_NVLS).us + GRAPH_LAUNCH_US
                told.append(Told(Point(op, 2, size, min(times)), us / min(times) - 1))
    return told, apart


def in_tables(ranks: int) -> list[Told]:
    """The errors in the H100's tables at the held-out sizes, each of which lies half-way between two fitted ones, as
    sizes between the listed ones do. The time of a size is the median of its rows (types, versions), and so is its
    error.
    """
    chooser = tuner.Tuner.of(catalogue.gpu("h100-sxm"))
    of_size: dict[tuple[str, int], list[Told]] = {}
    for p in measured.tables("h100-sxm"):
        if p.held_out and p.ranks == ranks and p.bytes >= 1024:
            wanted = tuner.Options(version=p.nccl, nvls=p.dtype != "int8")
            us = chooser.choose(p.op, p.bytes, tuner.Shape(ranks), wanted, launched=False).us
            of_size.setdefault((p.op, p.bytes), []).append(Told(p, us / p.us - 1))
    return [sorted(rows, key=lambda t: t.error)[len(rows) // 2] for rows in of_size.values()]


def show() -> None:
    """Prints the results of all three ways."""
    told = leave_one_out()
    _line("H100 in graphs, each size left out in turn", told)
    without = dips(told)
    _line(
        "  without sizes that were quicker than a quarter of their bytes", [t for t in told if t.point not in without]
    )
    for p, error in sorted(told, key=lambda t: -abs(t.error)):
        if abs(error) > 0.15:
            dip = "  (quicker than a quarter of its bytes)" if p in without else ""
            print(f"    {p.op} x{p.ranks}, {p.bytes} B: {p.us} us measured, {error:+.1%}{dip}")
    told, apart = between()
    _line("2 H200, sizes between, by H100's model, the quickest of two to four sweeps", told)
    print(f"  the others are slower by {_mean(apart):.1%} on average, {max(apart):.0%} at most")
    if measured.have_tables():
        for ranks in (2, 4):
            told = in_tables(ranks)
            _line(f"{ranks} H100 in the tables, sizes between the fitted ones", told)
            for p, error in told:
                if abs(error) > 0.15:
                    print(f"    {p.op} x{p.ranks}, {p.bytes} B: {p.us:.1f} us measured, {error:+.1%}")


def _mean(errors: Sequence[float]) -> float:
    return sum(map(abs, errors)) / len(errors)


def _line(title: str, told: Sequence[Told]) -> None:
    errors = [error for _, error in told]
    over, worst = sum(abs(e) > 0.15 for e in errors), max(map(abs, errors))
    print(f"{title:<72} {len(errors):>4} points  mean {_mean(errors):.1%}  worst {worst:.1%}  over 15 %: {over}")
