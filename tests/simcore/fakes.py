"""What tests play: a rank that writes event records, an agent that carries them over a real stream."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from bench import plans
from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_proto.v1 import simulation_pb2_grpc as pb_grpc
from eidolon_simcore.core_plan import Plan, parse
from eidolon_simcore.run.event_records import RECORD
from eidolon_simcore.vocabulary import PROTOCOL, Kind, RecordFlag

FOREGROUND, BLOCKING, MORE = RecordFlag.FOREGROUND, RecordFlag.BLOCKING, RecordFlag.GROUP_MORE
AUTOGRAD, PAYLOAD, IN_GRAPH = RecordFlag.AUTOGRAD, RecordFlag.PAYLOAD, RecordFlag.IN_GRAPH

#: The core's section of the plan of one server with two H100.
CORE: dict[str, Any] = plans.document(
    gpusPerServer=2,
    gpu={"memory": "80GiB"},
    network={"interServer": {"bandwidth": "400Gb/s"}},
    workload={"command": ["train.py"], "tokensPerStep": 1_000},
    cost={"unknownLimit": 0.5},
    startupTimeout="30s",
)["core"]


def plan(**changes: Any) -> Plan:
    """The plan with some fields of that section changed."""
    return parse({**CORE, **changes})


class FakeRank:
    """Writes records and signatures as a shim does, and turns what it wrote into batches."""

    def __init__(self, session: int = 1, device: int = 0) -> None:
        self.session = session
        self.device = device
        self.seq = 0
        self.sent = 0
        self._rows: list[tuple[Any, ...]] = []
        self._ids: dict[tuple[Any, ...], int] = {}
        self._next = {"call": 1}
        self._signatures: list[pb.Signature] = []
        self._payloads: list[pb.RecordPayload] = []
        self._position = 0  # in a ring of definitions

    def signature(self, kind: str, name: str, **attributes: int) -> int:
        key = (kind, name, tuple(attributes.items()))
        if key not in self._ids:
            space = "call" if kind == "call" else "other"
            number = self._next.setdefault(space, 1024)
            self._next[space] += 1
            self._ids[key] = number
            self._signatures.append(pb.Signature(id=number, kind=kind, name=name, attributes=attributes))
        return self._ids[key]

    def write(
        self,
        kind: Kind,
        *,
        flags: int = FOREGROUND,
        thread: int = 0,
        host_ns: int = 0,
        call: str = "",
        device: int | None = None,
        stream: int = 1,
        sig: int = 0,
        value: int = 0,
        payload: bytes | None = None,
    ) -> int:
        number = self.signature("call", call) if call else 0
        if payload is not None:
            flags |= PAYLOAD
            self.late_payload(self.seq, payload)
        device = self.device if device is None else device
        row = (self.seq & 0xFFFFFFFF, kind, flags, thread, host_ns, number, device, stream, sig, value)
        self._rows.append(row)
        self.seq += 1
        return self.seq - 1

    def late_payload(self, seq: int, data: bytes) -> None:
        self._position += 8
        self._payloads.append(pb.RecordPayload(seq=seq, data=data, position=self._position))

    def kernel(self, bytes_moved: int = 1 << 20, **more: Any) -> int:
        """An operation that moves so many bytes on the device."""
        sig = self.signature("library", "test:work", bytes=bytes_moved, flops=0)
        return self.write(Kind.KERNEL, call="cudaLaunchKernel", sig=sig, **more)

    def comm(self, identity: int, rank: int, size: int, members: str = "", name: str = "") -> int:
        """``members``: the ranks of the run that they are, as a folded run needs them."""
        name = name or f"unique{identity}" + (f"@{members}" if members else "")
        sig = self.signature("comm", name, id=identity, rank=rank, size=size, device=self.device)
        return self.write(Kind.COMM_INIT, flags=FOREGROUND | BLOCKING, call="ncclCommInitRank", sig=sig)

    def collective(self, name: str, comm: int, position: int, count: int, **more: Any) -> int:
        attributes = {"comm": comm, "count": count, "dtype": 7, "bytes": 4 * count, "root": -1, "peer": -1, "redop": 0}
        attributes["shots"] = 0
        attributes |= {key: more.pop(key) for key in list(more) if key in attributes}
        sig = self.signature("collective", name, **attributes)
        return self.write(Kind.COLLECTIVE, call="ncclAllReduce", sig=sig, value=position, **more)

    def sync(self, **more: Any) -> int:
        return self.write(Kind.SYNC_DEVICE, flags=FOREGROUND | BLOCKING, call="cudaDeviceSynchronize", **more)

    def mark(self, name: str = "step") -> int:
        return self.write(Kind.MARK, sig=self.signature("mark", name))

    def batch(self) -> pb.EventBatch:
        data = np.array(self._rows, RECORD).tobytes()
        batch = pb.EventBatch(
            session=self.session,
            first_seq=self.sent,
            count=len(self._rows),
            records=data,
            signatures=self._signatures,
            payloads=self._payloads,
        )
        self.sent += len(self._rows)
        self._rows, self._signatures, self._payloads = [], [], []
        return batch


class FakeAgent:
    """One server's agent on a real gRPC stream."""

    def __init__(self, address: str, server: int = 0, *, trust: Path | None = None, **changes: Any) -> None:
        if trust is None:
            self._channel = grpc.insecure_channel(address)
        else:
            credentials = grpc.ssl_channel_credentials(trust.read_bytes())
            options = [("grpc.ssl_target_name_override", "eidolon-core")]
            self._channel = grpc.secure_channel(address, credentials, options)
        self._out: queue.SimpleQueue[pb.AgentMessage | None] = queue.SimpleQueue()
        self.received: list[pb.CoreMessage] = []
        self.error: grpc.RpcError | None = None
        self._changed = threading.Condition()
        self.over = False
        stub = pb_grpc.SimulationStub(self._channel)
        self._call = stub.Connect(iter(self._out.get, None))
        hello = {
            "protocol": PROTOCOL,
            "version": "t",
            "server": server,
            "devices": 2,
            "gpu": "h100-sxm",
            "token": "secret",
        }
        self._out.put(pb.AgentMessage(hello=pb.Hello(**(hello | changes))))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for message in self._call:
                with self._changed:
                    self.received.append(message)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            self.error = error
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def send(self, **message: Any) -> None:
        self._out.put(pb.AgentMessage(**message))

    def join(self, session: int, rank: int, world: int) -> None:
        self.send(joined=pb.RankJoined(session=session, rank=rank, world=world))

    def communicate(self, ranks: list[FakeRank], identity: int, *, join: bool = True) -> None:
        """Makes one communicator of all ranks, one a device, and waits for it."""
        seqs = []
        for i, rank in enumerate(ranks):
            if join:
                self.join(rank.session, i, len(ranks))
            seqs.append(rank.comm(identity, i, len(ranks)))
        self.flush(*ranks)
        for rank, seq in zip(ranks, seqs, strict=True):
            self.reply(rank.session, seq)

    def flush(self, *ranks: FakeRank) -> None:
        for rank in ranks:
            self.send(batch=rank.batch())

    def wait(self, found: Callable[[list[pb.CoreMessage]], Any], timeout_s: float = 20.0) -> Any:
        """The first true value of ``found`` over what was received."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not (value := found(self.received)):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"only got {self.received}, error {self.error}")
                self._changed.wait(left)
            return value

    def reply(self, session: int, seq: int) -> pb.Reply:
        def found(messages: list[pb.CoreMessage]) -> pb.Reply | None:
            replies = (r for m in messages for batch in m.replies if batch.session == session for r in batch.replies)
            return next((r for r in replies if r.seq == seq), None)

        return self.wait(found)

    def stopped(self) -> pb.Stop:
        return self.wait(lambda messages: next((m.stop for m in messages if m.HasField("stop")), None))

    def status(self, timeout_s: float = 20.0) -> tuple[grpc.StatusCode, str]:
        """How the stream ended."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self.over:
                self._changed.wait(max(0.01, deadline - time.monotonic()))
                assert time.monotonic() < deadline
        return self._call.code(), self._call.details()

    def goodbye(self, code: int = 0, reason: str = "") -> None:
        self.send(goodbye=pb.Goodbye(exit_code=code, reason=reason))

    def close(self) -> None:
        self._out.put(None)
        self._channel.close()

    def messages(self, kind: str) -> Iterator[Any]:
        """What was received of one field of the core's messages."""
        for message in self.received:
            if kind in ("payloads", "replies"):
                yield from getattr(message, kind)
            elif message.HasField(kind):
                yield getattr(message, kind)
