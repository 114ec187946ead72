"""A run, from the first hello to the summary. One thread calls it; it knows messages, but not how they travel.

:class:`Simulation` connects the parts of a run and owns none of their business. The way of a round is

    :meth:`~Simulation.message` (any number) → sessions → engine → :meth:`~Simulation.advance` → answers, final steps

and every 10 ms comes a :meth:`~Simulation.tick`. What goes back is handed to each server's ``send``.

========================  =============================================================================================
:mod:`.server`            servers: hello, streams
:mod:`.membership`        ranks: join, leave, numbers
:mod:`.session`           one rank's records become operations of the engine
:mod:`.collectives`       calls of several ranks become one collective
:mod:`.folding`           ranks that are no processes
:mod:`.outbox`            what goes back to the servers
:mod:`.final_results`     final spans and steps
:mod:`.deadlines`         timeouts of process groups, in virtual time
:mod:`.watchdogs`         what ends a run that cannot go on
:mod:`.ending`            why the run ended, and the orderly end of its servers
:mod:`.views`             status, snapshot, summary
:mod:`.real_time`         why ranks wait in real time
========================  =============================================================================================

A run is over when every server has said goodbye, when the steps that were asked for are final, or when something went
wrong: a server's workload failed or was taken down, calls contradict each other, a message breaks the contract, or a
watchdog gave up. So it ends in a stated condition, and never hangs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.core_plan import Plan
from eidolon_simcore.costs.interference import beside_collectives
from eidolon_simcore.costs.model import CostModel
from eidolon_simcore.engine.interface import Answer, NetworkEngine
from eidolon_simcore.export.device_gauges import DeviceGauges
from eidolon_simcore.export.summary import Report
from eidolon_simcore.fabric.network import Network
from eidolon_simcore.fabric.routing import NoRouteError
from eidolon_simcore.ledger.accounts import Accounts
from eidolon_simcore.ledger.books import Books, MakeSink
from eidolon_simcore.ledger.snapshot import Snapshot
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.run.collectives import Collectives
from eidolon_simcore.run.communicators import CollectiveError
from eidolon_simcore.run.deadlines import Deadlines
from eidolon_simcore.run.ending import Ending
from eidolon_simcore.run.exchanges import Exchanges
from eidolon_simcore.run.final_results import FinalResults
from eidolon_simcore.run.folding import Folding
from eidolon_simcore.run.host_times import HostCost
from eidolon_simcore.run.membership import Membership, WorldSizeError
from eidolon_simcore.run.outbox import Outbox
from eidolon_simcore.run.real_time import RealTime
from eidolon_simcore.run.server import RejectedError, Send, Server, Servers
from eidolon_simcore.run.session import Session
from eidolon_simcore.run.validation import InvalidBatchError, LostRecordsError, received
from eidolon_simcore.run.views import Views
from eidolon_simcore.run.watchdogs import watchdogs
from eidolon_simcore.run.world import World

PUBLISH_EVERY_S = 0.010  #: how often ranks' clocks are published, and final spans taken
KILLED = 128  #: exit codes above are those of a process that a signal has ended, as shells state it


class Simulation:
    """See the module's docstring. ``now`` arguments are seconds of a monotonic clock.

    Args:
        version: of eidolon, for the welcome.
        sinks: makers of further consumers of what is final (:mod:`~eidolon_simcore.ledger.sinks`).
        account: False if the accounts of the steps' time are left out, to measure what they cost.
    """

    def __init__(
        self,
        plan: Plan,
        engine: NetworkEngine,
        report: Report,
        *,
        version: str,
        now: float,
        sinks: Sequence[MakeSink] = (),
        account: bool = True,
    ) -> None:
        self.plan = plan
        self._engine = engine
        # An optimistic engine goes back in time, and has to know every link by itself.
        by_class = plan.fold is not None and plan.time_sync == "conservative"
        network = Network(engine, plan.gpu, plan.network, folded=by_class)
        self._books = Books(network, sinks, account=account)
        self._servers = Servers(plan, version)
        self._outbox = Outbox(self._servers.by_index)
        self._ending = Ending(self._outbox, self._servers.by_index.values())
        exchanges = Exchanges(self._deliver, self._awaited)
        folding = Folding(plan.fold, plan.ranks_per_server) if plan.fold is not None else None
        collectives = Collectives(engine, network, exchanges, self._books.sinks.collective, folding)
        host_cost = HostCost.of(plan)
        gpus = {device.gpu.key: device.gpu for device in plan.devices}
        self._worlds = {
            key: World(engine, collectives, self._books, host_cost, gpu, CostModel(gpu), self._rank_of)
            for key, gpu in gpus.items()
        }
        alone = plan.world == 1
        rates = 0 if alone else engine.rates(beside_collectives())
        self._ranks = Membership(plan, engine, self._books, rates, self._open_session, now)
        self._deadlines = Deadlines(engine, self._ranks, collectives, self._books.labels, self._outbox)
        self._results = FinalResults(plan, engine, self._books, report, self._deadlines.ended)
        self._real_time = RealTime(engine, self._ranks.sessions, now)
        self._watchdogs = watchdogs(plan, self._servers, self._ranks, engine, collectives, self._deadlines, now)
        self._withheld: list[Answer] = []  # while time stands still at a deadline
        self.views = Views(
            plan=plan,
            engine=engine,
            network=network,
            books=self._books,
            collectives=collectives,
            servers=self._servers,
            ranks=self._ranks,
            results=self._results,
            report=report,
            ending=self._ending,
            real_time=self._real_time,
            host_note=host_cost.note,
            began_at=now,
        )
        self._touched: set[int] = set()  # ranks whose spans were not taken since something came for them
        self._published_at = now
        self._gauges = DeviceGauges()

    def read_tables(self) -> None:
        """Reads the tables of costs. Any thread may do it while the ranks are still on their way."""
        for world in self._worlds.values():
            world.costs.read_tables()

    def _open_session(self, rank: int, server: Server, number: int) -> Session:
        world = self._worlds[self.plan.devices[server.index].gpu.key]
        return Session(world, rank, server.index, number, self._outbox.line(server.index, number))

    def _rank_of(self, server: int, pid: int) -> int | None:
        return self._ranks.of_process(server, pid)

    # ---- messages -------------------------------------------------------------------------------------------------

    def hello(self, hello: pb.Hello, send: Send, now: float) -> int:
        """A server's first message; returns its index. Raises :class:`RejectedError`."""
        server = self._servers.hello(hello, send, now)
        self._ranks.acted_at = now
        if self._ending.state is not None:
            self._ending.stop(server)
        return server.index

    def closed(self, index: int, now: float) -> None:
        """A server's stream is gone."""
        self._outbox.drop(index)
        self._servers.closed(index, now)

    def message(self, index: int, message: pb.AgentMessage, now: float) -> None:
        """Any further message of a connected server. One that is wrong ends the run (:class:`RejectedError`)."""
        try:
            self._take(self._servers.by_index[index], message, now)
        except InvalidBatchError as error:
            lost = isinstance(error, LostRecordsError)
            text = f"server {index}: {error}"
            self.fail(text, now, cause=Cause.AGENT_LOST if lost else Cause.INGEST_REJECTED)
            raise RejectedError("INVALID_ARGUMENT", text) from error
        except WorldSizeError as error:
            self.fail(str(error), now, cause=Cause.WORKLOAD_FAILED)
        except CollectiveError as error:
            self.fail(str(error), now, cause=Cause.COLLECTIVE_MISMATCH)
        except NoRouteError as error:
            self.fail(str(error), now, cause=Cause.NO_ROUTE)
        except ValueError as error:
            self.fail(str(error), now, cause=Cause.INGEST_REJECTED)

    def _take(self, server: Server, message: pb.AgentMessage, now: float) -> None:
        match message.WhichOneof("message"):
            case "joined":
                self._ranks.acted_at = now
                self._ranks.join(server, message.joined, now)
                self._real_time.joined(_session(server, message.joined.session).rank, now)
            case "batch":
                self._batch(_session(server, message.batch.session), message.batch, now)
            case "batches":
                for batch in message.batches.batches:
                    self._batch(_session(server, batch.session), batch, now)
            case "left":
                session = _session(server, message.left.session)
                session.taken += 1
                left = message.left
                self._ranks.leave(session, left.records, now, _how_died(left))
                waits = left.answer_wait_ns, left.room_wait_ns, left.watcher_wait_ns
                self._real_time.left(session.rank, now, *waits)
            case "goodbye":
                self._goodbye(server, message.goodbye, now)
            case other:
                raise InvalidBatchError(f"unexpected message {other}")

    def _batch(self, session: Session, batch: pb.EventBatch, now: float) -> None:
        for s in batch.signatures:
            session.define(s.id, received(s.kind, s.name, dict(s.attributes)))
        payloads = [(payload.seq, payload.data, payload.position) for payload in batch.payloads]
        self._touched.add(session.rank)
        session.taken += 1
        session.delivery.delivered(batch.delivered)
        if session.ingest(batch.first_seq, batch.count, batch.records, payloads):
            self._ranks.acted_at = now
        for seq, over in session.take_verdicts():
            self._deadlines.decided(session.rank, seq, over=over)

    def _goodbye(self, server: Server, goodbye: pb.Goodbye, now: float) -> None:
        server.exit_code = goodbye.exit_code
        if goodbye.interrupted:
            self.fail(f"server {server.index} was taken down: {goodbye.reason}", now, cause=Cause.SERVER_LOST)
        casualty = self._ranks.casualty(server.index)
        self._ranks.goodbye(server, now)
        if goodbye.exit_code:
            reason = goodbye.reason or "the workload failed"
            how = f"{casualty} ({reason})" if casualty else reason
            if overdue := self._deadlines.reason(server.index):
                how = f"{overdue} ({how})"
            text = f"server {server.index}: exit code {goodbye.exit_code}: {how}"
            # Who was killed says no more. After an error of a program's own, others may still say what they saw of it.
            killed = bool(casualty) or goodbye.exit_code > KILLED
            self._ending.fail(text, now, cause=Cause.WORKLOAD_FAILED, stop=killed)

    def reject(self, index: int, text: str, now: float) -> None:
        """A message of a connected server is beyond a limit: fails the run, raises :class:`RejectedError`."""
        self.fail(f"server {index}: {text}", now, cause=Cause.INGEST_REJECTED)
        raise RejectedError("INVALID_ARGUMENT", f"server {index}: {text}")

    # ---- rounds ---------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """After a round of messages: everything that has become known goes out."""
        answers = self._answers(now)
        self._look_for_late_ends(answers)
        if self._withheld and self._deadlines.overdue is None:
            answers, self._withheld = self._withheld + answers, []
        for answer in answers:
            self._touched.add(answer.rank)
            session = self._ranks.sessions.get(answer.rank)
            if session is None:
                continue
            if self._deadlines.withholds(answer) and session.delivery.foreground(answer.seq):
                self._withheld.append(answer)
            else:
                session.answer(answer)
        self._publish(now)
        self._outbox.flush()
        for step in self._results.take_steps(self._ranks.sessions):
            if self.plan.steps is not None and step.index >= self.plan.steps:
                self._ending.succeed(f"{step.index} steps are done", now, cause=Cause.STEPS_DONE)

    def _look_for_late_ends(self, answers: list[Answer]) -> None:
        """Before answers take a rank's clock far ahead: did a call end too late for its process group?"""
        sessions = self._ranks.sessions
        for answer in answers:
            session = sessions.get(answer.rank)
            if session is None or session.shortest_timeout_ns is None:
                continue
            if answer.clock_ns - session.looked_ns >= session.shortest_timeout_ns // 4:
                session.looked_ns = answer.clock_ns
                self._results.take_spans(sessions)

    def _answers(self, now: float) -> list[Answer]:
        try:
            return self._engine.answers()
        except (ValueError, RuntimeError) as error:
            self.fail(str(error), now, cause=Cause.INTERNAL_ERROR)
            return []

    def _publish(self, now: float) -> None:
        """Every 10 ms: ranks' clocks and what was taken from them go out, and final spans go to the books."""
        if now - self._published_at < PUBLISH_EVERY_S:
            return
        self._published_at = now
        self._outbox.publish(self._engine.clock)
        touched, self._touched = self._touched, set()
        self._results.take_spans(touched)

    def show(self, snapshot: Snapshot) -> None:
        """Tells the agents what NVML shows of their devices, which goes out next."""
        self._outbox.show(self._gauges.read(snapshot))

    def _deliver(self, rank: int, seq: int, data: bytes) -> None:
        self._ranks.sessions[rank].delivery.payload(seq, data)

    def _awaited(self, rank: int, seq: int, handle: int) -> None:
        self._ranks.sessions[rank].delivery.awaited(seq, handle)

    def tick(self, now: float) -> None:
        """At least every 10 ms: clocks, timeouts. Makes the run end if it cannot go on."""
        self._publish(now)
        self._outbox.flush()
        self._real_time.look(now)
        self._ending.stop_others(now)
        self._deadlines.look(now)
        if self._withheld and self._deadlines.overdue is None:
            self._ranks.acted_at = now  # what was withheld goes out with the next round
        if self.state is None:
            failure = next(filter(None, (watchdog(now) for watchdog in self._watchdogs)), None)
            if failure is not None:
                self.fail(failure.reason, now, cause=failure.cause)

    # ---- the end --------------------------------------------------------------------------------------------------

    def fail(self, reason: str, now: float, *, cause: Cause) -> None:
        """The run has failed, and its servers are told to stop; only the first reason counts."""
        self._ending.fail(reason, now, cause=cause)

    def cancel(self, now: float) -> None:
        """Somebody asked the core to end."""
        self.fail("the simulation core was asked to stop", now, cause=Cause.CANCELLED)

    def finished(self, now: float) -> bool:
        """True once every server has said goodbye, or had its time to after the run was over."""
        return self._ending.drained(now)

    def finish(self, now: float) -> None:
        """Writes the summary; from then on the state is final."""
        self.advance(now)
        self._results.take_spans(self._ranks.sessions)  # with others' last words, more has become final
        self.views.finish(now)

    # ---- for readers ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str | None:
        """``Succeeded`` or ``Failed``; None while the run goes on."""
        return self._ending.state

    @property
    def cause(self) -> Cause | str:
        """Why the run ended, in a word; empty while it goes on."""
        return self._ending.cause

    @property
    def reason(self) -> str:
        """Why the run ended, in a line."""
        return self._ending.reason

    @property
    def servers(self) -> list[Server]:
        """All emulated servers, by index."""
        return list(self._servers.by_index.values())

    @property
    def accounts(self) -> Accounts:
        """Where the time of the final steps went."""
        return self._books.accounts

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The final steps so far, as they stand in the summary."""
        return self.views.report.steps

    def status(self) -> dict[str, Any]:
        """What ``GET /status`` answers; see :meth:`.views.Views.status`."""
        return self.views.status()

    def snapshot(self, now: float) -> Snapshot:
        """The run as other threads may see it."""
        self._results.take_spans(self._ranks.sessions)
        return self.views.snapshot(now)


def _how_died(left: pb.RankLeft) -> str:
    """How a rank's process died, in words; empty if it left in order. Its agent may not have seen more than that it
    died."""
    if left.orderly:
        return ""
    if left.damage:
        return f"was ended, for its ring is broken: {left.damage}"
    if not left.HasField("wait_status"):
        return "died without closing its ring"
    if os.WIFSIGNALED(left.wait_status):
        number = os.WTERMSIG(left.wait_status)
        known = number in set(signal.Signals)
        return f"was killed by signal {number}" + (f" ({signal.Signals(number).name})" if known else "")
    return f"ended with exit code {os.WEXITSTATUS(left.wait_status)} without closing its ring"


def _session(server: Server, number: int) -> Session:
    session = server.sessions.get(number)
    if session is None:
        raise InvalidBatchError(f"session {number} has not joined")
    return session
