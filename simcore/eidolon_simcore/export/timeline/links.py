"""How much links carry over time, from the collectives that used them.

The engine shares links anew at every instant, but the recording only keeps what each collective put on each link, and
when it began and ended on every member. So the counter of a link is the sum of the *mean* rates of the collectives
under way. Its integral is exact; what happened within one collective is averaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.engine.interface import Op
from eidolon_simcore.export.timeline.reading import Timeline

MOST_LINKS: Final = 64  #: how many links get a counter: those that carry most


class Links:
    """Collects spans of collectives, and then gives the counters."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._seen: dict[int, tuple[int, int]] = {}  # call -> latest start, end

    def take(self, spans: dict[str, NDArray[Any]]) -> None:
        """Takes spans of all members. A collective begins when its last member comes to it."""
        at = (spans["op"] == Op.COLLECTIVE) & (spans["call"] > 0)
        ends = spans["start"][at] + spans["length"][at]
        for call, start, end in zip(
            spans["call"][at].tolist(), spans["start"][at].tolist(), ends.tolist(), strict=True
        ):
            known = self._seen.get(call)
            self._seen[call] = (start, end) if known is None else (max(start, known[0]), max(end, known[1]))

    def counters(self, window: tuple[int, int]) -> Iterator[tuple[str, int, list[tuple[int, float]]]]:
        """(name, bytes carried in the window's collectives, [(time in ns, bytes/s from then on)]) of each link."""
        changes: dict[int, list[tuple[int, float]]] = {}
        carried: dict[int, int] = {}
        for call, _, _, _, _, number in self._timeline.rows("calls"):
            seen = self._seen.get(call)
            pattern = self._timeline.patterns[number]
            if seen is None or not pattern["links"]:
                continue
            end = seen[1]
            start = min(seen[0] + pattern["latency_ns"], end - 1)
            for link, count in zip(pattern["links"], pattern["bytes"], strict=True):
                rate = count * 1e9 / (end - start)
                changes.setdefault(link, []).extend(((start, rate), (end, -rate)))
                carried[link] = carried.get(link, 0) + count
        for link in sorted(sorted(carried, key=lambda link: (-carried[link], link))[:MOST_LINKS]):
            yield self._timeline.links[link]["name"], carried[link], _levels(changes[link])


def _levels(changes: list[tuple[int, float]]) -> list[tuple[int, float]]:
    times, deltas = (np.array(column) for column in zip(*changes, strict=True))
    order = np.argsort(times, kind="stable")
    times, levels = times[order], np.cumsum(deltas[order])
    last = np.append(times[1:] != times[:-1], True)  # of several changes at one time, only their result counts
    levels = np.where(np.abs(levels) < 1, 0.0, levels)  # less than a byte/s is an error of rounding
    return list(zip(times[last].tolist(), levels[last].tolist(), strict=True))
