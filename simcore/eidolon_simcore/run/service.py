"""The service: streams of agents on one side, one simulation on the other.

Every gRPC stream has a thread that reads it, and one of gRPC's own that writes it. An agent in this process needs
neither (:meth:`Service.attach`). What is read goes into one inbox. Whoever has put something there, and finds nobody at
the simulation, goes to it himself: he takes everything that has arrived, hands it to the
:class:`~.simulation.Simulation`, and lets that answer once for the whole round. Others go on reading meanwhile. So a
message is handed from thread to thread no more often than necessary, and a blocking request is answered a fraction of a
millisecond after it came.

With TLS (:class:`Security`) the agents pin the core's self-signed certificate. In both cases a hello must bring the
run's token.

Readers on other threads (HTTP) get :attr:`Service.status` and :attr:`Service.snapshot`. Both are immutable;
:meth:`Service.run` replaces them.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.ledger.snapshot import Snapshot
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.run.server import RejectedError
from eidolon_simcore.run.simulation import PUBLISH_EVERY_S, Simulation

MAX_MESSAGE_BYTES = 4 << 20  #: a larger message of an agent fails the run
GRPC_MESSAGE_BYTES = 16 << 20  #: gRPC itself refuses larger messages, before they are in memory
HELLO_LIMIT_S = 10.0  #: how long a stream may take for its first message ...
CROWDED_LIMIT_S = 0.1  #: ... and if more streams are silent than there could be agents, which then try again
STREAMS = 4  #: of one connection: an agent has one, and has left the one before it a moment ago
STRANGERS = 8  #: so many silent streams beside those of all agents are no crowd yet
ROUND = 1_000  #: the most messages of one round, so that answers do not wait for a flood
TOGETHER = 256  #: the most messages that go to an agent as one
SNAPSHOT_EVERY_S = 0.2  #: interval between snapshots; the status is also renewed at each final step
_NAME = pb.DESCRIPTOR.services_by_name["Simulation"].full_name
STALE_S = 30.0  #: a simulation that has not ticked for so long is not healthy


@dataclass(frozen=True, slots=True)
class Security:
    """What the core proves itself with, and what agents must bring: the files of ``--tls DIR``."""

    token: str
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, directory: Path) -> Security:
        """Reads ``token``, ``tls.crt`` and ``tls.key``. Raises :class:`OSError`, :class:`ValueError`."""
        token = (directory / "token").read_text("ascii").strip()
        if len(token) < 32:
            raise ValueError(f"{directory / 'token'}: {len(token)} characters are too few for a token (32)")
        return cls(token, (directory / "tls.crt").read_bytes(), (directory / "tls.key").read_bytes())

    def credentials(self) -> grpc.ServerCredentials:
        """The key and the certificate as gRPC takes them."""
        return grpc.ssl_server_credentials([(self.key, self.certificate)])


class _Stream:
    """One connected agent."""

    def __init__(self, take: Callable[[pb.CoreMessage | RejectedError | None], None]) -> None:
        self._take = take  # what goes to the agent, and at last the end
        self.began_at = time.monotonic()
        self.server: int | None = None  # index of its server, known after hello
        self.over = False

    def send(self, message: pb.CoreMessage) -> None:
        self._take(message)

    def end(self, error: RejectedError | None = None) -> None:
        if not self.over:
            self.over = True
            self._take(error)


class _GrpcStream(_Stream):
    """One whose agent is elsewhere."""

    def __init__(self) -> None:
        self.out: queue.SimpleQueue[pb.CoreMessage | RejectedError | None] = queue.SimpleQueue()
        super().__init__(self.out.put)

    def messages(self) -> Iterator[pb.CoreMessage]:
        """What is sent, as it goes out: what has queued up meanwhile goes as one message. Raises the
        :class:`RejectedError` that ends the stream."""
        while True:
            queued = [self.out.get()]
            with contextlib.suppress(queue.Empty):
                while len(queued) < TOGETHER and isinstance(queued[-1], pb.CoreMessage):
                    queued.append(self.out.get_nowait())
            going = [one for one in queued if isinstance(one, pb.CoreMessage)]
            if going:
                for later in going[1:]:
                    going[0].MergeFrom(later)
                yield going[0]
            if isinstance(queued[-1], RejectedError):
                raise queued[-1]
            if queued[-1] is None:
                return


class _Received:
    """A message of an agent, and its size."""

    __slots__ = ("bytes", "message")

    def __init__(self, data: bytes) -> None:
        self.message = pb.AgentMessage.FromString(data)
        self.bytes = len(data)


class _Opened:
    """Stands in the inbox for the beginning of a stream."""


class Service:
    """Serves one run."""

    def __init__(self, simulation: Simulation, security: Security | None = None) -> None:
        self._simulation = simulation
        self._security = security
        self._inbox: queue.SimpleQueue[tuple[_Stream | None, _Received | _Opened | None]] = queue.SimpleQueue()
        self._at_simulation = threading.Lock()  # whoever holds it may touch all that follows, and the simulation
        self._over = False  # the run: what still comes is not looked at
        self._ticked_at = self._shown_at = self._snapshot_at = time.monotonic()
        self._shown_steps = 0
        self.status: Mapping[str, Any] = simulation.status()  #: any thread may read it: it is replaced, never changed
        self.snapshot: Snapshot = simulation.snapshot(self._ticked_at)  #: any thread may read it too
        self._streams: set[_Stream] = set()  # streams that have said hello
        self._silent: set[_Stream] = set()  # streams that have not yet
        self._server: grpc.Server | None = None

    def listen(self, address: str) -> str:
        """Binds and starts; returns HOST:PORT. Raises :class:`OSError` if the address cannot be had."""
        host = address.rpartition(":")[0]
        self._server = self._grpc_server()
        try:
            if self._security is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._security.credentials())
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        if not port:
            raise OSError(f"cannot listen on {address}")
        self._server.start()
        return f"{host}:{port}"

    def attach(self, take: Callable[[pb.CoreMessage | RejectedError | None], None]) -> Callable[[bytes | None], None]:
        """Opens the stream of an agent in this process. Returns what takes the agent's messages, and None when it has
        gone.

        ``take`` gets the core's messages, and at last None or what is wrong with the stream. It is called on whichever
        thread is at the simulation, and neither waits nor raises.
        """
        stream = _Stream(take)
        self._post(stream, _Opened())
        return lambda data: self._post(stream, None if data is None else _Received(data))

    def cancel(self) -> None:
        """Ends the run at the next tick. Any thread or signal handler may call it."""
        self._inbox.put((None, None))

    def _grpc_server(self) -> grpc.Server:
        # Threads are made as streams need them. There may be a few more streams than servers while one reconnects.
        server = grpc.server(
            ThreadPoolExecutor(max_workers=2 * self._simulation.plan.servers + 64, thread_name_prefix="stream"),
            options=[
                ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                # A broken connection is noticed even if the machine behind it vanished: its successor is not refused.
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 5_000),
                ("grpc.max_concurrent_streams", STREAMS),
                # Connections of strangers that say nothing, and those on which no stream is opened.
                ("grpc.server_handshake_timeout_ms", int(HELLO_LIMIT_S * 1000)),
                ("grpc.max_connection_idle_ms", int(HELLO_LIMIT_S * 1000)),
            ],
        )
        connect = grpc.stream_stream_rpc_method_handler(
            self._connect, request_deserializer=_Received, response_serializer=pb.CoreMessage.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_NAME, {"Connect": connect}),))
        return server

    # ---- threads of the streams -----------------------------------------------------------------------------------

    def _connect(self, requests: Iterator[_Received], context: grpc.ServicerContext) -> Iterator[pb.CoreMessage]:
        """One stream: gRPC calls this on a thread of its own for each agent that connects."""
        stream = _GrpcStream()
        self._post(stream, _Opened())

        def read() -> None:
            try:
                for received in requests:
                    self._post(stream, received)
            except grpc.RpcError:
                pass  # the stream broke, which is reported below like an orderly end
            except Exception:
                if context.is_active():
                    raise
            finally:
                self._post(stream, None)

        threading.Thread(target=read, name="stream-reader", daemon=True).start()
        context.add_callback(lambda: stream.out.put(None))
        try:
            yield from stream.messages()
        except RejectedError as error:
            context.abort(getattr(grpc.StatusCode, error.status), str(error))

    def _post(self, stream: _Stream, item: _Received | _Opened | None) -> None:
        self._inbox.put((stream, item))
        self._go_round()

    def _go_round(self) -> None:
        """Takes what has arrived to the simulation, unless somebody is there: he looks again when he has left."""
        while not self._inbox.empty() and self._at_simulation.acquire(blocking=False):
            self._do(self._round)

    def _do(self, work: Callable[[], None]) -> None:
        """Works at the simulation, where this thread is, and leaves it. An error there is ours, and ends the run."""
        try:
            work()
        except Exception as error:
            self._over = True
            traceback.print_exc()
            text = f"internal error: {type(error).__name__}: {error}; see the core's log"
            self._simulation.fail(text, time.monotonic(), cause=Cause.INTERNAL_ERROR)
        finally:
            self._at_simulation.release()

    # ---- the run --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs the simulation to its end and writes the summary."""
        while not self._over:
            time.sleep(PUBLISH_EVERY_S)
            self._at_simulation.acquire()
            self._do(self._tick)
            self._go_round()
        with self._at_simulation:
            try:
                self._simulation.finish(time.monotonic())
            finally:
                self._ticked_at = float("inf")  # nothing more has to tick
                self._show(float("inf"))
                for stream in self._streams:
                    stream.end()
        if self._server is not None:
            self._server.stop(grace=1.0).wait()

    def _tick(self) -> None:
        now = time.monotonic()
        self._simulation.tick(now)
        self._ticked_at = now
        self._end_silent(now)
        self._show(now)
        self._over = self._over or self._simulation.finished(now)

    def healthy(self) -> bool:
        """True if the simulation still ticks, or the run has ended. Any thread may ask."""
        return time.monotonic() - self._ticked_at < STALE_S

    def _show(self, now: float) -> None:
        if now - self._snapshot_at >= SNAPSHOT_EVERY_S:
            self._snapshot_at = now
            self.snapshot = self._simulation.snapshot(time.monotonic())
            self._simulation.show(self.snapshot)
        steps = len(self._simulation.steps)
        if now - self._shown_at >= SNAPSHOT_EVERY_S or steps != self._shown_steps:
            self._shown_at, self._shown_steps = now, steps
            self.status = self._simulation.status()

    def _round(self) -> None:
        with contextlib.suppress(queue.Empty):
            for _ in range(ROUND):
                item = self._inbox.get_nowait()
                if not self._over:
                    self._take(*item)
        if not self._over:
            self._simulation.advance(time.monotonic())

    def _take(self, stream: _Stream | None, item: _Received | _Opened | None) -> None:
        simulation, now = self._simulation, time.monotonic()
        if stream is None:
            simulation.cancel(now)
            return
        if isinstance(item, _Opened):
            self._silent.add(stream)
            return
        if item is None:
            self._streams.discard(stream)
            self._silent.discard(stream)
            stream.end()
            if stream.server is not None:
                simulation.closed(stream.server, now)
            return
        if stream.over:
            return
        message = item.message
        try:
            if stream.server is not None:
                if item.bytes > MAX_MESSAGE_BYTES:
                    text = f"a message of {item.bytes} bytes (limit {MAX_MESSAGE_BYTES})"
                    simulation.reject(stream.server, text, now)
                simulation.message(stream.server, message, now)
                if message.HasField("goodbye"):
                    stream.end()
            elif message.HasField("hello"):
                self._silent.discard(stream)
                stream.server = simulation.hello(message.hello, stream.send, now)
                self._streams.add(stream)
            else:
                raise RejectedError("FAILED_PRECONDITION", "a stream begins with hello")  # noqa: TRY301
        except RejectedError as error:
            stream.end(error)

    def _end_silent(self, now: float) -> None:
        """Ends streams that have not said hello in time. They are strangers' and do not concern the run."""
        crowded = len(self._silent) > self._simulation.plan.servers + STRANGERS
        limit_s = CROWDED_LIMIT_S if crowded else HELLO_LIMIT_S
        for stream in [s for s in self._silent if now - s.began_at > limit_s]:
            self._silent.discard(stream)
            stream.end(RejectedError("DEADLINE_EXCEEDED", f"no hello within {limit_s:g} s"))
