"""Measured durations, and what lies between them.

A table holds *points*: pieces of work whose time on a real GPU is known. For a new piece of work of the same group the
logarithm of ``measured / analytic`` is interpolated by weighted local linear regression in the logarithms of its sizes,
and is applied to the analytic time. So the analytic model gives the course of the times between and beyond the points,
and from one GPU to another, and the points add what the model does not know. Each figure comes with its own expected
error, which depends on the spread of the points around the fit and on the distance to the nearest one.

Points that were measured on another GPU and *carried* over (:mod:`.carrying`) count less than the GPU's own, and never
as measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = 24
BANDWIDTH = 0.30  #: width of the weights, in natural logarithms of sizes
RIDGE = 0.1  #: keeps slopes near zero where there are few points, since the analytic model has the slope already
EXACT = 1e-3  #: distance within which a point is the same work
REACH = 1.6  #: distance beyond which a figure is no interpolation
LEAST_ERROR = 0.02  #: by how much a measurement differs between machines
CARRIED_ERROR = 0.035  #: error of a measurement that was carried over from another GPU with the same SMs
CARRIED_WEIGHT = 0.3  #: weight of a carried point beside the GPU's own


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work: the group of points that tell about it, its sizes, and its analytic time."""

    group: str
    sizes: tuple[float, ...]  #: logarithms
    analytic_ns: float
    kin: str = ""  #: a wider group, with other work of the same template


@dataclass(frozen=True, slots=True)
class Known:
    """Work that was measured ``count`` times, with the mean nanoseconds. ``carried`` if it was on another GPU."""

    work: Work
    ns: float
    count: int = 1
    carried: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """Nanoseconds, their source, and the expected relative error. ``own`` if the nearest point is the GPU's own."""

    ns: float
    source: str
    error: float
    own: bool = True


class Points:
    """All points, by group. Work that was measured more than once is one point with the mean time: one signature may
    stand for launches of two lengths, and what counts is the sum over a step. Where the GPU's own times are known,
    carried ones of the same work are left out."""

    def __init__(self, points: Iterable[Known]) -> None:
        self._known: dict[Work, Estimate | None] = {}
        sums: dict[str, dict[tuple[tuple[float, ...], bool], list[float]]] = {}
        for one in points:
            for group in filter(None, (one.work.group, one.work.kin)):
                entry = sums.setdefault(group, {}).setdefault((one.work.sizes, one.carried), [0.0, 0.0])
                entry[0] += one.count
                entry[1] += one.count * one.ns / one.work.analytic_ns
        # The usual case is looked up at once: by group and sizes, the logarithm of the ratio, and whether it is own.
        self._same: dict[tuple[str, tuple[float, ...]], tuple[float, bool]] = {}
        self._groups: dict[str, tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]] = {}
        for group, entries in sums.items():
            kept = {key: pair for key, pair in entries.items() if not (key[1] and (key[0], False) in entries)}
            sizes = np.array([key[0] for key in kept], np.float64)
            ratios = np.log(np.array([total / count for count, total in kept.values()], np.float64))
            for key, ratio in zip(kept, ratios.tolist(), strict=True):
                self._same[group, key[0]] = ratio, not key[1]
            self._groups[group] = sizes, ratios, np.array([not key[1] for key in kept], np.bool_)

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def estimate(self, work: Work) -> Estimate | None:
        """The time of a piece of work; None if nothing of its kind was measured. Estimates are kept, since all ranks
        ask for the same work."""
        if work not in self._known:
            self._known[work] = self._estimate(work)
        return self._known[work]

    def _estimate(self, work: Work) -> Estimate | None:
        known = self._same.get((work.group, work.sizes))
        if known is not None:
            ratio, own = known
            source, error = ("measured", LEAST_ERROR) if own else ("interpolated", CARRIED_ERROR)
            return Estimate(work.analytic_ns * math.exp(ratio), source, error, own)
        same = self._groups.get(work.group)
        found = same or self._groups.get(work.kin)
        if found is None:
            return None
        sizes, ratios, owned = found
        offsets = sizes - np.array(work.sizes)
        distances = np.sqrt((offsets**2).sum(1))
        count = min(NEIGHBOURS, len(distances))
        nearest = np.argpartition(distances, count - 1)[:count]
        least = float(distances[nearest].min())
        if least < EXACT and same is not None:
            exact = distances < EXACT
            if (exact & owned).any():
                ns = work.analytic_ns * math.exp(float(np.mean(ratios[exact & owned])))
                return Estimate(ns, "measured", LEAST_ERROR)
            ns = work.analytic_ns * math.exp(float(np.mean(ratios[exact])))
            return Estimate(ns, "interpolated", CARRIED_ERROR, own=False)
        trust = np.where(owned[nearest], 1.0, CARRIED_WEIGHT)
        ratio, spread = _local_linear(offsets[nearest], ratios[nearest], distances[nearest], trust, least)
        error = math.hypot(LEAST_ERROR, spread, 0.03 * least)
        source = "interpolated" if least <= REACH else "roofline"
        own = bool(owned[distances.argmin()])
        return Estimate(work.analytic_ns * math.exp(ratio), source, error, own)


def _local_linear(
    offsets: NDArray[np.float64],
    ratios: NDArray[np.float64],
    distances: NDArray[np.float64],
    trust: NDArray[np.float64],
    least: float,
) -> tuple[float, float]:
    width = max(BANDWIDTH, 0.7 * least)  # where all points are far away, all of them count
    weights = trust * (np.exp(-(distances**2 - least**2) / (2 * width**2)) + 1e-9)
    columns = np.concatenate([np.ones((len(ratios), 1)), offsets], axis=1)
    weighted = weights[:, None] * columns
    ridge = np.diag([1e-9] + [RIDGE * float(weights.sum()) / 4 + RIDGE] * offsets.shape[1])
    solution = np.linalg.solve(columns.T @ weighted + ridge, weighted.T @ ratios)
    left = ratios - columns @ solution
    spread = math.sqrt(float((weights * left**2).sum() / weights.sum()))
    low, high = float(ratios.min()), float(ratios.max())
    return min(max(float(solution[0]), low - 0.05), high + 0.05), spread
