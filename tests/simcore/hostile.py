"""Sequences of messages that no honest agent sends, for test_fuzz.py: made from a seed, played, kept in files.

Most of a sequence is as it should be, so that a run builds up (communicators, steps, memory, ranks that wait). Then
something in it is not: a number that is out of all bounds, an attribute that is missing, a message out of turn. A
sequence is a list of events in JSON, so that one that once did harm can be kept and read.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fakes import FakeRank
from simulated_run import Run

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.run.event_records import RECORD
from eidolon_simcore.run.server import RejectedError
from eidolon_simcore.vocabulary import Kind, RecordFlag

Event = tuple[str, int, str]  #: what happens, on which server, and the message in base64

SERVERS = 2
EDGES = (
    *(0, 1, 2, 3, 7, 8, 255, 1023, 1024, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1),
    *(-1, -2, -(2**31), -(2**40), -(2**63)),
)
KINDS = (
    *("call", "op", "kernel", "gemm", "conv", "attention", "library", "copy", "set", "comm", "split", "collective"),
    *("mark", "memory", "unmodelled", "read", "", "nonsense"),
)
NAMES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send"),
    *("recv", "step", "tokens", "forward", "dgrad", "backward", "h2d", "d2d", "set", "test:work", "aten::mm", "", "\0"),
    *("triton_poi", "_ZN2at6native", "x" * 5_000, "é\n"),
)
ATTRIBUTES = (
    *("comm", "count", "dtype", "bytes", "root", "peer", "redop", "scale", "op", "flops", "m", "n", "k", "batch", "gx"),
    *(
        "bx",
        "id",
        "rank",
        "size",
        "device",
        "parent",
        "position",
        "color",
        "key",
        "value",
        "default",
        "written",
        "i0_0",
    ),
    *("c", "h", "w", "r", "s", "sq", "skv", "b", "d", "algorithms", "protocols", "ta", "type", "pinned", "nonsense"),
)


class Author:
    """Writes one sequence."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._ranks: dict[tuple[int, int], FakeRank] = {}  # by server and session
        self._positions: dict[int, int] = {}  # next position of each communicator
        self._events: list[Event] = []

    def write(self, length: int) -> list[Event]:
        """A sequence of about so many events."""
        world = self._chance.choice([1, 2, 2, 4])
        for rank in range(world):
            self._join(rank % SERVERS, rank // SERVERS + 1, rank, world)
        if self._chance.random() < 0.8:
            for number, key in enumerate(self._ranks):
                self._ranks[key].comm(7, number, world)
                self._flush(*key)
        while len(self._events) < length:
            if self._chance.random() < 0.06:
                self._out_of_turn()
            else:
                self._work(*self._chance.choice(list(self._ranks)))
        return self._events

    # ---- what happens -----------------------------------------------------------------------------------------------

    def _say(self, what: str, server: int, message: bytes = b"") -> None:
        self._events.append((what, server, base64.b64encode(message).decode()))

    def _send(self, server: int, **message: Any) -> None:
        self._say("message", server, pb.AgentMessage(**message).SerializeToString())

    def _join(self, server: int, session: int, rank: int, world: int) -> None:
        self._ranks[server, session] = FakeRank(session, device=self._chance.choice([0, 1]))
        self._send(server, joined=pb.RankJoined(session=session, rank=rank, world=world, pid=rank & 0xFFFF))

    def _flush(self, server: int, session: int) -> None:
        batch = self._ranks[server, session].batch()
        if self._chance.random() < 0.02:
            self._spoil(batch)
        self._send(server, batch=batch)

    def _out_of_turn(self) -> None:
        server, session = self._chance.choice(list(self._ranks))
        rank = self._ranks[server, session]
        match self._chance.randrange(8):
            case 0:
                self._join(server, self._number(32), self._number(31), self._number(31))
            case 1:
                self._say("closed", server)
                self._say("hello", server)
                self._send(server, joined=pb.RankJoined(session=session, rank=0, world=1, delivered=self._number(64)))
            case 2:
                status = self._chance.choice([None, 9, 256, self._number(31)])
                records = self._chance.choice([rank.seq, 0, self._number(64)])
                left = pb.RankLeft(
                    session=session, orderly=self._chance.random() < 0.5, records=records, wait_status=status
                )
                self._send(server, left=left)
            case 3:
                self._send(server, goodbye=pb.Goodbye(exit_code=self._chance.choice([0, 1, 137, -9]), reason="\0" * 9))
            case 4:
                self._send(server, batch=pb.EventBatch(session=self._number(32), count=self._number(32)))
            case 5:
                self._send(server)
            case _:
                self._say("tick", server)

    def _work(self, server: int, session: int) -> None:
        rank, chance = self._ranks[server, session], self._chance
        match chance.randrange(9):
            case 0:
                for _ in range(chance.randrange(1, 20)):
                    rank.kernel(chance.choice([1 << 20, self._number(62)]), stream=chance.choice([1, 2, 3]))
            case 1:
                self._collective(rank)
            case 2:
                rank.kernel(flags=RecordFlag.FOREGROUND | RecordFlag.AUTOGRAD)
                rank.mark()
            case 3:
                rank.sync()
            case 4:
                kind = chance.choice([Kind.MEMORY, Kind.OUT_OF_MEMORY, Kind.SLEEP, Kind.IDLE, Kind.RESUME])
                rank.write(kind, flags=chance.choice([0, 1]), value=chance.choice([1 << 30, self._number(64)]))
            case 5 if chance.random() < 0.2:
                size = chance.choice([1, 2, 4, self._number(63)])
                rank.comm(self._number(63), chance.choice([0, 1, self._number(63)]), size)
            case 6 if chance.random() < 0.5:
                self._any_record(rank, chance.choice(KINDS), chance.choice(NAMES))
            case 7:
                rank.write(chance.choice([Kind.EVENT_RECORD, Kind.STREAM_WAIT]), value=chance.choice([1, 2, 3]))
            case 8 if chance.random() < 0.2:
                split = {"parent": 7, "position": chance.choice([0, 1]), "color": chance.choice([0, 1, -1])}
                split |= {"key": self._number(63), "rank": chance.choice([0, 1, self._number(63)]), "size": 2}
                rank.write(
                    Kind.COMM_INIT, flags=3, call="ncclCommSplit", sig=rank.signature("split", "unique7", **split)
                )
            case _:
                rank.write(Kind.HOST, call="cudaEventCreate", host_ns=abs(self._number(31)) & 0xFFFF)
        self._flush(server, session)
        if chance.random() < 0.5:
            self._say("advance", server)

    def _collective(self, rank: FakeRank) -> None:
        chance = self._chance
        position = self._positions.get(rank.session, 0)
        self._positions[rank.session] = position + 1
        more: dict[str, Any] = {}
        for name in ("dtype", "bytes", "root", "peer", "redop"):
            if chance.random() < 0.02:
                more[name] = self._number(63)
        if chance.random() < 0.4:
            more["payload"] = bytes(chance.choice([0, 4, 16, 18, 1_000]))
        name = chance.choice(NAMES[:10]) if chance.random() < 0.06 else "all_reduce"
        count = 4 if chance.random() < 0.94 else chance.choice([1 << 20, self._number(63)])
        more.setdefault("bytes", max(-(1 << 63), min(4 * count, (1 << 63) - 1)))
        rank.collective(name, 7 if chance.random() < 0.96 else self._number(63), position, count, stream=2, **more)

    def _any_record(self, rank: FakeRank, kind: str, name: str) -> None:
        chance = self._chance
        attributes = {key: self._number(63) for key in chance.sample(ATTRIBUTES, chance.randrange(8))}
        number = rank.signature(kind, name, **attributes)
        rank.write(
            chance.choice(list(Kind)),
            flags=chance.randrange(256),
            thread=abs(self._number(15)),
            host_ns=abs(self._number(31)),
            device=abs(self._number(15)) if chance.random() < 0.3 else None,
            stream=chance.choice([0, 1, 2, abs(self._number(31))]),
            sig=number if kind != "call" and chance.random() < 0.9 else 0,
            value=abs(self._number(63)),
        )

    def _spoil(self, batch: pb.EventBatch) -> None:
        chance = self._chance
        match chance.randrange(6):
            case 0:
                batch.count = abs(self._number(31))
            case 1:
                batch.first_seq = abs(self._number(63))
            case 2 if batch.records:
                rows = np.frombuffer(batch.records, RECORD).copy()
                column = chance.choice(RECORD.names or ())
                rows[column][chance.randrange(len(rows))] = abs(self._number(63)) & np.iinfo(rows[column].dtype).max
                batch.records = rows.tobytes()
            case 3:
                batch.signatures.add(id=abs(self._number(31)), kind=chance.choice(KINDS), name=chance.choice(NAMES))
            case 4:
                batch.payloads.add(seq=abs(self._number(63)), data=bytes(9), position=abs(self._number(63)))
            case _:
                batch.records = chance.randbytes(len(batch.records))

    def _number(self, bits: int) -> int:
        """One at the edge of something, or any; of at most so many bits."""
        number = self._chance.choice(EDGES) if self._chance.random() < 0.7 else self._chance.getrandbits(bits)
        if bits == 64 or (bits == 32 and number < 0):
            number = abs(number)
        return max(-(1 << min(bits, 63)), min(number, (1 << bits) - 1))


def play(out: Path, events: list[Event], clock: Callable[[], float]) -> str:
    """Plays a sequence as the service would; returns the cause of the run's end. Whatever the simulation raises but a
    rejection comes out, as a bug."""
    run = Run(out, servers=SERVERS)
    open_streams = set(range(SERVERS))
    for what, server, text in events:
        try:
            match what:
                case "message" if server in open_streams:
                    message = pb.AgentMessage.FromString(base64.b64decode(text))
                    run.simulation.message(server, message, clock())
                case "closed" if server in open_streams:
                    open_streams.discard(server)
                    run.simulation.closed(server, clock())
                case "hello" if server not in open_streams:
                    run.hello(server)
                    open_streams.add(server)
                case "advance":
                    run.simulation.advance(clock())
                case "tick":
                    run.simulation.tick(clock())
        except RejectedError:
            if server in open_streams and what == "message":
                open_streams.discard(server)
                run.simulation.closed(server, clock())
    run.simulation.advance(clock())
    run.simulation.tick(clock())
    run.simulation.finish(clock())
    summary = json.loads((out / "summary.json").read_text())
    assert summary["cause"] != Cause.INTERNAL_ERROR, summary["reason"]
    assert run.simulation.status()["state"] in ("Succeeded", "Failed")
    run.simulation.snapshot(clock())
    return str(summary["cause"])


def read(path: Path) -> list[Event]:
    """A sequence in a file: an event a line."""
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


def write(path: Path, events: list[Event]) -> None:
    """Keeps a sequence in a file."""
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def smaller(events: list[Event], harmful: Callable[[list[Event]], bool]) -> list[Event]:
    """A part of the sequence that still does harm: events are left out, in ever smaller pieces."""
    piece = len(events) // 2
    while piece:
        for candidate in list(_without(events, piece)):
            if len(candidate) < len(events) and harmful(candidate):
                events = candidate
                break
        else:
            piece //= 2
    return events


def _without(events: list[Event], piece: int) -> Iterator[list[Event]]:
    for at in range(0, len(events), piece):
        yield events[:at] + events[at + piece :]
