"""``python -m eidolon_operator.one_host --plan PLAN --out DIR --dirs N=DIR …``: the core of a local run and the
agents of its servers, in one process. Each server is named by its number in the cluster and its directory.

The parts are those that pods have. Only the way between them is another (:class:`CallLink`): a batch goes from the
agent's thread straight to the simulation, and an answer from there straight into the slot of the rank that waits. No
message is packed for a wire, and none changes threads.

Prints ``http HOST:PORT`` and ``dcgm HOST:PORT`` where asked for, and ``ready`` once the core has welcomed every agent.
Exit code: that of the core (:mod:`eidolon_simcore.__main__`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from eidolon_interposer.agent import WELCOME_LIMIT_S, Agent, AgentError, Plan, say
from eidolon_interposer.link import LostError
from eidolon_interposer.serverdir import ServerDirectory
from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore import __main__ as core
from eidolon_simcore.run.server import RejectedError
from eidolon_simcore.run.service import Service

LEAVE_LIMIT_S = 5.0  #: how long an agent may take to end once its stream is over
SWITCH_S = 0.0005  #: an agent that was woken should not wait 5 ms for a thread that is at the simulation


class CallLink:
    """A :class:`~eidolon_interposer.link.Link` to a service in this process."""

    def __init__(self, service: Service) -> None:
        self.over = threading.Event()
        self._service = service
        self._error: Exception | None = None  # why the stream has ended, unless the core closed it

    def run(self, messages: Iterator[bytes], receive: Callable[[pb.CoreMessage], None]) -> None:
        """See :meth:`Link.run`. Messages are asked for on this thread; ``receive`` is called at the simulation."""

        def take(item: pb.CoreMessage | RejectedError | None) -> None:
            if self.over.is_set():
                return
            if isinstance(item, pb.CoreMessage):
                try:
                    receive(item)
                except Exception as error:  # it must not become an error of the simulation
                    self._end(error)
            else:
                self._end(None if item is None else LostError(item.status, str(item)))

        post = self._service.attach(take)
        for message in messages:
            if self.over.is_set():
                break
            post(message)
        self.over.wait()  # the agent's limits end this wait
        post(None)
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """See :meth:`Link.cancel`."""
        self._end(LostError("CANCELLED", "the agent gave up"))

    def _end(self, error: Exception | None) -> None:
        if not self.over.is_set():
            self._error = error
            self.over.set()


class Server(NamedTuple):
    """An emulated server that has ranks to run."""

    number: int
    plan: Plan
    directory: ServerDirectory

    @classmethod
    def open(cls, words: str, plan_file: Path) -> Server:
        """The server that ``N=DIR`` names. Raises :class:`AgentError`, OSError, ValueError."""
        number, _, path = words.partition("=")
        plan = Plan.read(plan_file, int(number))
        return cls(int(number), plan, ServerDirectory(Path(path), plan.conf, int(number)))


class Agents:
    """The agents of all servers, a thread each."""

    def __init__(self, service: Service, servers: Sequence[Server]) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._welcomed = 0
        self._threads = [
            threading.Thread(target=self._run, args=(server,), name=f"agent-{server.number}", daemon=True)
            for server in servers
        ]

    def start(self) -> None:
        """Starts them all."""
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """Waits for them to end."""
        for thread in self._threads:
            thread.join(LEAVE_LIMIT_S)

    def _run(self, server: Server) -> None:
        link = CallLink(self._service)
        number, plan, directory = server
        agent = Agent(plan, number, directory, link, "this process", WELCOME_LIMIT_S, self._greeted)
        if agent.run() != 0 and self._welcomed < len(self._threads):
            self._service.cancel()  # who waits for `ready` waits in vain

    def _greeted(self) -> None:
        with self._lock:
            self._welcomed += 1
            if self._welcomed == len(self._threads):
                print("ready", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    known = core.parser("eidolon_operator.one_host", "The simulation core and the agents of a local run.")
    known.add_argument("--dirs", required=True, nargs="+", metavar="N=EIDOLON_DIR", help="one for each server")
    options = known.parse_args(arguments)
    sys.setswitchinterval(SWITCH_S)
    try:
        servers = [Server.open(words, options.plan) for words in options.dirs]
    except (AgentError, OSError, ValueError) as error:
        say(str(error))
        return 2

    def connect(service: Service) -> Callable[[], None]:
        agents = Agents(service, servers)
        agents.start()
        return agents.leave

    return core.serve(options, connect)


if __name__ == "__main__":
    sys.exit(main())
