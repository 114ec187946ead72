"""What the core sends to the servers' agents, as messages of the protocol.

What a round brings a server is collected and goes out as one message. A server without a stream gets nothing: what it
needs, its sessions repeat when the agent comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.export.device_gauges import Reading
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.run.delivery import Line
from eidolon_simcore.run.server import Server


class Outbox:
    """See the module's docstring."""

    def __init__(self, servers: Mapping[int, Server]) -> None:
        self._servers = servers
        self._next: dict[int, pb.CoreMessage] = {}  # what goes out next, by server
        self._replies: dict[tuple[int, int], pb.ReplyBatch] = {}  # parts of these messages, by server and session
        self._clocks: dict[int, int] = {}  # by rank, as published last
        self._shown: dict[Port, Reading] = {}  # the gauges of each device, as told last

    def line(self, server: int, session: int) -> Line:
        """The way to the rank of this session."""
        return _Line(self, server, session)

    def next(self, server: int) -> pb.CoreMessage:
        """The message that goes out with the next :meth:`flush`."""
        message = self._next.get(server)
        if message is None:
            message = self._next[server] = pb.CoreMessage()
        return message

    def replies(self, server: int, session: int) -> pb.ReplyBatch:
        """The replies to a session in the message that goes out next."""
        batch = self._replies.get((server, session))
        if batch is None:
            batch = self._replies[server, session] = self.next(server).replies.add(session=session)
        return batch

    def flush(self) -> None:
        """Sends what was collected."""
        messages, self._next, self._replies = self._next, {}, {}
        for server, message in messages.items():
            if (send := self._servers[server].send) is not None:
                send(message)

    def drop(self, server: int) -> None:
        """The server's stream is gone, and with it what was collected: another stream does not go on with it."""
        self._next.pop(server, None)
        self._replies = {key: batch for key, batch in self._replies.items() if key[0] != server}

    def show(self, readings: Mapping[Port, Reading]) -> None:
        """Adds what has changed of the devices' gauges to what goes out next."""
        for port, reading in readings.items():
            if self._servers[port.server].send is not None and self._shown.get(port) != reading:
                self._shown[port] = reading
                self.next(port.server).gauges.add(device=port.device, **asdict(reading))

    def publish(self, clock_ns: Callable[[int], int]) -> None:
        """Adds the clocks of running ranks that have moved, and what has been taken from them, to what goes out next.

        What was taken is freed by the agent. That the core says so a few milliseconds later does not matter: rings hold
        far more."""
        for server in self._servers.values():
            if server.send is None:
                continue
            for session in server.sessions.values():
                if session.taken != session.acknowledged:
                    session.acknowledged = session.taken
                    taken = self.next(server.index).taken
                    taken.sessions.append(session.number)
                    taken.messages.append(session.taken)
                if session.left:
                    continue
                clock = clock_ns(session.rank)
                if self._clocks.get(session.rank) != clock:
                    self._clocks[session.rank] = clock
                    clocks = self.next(server.index).clocks
                    clocks.sessions.append(session.number)
                    clocks.clock_ns.append(clock)


@dataclass(frozen=True, slots=True)
class _Line:
    outbox: Outbox
    server: int
    session: int

    def reply(self, seq: int, thread: int, clock_ns: int, value: int) -> None:
        batch = self.outbox.replies(self.server, self.session)
        batch.replies.add(seq=seq, thread=thread, clock_ns=clock_ns, value=value)

    def payload(self, number: int, seq: int, data: bytes) -> None:
        message = self.outbox.next(self.server)
        message.payloads.add(session=self.session, seq=seq, data=data, number=number)
