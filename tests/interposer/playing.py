"""A core without an engine, and an emulated server with its agent, for the agent's tests."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from bench import plans
from eidolon_interposer.abi import EVENT_RECORD
from eidolon_interposer.vocabulary import PROTOCOL, RecordFlag
from eidolon_interposer.writer import RingWriter
from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_proto.v1 import simulation_pb2_grpc as pb_grpc

LIMIT_S = 20.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits until the condition is true."""
    end = time.monotonic() + LIMIT_S
    while not (result := condition()):
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.002)
    return result


def until_ended(writer: RingWriter) -> None:
    """Waits until the agent ends the rank, which raises."""
    until(writer.check, "the end of a rank")


class Core(pb_grpc.SimulationServicer):
    """A core without an engine: notes what comes and answers blocking records with the clock that `clock` says."""

    def __init__(self, tls: Path | None = None) -> None:
        self.messages: list[pb.AgentMessage] = []
        self.clock: Callable[[int, int], int | None] = lambda session, seq: 1000 * (seq + 1)
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.refused = 0
        self.together = 0  # the most batches that came in one message
        self.protocol = PROTOCOL
        self.silent = False
        self.close_after_goodbye = True
        self.acknowledges = True
        self._taken: dict[int, int] = {}
        self._last: dict[int, pb.ReplyBatch] = {}
        self._out: queue.SimpleQueue[pb.CoreMessage | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        pb_grpc.add_SimulationServicer_to_server(self, self._server)
        if tls is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            pair = (tls / "tls.key").read_bytes(), (tls / "tls.crt").read_bytes()
            port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def Connect(  # noqa: N802
        self, messages: Iterator[pb.AgentMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.CoreMessage]:
        if self.refusal is not None:
            self.refused += 1
            context.abort(*self.refusal)
        out = self._out = queue.SimpleQueue()
        self._taken = {}
        hello = next(messages)
        self.messages.append(hello)
        if self.silent:
            self._stopped.wait(LIMIT_S)
        yield pb.CoreMessage(welcome=pb.Welcome(protocol=self.protocol, version="test"))

        def read() -> None:
            with contextlib.suppress(grpc.RpcError, Exception):
                for message in self._each(messages):
                    self.messages.append(message)
                    if message.HasField("batch"):
                        self._answer(message.batch)
                        self._acknowledge(message.batch.session)
                    if message.HasField("left"):
                        self._acknowledge(message.left.session)
                    if message.HasField("goodbye") and self.close_after_goodbye:
                        break
            if self.close_after_goodbye:
                out.put(None)

        threading.Thread(target=read, daemon=True).start()
        while (reply := out.get()) is not None:
            yield reply

    def _each(self, messages: Iterator[pb.AgentMessage]) -> Iterator[pb.AgentMessage]:
        """The messages, and the batches of one that holds several as if each had come alone."""
        for message in messages:
            self.together = max(self.together, len(message.batches.batches))
            if message.HasField("batches"):
                yield from (pb.AgentMessage(batch=batch) for batch in message.batches.batches)
            else:
                yield message

    def repeat_answers(self) -> None:
        """What a core does for an agent that came back: some may have been lost with the one before."""
        for session in {joined.session for joined in self.of("joined")}:
            if self._last.get(session):
                self.send(replies=[self._last[session]])

    def _answer(self, batch: pb.EventBatch) -> None:
        records = np.frombuffer(batch.records, EVENT_RECORD)
        replies = []
        for i in np.flatnonzero(records["flags"] & RecordFlag.BLOCKING):
            seq = batch.first_seq + int(i)
            clock_ns = self.clock(batch.session, seq)
            if clock_ns is not None:
                replies.append(pb.Reply(seq=seq, thread=int(records["thread"][i]), clock_ns=clock_ns, value=seq))
        if replies:
            self._last[batch.session] = pb.ReplyBatch(session=batch.session, replies=replies)
            self.send(replies=[self._last[batch.session]])

    def _acknowledge(self, session: int) -> None:
        if self.acknowledges:
            self._taken[session] = self._taken.get(session, 0) + 1
            self.send(taken=pb.Taken(sessions=[session], messages=[self._taken[session]]))

    def send(self, **message: Any) -> None:
        self._out.put(pb.CoreMessage(**message))

    def close_stream(self) -> None:
        self._out.put(None)

    def stop(self) -> None:
        self._server.stop(0).wait()
        self._stopped.set()
        self.close_stream()  # a Connect that still waits would keep this process from ending

    def of(self, kind: str) -> list[Any]:
        return [getattr(m, kind) for m in list(self.messages) if m.WhichOneof("message") == kind]

    def records(self, session: int) -> np.ndarray[Any, Any]:
        """All records of a session; checks that batches follow each other without gap."""
        parts, expected = [np.empty(0, EVENT_RECORD)], 0
        for batch in self.of("batch"):
            if batch.session == session:
                assert len(batch.records) == 32 * batch.count
                assert batch.first_seq <= expected
                parts.append(np.frombuffer(batch.records, EVENT_RECORD)[expected - batch.first_seq :])
                expected = batch.first_seq + batch.count
        return np.concatenate(parts)


class Server:
    """One emulated server: its plan, its directory, its agent."""

    def __init__(self, path: Path, core: str) -> None:
        self.path = path
        self.directory = path / "eidolon"
        self.core = core
        self.plan = path / "plan.json"
        plan = plans.document(servers=2, gpusPerServer=2)
        plan["server"]["conf"] = {"mode": "core", "gpu.name": "NVIDIA H100"}
        self.plan.write_text(json.dumps(plan))
        self.agent: subprocess.Popen[str]
        self.errors = ""

    def hold(self) -> None:
        """Stops the agent, until SIGCONT; it is at rest when this returns."""
        self.agent.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.agent.pid, os.WSTOPPED | os.WNOWAIT)

    def start(self, *options: str, ready: bool = True, prefix: Sequence[str] = ()) -> None:
        command = [*prefix, sys.executable, "-m", "eidolon_interposer.agent", "--plan", self.plan, "--server", "1"]
        command += ["--dir", self.directory, "--core", self.core, *options]
        self.agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if ready:
            assert self.agent.stdout is not None
            line = self.agent.stdout.readline()
            assert line == "ready\n", self.agent.communicate(timeout=LIMIT_S)

    def write_exit(self, text: str = "0 \n") -> None:
        (self.directory / "exit").write_text(text)

    def wait(self) -> int:
        _, self.errors = self.agent.communicate(timeout=LIMIT_S)
        return self.agent.returncode

    def rings(self) -> list[str]:
        return [path.name for path in (self.directory / "ranks").iterdir()]


@pytest.fixture
def core() -> Iterator[Core]:
    made = Core()
    yield made
    made.stop()


@pytest.fixture
def server(tmp_path: Path, core: Core) -> Iterator[Server]:
    made = Server(tmp_path, core.address)
    yield made
    if hasattr(made, "agent") and made.agent.poll() is None:
        made.agent.kill()
        made.agent.communicate()
