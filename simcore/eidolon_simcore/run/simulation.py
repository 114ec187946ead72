"""A run, from the first hello to the summary. One thread calls it; it knows messages, but not how they travel.

:class:`Simulation` takes the messages of servers' streams, keeps the sessions of their ranks, and asks the engine
what has become known after every round of messages. What goes back is handed to each server's ``send``. It also
decides when the run is over: when every server has said goodbye, when the steps asked for are final, or when
something went wrong:

* a server did not connect or a rank did not join within the startup timeout (the message names who is missing);
* a stream broke and its server did not come back, or came back without all that the old one had;
* a server's workload ended with an exit code other than 0, or the server was taken down;
* calls contradict each other, or a batch breaks the contract;
* nobody can go on: every rank waits for a collective that somebody has not reached, and nothing has arrived for a
  while. A rank that computes may yet reach it, however long it makes no call: then the while is longer.

So a run ends in a stated condition, and never hangs.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.core_plan import Plan
from eidolon_simcore.costs import hostcost, published
from eidolon_simcore.costs.interference import beside_collectives
from eidolon_simcore.costs.model import CostModel, Signature
from eidolon_simcore.engine.interface import Blocked, NetworkEngine
from eidolon_simcore.export.summary import Report, shares
from eidolon_simcore.fabric.network import Network, Port
from eidolon_simcore.fabric.routing import NoRouteError
from eidolon_simcore.ledger import power
from eidolon_simcore.ledger.accounts import Accounts
from eidolon_simcore.ledger.coverage import coverage, doubts
from eidolon_simcore.ledger.labels import Labels
from eidolon_simcore.ledger.memory import MemoryView
from eidolon_simcore.ledger.sinks import Sink, Sinks
from eidolon_simcore.ledger.snapshot import Progress, Snapshot
from eidolon_simcore.ledger.steps import Steps
from eidolon_simcore.ledger.tally import Tally
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.run.collectives import CollectiveError, Collectives, Receivers
from eidolon_simcore.run.server import RejectedError, Send, Server
from eidolon_simcore.run.session import InvalidBatchError, LostRecordsError, Session, World

OVERDUE_EVERY_S = 1.0  #: how often is looked for ranks that went on without a collective
CLOCKS_EVERY_S = 0.010  #: how often running ranks' clocks are published
DRAIN_S = 30.0  #: how long servers may take to say goodbye once the run is over
STOP_OTHERS_S = 5.0  #: how long the others may go on by themselves once a workload has failed: they may say more
MAX_SESSIONS = 4_096  #: of one server


class Simulation:
    """See the module's docstring. ``now`` arguments are seconds of a monotonic clock.

    Args:
        sinks: makers of further consumers of what is final (:mod:`.ledger.sinks`).
        account: False: where the time goes is not accounted for (to measure what that costs).
    """

    def __init__(
        self,
        plan: Plan,
        engine: NetworkEngine,
        report: Report,
        *,
        version: str,
        now: float,
        sinks: Sequence[Callable[[Labels, Network], Sink]] = (),
        account: bool = True,
    ) -> None:
        self.plan = plan
        self._engine = engine
        self._report = report
        self._version = version
        self._servers = {index: Server(index) for index in range(plan.servers)}
        self._sessions: dict[int, Session] = {}  # by rank
        self._memory, self._steps, self._tally, self._labels = MemoryView(), Steps(), Tally(), Labels()
        network = self._network = Network(engine, plan.gpu, plan.network)
        self.accounts = Accounts(self._labels.names, self._labels.number("idle"), network)
        made = [make(self._labels, network) for make in sinks]
        self._sinks = Sinks((self.accounts, *made) if account else made)
        receivers = Receivers(self._deliver, self._awaited, self._sinks.collective)
        self._collectives = Collectives(engine, network, receivers)
        measured = plan.host_cost == "measured"
        factor, self._host_note = hostcost.beside_others(plan.ranks_per_server), plan.host_table.stated()
        if measured:
            factor, self._host_note = plan.host_table.factor()
        told = (self._collectives, self._memory, self._steps, self._labels, self._tally)
        shared = (*told, measured, factor, plan.host_table)
        gpus = {device.gpu.key: device.gpu for device in plan.devices}
        worlds = {key: World(engine, CostModel(gpu), *shared, gpu, self._sinks) for key, gpu in gpus.items()}
        self._worlds = [worlds[device.gpu.key] for device in plan.devices]  # by server
        alone = plan.servers * plan.ranks_per_server == 1
        self._rates = 0 if alone else engine.rates(beside_collectives())
        self._known_ranks: set[int] = set()
        self._expected_world = 1
        self._replies: dict[tuple[int, int], list[pb.Reply]] = {}
        self._touched: set[int] = set()
        self._published: dict[int, int] = {}
        self._virtual_ns = 0
        self._progress = Progress()
        self._began = self._active_at = now
        self._joined_at: float | None = None
        self._complete_at: float | None = None  # when the last server said hello
        self._clocks_at = self._overdue_at = now
        self._finished = self._stopped = False
        self.state: str | None = None  # None while the run goes on
        self.cause: Cause | str = ""  # why it ended, in a word ...
        self.reason = ""  # ... and in a line
        self._over_at: float | None = None

    # ---- servers --------------------------------------------------------------------------------------------------

    def hello(self, hello: pb.Hello, send: Send, now: float) -> int:
        """A server's first message; returns its index. Raises :class:`RejectedError`."""
        if hello.protocol != 1:
            theirs = f"protocol {hello.protocol} of eidolon {hello.version}"
            raise RejectedError("FAILED_PRECONDITION", f"{theirs} does not fit protocol 1 of eidolon {self._version}")
        if not hmac.compare_digest(hello.token.encode(), self.plan.token.encode()):
            raise RejectedError("UNAUTHENTICATED", "the token is not that of this run")
        server = self._servers.get(hello.server)
        if server is None:
            raise RejectedError("INVALID_ARGUMENT", f"server {hello.server} of a run with {self.plan.servers}")
        if server.send is not None:
            raise RejectedError("ALREADY_EXISTS", f"server {hello.server} is connected already")
        if server.exit_code is not None:
            raise RejectedError("FAILED_PRECONDITION", f"server {hello.server} has said goodbye")
        theirs = f"{hello.devices} x {hello.gpu}"
        ours = f"{self.plan.gpus_per_server} x {self.plan.devices[server.index].gpu.key}"
        if theirs != ours:
            raise RejectedError("FAILED_PRECONDITION", f"server {hello.server} has {theirs}, the run has {ours}")
        server.send, server.lost_at, server.said_hello = send, None, True
        self._active_at = now
        connected = sum(s.send is not None for s in self._servers.values())
        send(pb.CoreMessage(welcome=pb.Welcome(protocol=1, version=self._version, servers_connected=connected)))
        server.told_to_go = False
        self._open_gate(now)
        if self.state is not None:
            self._stop(server)
        return server.index

    def _open_gate(self, now: float) -> None:
        """Workloads start once every server has said hello."""
        servers = self._servers.values()
        if all(s.said_hello for s in servers):
            self._complete_at = now if self._complete_at is None else self._complete_at
            for server in servers:
                if server.send is not None and not server.told_to_go:
                    server.told_to_go = True
                    server.send(pb.CoreMessage(go=pb.Go()))

    def closed(self, index: int, now: float) -> None:
        """A server's stream is gone."""
        server = self._servers[index]
        server.send = None
        for session in server.sessions.values():
            session.stream_closed()
        if server.exit_code is None:
            server.lost_at = now

    def message(self, index: int, message: pb.AgentMessage, now: float) -> None:
        """Any further message of a connected server. One that is wrong ends the run (:class:`RejectedError`)."""
        server = self._servers[index]
        try:
            match message.WhichOneof("message"):
                case "joined":
                    self._join(server, message.joined, now)
                case "batch":
                    self._batch(server, message.batch, now)
                case "left":
                    session = self._session(server, message.left.session)
                    session.taken += 1
                    self._leave(session, message.left.records)
                case "goodbye":
                    self._goodbye(server, message.goodbye, now)
                case other:
                    raise InvalidBatchError(f"unexpected message {other}")  # noqa: TRY301
        except InvalidBatchError as error:
            text = f"server {index}: {error}"
            lost = isinstance(error, LostRecordsError)
            self.fail(text, now, cause=Cause.AGENT_LOST if lost else Cause.INGEST_REJECTED)
            raise RejectedError("INVALID_ARGUMENT", text) from error
        except CollectiveError as error:
            self.fail(str(error), now, cause=Cause.COLLECTIVE_MISMATCH)
        except NoRouteError as error:
            self.fail(str(error), now, cause=Cause.NO_ROUTE)
        except ValueError as error:
            self.fail(str(error), now, cause=Cause.INGEST_REJECTED)

    def reject(self, index: int, text: str, now: float) -> None:
        """A message of a connected server is beyond a limit: fails the run, raises :class:`RejectedError`."""
        self.fail(f"server {index}: {text}", now, cause=Cause.INGEST_REJECTED)
        raise RejectedError("INVALID_ARGUMENT", f"server {index}: {text}")

    def _join(self, server: Server, joined: pb.RankJoined, now: float) -> None:
        self._active_at = now
        known = server.sessions.get(joined.session)
        if known is not None:  # the agent was restarted or reconnected
            for number, seq, data in known.resume(joined.delivered):
                self._send_payload(known, number, seq, data)
            known.repeat_answers()
            return
        if not 0 < joined.session <= MAX_SESSIONS:
            raise InvalidBatchError(f"session {joined.session}")
        rank = self._number(server, joined)
        if rank not in self._known_ranks:
            self._add_rank(rank)
        if joined.world > self._expected_world and joined.rank >= 0:
            if joined.world > self.plan.servers * self.plan.ranks_per_server:
                planned = self.plan.servers * self.plan.ranks_per_server
                text = f"rank {joined.rank} says WORLD_SIZE={joined.world}, the run has {planned} ranks"
                self.fail(text, now, cause=Cause.WORKLOAD_FAILED)
                return
            self._expected_world = joined.world
            for other in range(joined.world):
                if other not in self._known_ranks:
                    self._add_rank(other)
        self._steps.expect(self._expected_world)
        self._steps.join(rank)
        key = (server.index, joined.session)

        def reply(seq: int, thread: int, clock: int, value: int) -> None:
            self._replies.setdefault(key, []).append(pb.Reply(seq=seq, thread=thread, clock_ns=clock, value=value))

        session = Session(self._worlds[server.index], rank, server.index, joined.session, reply)
        server.sessions[joined.session] = self._sessions[rank] = session
        self._joined_at = self._joined_at or now

    def _number(self, server: Server, joined: pb.RankJoined) -> int:
        """RANK of the environment, else by order of joining; a number that is taken gets the next beyond the world."""
        rank = joined.rank if joined.rank >= 0 else server.index * self.plan.ranks_per_server + joined.session - 1
        if rank in self._sessions or rank >= 1 << 20:
            rank = max(self.plan.servers * self.plan.ranks_per_server, max(self._known_ranks, default=-1) + 1)
        return rank

    def _add_rank(self, rank: int) -> None:
        self._known_ranks.add(rank)
        self._engine.add_rank(rank)
        self._engine.set_rates(rank, self._rates)

    def _batch(self, server: Server, batch: pb.EventBatch, now: float) -> None:
        session = self._session(server, batch.session)
        for s in batch.signatures:
            session.define(s.id, Signature(s.kind, s.name, dict(s.attributes)))
        payloads = [(payload.seq, payload.data, payload.position) for payload in batch.payloads]
        self._touched.add(session.rank)
        session.taken += 1
        session.delivered(batch.delivered)
        if session.ingest(batch.first_seq, batch.count, batch.records, payloads):
            self._active_at = now

    @staticmethod
    def _session(server: Server, number: int) -> Session:
        session = server.sessions.get(number)
        if session is None:
            raise InvalidBatchError(f"session {number} has not joined")
        return session

    def _leave(self, session: Session, records: int) -> None:
        if session.left:
            return
        if records > session.next_seq:
            raise InvalidBatchError(
                f"rank {session.rank} left after {records} records, of which {session.next_seq} came"
            )
        session.left = True
        self._engine.end_rank(session.rank)
        self._steps.leave(session.rank)
        self._memory.left(session.rank)

    def _goodbye(self, server: Server, goodbye: pb.Goodbye, now: float) -> None:
        server.exit_code = goodbye.exit_code
        if goodbye.interrupted and self.state is None:
            self.fail(f"server {server.index} was taken down: {goodbye.reason}", now, cause=Cause.SERVER_LOST)
        for session in server.sessions.values():
            self._leave(session, 0)
        for rank in range(server.index * self.plan.ranks_per_server, (server.index + 1) * self.plan.ranks_per_server):
            if rank in self._known_ranks and rank not in self._sessions:
                self._engine.end_rank(rank)  # it will not come any more
        if goodbye.exit_code and self.state is None:
            text = goodbye.reason or "the workload failed"
            text = f"server {server.index}: exit code {goodbye.exit_code}: {text}"
            self.fail(text, now, cause=Cause.WORKLOAD_FAILED, stop=False)

    # ---- rounds ---------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """After a round of messages: everything that has become known goes out."""
        try:
            answers = self._engine.answers()
        except (ValueError, RuntimeError) as error:
            self.fail(str(error), now, cause=Cause.INTERNAL_ERROR)
            answers = []
        touched = self._touched | {answer.rank for answer in answers}
        self._touched = set()
        for rank in touched:
            self._take_spans(rank)
        for answer in answers:
            session = self._sessions.get(answer.rank)
            if session is not None:
                session.answer(answer)
        self._send_replies()
        for mark in self._engine.marks():
            self._steps.ended(mark)
        self._final_steps(now)

    def _take_spans(self, rank: int) -> None:
        spans = self._engine.spans(rank)
        if not len(spans):
            return
        self._virtual_ns = max(self._virtual_ns, int(spans["end_ns"].max()))
        self._sinks.spans(rank, spans)

    def _send_replies(self) -> None:
        replies, self._replies = self._replies, {}
        for (index, session), batch in replies.items():
            if (send := self._servers[index].send) is not None:
                send(pb.CoreMessage(replies=pb.ReplyBatch(session=session, replies=batch)))

    def _deliver(self, rank: int, seq: int, data: bytes) -> None:
        session = self._sessions[rank]
        self._send_replies()  # in order: what was answered before the bytes came
        self._send_payload(session, session.payload_to_send(seq, data), seq, data)
        session.bytes_sent(seq)

    def _send_payload(self, session: Session, number: int, seq: int, data: bytes) -> None:
        if (send := self._servers[session.server].send) is not None:
            payload = pb.Payload(session=session.number, seq=seq, data=data, number=number)
            send(pb.CoreMessage(payload=payload))

    def _awaited(self, rank: int, seq: int, handle: int) -> None:
        self._sessions[rank].awaited(seq, handle)

    def _final_steps(self, now: float) -> None:
        taken = False
        for step in self._steps.final():
            if not taken:  # a step comes after every span in it
                taken = True
                for rank in self._sessions:
                    self._take_spans(rank)
            if self.plan.steps is not None and len(self._report.steps) >= self.plan.steps:
                return
            self._sinks.step(step)
            last = self.accounts.last
            energy_j = power.energy_j(self.plan.devices, last, step)
            self._progress = self._progress.plus(step, self._report.step(step, last), energy_j)
            if self.plan.steps is not None and step.index >= self.plan.steps and self.state is None:
                self._end("Succeeded", Cause.STEPS_DONE, f"{step.index} steps are done", now)

    # ---- time -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """At least every 10 ms: clocks, timeouts. Makes the run end if it cannot go on."""
        if now - self._clocks_at >= CLOCKS_EVERY_S:
            self._clocks_at = now
            self._publish()
        if self._over_at is not None and not self._stopped and now - self._over_at > STOP_OTHERS_S:
            self._stop_all()
        if self.state is None:
            self._check_startup(now)
            self._check_time(now)
            self._check_streams(now)
            self._check_stuck(now)
            self._check_overdue(now)

    def _publish(self) -> None:
        for server in self._servers.values():
            if server.send is None:
                continue
            sessions, clocks = [], []
            for session in server.sessions.values():
                if session.left:
                    continue
                clock = self._engine.clock(session.rank)
                if self._published.get(session.rank) != clock:
                    self._published[session.rank] = clock
                    sessions.append(session.number)
                    clocks.append(clock)
            if sessions:
                server.send(pb.CoreMessage(clocks=pb.Clocks(sessions=sessions, clock_ns=clocks)))
            server.acknowledge()

    def _check_startup(self, now: float) -> None:
        limit = self.plan.startup_timeout_s
        absent = [s.index for s in self._servers.values() if not s.said_hello]
        if absent and now - self._began > limit:
            text = f"server {_list(absent)} did not connect within {limit:g} s"
            self.fail(text, now, cause=Cause.SERVERS_NOT_READY)
        elif self._joined_at is not None and now - self._joined_at > limit:
            absent = sorted((self._known_ranks & set(range(self._expected_world))) - set(self._sessions))
            if absent:
                text = f"rank {_list(absent)} of {self._expected_world} did not start within {limit:g} s of the first"
                self.fail(text, now, cause=Cause.RANK_MISSING)

    def _check_time(self, now: float) -> None:
        limit = self.plan.time_limit_s
        if limit is not None and self._complete_at is not None and now - self._complete_at > limit:
            blocked, asking, busy = self._standing()
            text = f"the run took longer than {limit:g} s (spec.timeLimit): {self._who_waits(blocked, asking, busy)}"
            self.fail(text, now, cause=Cause.TIME_LIMIT_EXCEEDED)

    def _check_streams(self, now: float) -> None:
        for server in self._servers.values():
            if server.lost_at is not None and now - server.lost_at > self.plan.reconnect_timeout_s:
                text = f"server {server.index}: its agent went away without saying goodbye"
                self.fail(text, now, cause=Cause.AGENT_LOST)
                return

    def _check_stuck(self, now: float) -> None:
        quiet = now - self._active_at
        if quiet < min(self.plan.stuck_timeout_s, self.plan.left_timeout_s):
            return
        live = self._live()
        waiting = [rank for rank in self._known_ranks if rank not in self._sessions and rank < self._expected_world]
        if not live or waiting:
            return  # ranks that have yet to start are the startup timeout's business
        blocked, asking, busy = self._standing()
        if not asking:
            return
        gone = bool(blocked) and all(b.missing and not live & set(b.missing) for b in blocked)
        limit = self.plan.left_timeout_s if gone else self.plan.stuck_timeout_s
        if quiet >= (limit if live <= set(asking) else self.plan.idle_timeout_s):
            self.fail(f"no rank can go on: {self._who_waits(blocked, asking, busy)}", now, cause=Cause.DEADLOCK)

    def _live(self) -> set[int]:
        return {rank for rank, session in self._sessions.items() if not session.left}

    def _standing(self) -> tuple[list[Blocked], list[int], list[int]]:
        """Collectives that wait for members, ranks that wait for an answer, ranks that neither wait nor are idle."""
        live, blocked = self._live(), self._engine.blocked()
        asking = {rank for rank in live if self._sessions[rank].waits} | {b.rank for b in blocked}
        return blocked, sorted(asking), sorted(live - asking - self._idle())

    def _check_overdue(self, now: float) -> None:
        if now - self._overdue_at < OVERDUE_EVERY_S:
            return
        self._overdue_at = now
        text = self._collectives.overdue(self._engine.clock, round(self.plan.missing_virtual_s * 1e9))
        if text is not None:
            self.fail(text, now, cause=Cause.RANK_MISSING)

    def _idle(self) -> set[int]:
        return {rank for rank, session in self._sessions.items() if session.idle}

    def _who_waits(self, blocked: list[Blocked], asking: list[int], busy: list[int]) -> str:
        # the engine brings a rank that collectives slow down to the present only, and maybe not yet to its wait
        blocked = blocked + self._collectives.incomplete(set(asking) - {b.rank for b in blocked})
        others = [rank for rank in asking if rank not in {b.rank for b in blocked}]
        parts = [f"rank {_list(others)} waits for what is under way"] if others else []
        if busy:
            clocks = ", ".join(f"{self._engine.clock(rank) / 1e6:.3f} ms" for rank in busy[:16])
            parts.append(f"rank {_list(busy)} makes no calls (at {clocks})")
        for b in sorted(blocked, key=lambda b: (b.rank, b.collective))[:16]:
            text = f"rank {b.rank} waits in {self._collectives.describe(b.collective)}"
            left = [rank for rank in b.missing if (s := self._sessions.get(rank)) is not None and s.left]
            if b.missing:
                text += f" for rank {_list(list(b.missing))}" + (f" (rank {_list(left)} has left)" if left else "")
            parts.append(text)
        parts += self._collectives.waiting_for_members()
        return "; ".join(parts) or "no rank waits for another"

    # ---- for readers ----------------------------------------------------------------------------------------------

    @property
    def servers(self) -> list[Server]:
        """All emulated servers, by index."""
        return list(self._servers.values())

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The final steps so far, as they stand in the summary."""
        return self._report.steps

    @property
    def virtual_ns(self) -> int:
        """The latest end of anything that was reported so far."""
        return self._virtual_ns

    @property
    def oom_count(self) -> int:
        """Refused allocations so far."""
        return len(self._memory.refusals)

    def rank_counts(self) -> dict[str, int]:
        """How many ranks are expected, have joined, have left."""
        left = sum(session.left for session in self._sessions.values())
        return {"expected": self._expected_world, "joined": len(self._sessions), "left": left}

    def notes(self) -> list[str]:
        """What a shim said about its own environment, such as a torch that there is no plugin for."""
        return sorted({name for _, name in self._tally.unmodelled if name.startswith("torch:")})

    def peak_bytes(self) -> int:
        """The largest peak of any device."""
        return self._memory.highest()

    def snapshot(self, now: float) -> Snapshot:
        """The run as other threads may see it; to be called by the thread that runs the simulation."""
        unmodelled: dict[str, int] = {}
        for (_, name), count in self._tally.unmodelled.items():
            unmodelled[name] = unmodelled.get(name, 0) + count
        refused: dict[Port, int] = {}
        for refusal in self._memory.refusals:
            refused[refusal.port] = refused.get(refusal.port, 0) + 1
        left = sum(session.left for session in self._sessions.values())
        return Snapshot(
            run=self.plan.name,
            devices=self.plan.devices,
            gpus_per_server=self.plan.gpus_per_server,
            state=self.state or ("Running" if self._sessions else "Waiting"),
            ranks={"expected": self._expected_world, "joined": len(self._sessions), "left": left},
            progress=self._progress,
            last=self.accounts.last,
            total=self.accounts.total,
            links=tuple(self._network.links()),
            paces={Port(s.server, device): s.pace for s in self._sessions.values() for device in s.devices},
            out_of_memory=refused,
            source_ns=self.source_ns(),
            unmodelled=unmodelled,
            unknown_reads=self._tally.reads.by_site(),
            waits=self._host_waits(),
            engine=self._engine.counters(),
            horizon_ns=self._engine.horizon(),
            wall_s=now - self._began,
        )

    def source_ns(self) -> dict[str, int]:
        """Device time so far, by the source of its cost."""
        source_ns = dict(self._tally.source_ns)
        if not self._finished:
            for counted in (self._collectives.device_ns, *(s.source_ns() for s in self._sessions.values())):
                for source, ns in counted.items():
                    source_ns[source] += ns
        return source_ns

    def _host_waits(self) -> dict[str, tuple[int, int]]:
        return {self._labels.names[label] or "unknown": wait for label, wait in self.accounts.waits().items()}

    # ---- the end --------------------------------------------------------------------------------------------------

    def fail(self, reason: str, now: float, *, cause: Cause, stop: bool = True) -> None:
        """The run has failed; only the first reason counts. ``stop`` False lets other servers end by themselves."""
        if self.state is None:
            self._end("Failed", cause, " ".join(reason.split()), now, stop=stop)

    def cancel(self, now: float) -> None:
        """Somebody asked the core to end."""
        self.fail("the simulation core was asked to stop", now, cause=Cause.CANCELLED)

    def _end(self, state: str, cause: Cause, reason: str, now: float, *, stop: bool = True) -> None:
        self.state, self.cause, self.reason, self._over_at = state, cause, reason, now
        self._send_replies()
        if stop:
            self._stop_all()

    def _stop_all(self) -> None:
        self._stopped = True
        for server in self._servers.values():
            self._stop(server)

    def _stop(self, server: Server) -> None:
        if server.send is not None:
            server.send(pb.CoreMessage(stop=pb.Stop(session=0, failed=self.state == "Failed", reason=self.reason)))

    def finished(self, now: float) -> bool:
        """True once every server has said goodbye, or had its time to after the run was over."""
        waiting = [s for s in self._servers.values() if s.exit_code is None]
        if not waiting:
            return True
        if self._over_at is None:
            return False
        return now - self._over_at > DRAIN_S or all(s.send is None for s in waiting)

    def finish(self, now: float) -> None:
        """Writes the summary; from then on the state is final."""
        self._touched |= set(self._sessions)  # what became final with others' last words
        self.advance(now)
        self._tally.source_ns = self.source_ns()
        self._finished = True
        found = coverage(one for rank in sorted(self._sessions) for one in self._sessions[rank].spent())
        texts = doubts(found, shares(self._tally.source_ns).get("unknown", 0.0), self.plan.unknown_limit)
        for text in filter(None, [*texts, self._tally.reads.unstated() if self.plan.strict else ""]):
            if self.plan.strict and self.state in (None, "Succeeded"):
                self.state, self.cause, self.reason = "Failed", Cause.STRICT_COST, text
            elif not self.reason:
                self.reason = text
        clocks = [self._engine.clock(rank) for rank in self._sessions]
        if self.state is None:
            self.state, self.cause = "Succeeded", Cause.WORKLOADS_ENDED
        end: dict[str, Any] = {
            "state": self.state,
            "cause": self.cause,
            "reason": self.reason,
            "ranks": len(self._sessions),
            "step_counts": {str(rank): count for rank, count in self._steps.counts().items()},
            "engine": self._engine.counters(),
            "virtual_ns": max([self._virtual_ns, *clocks]),
            "wall_s": round(now - self._began, 3),
            "capacity_bytes": self.plan.devices[0].memory_bytes,
            **self.accounts.summary(),
        }
        end["host_note"] = self._host_note
        end["coverage"] = {"published": published.statement(one.gpu.key for one in self.plan.devices), **found}
        self._sinks.close()
        self._report.finish(end, self._memory, self._tally, self._host_waits())


def _list(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:16]))
    return shown if len(numbers) <= 16 else f"{shown} and {len(numbers) - 16} more"
