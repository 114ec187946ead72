"""Which ranks take part in a run: how they join, get their numbers, and leave.

A process of a server becomes a rank when it joins with a session. Ranks that are expected but have not joined are known
to the engine too, so that it waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.core_plan import Plan
from eidolon_simcore.engine.interface import NetworkEngine
from eidolon_simcore.ledger.books import Books
from eidolon_simcore.run.server import Server
from eidolon_simcore.run.session import Session
from eidolon_simcore.run.validation import InvalidBatchError

MAX_SESSIONS = 4_096  #: of one server
MAX_RANK = 1 << 20  #: numbers from here on are not believed
FALLOUT_S = 10.0  #: whoever leaves within this time of another may have been ended because of that one


class WorldSizeError(Exception):
    """A rank says that there are other ranks than the run has."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A rank has left. ``how`` says in words that its process died, and how; it is empty if the rank left in order."""

    server: int
    rank: int
    how: str
    at: float


class Membership:
    """The ranks of a run. ``now`` arguments are seconds of a monotonic clock.

    Args:
        rates: number of the engine's table of rates, for every rank.
        open_session: makes the session of a rank that joins, given the rank, its server and the session's number.
    """

    def __init__(
        self,
        plan: Plan,
        engine: NetworkEngine,
        books: Books,
        rates: int,
        open_session: Callable[[int, Server, int], Session],
        now: float,
    ) -> None:
        self._ranks_per_server = plan.ranks_per_server
        self._planned = plan.world
        self._sizes = plan.class_sizes
        self._folded = frozenset(plan.processes) if plan.fold is not None else None
        self._engine = engine
        self._books = books
        self._rates = rates
        self._open_session = open_session
        self._known: set[int] = set()  # ranks that the engine knows
        self._pids: dict[int, int] = {}  # processes of ranks, as these know themselves
        self._leavings: list[Leaving] = []  # in the order in which they were told
        self.sessions: dict[int, Session] = {}  #: by rank: those that have joined
        self._world: range | frozenset[int] = range(1)  # the ranks that are expected, as far as is known
        self.expected = 1  #: how many ranks there are, as far as is known
        self.first_joined_at: float | None = None
        self.acted_at = now  #: when a rank last did something, or a server or a rank came

    # ---- coming and going -----------------------------------------------------------------------------------------

    def join(self, server: Server, joined: pb.RankJoined, now: float) -> None:
        """A rank joins, or joins again behind a new agent. Raises :class:`WorldSizeError`."""
        known = server.sessions.get(joined.session)
        if known is not None:
            known.delivery.resume(joined.delivered)
            return
        if not 0 < joined.session <= MAX_SESSIONS:
            raise InvalidBatchError(f"session {joined.session}")
        if self._folded is not None:
            self._check_folded(joined, self._folded)
        rank = self._number(server, joined)
        self._add(rank)
        if joined.world > self.expected and joined.rank >= 0:
            if joined.world > self._planned:
                text = f"rank {joined.rank} says WORLD_SIZE={joined.world}, the run has {self._planned} ranks"
                raise WorldSizeError(text)
            self._world = range(joined.world) if self._folded is None else self._folded
            self.expected = len(self._world)
            for other in self._world:
                self._add(other)
        self._books.steps.expect(self.expected)
        self._books.steps.join(rank, self._sizes.get(rank, 1))
        session = self._open_session(rank, server, joined.session)
        server.sessions[joined.session] = self.sessions[rank] = session
        self._pids[rank] = joined.pid
        if self.first_joined_at is None:
            self.first_joined_at = now

    def _check_folded(self, joined: pb.RankJoined, processes: frozenset[int]) -> None:
        """A process of a folded run has to be one of the ranks that run."""
        if joined.rank in processes and joined.world == self._planned and joined.rank not in self.sessions:
            return
        says = f"process {joined.pid} is rank {joined.rank} of {joined.world}"
        if joined.rank < 0:
            says = f"process {joined.pid} has no RANK"
        raise WorldSizeError(
            f"{says}; a folded run of {self._planned} ranks has one process for each of its {len(processes)} classes, "
            "which torchrun or the plain launcher starts"
        )

    def _number(self, server: Server, joined: pb.RankJoined) -> int:
        """The rank's number: RANK of the environment, or else the order of joining. If the number is taken, it gets the
        next one beyond the world.
        """
        rank = joined.rank if joined.rank >= 0 else server.index * self._ranks_per_server + joined.session - 1
        if rank in self.sessions or rank >= MAX_RANK:
            rank = max(self._planned, max(self._known, default=-1) + 1)
        return rank

    def _add(self, rank: int) -> None:
        if rank not in self._known:
            self._known.add(rank)
            self._engine.add_rank(rank)
            self._engine.set_rates(rank, self._rates)

    def leave(self, session: Session, records: int, now: float, how: str = "") -> None:
        """A rank has ended after so many records; ``how``: in words, if its process died."""
        if session.left:
            return
        if records > session.next_seq:
            raise InvalidBatchError(
                f"rank {session.rank} left after {records} records, of which {session.next_seq} came"
            )
        session.left = True
        self._leavings.append(Leaving(session.server, session.rank, how, now))
        self._engine.end_rank(session.rank)
        self._books.steps.leave(session.rank)
        self._books.memory.left(session.rank)

    def goodbye(self, server: Server, now: float) -> None:
        """A server's workload has ended: its ranks have left, and those that have not joined never will."""
        for session in server.sessions.values():
            self.leave(session, 0, now)
        first = server.index * self._ranks_per_server
        for rank in range(first, first + self._ranks_per_server):
            if rank in self._known and rank not in self.sessions:
                self._engine.end_rank(rank)

    # ---- who is there ---------------------------------------------------------------------------------------------

    def death(self, rank: int) -> str:
        """How the rank's process died, with its number; empty if it has not died."""
        how = next((one.how for one in self._leavings if one.rank == rank), "")
        return f"rank {rank} (process {self._pids[rank]}) {how}" if how else ""

    def casualty(self, server: int) -> str:
        """The rank whose death was the first of what has last happened on a server, and how it died; empty if none
        died, or others left before it. What starts ranks ends them all once one has failed, and may itself take long
        to end."""
        first: Leaving | None = None
        before = float("-inf")
        for one in (one for one in self._leavings if one.server == server):
            if one.at - before > FALLOUT_S:
                first = one
            before = one.at
        return self.death(first.rank) if first is not None else ""

    def absent(self) -> list[int]:
        """Expected ranks that have not joined."""
        return sorted(rank for rank in self._known if rank in self._world and rank not in self.sessions)

    def of_process(self, server: int, pid: int) -> int | None:
        """The rank that a process of a server is, the last one with that number; None if it is none."""
        found = [
            rank for rank, session in self.sessions.items() if session.server == server and self._pids[rank] == pid
        ]
        return found[-1] if found else None

    def live(self) -> set[int]:
        """Ranks that have joined and not left."""
        return {rank for rank, session in self.sessions.items() if not session.left}

    def counts(self) -> dict[str, int]:
        """How many ranks are expected, have joined, have left."""
        left = sum(session.left for session in self.sessions.values())
        return {"expected": self.expected, "joined": len(self.sessions), "left": left}
