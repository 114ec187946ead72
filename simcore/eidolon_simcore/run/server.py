"""One emulated server as the core sees it: its stream, its sessions, how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.run.session import Session

Send = Callable[[pb.CoreMessage], None]


class RejectedError(Exception):
    """A message that ends its stream; ``status`` is the name of a gRPC status code."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Server:
    """See the module's docstring; ``send`` is None while it has no stream."""

    index: int
    send: Send | None = None
    sessions: dict[int, Session] = field(default_factory=dict)
    said_hello: bool = False
    lost_at: float | None = None
    exit_code: int | None = None
    told_to_go: bool = False  # on its present stream

    def acknowledge(self) -> None:
        """Says what has been taken, so that the agent frees it. Every 10 ms is often enough: rings hold far more."""
        sessions, messages = [], []
        for session in self.sessions.values():
            if session.taken != session.acknowledged:
                session.acknowledged = session.taken
                sessions.append(session.number)
                messages.append(session.taken)
        if sessions and self.send is not None:
            self.send(pb.CoreMessage(taken=pb.Taken(sessions=sessions, messages=messages)))
