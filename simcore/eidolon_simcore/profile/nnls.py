"""Least squares with unknowns that are not negative, for a handful of unknowns. It needs no library."""

from __future__ import annotations

import math
from collections.abc import Sequence

SWEEPS, CLOSE = 200_000, 1e-12


def solve(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """The ``x >= 0`` for which ``rows`` times ``x`` comes closest to ``wanted``.

    Coordinate descent on the normal equations: each unknown in turn takes its best value beside the others, which ends
    at the minimum since the problem is convex. A column of zeros gets 0."""
    count = len(rows[0])
    scale = [math.sqrt(sum(row[j] ** 2 for row in rows)) for j in range(count)]
    used = [j for j in range(count) if scale[j] > 0]
    gram = [[sum(row[i] * row[j] for row in rows) / (scale[i] * scale[j]) for j in used] for i in used]
    pull = [sum(row[j] * y for row, y in zip(rows, wanted, strict=True)) / scale[j] for j in used]
    x = [0.0] * len(used)
    for _ in range(SWEEPS):
        moved = 0.0
        for i, line in enumerate(gram):
            better = max(0.0, x[i] + pull[i] - sum(a * b for a, b in zip(line, x, strict=True)))
            moved = max(moved, abs(better - x[i]))
            x[i] = better
        if moved <= CLOSE * max(1.0, *x):
            break
    found = [0.0] * count
    for j, value in zip(used, x, strict=True):
        found[j] = value / scale[j]
    return found
