"""Copies and sets: their time by the bytes that each record names.

The *way* of a copy is where it goes (within the device, to it or from it) and whether the host's memory is pinned. The
table of copies (:func:`.package_tables.copies`) says how long copies of a way and a size took. Copies within a device
are of two kinds: between 1 and 128 MiB, copies of whole pages are up to twice as fast as others. Between two sizes the
time is interpolated linearly, below the smallest it is constant, and beyond the largest each further byte costs what
the formula says. Ways that nobody measured have the formula alone."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from eidolon_simcore import catalogue
from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs import package_tables
from eidolon_simcore.costs.carrying import carried_ns
from eidolon_simcore.costs.interpolation import CARRIED_ERROR, LEAST_ERROR
from eidolon_simcore.signature import Signature

_FAR = 1 << 40  #: a number of bytes that is larger than any copy
PAGE = 4096
_APART = range(1 << 20, 1 << 27)  #: sizes in bytes at which it matters whether they are whole pages
_SAME = 1.05  #: sizes within this factor are one point: their times do not differ by their sizes


@dataclass(frozen=True, slots=True)
class Law:
    """Nanoseconds by bytes: the lines between these points, with the source of the times and their expected relative
    error."""

    points: tuple[tuple[int, float], ...]
    source: str
    error: float


def law(s: Signature, gpu: Gpu) -> Law:
    """How long copies or sets of this signature take on a GPU."""
    way = way_of(s)
    floor_ns, ns_per_byte, error = _formula(way, gpu)
    known = _known(way, gpu)
    if not known:
        return Law(((0, floor_ns), (_FAR, floor_ns + ns_per_byte * _FAR)), "roofline", error)
    points = _merged(sorted(known.items()))
    last, ns = points[-1]
    beyond = (last + _FAR, ns + ns_per_byte * _FAR)
    spread = math.hypot(LEAST_ERROR if gpu.key in _measured()[way] else CARRIED_ERROR, _left_out(points))
    return Law((*points, beyond), "interpolated", spread)


def way_of(s: Signature) -> str:
    """The way of a copy or a set, as the table names it."""
    if s.kind == "set":
        return "set"
    if s.name == "d2d":
        return "d2d" if s.get("pages", 1) else "d2d parts"
    return f"{s.name} {'pinned' if s.get('pinned', 1) else 'pageable'}" if s.name in ("h2d", "d2h") else s.name


def _formula(way: str, gpu: Gpu) -> tuple[float, float, float]:
    """Base time in nanoseconds, nanoseconds for each byte, and the expected relative error."""
    match way:
        case "set":
            return 800, 1e9 / (0.90 * gpu.bandwidth_bytes_per_s), 0.1
        case "d2d" | "d2d parts":
            return 1_200, 2e9 / (0.81 * gpu.bandwidth_bytes_per_s), 0.1
        case "p2p":
            return 5_000, 1e9 / (0.8 * gpu.intra_bytes_per_s), 0.2
        case "h2h":
            return 500, 1e9 / 10e9, 0.5
        case "h2d pinned" | "d2h pinned":
            return 1_500, 1e9 / (0.95 * gpu.pcie_bytes_per_s), 0.2
    return 4_000, 1e9 / min(10e9, gpu.pcie_bytes_per_s), 0.5  # through a bounce buffer


@cache
def _measured() -> Mapping[str, Mapping[str, Mapping[int, float]]]:
    """Mean nanoseconds by way, GPU and bytes."""
    sums: dict[str, dict[str, dict[int, list[tuple[float, int]]]]] = defaultdict(dict)
    for one in package_tables.copies():
        for way in _ways(one):
            sums[way].setdefault(one.gpu, {}).setdefault(one.bytes, []).append((one.ns, one.count))
    return {way: {gpu: _means(sizes) for gpu, sizes in gpus.items()} for way, gpus in sums.items()}


def _means(sizes: Mapping[int, list[tuple[float, int]]]) -> dict[int, float]:
    return {n: sum(ns * count for ns, count in seen) / sum(count for _, count in seen) for n, seen in sizes.items()}


def _ways(one: package_tables.Copy) -> Iterator[str]:
    """The ways that a point tells about."""
    if one.signature.name != "d2d":
        yield way_of(one.signature)
        return
    if one.bytes not in _APART or one.bytes % PAGE == 0:
        yield "d2d"
    if one.bytes not in _APART or one.bytes % PAGE != 0:
        yield "d2d parts"


def _known(way: str, gpu: Gpu) -> dict[int, float]:
    """Nanoseconds by bytes: the GPU's own, and those of other GPUs, carried over, at sizes where it has none."""
    measured = _measured().get(way, {})
    carried: dict[int, list[float]] = defaultdict(list)
    for key, sizes in measured.items():
        for n, ns in sizes.items():
            carried[n].append(_carried(way, n, ns, catalogue.gpu(key), gpu))
    return {n: statistics.fmean(ns) for n, ns in carried.items()} | dict(measured.get(gpu.key, {}))


def _merged(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The points, with those of about the same size replaced by their mean."""
    groups: list[list[tuple[int, float]]] = []
    for point in points:
        if groups and point[0] <= _SAME * groups[-1][0][0]:
            groups[-1].append(point)
        else:
            groups.append([point])
    return [(round(statistics.fmean(n for n, _ in g)), statistics.fmean(ns for _, ns in g)) for g in groups]


def _carried(way: str, n: int, ns: float, source: Gpu, target: Gpu) -> float:
    """A point of another GPU, carried over: copies within the device scale with its memory, others with the bus."""
    if source.key == target.key:
        return ns
    if way in ("set", "d2d", "d2d parts"):
        return carried_ns(ns, n * (1 + (way != "set")), "fp32_simt", source, target)
    here, there = (floor + slope * n for floor, slope, _ in (_formula(way, source), _formula(way, target)))
    return ns * there / here


def _left_out(points: list[tuple[int, float]]) -> float:
    """How far a point is from the line between its neighbours, on average. What lies between the points is nearer."""
    if len(points) < 3:
        return 0.0
    n, ns = np.array(points, np.float64).T
    line = ns[:-2] + (ns[2:] - ns[:-2]) * (n[1:-1] - n[:-2]) / (n[2:] - n[:-2])
    return float(np.mean(np.abs(line / ns[1:-1] - 1)))
