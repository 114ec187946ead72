"""The emulated servers as the core sees them: who has connected, whose stream broke, who has ended.

A server connects with a hello. Workloads start once every server has said hello, so that none waits for another that
never comes. A server may lose its stream and say hello again; it may not once it has said goodbye.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.core_plan import Plan
from eidolon_simcore.run.session import Session
from eidolon_simcore.vocabulary import PROTOCOL

Send = Callable[[pb.CoreMessage], None]


class RejectedError(Exception):
    """A message that ends its stream; ``status`` is the name of a gRPC status code."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Server:
    """One emulated server. Times are seconds of a monotonic clock."""

    index: int
    send: Send | None = None  #: None while it has no stream
    sessions: dict[int, Session] = field(default_factory=dict)  #: by their number on it
    said_hello: bool = False
    lost_at: float | None = None  #: when its stream broke; None while it has one
    exit_code: int | None = None  #: of its workload; None until it says goodbye
    told_to_go: bool = False  #: on its present stream


class Servers:
    """All servers of a run on which there are processes, by index."""

    def __init__(self, plan: Plan, version: str) -> None:
        self._plan = plan
        self._version = version
        self.by_index = {index: Server(index) for index in plan.present}
        self.complete_at: float | None = None  #: when the last one said hello

    def hello(self, hello: pb.Hello, send: Send, now: float) -> Server:
        """A server's first message on a stream. Raises :class:`RejectedError`."""
        server = self._admitted(hello)
        server.send, server.lost_at, server.said_hello = send, None, True
        send(pb.CoreMessage(welcome=pb.Welcome(protocol=PROTOCOL, version=self._version)))
        server.told_to_go = False
        self._open_gate(now)
        return server

    def _admitted(self, hello: pb.Hello) -> Server:
        if hello.protocol != PROTOCOL:
            theirs, ours = f"protocol {hello.protocol} of eidolon {hello.version}", f"protocol {PROTOCOL}"
            raise RejectedError("FAILED_PRECONDITION", f"{theirs} does not fit {ours} of eidolon {self._version}")
        if not hmac.compare_digest(hello.token.encode(), self._plan.token.encode()):
            raise RejectedError("UNAUTHENTICATED", "the token is not that of this run")
        server = self.by_index.get(hello.server)
        if server is None:
            without = ", on which nothing runs" if hello.server < self._plan.servers else ""
            raise RejectedError(
                "INVALID_ARGUMENT", f"server {hello.server} of a run with {self._plan.servers}{without}"
            )
        if server.send is not None:
            raise RejectedError("ALREADY_EXISTS", f"server {hello.server} is connected already")
        if server.exit_code is not None:
            raise RejectedError("FAILED_PRECONDITION", f"server {hello.server} has said goodbye")
        theirs = f"{hello.devices} x {hello.gpu}"
        ours = f"{self._plan.gpus_per_server} x {self._plan.devices[server.index].gpu.key}"
        if theirs != ours:
            raise RejectedError("FAILED_PRECONDITION", f"server {hello.server} has {theirs}, the run has {ours}")
        return server

    def _open_gate(self, now: float) -> None:
        """Workloads start once every server has said hello."""
        servers = self.by_index.values()
        if all(s.said_hello for s in servers):
            self.complete_at = now if self.complete_at is None else self.complete_at
            for server in servers:
                if server.send is not None and not server.told_to_go:
                    server.told_to_go = True
                    server.send(pb.CoreMessage(go=pb.Go()))

    def absent(self) -> list[int]:
        """Servers that have not said hello."""
        return [server.index for server in self.by_index.values() if not server.said_hello]

    def closed(self, index: int, now: float) -> None:
        """A server's stream is gone."""
        server = self.by_index[index]
        server.send = None
        for session in server.sessions.values():
            session.stream_closed()
        if server.exit_code is None:
            server.lost_at = now
