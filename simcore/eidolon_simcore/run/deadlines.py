"""Timeouts of process groups, in virtual time: when torch's NCCL watchdog ends a rank.

A program names the timeouts of its process groups (signatures of kind ``timeout``). A collective that has not ended by
the time of its call plus the timeout of its group is *overdue*: on a real cluster, the watchdog of the rank that made
the call would end its process now. Which timeout is that of which group only torch knows, so the core tells the rank
for how long the call has been under way, and torch decides (``interposer/native/core/timeout.cpp``). Meanwhile virtual
time stands still: what lies beyond the deadline is not answered to anybody. Then one of two things comes:

* The rank says that the timeout is over. Its process ends, as it would on a real cluster, and the run with it. torch
  takes its time for that: it writes what its ranks were doing, which may take a minute.
* The rank says that torch lets the call go on, or says nothing for :data:`SAYS_S`, since no watchdog looks at the call;
  or it has not ended :data:`ENDS_S` later, since the program told the watchdog to end nothing. Then the run goes on.

Calls become overdue in three ways:

* **It ended later** than its deadline. Final spans say so, and they are looked at before an answer takes a rank's clock
  far ahead.
* **Time has passed** its deadline: nothing before the horizon can change any more.
* **Nothing goes on**: every rank waits or sleeps. Then time goes on to the earliest deadline (:meth:`Deadlines.next`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.engine.interface import Answer, NetworkEngine, Op, OpenCall
from eidolon_simcore.ledger.labels import Labels
from eidolon_simcore.run.collectives import Collectives
from eidolon_simcore.run.effects import COMM_LANES
from eidolon_simcore.run.membership import Membership
from eidolon_simcore.run.outbox import Outbox
from eidolon_simcore.run.who_waits import listed

LOOK_EVERY_S = 0.5  #: interval between looks at the calls that have not ended
SAYS_S = 30.0  #: how long a rank has to say what torch decides; its watchdog looks every 0.1 s
ENDS_S = 300.0  #: how long its process may then take to end


@dataclass(frozen=True, slots=True)
class Overdue:
    """A call that may have been under way for too long."""

    rank: int
    seq: int
    issue_ns: int  #: host time of the call
    timeout_ns: int  #: the shortest of the program's timeouts that is over
    waited_ns: int  #: for how long it has been under way at least
    text: str  #: what the rank does, in words

    @property
    def at_ns(self) -> int:
        """When the timeout is over."""
        return self.issue_ns + self.timeout_ns


class Deadlines:
    """See the module's docstring."""

    def __init__(
        self, engine: NetworkEngine, ranks: Membership, collectives: Collectives, labels: Labels, outbox: Outbox
    ) -> None:
        self._engine = engine
        self._ranks = ranks
        self._collectives = collectives
        self._labels = labels
        self._outbox = outbox
        self._kept: dict[tuple[int, int], int] = {}  # (rank, seq) -> for how long torch let it go on, in ns
        self._silent: set[int] = set()  # ranks whose watchdog says nothing
        self._now = self._looked_at = self._until = 0.0  # in seconds of a monotonic clock
        #: the call that a rank was told of, and that it has not decided about
        self.overdue: Overdue | None = None
        #: the last one that a rank was told of and did not say that it goes on
        self.last: Overdue | None = None

    # ---- what is overdue ------------------------------------------------------------------------------------------

    def timeout_ns(self, rank: int) -> int | None:
        """The shortest timeout of a rank's process groups; None if it has none, or nobody who would act on it."""
        session = self._ranks.sessions.get(rank)
        if session is None or rank in self._silent:
            return None
        return session.shortest_timeout_ns

    def ended(self, rank: int, spans: NDArray[np.void]) -> None:
        """Final spans of a rank: did one of its calls end too late?"""
        shortest_ns = self.timeout_ns(rank)
        # No call that begins with or after the first of the spans is late if none ends late enough.
        if shortest_ns is None or int(spans["end_ns"].max()) - int(spans[0]["issue_ns"]) < shortest_ns:
            return
        lasted_ns = spans["end_ns"] - spans["issue_ns"]
        late = (spans["op"] == Op.COLLECTIVE) & (lasted_ns >= shortest_ns) & (spans["lane"] < COMM_LANES)
        for span, waited_ns in zip(spans[late], lasted_ns[late].tolist(), strict=True):
            name = self._labels.names[int(span["label"])].removeprefix("collective ") or "a collective"
            text = f"waits in {name} for {waited_ns / 1e9:.3f} s of virtual time"
            call = OpenCall(int(span["seq"]), int(span["issue_ns"]), int(span["lane"]))
            self._suspect(rank, call, waited_ns, text)

    def look(self, now: float) -> None:
        """At least every 10 ms, ``now`` in seconds of a monotonic clock: has time passed the deadline of a call? And
        has a rank said nothing for too long?"""
        self._now = now
        if self.overdue is not None:
            if now > self._until:
                self._silent.add(self.overdue.rank)
                self.last = None
                self._over()
            return
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        timeouts = {rank: ns for rank in self._ranks.live() if (ns := self.timeout_ns(rank)) is not None}
        if not timeouts:
            return
        horizon_ns = self._engine.horizon()
        if horizon_ns < min(timeouts.values()):
            return
        for rank, shortest_ns in timeouts.items():
            for call in self._engine.open_calls(rank):
                if call.lane < COMM_LANES and horizon_ns - call.issue_ns >= shortest_ns:
                    self._suspect(rank, call, horizon_ns - call.issue_ns, self._waits(rank, call.seq))

    def next(self) -> bool:
        """Nothing goes on: time goes on to the earliest deadline. False if there is none."""
        if self.overdue is not None:
            return True
        found = [
            (call.issue_ns + min(session.timeouts_ns), rank, call)
            for rank, session in self._ranks.sessions.items()
            if not session.left and self.timeout_ns(rank) is not None
            for call in self._calls(rank)
            if self._kept.get((rank, call.seq), 0) < max(session.timeouts_ns)
        ]
        if not found:
            return False
        _, rank, call = min(found, key=lambda entry: entry[:2])
        longest_ns = max(self._ranks.sessions[rank].timeouts_ns)
        self._suspect(rank, call, longest_ns, self._waits(rank, call.seq))
        return self.overdue is not None

    def _calls(self, rank: int) -> Iterator[OpenCall]:
        """Calls of a rank that have not ended, also those that the engine has not issued yet."""
        issued = {call.seq: call for call in self._engine.open_calls(rank) if call.lane < COMM_LANES}
        yield from issued.values()
        for blocked in self._collectives.incomplete({rank}):
            if blocked.seq not in issued:
                yield OpenCall(blocked.seq, self._engine.clock(rank), 0)

    def _waits(self, rank: int, seq: int) -> str:
        found = next((b for b in self._collectives.incomplete({rank}) if b.seq == seq), None)
        if found is None:
            return "waits in a collective"
        return f"waits in {self._collectives.describe(found.collective)} for rank {listed(found.missing)}"

    def _suspect(self, rank: int, call: OpenCall, waited_ns: int, text: str) -> None:
        """Tells the rank, unless another was told of an earlier deadline, or torch lets this call go on."""
        kept_ns = self._kept.get((rank, call.seq), 0)
        over = [ns for ns in self._ranks.sessions[rank].timeouts_ns if kept_ns < ns <= waited_ns]
        if not over or self._ranks.sessions[rank].left:
            return
        overdue = Overdue(rank, call.seq, call.issue_ns, min(over), waited_ns, text)
        if self.overdue is not None and self.overdue.at_ns <= overdue.at_ns:
            return
        self._over()
        self.overdue = self.last = overdue
        self._until = self._now + SAYS_S
        self._tell(overdue, waited_ns)

    # ---- what becomes of it ---------------------------------------------------------------------------------------

    def withholds(self, answer: Answer) -> bool:
        """Whether time stands still before this answer, to a foreground thread."""
        return self.overdue is not None and answer.clock_ns > self.overdue.at_ns

    def decided(self, rank: int, seq: int, *, over: bool) -> None:
        """Torch has decided about a rank's call: its timeout is over, or it goes on."""
        overdue = self.overdue
        if overdue is None or (overdue.rank, overdue.seq) != (rank, seq):
            return
        if over:
            self._until = self._now + ENDS_S
            return
        self._kept[rank, seq] = overdue.waited_ns
        self.last = None
        self._over()

    def _over(self) -> None:
        if self.overdue is not None:
            self._tell(self.overdue, 0)
            self.overdue = None

    def _tell(self, overdue: Overdue, waited_ns: int) -> None:
        session = self._ranks.sessions[overdue.rank]
        self._outbox.next(session.server).overdue.add(session=session.number, seq=overdue.seq, waited_ns=waited_ns)

    def reason(self, server: int) -> str:
        """What has ended a rank of this server, if that was a timeout; otherwise empty."""
        last = self.last
        if last is None or self._ranks.sessions[last.rank].server != server:
            return ""
        return (
            f"rank {last.rank} was ended by torch's NCCL watchdog: it {last.text}, and the timeout of its process "
            f"group was over {last.at_ns / 1e9:.3f} s after the start of the run"
        )
