"""Where a rank's real time goes while its calls wait.

A rank's own processor works at the framework's pace. What a simulation costs beyond that are the waits: a call that
must have an answer, like ``cudaStreamSynchronize``, waits until the core knows it. The shim measures those waits. Why
the core does not know an answer yet is seen at every tick, as samples:

* ``peers``: the call depends on a collective that another rank has not issued yet, or on bytes that it brings;
* ``horizon``: all that it depends on is known, but what other ranks do until then could still change its time.

What is left of the waits for answers is ``ingest``: the records' way to the core, the core's own work, and the answer's
way back. Two more waits are measured alone: for ``room`` in the ring, which the agent makes, and for ``watchers``,
the threads of the rank that watch collectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eidolon_simcore.engine.interface import Engine
from eidolon_simcore.run.session import Session

WAITS = ("peers", "horizon", "ingest", "room", "watchers")


@dataclass(slots=True)
class Waits:
    """One rank's real time, in seconds."""

    joined_at: float
    left_at: float | None = None
    seen: dict[str, float] = field(default_factory=lambda: {"peers": 0.0, "horizon": 0.0})
    measured: tuple[float, float, float] = (0.0, 0.0, 0.0)  #: for answers, room and watchers; known when it leaves

    def entry(self, rank: int, now: float) -> dict[str, Any]:
        """As it stands in the summary. Samples may see more than was measured: they are scaled to it."""
        answers, room, watchers = self.measured
        sampled = sum(self.seen.values())
        scale = min(1.0, answers / sampled) if sampled else 0.0
        parts = {
            **{reason: seen * scale for reason, seen in self.seen.items()},
            "ingest": max(0.0, answers - sampled),
            "room": room,
            "watchers": watchers,
        }
        whole = (now if self.left_at is None else self.left_at) - self.joined_at
        return {"rank": rank, "s": round(whole, 3), **{f"{name}_s": round(parts[name], 3) for name in WAITS}}


class RealTime:
    """Real time of all ranks. ``now`` arguments are seconds of a monotonic clock."""

    def __init__(self, engine: Engine, sessions: Mapping[int, Session], now: float) -> None:
        self._engine = engine
        self._sessions = sessions
        self._ranks: dict[int, Waits] = {}
        self._looked_at = now

    def joined(self, rank: int, now: float) -> None:
        """A rank has joined."""
        self._ranks.setdefault(rank, Waits(now))

    def left(self, rank: int, now: float, answer_ns: int, room_ns: int, watcher_ns: int) -> None:
        """A rank has left; these are the waits that its shim measured."""
        waits = self._ranks[rank]
        if waits.left_at is None:
            waits.left_at = now
            waits.measured = answer_ns / 1e9, room_ns / 1e9, watcher_ns / 1e9

    def look(self, now: float) -> None:
        """A sample: why those wait that wait now."""
        elapsed, self._looked_at = now - self._looked_at, now
        waiting = {rank: session.delivery.held for rank, session in self._sessions.items() if session.delivery.waits}
        if not waiting:
            return
        unmatched = {blocked.rank for blocked in self._engine.blocked()}
        for rank, held in waiting.items():
            self._ranks[rank].seen["peers" if held or rank in unmatched else "horizon"] += elapsed

    def entries(self, now: float) -> list[dict[str, Any]]:
        """For the summary: an entry for each rank, in seconds, in order of the ranks."""
        return [self._ranks[rank].entry(rank, now) for rank in sorted(self._ranks)]
