"""The shim's end of a ring, in Python: it plays a rank in tests and benchmarks, where no framework is wanted."""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from pathlib import Path

import numpy as np

from eidolon_interposer import futex
from eidolon_interposer.abi import (
    EVENT_RECORD,
    FIXED_BYTES,
    REPLY_SLOT,
    RING_HEADER,
    RING_MAGIC,
    SEQ_MASK,
    SLOTS_OFFSET,
)
from eidolon_interposer.mapping import SharedMapping
from eidolon_interposer.messages import MessageConsumer, MessageProducer
from eidolon_interposer.ring import (
    CLOCK,
    CLOSED,
    DEFS_HEAD,
    DEFS_TAIL,
    FATAL_BYTES,
    FATAL_OFFSET,
    FATAL_STATUS,
    HEAD,
    INBOX_BELL,
    INBOX_HEAD,
    INBOX_TAIL,
    SESSION,
    SPACE_BELL,
    SPACE_WANTED,
    TAIL,
    USED,
)
from eidolon_interposer.serverdir import ServerPage
from eidolon_interposer.vocabulary import ABI_VERSION, Kind, MessageType, RecordFlag, ReplyStatus

_numbers = itertools.count()
_SLICE_NS = 20_000_000


class RingWriter:
    """Makes a ring in an ``EIDOLON_DIR`` and writes to it, from one thread, waiting as the shim does."""

    def __init__(
        self,
        directory: Path,
        *,
        rank: int = 0,
        local_rank: int = 0,
        world: int = 1,
        records: int = 1024,
        defs_bytes: int = 1 << 16,
        inbox_bytes: int = 1 << 16,
    ) -> None:
        self._page = ServerPage(directory / "server.page")
        self.path = directory / "ranks" / f"{os.getpid()}-{next(_numbers)}.ring"
        header = np.zeros(1, RING_HEADER)
        header["magic"], header["abi_version"] = RING_MAGIC, ABI_VERSION
        header["record_bytes"] = EVENT_RECORD.itemsize
        header["record_capacity"], header["records_offset"] = records, FIXED_BYTES
        header["defs_capacity"] = defs_bytes
        header["defs_offset"] = defs_at = FIXED_BYTES + records * EVENT_RECORD.itemsize
        header["inbox_capacity"], header["inbox_offset"] = inbox_bytes, defs_at + defs_bytes
        header["pid"], header["rank"] = os.getpid(), rank
        header["local_rank"], header["world"] = local_rank, world
        header["epoch_ns"] = self.epoch_ns = time.time_ns()
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("xb") as file:
            file.write(header.tobytes())
            file.truncate(defs_at + defs_bytes + inbox_bytes)
        self._mapping = SharedMapping(temporary)
        fcntl.lockf(self._mapping.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        self._records = self._mapping.array(EVENT_RECORD, records, FIXED_BYTES)
        self._definitions = MessageProducer(self._mapping, "definitions", defs_at, defs_bytes, DEFS_HEAD, DEFS_TAIL)
        self._inbox = MessageConsumer(self._mapping, "inbox", defs_at + defs_bytes, inbox_bytes, INBOX_HEAD, INBOX_TAIL)
        self.head = 0
        self.payloads: dict[int, bytes] = {}  #: what came through the inbox, by sequence number
        temporary.rename(self.path)
        self._page.ring()

    def sign(self, number: int, kind: str, name: str, **attributes: int) -> int:
        """Defines a signature; returns its id."""
        text = f"{kind}\n{name}\n" + "".join(f"{key}={value}\n" for key, value in attributes.items())
        self._define(MessageType.SIGNATURE, number.to_bytes(4, "little"), text.encode())
        return number

    def send_payload(self, seq: int, data: bytes) -> None:
        """Publishes the bytes that the collective record ``seq`` sends."""
        self._define(MessageType.PAYLOAD, seq.to_bytes(8, "little"), data)

    def _define(self, kind: MessageType, *parts: bytes) -> None:
        while not self._definitions.offer(kind, *parts):
            self._wait_for_room()
        self._mapping.u32[SPACE_WANTED] = 0

    def _wait_for_room(self) -> None:
        seen = self._mapping.u32[SPACE_BELL]
        self._mapping.u32[SPACE_WANTED] = 1
        self._page.ring()
        futex.wait(self._mapping.address(SPACE_BELL * 4), seen, _SLICE_NS)
        self.check()

    def emit(self, kind: Kind, *, flags: int = RecordFlag.FOREGROUND, **columns: int) -> int:
        """Writes a record; returns its sequence number."""
        while self.head - self._mapping.u64[TAIL] >= len(self._records):
            self._wait_for_room()
        self._mapping.u32[SPACE_WANTED] = 0
        record = self._records[self.head % len(self._records)]
        values = {"seq": self.head & SEQ_MASK, "kind": kind, "flags": flags, **columns}
        for name in EVENT_RECORD.names or ():
            record[name] = values.get(name, 0)
        self.head += 1
        self._mapping.u64[HEAD] = self.head
        if flags & RecordFlag.BLOCKING:
            self._page.ring()
        return self.head - 1

    def ask(self, kind: Kind, *, thread: int = 0, timeout_s: float = 10.0, **columns: int) -> tuple[int, int]:
        """Writes a blocking record and waits for (clock, value)."""
        seq = self.emit(kind, flags=RecordFlag.FOREGROUND | RecordFlag.BLOCKING, thread=thread, **columns)
        return self.wait(seq, thread=thread, timeout_s=timeout_s)

    def wait(self, seq: int, *, thread: int = 0, timeout_s: float = 10.0) -> tuple[int, int]:
        """Waits for the answer to record ``seq``: (clock, value). Raises :class:`TimeoutError`, :class:`EndedError`."""
        offset = SLOTS_OFFSET + thread * REPLY_SLOT.itemsize
        wanted, limit = (seq + 1) & SEQ_MASK, time.monotonic() + timeout_s
        while (seen := self._mapping.u32[offset // 4]) != wanted:
            futex.wait(self._mapping.address(offset), seen, _SLICE_NS)
            self.read_inbox()
            if self._mapping.u32[offset // 4] != wanted:
                self.check()
                if time.monotonic() > limit:
                    raise TimeoutError(f"no answer to record {seq}")
        self.read_inbox()
        return self._mapping.i64[offset // 8 + 1], self._mapping.i64[offset // 8 + 2]

    def read_inbox(self) -> None:
        """Moves what the agent delivered to ``payloads``."""
        for kind, body, position in self._inbox.messages(self._inbox.head):
            if kind == MessageType.PAYLOAD:
                self.payloads[int.from_bytes(body[:8], "little")] = body[8:]
            self._inbox.pass_by(position)
            self._inbox.free(position)

    def wait_for_payload(self, seq: int, timeout_s: float = 10.0) -> bytes:
        """Waits for the payload of record ``seq``. Raises :class:`TimeoutError`, :class:`EndedError`."""
        limit = time.monotonic() + timeout_s
        while True:
            seen = self._mapping.u32[INBOX_BELL]
            self.read_inbox()
            if seq in self.payloads:
                return self.payloads[seq]
            if time.monotonic() > limit:
                raise TimeoutError(f"no payload for record {seq}")
            futex.wait(self._mapping.address(INBOX_BELL * 4), seen, _SLICE_NS)
            self.check()

    def check(self) -> None:
        """Raises :class:`EndedError` once the agent said so."""
        status = self._mapping.u32[FATAL_STATUS]
        if status:
            text = bytes(self._mapping.data[FATAL_OFFSET : FATAL_OFFSET + FATAL_BYTES]).split(b"\0")[0]
            raise EndedError(ReplyStatus(status), text.decode())

    @property
    def clock_ns(self) -> int:
        """The published clock."""
        return self._mapping.i64[CLOCK]

    @property
    def session(self) -> int:
        """The number that the agent gave this rank; 0: none yet."""
        return self._mapping.u32[SESSION]

    def hold_memory(self, device: int, size: int) -> None:
        """Notes device memory as this rank's (not in the server's account)."""
        self._mapping.i64[USED + device] = size

    def close(self, *, orderly: bool = True) -> None:
        """Ends the rank: with its last record, or as if it had been killed."""
        if orderly:
            self.emit(Kind.EXIT)
            self._mapping.u32[CLOSED] = 1
        self._records = self._records[:0].copy()
        self._mapping.close()  # with the file goes the lock
        if orderly:
            self._page.ring()
        self._page.close()


class EndedError(Exception):
    """The agent ended this rank."""

    def __init__(self, status: ReplyStatus, reason: str) -> None:
        super().__init__(f"{status.name}: {reason}")
        self.status = status
        self.reason = reason
