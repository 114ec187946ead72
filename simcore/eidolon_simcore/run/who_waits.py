"""Which ranks wait, for what, and which could still go on: for the messages of a run that does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eidolon_simcore.engine.interface import Blocked, Engine
from eidolon_simcore.run.collectives import Collectives
from eidolon_simcore.run.membership import Membership

MOST_NAMED = 16  #: ranks and waits that a message names


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the live ranks stand."""

    blocked: list[Blocked]  #: collectives that wait for members
    asking: list[int]  #: ranks that wait for an answer
    busy: list[int]  #: ranks that neither wait nor sleep
    alone: list[Blocked]  #: calls of ranks that sleep, which other members have not made


class WhoWaits:
    """Looks who waits, and says so."""

    def __init__(self, engine: Engine, ranks: Membership, collectives: Collectives) -> None:
        self._engine = engine
        self._ranks = ranks
        self._collectives = collectives

    def standing(self) -> Standing:
        """Where the live ranks stand now."""
        sessions = self._ranks.sessions
        live, blocked = self._ranks.live(), self._engine.blocked()
        asking = {rank for rank in live if sessions[rank].delivery.waits} | {b.rank for b in blocked}
        idle = {rank for rank, session in sessions.items() if session.idle}
        alone = self._collectives.incomplete(live & idle - asking)
        return Standing(blocked, sorted(asking), sorted(live - asking - idle), alone)

    def text(self, standing: Standing) -> str:
        """The same in one line."""
        # The engine brings a rank that collectives slow down to the present only, and maybe not yet to its wait.
        unmatched = self._collectives.incomplete(set(standing.asking) - {b.rank for b in standing.blocked})
        blocked = standing.blocked + unmatched + standing.alone
        others = [rank for rank in standing.asking if rank not in {b.rank for b in blocked}]
        parts = [f"rank {listed(others)} waits for what is under way"] if others else []
        if standing.alone:
            parts.append(f"rank {listed(sorted({b.rank for b in standing.alone}))} sleeps")
        if standing.busy:
            clocks = ", ".join(f"{self._engine.clock(rank) / 1e6:.3f} ms" for rank in standing.busy[:MOST_NAMED])
            parts.append(f"rank {listed(standing.busy)} makes no calls (at {clocks})")
        parts += [self._wait(b) for b in sorted(blocked, key=lambda b: (b.rank, b.collective))[:MOST_NAMED]]
        parts += self._collectives.waiting_for_members()
        parts += filter(None, map(self._ranks.death, sorted({rank for b in blocked for rank in b.missing})))
        return "; ".join(parts) or "no rank waits for another"

    def _wait(self, blocked: Blocked) -> str:
        text = f"rank {blocked.rank} waits in {self._collectives.describe(blocked.collective)}"
        if not blocked.missing:
            return text
        sessions = self._ranks.sessions
        left = [rank for rank in blocked.missing if (s := sessions.get(rank)) is not None and s.left]
        return f"{text} for rank {listed(blocked.missing)}" + (f" (rank {listed(left)} has left)" if left else "")


def listed(numbers: Sequence[int]) -> str:
    """Numbers as a message names them: the first few, and how many more there are."""
    shown = ", ".join(map(str, numbers[:MOST_NAMED]))
    return shown if len(numbers) <= MOST_NAMED else f"{shown} and {len(numbers) - MOST_NAMED} more"
