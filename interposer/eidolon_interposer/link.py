"""The way from an agent to the simulation core: a stream of messages in both directions.

Between pods it is gRPC (:class:`GrpcLink`). On one host the agents run in the core's own process, and a link there
hands messages over by calls (``eidolon_operator.one_host``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from eidolon_proto.v1 import simulation_pb2 as pb

CERTIFICATE_NAME = "eidolon-core"  #: whatever the core's address is
_CONNECT = f"/{pb.DESCRIPTOR.services_by_name['Simulation'].full_name}/Connect"
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class LostError(Exception):
    """The stream has ended otherwise than by the core's will.

    Attributes:
        status: name of a gRPC status code.
        details: what the core or gRPC say of it, in one line.
    """

    def __init__(self, status: str, details: str) -> None:
        super().__init__(f"{status}: {details}")
        self.status = status
        self.details = details


class Link(Protocol):
    """One stream. :meth:`run` is called once."""

    over: threading.Event  #: set once the stream has ended: nothing more need be sent

    def run(self, messages: Iterator[bytes], receive: Callable[[pb.CoreMessage], None]) -> None:
        """Carries messages both ways until the core closes the stream. ``messages`` and ``receive`` may be asked on
        different threads. What ``receive`` raises ends the stream and is raised here. Raises :class:`LostError`."""

    def cancel(self) -> None:
        """Ends the stream at once, as ``CANCELLED``. Any thread may call it."""


@dataclass(frozen=True, slots=True)
class Trust:
    """The files of ``--tls DIR``: the run's token, and the only certificate that is trusted."""

    token: str
    certificate: bytes

    @classmethod
    def read(cls, directory: Path) -> Trust:
        """Reads ``token`` and ``tls.crt``. Raises :class:`OSError`, :class:`ValueError`."""
        return cls((directory / "token").read_text("ascii").strip(), (directory / "tls.crt").read_bytes())

    def channel(self, core: str) -> grpc.Channel:
        """A channel to the core at ``HOST:PORT`` that accepts this certificate only."""
        # The certificate is the root of trust, so who else has one of this name does not matter.
        options = (*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", CERTIFICATE_NAME))
        return grpc.secure_channel(core, grpc.ssl_channel_credentials(self.certificate), options)


class GrpcLink:
    """A gRPC stream to the core at ``HOST:PORT``. gRPC asks for the next message on a thread of its own when the one
    before has gone out, so a slow core slows the sender."""

    def __init__(self, core: str, trust: Trust | None = None) -> None:
        self.over = threading.Event()
        self._channel = trust.channel(core) if trust else grpc.insecure_channel(core, options=_CHANNEL_OPTIONS)
        # Requests come as bytes: batches are packed by native code.
        self._connect: grpc.StreamStreamMultiCallable[bytes, pb.CoreMessage] = self._channel.stream_stream(
            _CONNECT, response_deserializer=pb.CoreMessage.FromString
        )
        self._call: Any = None  # gRPC has no public type for it

    def run(self, messages: Iterator[bytes], receive: Callable[[pb.CoreMessage], None]) -> None:
        """See :meth:`Link.run`."""
        self._call = self._connect(messages, wait_for_ready=True)
        try:
            for message in self._call:
                receive(message)
        except grpc.RpcError as error:
            details = " ".join((error.details() or "").split())
            raise LostError(error.code().name, details) from error
        finally:
            self.over.set()

    def cancel(self) -> None:
        """See :meth:`Link.cancel`."""
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """Gives the connection up. Call it when nobody asks for messages any more."""
        self.cancel()
        self._channel.close()
