"""What the core sends to the servers' agents, as messages of the protocol.

Replies are collected and sent once a round, one message for each session. Everything else is sent at once. A server
without a stream gets nothing: what it needs, its sessions repeat when the agent comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.run.delivery import Line
from eidolon_simcore.run.server import Server


class Outbox:
    """See the module's docstring."""

    def __init__(self, servers: Mapping[int, Server]) -> None:
        self._servers = servers
        self._replies: dict[tuple[int, int], list[pb.Reply]] = {}  # by server and session
        self._clocks: dict[int, int] = {}  # by rank, as published last

    def line(self, server: int, session: int) -> Line:
        """The way to the rank of this session."""
        return _Line(self, server, session)

    def reply(self, server: int, session: int, reply: pb.Reply) -> None:
        """A reply that goes out with the next :meth:`flush`."""
        self._replies.setdefault((server, session), []).append(reply)

    def flush(self) -> None:
        """Sends the replies that were collected."""
        replies, self._replies = self._replies, {}
        for (server, session), batch in replies.items():
            self.send(server, pb.CoreMessage(replies=pb.ReplyBatch(session=session, replies=batch)))

    def send(self, server: int, message: pb.CoreMessage) -> None:
        """Sends a message at once."""
        if (send := self._servers[server].send) is not None:
            send(message)

    def publish(self, clock_ns: Callable[[int], int]) -> None:
        """Sends the clocks of running ranks that have moved, and what has been taken from them."""
        for server in self._servers.values():
            if server.send is None:
                continue
            sessions, clocks = [], []
            for session in server.sessions.values():
                if session.left:
                    continue
                clock = clock_ns(session.rank)
                if self._clocks.get(session.rank) != clock:
                    self._clocks[session.rank] = clock
                    sessions.append(session.number)
                    clocks.append(clock)
            if sessions:
                server.send(pb.CoreMessage(clocks=pb.Clocks(sessions=sessions, clock_ns=clocks)))
            server.acknowledge()


@dataclass(frozen=True, slots=True)
class _Line:
    outbox: Outbox
    server: int
    session: int

    def reply(self, seq: int, thread: int, clock_ns: int, value: int) -> None:
        self.outbox.reply(self.server, self.session, pb.Reply(seq=seq, thread=thread, clock_ns=clock_ns, value=value))

    def payload(self, number: int, seq: int, data: bytes) -> None:
        payload = pb.Payload(session=self.session, seq=seq, data=data, number=number)
        self.outbox.send(self.server, pb.CoreMessage(payload=payload))
