"""The agent of one emulated server.

``python -m eidolon_interposer.agent --plan PLAN --server N --dir EIDOLON_DIR --core HOST:PORT [--tls DIR]``

It stands between the shims of its server and the simulation core: it finds the ranks' rings, sends what they hold over
one stream (:mod:`.link`), and writes answers back. It prints ``ready`` once the core said welcome, and ends after the
workload did, with 0 if the core took everything. In a local run it is no process of its own, but a thread of the
core's (``eidolon_operator.one_host``).

With ``--tls`` the stream is encrypted, the core has to show the very certificate in ``DIR/tls.crt``, and the token
comes from ``DIR/token``. Without, both ends are on one machine.

Two threads do the work. The *sender* is the stream's request iterator: it is asked for the next message when the one
before has gone out, so a slow core slows the sender, then fills the rings, then holds the ranks; nothing queues up
without bound. While there is nothing to send it sleeps on the server's bell. What rings hold is checked and packed by
native code (:mod:`.ring`), and goes out as bytes. The *receiver* is whoever brings the core's messages: it writes
replies straight into the slots of those who wait.

Nothing of a run is in this process alone: positions, sessions and what was delivered lie in shared memory, and move
only once the other side has it. So an agent that was killed is replaced by a new one, and the run goes on as if
nothing had happened.

How it begins and ends
----------------------
* ``Go`` from the core, when all servers are there: ``D/go`` opens the launcher's gate.
* ``D/exit`` is there and every ring is drained and gone: Goodbye; the core closes the stream.
* ``Stop`` from the core: the ranks end at their next call, ``D/stop`` makes the launcher end the rest; then as above.
* The core is lost: every rank is ended with that reason, ``D/stop`` says so; exit code 1.
* SIGTERM: ranks get a short time to end, then are ended; Goodbye.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from eidolon_interposer.link import GrpcLink, Link, LostError, Trust
from eidolon_interposer.ranks import Rank, RankTable
from eidolon_interposer.ring import Batch, RingError, pack
from eidolon_interposer.serverdir import HURRIED_POLL_NS, ServerDirectory
from eidolon_interposer.vocabulary import PROTOCOL, ReplyStatus
from eidolon_proto.v1 import simulation_pb2 as pb

INTERRUPTED = "interrupted by "  #: begins the launcher's reason where somebody took the server down
BATCH_LIMIT_BYTES = 1 << 20
LOOK_AROUND_NS = 20_000_000  #: how often rings, locks and the exit file are looked for
STATUS_LIMIT_NS = 500_000_000  #: how long a dead rank's parent may take to tell how it died
HEARTBEAT_S = 0.5
WELCOME_LIMIT_S = 10.0
AGAIN_S = 0.5  #: until the next try, where the core has no room for this agent yet
FAREWELL_LIMIT_S = 10.0  #: how long the core may take to close the stream
ORPHAN_LIMIT_S = 10.0  #: how long ranks may outlive the workload's launcher
TERMINATE_LIMIT_S = 2.0  #: how long ranks may outlive a SIGTERM to the agent
TERMINATE_HARD_LIMIT_S = 3.5  #: how long the agent may outlive it, even if the core takes nothing any more

#: The core has not noticed yet that the agent before this one is gone, or is crowded by streams that say nothing.
_COME_AGAIN = ("ALREADY_EXISTS", "DEADLINE_EXCEEDED")


class AgentError(Exception):
    """Why the agent cannot go on; one line for the user."""


def say(text: str) -> None:
    """One line on stderr."""
    print(f"eidolon agent: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the agent needs of ``plan.json``."""

    devices: int
    gpu: str
    conf: Mapping[str, str]
    token: str

    @classmethod
    def read(cls, path: Path, number: int) -> Plan:
        """The plan in a file, for server ``number``: groups of servers may hold other GPUs."""
        try:
            plan = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AgentError(f"cannot read the plan {path}: {error}") from error
        try:
            server, core = plan["server"], plan["core"]
            after = 0  # the number after the group's last server
            for group in server["groups"] or ():
                after += _integer(group["servers"])
                if number < after:
                    server = {**server, "gpu": group["gpu"], "conf": {**server["conf"], **group["conf"]}}
                    break
            return cls(
                devices=_integer(server["devices"]),
                gpu=str(server["gpu"]),
                conf={str(key): str(value) for key, value in server["conf"].items()},
                token=str(core.get("token", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise AgentError(f"{path} is no plan: {type(error).__name__} {error}") from error


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


class Agent:
    """One run of one server. :meth:`run` is called once."""

    def __init__(
        self,
        plan: Plan,
        server: int,
        directory: ServerDirectory,
        link: Link,
        core: str,
        welcome_limit_s: float,
        welcomed: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._server = server
        self._directory = directory
        self._link = link
        self._core = core  # where it is, for messages
        self._welcome_limit_s = welcome_limit_s
        self._tell_welcome = welcomed
        self._ranks = RankTable(directory)
        self._welcomed = threading.Event()  # or over
        self._over = link.over  # the stream has ended
        self._terminated_ns = 0  # when SIGTERM came
        self._gone_ns = 0  # when the workload was first seen to have ended
        self._look_at_ns = 0  # when to look around again
        self._bell = 0  # the last one that was seen
        self._asleep = threading.Lock()  # held by the sender while it waits in native code, which must not see the end
        self._leaving = False  # every rank has left, Goodbye is next ...
        self._said_goodbye = False  # ... and has gone out
        self._failure: BaseException | None = None  # of the sender

    # ---- the stream ---------------------------------------------------------------------------------------------

    def run(self, *, patient: bool = False) -> int | None:
        """Serves the ranks until the workload ends; the process's exit code.

        None, if ``patient``: the core asks it to come again. Nothing has happened then; another agent may try.
        """
        heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        heart.start()
        self._limit = threading.Timer(self._welcome_limit_s, self._link.cancel)
        self._limit.daemon = True
        self._limit.start()
        lost, early = "", False
        try:
            self._link.run(self._send(), self._receive)
            if not self._leaving:
                lost = "it closed the stream"
        except LostError as error:
            lost = self._lost(error)
            early = not self._welcomed.is_set() and error.status in _COME_AGAIN
        except AgentError as error:
            lost = str(error)
        finally:
            welcomed = self._welcomed.is_set()
            self._limit.cancel()
            self._over.set()
            self._welcomed.set()
            self._directory.page.ring()
            with self._asleep:  # a thread that wakes in native code while Python ends would abort the process
                self._link.cancel()
        if self._failure is not None:
            kind = "" if isinstance(self._failure, AgentError) else f"{type(self._failure).__name__}: "
            lost = f"the agent failed: {kind}{self._failure}"
        elif early and patient and not self._terminated_ns:
            return None
        elif self._said_goodbye or not lost:
            return 0
        elif welcomed:
            lost = f"simulation core lost: {lost}"
        self._abandon(lost)
        say(lost)
        return 1

    def _lost(self, error: LostError) -> str:
        if self._terminated_ns and error.status == "CANCELLED":
            return "the agent was terminated"
        if not self._welcomed.is_set():
            if error.status in ("CANCELLED", "UNAVAILABLE"):
                return f"no core reachable: nothing answered at {self._core} within {self._welcome_limit_s:g} s"
            return f"the core at {self._core} refused: {error.details or error.status}"
        return str(error)

    def _receive(self, message: pb.CoreMessage) -> None:
        """Takes what the core has brought, in the order that the protocol says."""
        if message.HasField("welcome"):
            self._welcome(message.welcome)
        for overdue in message.overdue:
            self._tell(overdue.session, Rank.overdue, overdue.seq, overdue.waited_ns)
        for payload in message.payloads:
            self._tell(payload.session, Rank.deliver, payload.seq, payload.data, payload.number)
        for batch in message.replies:
            self._tell(batch.session, Rank.answer, batch.replies)
        for session, clock_ns in zip(message.clocks.sessions, message.clocks.clock_ns, strict=True):
            self._tell(session, Rank.publish_clock, clock_ns)
        for gauges in message.gauges:
            self._directory.gauges.show(gauges)
        for session, messages in zip(message.taken.sessions, message.taken.messages, strict=True):
            self._tell(session, Rank.taken, messages)
        if message.HasField("go"):
            self._directory.open_gate()
        if message.HasField("stop"):
            self._stop(message.stop)

    def _welcome(self, welcome: pb.Welcome) -> None:
        if welcome.protocol != PROTOCOL:
            raise AgentError(
                f"the core at {self._core} speaks protocol {welcome.protocol} (version {welcome.version}), "
                f"this agent {PROTOCOL} (version {version()})"
            )
        self._limit.cancel()
        self._welcomed.set()
        self._tell_welcome()

    def _stop(self, stop: pb.Stop) -> None:
        status = ReplyStatus.FAILED if stop.failed else ReplyStatus.STOP
        if stop.session == 0:
            self._directory.tell_launcher(stop.reason, failed=stop.failed)
            self._ranks.end(status, stop.reason)
        elif (rank := self._ranks.by_session.get(stop.session)) is not None:
            rank.end(status, stop.reason)

    def _tell(self, session: int, tell: Callable[..., None], *what: Any) -> None:
        """Calls a method of a rank that something came for, unless it died meanwhile. What is wrong in its ring ends
        it, no other."""
        rank = self._ranks.by_session.get(session)
        if rank is None:
            return
        try:
            tell(rank, *what)
        except RingError as error:
            why = rank.ring.damage() or str(error)
            say(f"session {session}: {why}")
            rank.end(ReplyStatus.FAILED, f"broken ring: {why}")

    # ---- the sender ---------------------------------------------------------------------------------------------

    def _send(self) -> Iterator[bytes]:
        try:
            yield self._hello().SerializeToString()
            self._welcomed.wait()
            while not self._over.is_set() and not self._said_goodbye:
                yield from _packed(self._round())
                self._sleep()
        except GeneratorExit:
            raise
        except BaseException as error:  # a link may swallow it: `run` reports it
            self._failure = error
            self._link.cancel()

    def _hello(self) -> pb.AgentMessage:
        hello = pb.Hello(
            protocol=PROTOCOL,
            version=version(),
            server=self._server,
            devices=self._plan.devices,
            gpu=self._plan.gpu,
            token=self._plan.token,
        )
        return pb.AgentMessage(hello=hello)

    def _round(self) -> Iterator[pb.AgentMessage | Batch]:
        """What there is to send."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._look_at_ns:
            self._look_at_ns = now_ns + LOOK_AROUND_NS
            yield from self._look_around(now_ns)
        for rank in self._ranks:
            if not rank.leaving:
                yield from self._drain(rank)

    def _sleep(self) -> None:
        """Sleeps until there may be more to send."""
        rings = [rank.ring for rank in self._ranks if not rank.leaving]
        limit_ns = self._look_at_ns - time.monotonic_ns()
        if any(rank.outbox for rank in self._ranks):
            limit_ns = min(limit_ns, HURRIED_POLL_NS)  # nobody rings when a shim has emptied its inbox
        with self._asleep:
            if self._over.is_set():
                return
            bell = self._directory.page.wait_for_news(rings, self._bell, limit_ns)
        if bell != self._bell:
            self._bell = bell
            # Nobody that is known has rung: it may be a new rank, which soon blocks.
            if not any(ring.has_news() for ring in rings) and self._directory.changed():
                self._look_at_ns = 0

    def _look_around(self, now_ns: int) -> Iterator[pb.AgentMessage | Batch]:
        """What is not in the rings' counters: new rings, processes that are gone, the end of the workload."""
        if damage := self._directory.page.damage():
            raise AgentError(f"{self._directory.path / 'server.page'} is broken: {damage}")
        for found in self._ranks.discover():
            if isinstance(found, str):
                say(f"unreadable ring {found}")
            else:
                yield self._joined(found)
        for rank in self._ranks:
            yield from self._see_off(rank, now_ns)
        yield from self._bury(now_ns)
        state = self._directory.exit_state()
        if state is None and not self._terminated_ns:
            return
        self._gone_ns = self._gone_ns or now_ns
        if len(self._ranks):
            yield from self._hurry(now_ns)
        if not len(self._ranks):
            code, reason = state or (128 + signal.SIGTERM, "the agent was terminated")
            interrupted = state is None or reason.startswith(INTERRUPTED)
            self._leaving = True
            farewell = threading.Timer(FAREWELL_LIMIT_S, self._link.cancel)
            farewell.daemon = True
            farewell.start()
            yield pb.AgentMessage(goodbye=pb.Goodbye(exit_code=code, reason=reason, interrupted=interrupted))
            self._said_goodbye = True  # it has gone out

    def _hurry(self, now_ns: int) -> Iterator[pb.AgentMessage | Batch]:
        """Ends ranks that outlive their launcher, or the agent, by too long."""
        if self._terminated_ns and now_ns - self._terminated_ns > TERMINATE_LIMIT_S * 1e9:
            reason = "the agent was terminated"
        elif now_ns - self._gone_ns > ORPHAN_LIMIT_S * 1e9:
            reason = "the workload's launcher has ended"
        else:
            return
        self._ranks.end(ReplyStatus.FAILED, reason)
        for rank in self._ranks:
            if not rank.leaving:
                say(f"session {rank.session} is still running: {reason}")
                yield from self._drain(rank)
            if rank.session in self._ranks.by_session:
                if not rank.leaving:
                    yield self._left(rank, orderly=False)
                self._ranks.let_go(rank, died=False, keep_file=True)

    @staticmethod
    def _joined(rank: Rank) -> pb.AgentMessage:
        ring = rank.ring
        joined = pb.RankJoined(
            session=rank.session,
            rank=ring.rank,
            world=ring.world,
            pid=ring.pid,
            delivered=ring.delivered,
        )
        return pb.AgentMessage(joined=joined)

    def _left(self, rank: Rank, *, orderly: bool, damage: str = "") -> pb.AgentMessage:
        rank.leaving = True
        rank.ring.sent()
        status = None if orderly else self._wait_status(rank)
        waits = (0, 0, 0) if damage else rank.ring.real_waits_ns
        left = pb.RankLeft(
            session=rank.session,
            orderly=orderly,
            records=rank.ring.tail,
            wait_status=status,
            answer_wait_ns=waits[0],
            room_wait_ns=waits[1],
            watcher_wait_ns=waits[2],
            damage=damage,
        )
        return pb.AgentMessage(left=left)

    def _drain(self, rank: Rank) -> Iterator[pb.AgentMessage | Batch]:
        """Sends what a rank's ring holds. A broken ring ends its rank."""
        try:
            goal = rank.ring.head  # what comes meanwhile is for the next round: other ranks have their turn
            while (batch := rank.ring.batch(BATCH_LIMIT_BYTES, rank.session)) is not None:
                # Before it goes out: the core may say that it has it before we are asked for more.
                rank.ring.sent(batch)
                yield batch
                if self._over.is_set():
                    return
                if rank.ring.tail >= goal:
                    break
            if rank.outbox:
                rank.flush()
        except RingError as error:
            yield self._broken(rank, error)

    def _broken(self, rank: Rank, error: RingError) -> pb.AgentMessage:
        what = rank.ring.damage() or str(error)  # where pages are gone, zeros there may be what is wrong
        say(f"session {rank.session}: broken ring: {what}")
        rank.end(ReplyStatus.FAILED, f"broken ring: {what}")
        message = self._left(rank, orderly=False, damage=what)
        self._ranks.let_go(rank, died=False, keep_file=True)
        return message

    def _see_off(self, rank: Rank, now_ns: int) -> Iterator[pb.AgentMessage | Batch]:
        """Lets a rank go whose process is gone, once the core has taken all that it left. One that has not closed its
        ring is left to :meth:`_bury`."""
        if rank.leaving:
            if rank.ring.settled:
                self._ranks.let_go(rank, died=True)
            return
        try:
            if rank.ring.alive():
                return
        except RingError as error:
            yield self._broken(rank, error)
            return
        yield from self._drain(rank)
        if rank.session not in self._ranks.by_session or self._over.is_set():
            return
        if rank.ring.closed:
            yield self._left(rank, orderly=True)
        else:
            rank.died_ns = rank.died_ns or now_ns

    def _bury(self, now_ns: int) -> Iterator[pb.AgentMessage]:
        """Tells the core of ranks that died, in the order of their deaths, for what ends one may be the death of
        another. How and when a rank died is known from its parent, which may take a while: torchrun looks every 0.1 s.
        """
        dead = [rank for rank in self._ranks if rank.died_ns and not rank.leaving]
        ends = {rank.session: self._directory.end_of(rank.name) for rank in dead}
        for rank in sorted(dead, key=lambda rank: (rank.died_ns, (ends[rank.session] or (0, sys.maxsize))[1])):
            if ends[rank.session] is None and now_ns - rank.died_ns < STATUS_LIMIT_NS:
                return
            yield self._left(rank, orderly=False)

    def _wait_status(self, rank: Rank) -> int | None:
        """How a rank's process ended, as waitpid gives it; None if it is not known."""
        end = self._directory.end_of(rank.name)
        return end[0] if end is not None else _zombie_status(rank.ring.pid)

    # ---- beside the stream --------------------------------------------------------------------------------------

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT."""
        del number, frame
        if not self._welcomed.is_set():
            raise SystemExit(128 + signal.SIGTERM)
        if not self._terminated_ns:
            self._terminated_ns = time.monotonic_ns()
            last = threading.Timer(TERMINATE_HARD_LIMIT_S, self._link.cancel)
            last.daemon = True
            last.start()

    def _abandon(self, reason: str) -> None:
        """Ends every rank without the core, those too that are just coming up."""
        with contextlib.suppress(OSError):
            self._directory.tell_launcher(reason, failed=True)
            for _ in self._ranks.discover():
                pass
        self._ranks.end(ReplyStatus.FAILED, reason)

    def _beat(self) -> None:
        while not self._over.is_set():
            self._directory.page.beat()
            self._over.wait(HEARTBEAT_S)


def _zombie_status(pid: int) -> int | None:
    """The wait status of a process that has just died, which the kernel shows until its parent has fetched it. None if
    it has, or if the process is in another container, where its number means nothing here."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[-1]) if fields[0] == "Z" and fields[-1] != "0" else None


def _packed(messages: Iterable[pb.AgentMessage | Batch]) -> Iterator[bytes]:
    """Messages as bytes, in their order; batches that follow each other go as one, up to the limit of a message."""
    batches: list[Batch] = []
    for message in messages:
        room = BATCH_LIMIT_BYTES - sum(batch.size for batch in batches)
        if batches and not (isinstance(message, Batch) and message.size <= room):
            yield pack(batches)
            batches = []
        if isinstance(message, Batch):
            batches.append(message)
        else:
            yield message.SerializeToString()
    if batches:
        yield pack(batches)


def version() -> str:
    """Of the installed distribution."""
    try:
        return importlib.metadata.version("eidolon")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


def _say_ready() -> None:
    print("ready", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="eidolon_interposer.agent", description="The agent of one emulated server.")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--server", type=int, required=True, help="index of the emulated server, 0-based")
    parser.add_argument("--dir", type=Path, required=True, help="EIDOLON_DIR, shared with the workload")
    parser.add_argument("--core", required=True, metavar="HOST:PORT")
    parser.add_argument("--tls", type=Path, metavar="DIR", help="token, and tls.crt: the core's certificate")
    parser.add_argument("--connect-timeout", type=float, default=WELCOME_LIMIT_S, metavar="SECONDS")
    options: Any = parser.parse_args(arguments)
    sys.setswitchinterval(0.0005)  # the receiver should not wait 5 ms for a sender that is packing a batch
    try:
        plan = Plan.read(options.plan, options.server)
        trust = Trust.read(options.tls) if options.tls else None
        if trust is not None:
            plan = dataclasses.replace(plan, token=trust.token)
        directory = ServerDirectory(options.dir, plan.conf, options.server)
    except (AgentError, OSError, ValueError) as error:
        say(str(error))
        return 2
    deadline = time.monotonic() + options.connect_timeout
    while True:
        link = GrpcLink(options.core, trust)
        agent = Agent(plan, options.server, directory, link, options.core, options.connect_timeout, _say_ready)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, agent.terminate)
        code = agent.run(patient=time.monotonic() < deadline)
        link.close()
        if code is not None:
            return code
        time.sleep(AGAIN_S)


if __name__ == "__main__":
    raise SystemExit(main())
