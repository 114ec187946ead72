"""What ends a run that cannot go on: a list of checks, each with its limit, made every 10 ms in this order.

A watchdog is called with the time, in seconds of a monotonic clock, and says why the run has failed, or None. So a run
never hangs: whatever it waits for, one of them is counting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eidolon_simcore.core_plan import Plan
from eidolon_simcore.engine.interface import Engine
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.run.collectives import Collectives
from eidolon_simcore.run.deadlines import Deadlines
from eidolon_simcore.run.membership import Membership
from eidolon_simcore.run.server import Servers
from eidolon_simcore.run.who_waits import Standing, WhoWaits, listed

OVERDUE_EVERY_S = 1.0  #: interval between checks for ranks that skipped a collective
DIED_S = 2.0  #: a run that waits for a process that died is given up after so long: its server may say more until then


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the run has failed, in a word and in a line."""

    cause: Cause
    reason: str


Watchdog = Callable[[float], Failure | None]


def watchdogs(
    plan: Plan,
    servers: Servers,
    ranks: Membership,
    engine: Engine,
    collectives: Collectives,
    deadlines: Deadlines,
    began_at: float,
) -> tuple[Watchdog, ...]:
    """All of a run, in the order in which they are asked; the first failure counts."""
    who_waits = WhoWaits(engine, ranks, collectives)
    return (
        ServersConnect(plan.startup_timeout_s, servers, began_at),
        RanksStart(plan.startup_timeout_s, servers, ranks),
        RunEndsInTime(plan.time_limit_s, servers, who_waits),
        StreamsComeBack(plan.reconnect_timeout_s, servers),
        SomebodyGoesOn(
            plan.stuck_timeout_s,
            plan.left_timeout_s,
            plan.idle_timeout_s,
            plan.busy_timeout_s,
            ranks,
            who_waits,
            deadlines,
        ),
        NobodySkips(round(plan.missing_virtual_s * 1e9), collectives, engine.clock, began_at),
    )


@dataclass(frozen=True, slots=True)
class ServersConnect:
    """Every server says hello within ``limit_s`` of the beginning."""

    limit_s: float
    servers: Servers
    began_at: float

    def __call__(self, now: float) -> Failure | None:
        absent = self.servers.absent()
        if not absent or now - self.began_at <= self.limit_s:
            return None
        text = f"server {listed(absent)} did not connect within {self.limit_s:g} s"
        return Failure(Cause.SERVERS_NOT_READY, text)


@dataclass(frozen=True, slots=True)
class RanksStart:
    """Every rank joins within ``limit_s`` of the first."""

    limit_s: float
    servers: Servers
    ranks: Membership

    def __call__(self, now: float) -> Failure | None:
        first = self.ranks.first_joined_at
        if first is None or now - first <= self.limit_s:
            return None
        absent = self.ranks.absent()
        if not absent:
            return None
        text = f"rank {listed(absent)} of {self.ranks.expected} did not start within {self.limit_s:g} s of the first"
        return Failure(Cause.RANK_MISSING, text)


@dataclass(frozen=True, slots=True)
class RunEndsInTime:
    """The run ends within ``limit_s`` of when all servers were there; None: it may take as long as it likes."""

    limit_s: float | None
    servers: Servers
    who_waits: WhoWaits

    def __call__(self, now: float) -> Failure | None:
        complete_at = self.servers.complete_at
        if self.limit_s is None or complete_at is None or now - complete_at <= self.limit_s:
            return None
        waits = self.who_waits.text(self.who_waits.standing())
        text = f"the run took longer than {self.limit_s:g} s (spec.timeLimit): {waits}"
        return Failure(Cause.TIME_LIMIT_EXCEEDED, text)


@dataclass(frozen=True, slots=True)
class StreamsComeBack:
    """A server whose stream broke connects again within ``limit_s``."""

    limit_s: float
    servers: Servers

    def __call__(self, now: float) -> Failure | None:
        for server in self.servers.by_index.values():
            if server.lost_at is not None and now - server.lost_at > self.limit_s:
                text = f"server {server.index}: its agent went away without saying goodbye"
                return Failure(Cause.AGENT_LOST, text)
        return None


@dataclass(frozen=True, slots=True)
class SomebodyGoesOn:
    """Not every rank waits for another. That is believed only once nothing has arrived for a while:

    * :data:`DIED_S` where somebody waits for a rank whose process died;
    * ``left_s`` where somebody waits for a rank that has left;
    * ``limit_s`` where every rank waits;
    * ``idle_s`` where the others sleep, and may wake and make the call that is waited for. Ranks that all sleep wait
      for each other too if one of them has made a call that others have not;
    * ``busy_s`` where one computes, and may make that call when it is done.

    Where no process died and nobody computes, time then goes on to the earliest deadline of a process group. Only where
    there is none, or nobody acts on it, the run has failed.
    """

    limit_s: float
    left_s: float
    idle_s: float
    busy_s: float
    ranks: Membership
    who_waits: WhoWaits
    deadlines: Deadlines

    def __call__(self, now: float) -> Failure | None:
        overdue = self.deadlines.overdue
        if overdue is not None and overdue.rank in self.ranks.live():
            return None  # it has its time to decide
        quiet_s = now - self.ranks.acted_at
        if quiet_s < min(self.limit_s, self.left_s, DIED_S):
            return None
        live = self.ranks.live()
        if not live or self.ranks.absent():
            return None  # ranks that have yet to start are the business of RanksStart
        standing = self.who_waits.standing()
        if not standing.asking and not standing.alone:
            return None
        if quiet_s < self._limit_s(standing, live):
            return None
        if not standing.busy and not any(map(self.ranks.death, self._gone(standing, live))) and self.deadlines.next():
            return None
        return Failure(Cause.DEADLOCK, f"no rank can go on: {self.who_waits.text(standing)}")

    @staticmethod
    def _gone(standing: Standing, live: set[int]) -> set[int]:
        return {rank for blocked in standing.blocked for rank in blocked.missing} - live

    def _limit_s(self, standing: Standing, live: set[int]) -> float:
        gone = self._gone(standing, live)
        if gone:
            return DIED_S if any(map(self.ranks.death, gone)) else self.left_s
        if standing.busy:
            return self.busy_s
        return self.limit_s if live <= set(standing.asking) else self.idle_s


@dataclass(slots=True)
class NobodySkips:
    """No rank goes on for ``limit_ns`` of virtual time without a collective that another rank has reached."""

    limit_ns: int
    collectives: Collectives
    clock_ns: Callable[[int], int]  #: by rank
    looked_at: float

    def __call__(self, now: float) -> Failure | None:
        if now - self.looked_at < OVERDUE_EVERY_S:
            return None
        self.looked_at = now
        text = self.collectives.overdue(self.clock_ns, self.limit_ns)
        return None if text is None else Failure(Cause.RANK_MISSING, text)
