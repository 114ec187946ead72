"""The gRPC service: streams on one side, one simulation thread on the other.

Every stream has a thread that reads it, and one of gRPC's own that writes it; they only pass messages on. All state
belongs to the thread that runs :meth:`Service.run`. It takes everything that has arrived, hands it to the
:class:`~.simulation.Simulation`, and lets that answer once for the whole round. A blocking request is answered a
fraction of a millisecond after it came.

With TLS (:class:`Security`) the agents pin the core's self-signed certificate. In both cases a hello must bring the
run's token.

Readers on other threads (HTTP) get :attr:`Service.status` and :attr:`Service.snapshot`. Both are immutable; the
simulation thread replaces them.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_proto.v1 import simulation_pb2_grpc as pb_grpc
from eidolon_simcore.ledger.snapshot import Snapshot
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.run.server import RejectedError
from eidolon_simcore.run.simulation import CLOCKS_EVERY_S, Simulation

MAX_MESSAGE_BYTES = 4 << 20  #: a larger message of an agent fails the run
GRPC_MESSAGE_BYTES = 16 << 20  #: gRPC itself refuses larger messages, before they are in memory
HELLO_LIMIT_S = 10.0  #: how long a stream may take for its first message ...
CROWDED_LIMIT_S = 1.0  #: ... and if more streams are silent than there could be agents
STRANGERS = 8  #: so many silent streams beside those of all agents are no crowd yet
ROUND = 1_000  #: the most messages of one round, so that answers do not wait for a flood
TOGETHER = 256  #: the most messages that go to an agent as one
SNAPSHOT_EVERY_S = 0.2  #: interval between snapshots; the status is also renewed at each final step
STALE_S = 30.0  #: a simulation thread that has not ticked for so long is not healthy


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
    """One connected agent, as the simulation thread sees it."""

    def __init__(self) -> None:
        self.out: queue.SimpleQueue[pb.CoreMessage | RejectedError | None] = queue.SimpleQueue()
        self.began_at = time.monotonic()
        self.server: int | None = None  # index of its server, known after hello
        self.over = False

    def send(self, message: pb.CoreMessage) -> None:
        self.out.put(message)

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
                yield going[0] if len(going) == 1 else pb.CoreMessage(several=pb.Several(messages=going))
            if isinstance(queued[-1], RejectedError):
                raise queued[-1]
            if queued[-1] is None:
                return

    def end(self, error: RejectedError | None = None) -> None:
        if not self.over:
            self.over = True
            self.out.put(error)


class _Opened:
    """Stands in the inbox for the beginning of a stream."""


class Service(pb_grpc.SimulationServicer):
    """Serves one run."""

    def __init__(self, simulation: Simulation, security: Security | None = None) -> None:
        self._simulation = simulation
        self._security = security
        self._ticked_at = self._shown_at = self._snapshot_at = time.monotonic()
        self._shown_steps = 0
        self.status: Mapping[str, Any] = simulation.status()  #: any thread may read it: it is replaced, never changed
        self.snapshot: Snapshot = simulation.snapshot(self._ticked_at)  #: any thread may read it too
        self._inbox: queue.SimpleQueue[tuple[_Stream | None, pb.AgentMessage | _Opened | None]] = queue.SimpleQueue()
        self._streams: set[_Stream] = set()  # streams that have said hello
        self._silent: set[_Stream] = set()  # streams that have not yet
        # Threads are made as streams need them. There may be a few more streams than servers while one reconnects.
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=2 * simulation.plan.servers + 64, thread_name_prefix="stream"),
            options=[
                ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                # A broken connection is noticed even if the machine behind it vanished: its successor is not refused.
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 5_000),
            ],
        )
        pb_grpc.add_SimulationServicer_to_server(self, self._server)

    def listen(self, address: str) -> str:
        """Binds and starts; returns HOST:PORT. Raises :class:`OSError` if the address cannot be had."""
        host = address.rpartition(":")[0]
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

    def cancel(self) -> None:
        """Ends the run. Any thread or signal handler may call it."""
        self._inbox.put((None, None))

    # ---- gRPC's threads -------------------------------------------------------------------------------------------

    def Connect(  # noqa: N802 (the name is the protocol's)
        self, request_iterator: Iterator[pb.AgentMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.CoreMessage]:
        """One stream: gRPC calls this on a thread of its own for each agent that connects."""
        stream = _Stream()
        self._inbox.put((stream, _Opened()))

        def read() -> None:
            try:
                for message in request_iterator:
                    self._inbox.put((stream, message))
            except grpc.RpcError:
                pass  # the stream broke, which is reported below like an orderly end
            except Exception:
                if context.is_active():
                    raise
            finally:
                self._inbox.put((stream, None))

        threading.Thread(target=read, name="stream-reader", daemon=True).start()
        context.add_callback(lambda: stream.out.put(None))
        try:
            yield from stream.messages()
        except RejectedError as error:
            context.abort(getattr(grpc.StatusCode, error.status), str(error))

    # ---- the simulation thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs the simulation to its end and writes the summary."""
        simulation = self._simulation
        try:
            while not simulation.finished(time.monotonic()):
                self._round(simulation)
                simulation.tick(time.monotonic())
                self._ticked_at = time.monotonic()
                self._end_silent(self._ticked_at)
                self._show(self._ticked_at)
        except Exception as error:
            traceback.print_exc()
            text = f"internal error: {type(error).__name__}: {error}; see the core's log"
            simulation.fail(text, time.monotonic(), cause=Cause.INTERNAL_ERROR)
        try:
            simulation.finish(time.monotonic())
        finally:
            self._ticked_at = float("inf")  # nothing more has to tick
            self._show(float("inf"))
            for stream in self._streams:
                stream.end()
            self._server.stop(grace=1.0).wait()

    def healthy(self) -> bool:
        """True if the simulation thread still goes round, or has ended the run. Any thread may ask."""
        return time.monotonic() - self._ticked_at < STALE_S

    def _show(self, now: float) -> None:
        if now - self._snapshot_at >= SNAPSHOT_EVERY_S:
            self._snapshot_at = now
            self.snapshot = self._simulation.snapshot(time.monotonic())
        steps = len(self._simulation.steps)
        if now - self._shown_at >= SNAPSHOT_EVERY_S or steps != self._shown_steps:
            self._shown_at, self._shown_steps = now, steps
            self.status = self._simulation.status()

    def _round(self, simulation: Simulation) -> None:
        try:
            item: Any = self._inbox.get(timeout=CLOCKS_EVERY_S)
        except queue.Empty:
            return
        for _ in range(ROUND):
            self._take(simulation, *item)
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                break
        else:
            self._take(simulation, *item)
        simulation.advance(time.monotonic())

    def _take(self, simulation: Simulation, stream: _Stream | None, message: pb.AgentMessage | _Opened | None) -> None:
        now = time.monotonic()
        if stream is None:
            simulation.cancel(now)
            return
        if isinstance(message, _Opened):
            self._silent.add(stream)
            return
        if message is None:
            self._streams.discard(stream)
            self._silent.discard(stream)
            stream.end()
            if stream.server is not None:
                simulation.closed(stream.server, now)
            return
        if stream.over:
            return
        try:
            size = message.ByteSize()
            if stream.server is not None:
                if size > MAX_MESSAGE_BYTES:
                    simulation.reject(stream.server, f"a message of {size} bytes (limit {MAX_MESSAGE_BYTES})", now)
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
