"""How a run ends: in which state, why, and who is told to stop.

A run ends once. What comes after that changes nothing, but for the judgement of a strict run, which is made when all
is added up.
"""

from __future__ import annotations

from collections.abc import Iterable

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.run.outbox import Outbox
from eidolon_simcore.run.server import Server

STOP_OTHERS_S = 5.0  #: how long the others may go on by themselves once a workload has failed: they may say more
DRAIN_S = 30.0  #: how long servers may take to say goodbye once the run is over


class Ending:
    """The end of a run, or that it has not come yet. ``now`` arguments are seconds of a monotonic clock."""

    def __init__(self, outbox: Outbox, servers: Iterable[Server]) -> None:
        self._outbox = outbox
        self._servers = tuple(servers)
        self.state: str | None = None  #: ``Succeeded`` or ``Failed``; None while the run goes on
        self.cause: Cause | str = ""  #: why it ended, in a word
        self.reason = ""  #: and in a line
        self._over_at: float | None = None
        self._stopped = False

    def fail(self, reason: str, now: float, *, cause: Cause, stop: bool = True) -> None:
        """The run has failed; only the first reason counts. ``stop`` False lets other servers end by themselves for
        a while."""
        self._end("Failed", cause, " ".join(reason.split()), now, stop=stop)

    def succeed(self, reason: str, now: float, *, cause: Cause) -> None:
        """What was asked for is done."""
        self._end("Succeeded", cause, reason, now, stop=True)

    def _end(self, state: str, cause: Cause, reason: str, now: float, *, stop: bool) -> None:
        if self.state is not None:
            return
        self.state, self.cause, self.reason, self._over_at = state, cause, reason, now
        if stop:
            self._stop_all()

    def stop_others(self, now: float) -> None:
        """Stops the servers that were let go on, once their time is over."""
        if self._over_at is not None and not self._stopped and now - self._over_at > STOP_OTHERS_S:
            self._stop_all()

    def stop(self, server: Server) -> None:
        """Tells a server to stop, and why."""
        stop = pb.Stop(session=0, failed=self.state == "Failed", reason=self.reason)
        self._outbox.next(server.index).stop.CopyFrom(stop)
        self._outbox.flush()

    def _stop_all(self) -> None:
        self._stopped = True
        for server in self._servers:
            self.stop(server)

    def drained(self, now: float) -> bool:
        """True once every server has said goodbye, or had its time to after the run was over."""
        waiting = [server for server in self._servers if server.exit_code is None]
        if not waiting:
            return True
        if self._over_at is None:
            return False
        return now - self._over_at > DRAIN_S or all(server.send is None for server in waiting)

    def judge(self, doubts: Iterable[str], *, strict: bool) -> None:
        """Makes the state final. A doubt about the results fails a strict run; in others it is stated."""
        for text in doubts:
            if strict and self.state in (None, "Succeeded"):
                self.state, self.cause, self.reason = "Failed", Cause.STRICT_COST, text
            elif not self.reason:
                self.reason = text
        if self.state is None:
            self.state, self.cause = "Succeeded", Cause.WORKLOADS_ENDED
