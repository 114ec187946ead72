"""The agent's end of one rank's ring.

:class:`RingReader` maps the ring file that a shim made and takes batches from it: the records between tail and head,
with the definitions that they name. Nothing in Python runs per record. The head of the records is read first and the
definitions after it, so that all that the records name is there (see ``abi.h``).

Nothing in the file is trusted. The layout is checked once, against the file's size, and kept; counters, lengths and
ids are checked each time, on copies. What does not fit raises :class:`RingError`; the caller then fails that rank and
no other.

Taking has three phases: :meth:`RingReader.batch` only reads; :meth:`RingReader.sent` notes that the batch is on its
way; :meth:`RingReader.taken` frees its room once the core has it. The position in the header is that of the last phase,
so an agent that dies, at whatever moment, loses nothing: the next one begins there, and the core drops what it has.
"""

from __future__ import annotations

import fcntl
import itertools
import struct
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eidolon_interposer import futex
from eidolon_interposer.abi import (
    EVENT_RECORD,
    FIXED_BYTES,
    REPLY_SLOT,
    RING_HEADER,
    RING_MAGIC,
    SEQ_MASK,
    SLOTS_OFFSET,
    offset_of,
    word_of,
)
from eidolon_interposer.mapping import SharedMapping
from eidolon_interposer.messages import MessageConsumer, MessageProducer, RingError
from eidolon_interposer.vocabulary import (
    ABI_VERSION,
    MAX_DEVICES,
    REPLY_SLOTS,
    Kind,
    MessageType,
    RecordFlag,
    ReplyStatus,
)

__all__ = ["Batch", "RingError", "RingReader", "Signature"]

HEAD, TAIL = word_of(RING_HEADER, "head"), word_of(RING_HEADER, "tail")
DEFS_HEAD, DEFS_TAIL = word_of(RING_HEADER, "defs_head"), word_of(RING_HEADER, "defs_tail")
INBOX_HEAD, INBOX_TAIL = word_of(RING_HEADER, "inbox_head"), word_of(RING_HEADER, "inbox_tail")
CLOSED, SESSION = word_of(RING_HEADER, "closed"), word_of(RING_HEADER, "session")
CLOCK = word_of(RING_HEADER, "clock_ns")
FATAL_STATUS, DELIVERED = word_of(RING_HEADER, "fatal_status"), word_of(RING_HEADER, "delivered")
SPACE_WANTED, SPACE_BELL = word_of(RING_HEADER, "space_wanted"), word_of(RING_HEADER, "space_bell")
INBOX_BELL = word_of(RING_HEADER, "inbox_bell")
FATAL_OFFSET, FATAL_BYTES = offset_of(RING_HEADER, "fatal"), 1024
USED = offset_of(RING_HEADER, "used_bytes") // 8

_REGIONS = (("records", "record", EVENT_RECORD.itemsize), ("defs", "defs", 1), ("inbox", "inbox", 1))
_IS_KIND = np.isin(np.arange(256), [int(kind) for kind in Kind])
_MAX_CAPACITY = 1 << 40  # of any ring, in bytes
_MAX_SIGNATURES = 1 << 22  # ids are handed out densely: more than this is nonsense, not a big program
_INT64 = range(-(2**63), 2**63)
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


@dataclass(frozen=True, slots=True)
class Signature:
    """What the cost of an operation depends on, or what a call is named."""

    id: int
    kind: str
    name: str
    attributes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of a rank, and what was defined before them.

    ``payloads`` are (sequence number of the sending collective's record, bytes, position behind it in the ring).
    """

    first_seq: int
    count: int
    records: bytes
    signatures: list[Signature]
    payloads: list[tuple[int, bytes, int]]
    definitions_end: int  #: position in the ring of definitions; for :meth:`RingReader.sent`


def parse_signature(body: bytes) -> Signature:
    """The signature in the body of a definition: u32 id, then ``kind``, ``name`` and ``key=integer`` lines."""
    if len(body) < 4:
        raise RingError(f"a signature of {len(body)} bytes")
    number = int.from_bytes(body[:4], "little")
    if not 0 < number < _MAX_SIGNATURES:
        raise RingError(f"signature id {number} is outside 1..{_MAX_SIGNATURES - 1}")
    text = body[4:].decode("utf-8", errors="replace")  # names come from programs (NVTX ranges, kernels)
    kind, separator, rest = text.partition("\n")
    name, second, lines = rest.partition("\n")
    if not separator or not second or not kind:
        raise RingError(f"signature {number} has no kind and name: {text[:80]!r}")
    attributes = {}
    for line in lines.split("\n"):
        if not line:
            continue
        key, equals, digits = line.partition("=")
        try:
            value = int(digits)
        except ValueError:
            raise RingError(f"signature {number}: {line[:80]!r} is not key=integer") from None
        if not equals or not key or key in attributes or value not in _INT64:
            raise RingError(f"signature {number}: bad attribute {line[:80]!r}")
        attributes[key] = value
    return Signature(number, kind, name, attributes)


def is_locked(fd: int) -> bool:
    """True if another process holds the record lock on byte 0: the rank's sign of life."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0)
    answer: tuple[int, ...] = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return answer[0] != fcntl.F_UNLCK


class RingReader:
    """Reads one ring and writes what goes back: replies, payloads, clocks, the end."""

    def __init__(self, path: Path) -> None:
        try:
            self._mapping = SharedMapping(path)
        except (OSError, ValueError) as error:
            raise RingError(f"cannot map it: {error}") from error
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @classmethod
    def end_only(cls, path: Path, reason: str) -> None:
        """Ends the process behind a ring that cannot be read, if it is a ring at all."""
        ring = cls.__new__(cls)
        try:
            ring._mapping = SharedMapping(path)
        except (OSError, ValueError) as error:
            raise RingError(f"cannot map it: {error}") from error
        try:
            ring._header()
            ring.end(ReplyStatus.FAILED, reason)
        finally:
            ring._mapping.close()

    def _header(self) -> np.void:
        if self._mapping.size < FIXED_BYTES:
            raise RingError(f"{self._mapping.size} bytes are less than the fixed part of {FIXED_BYTES}")
        header: np.void = self._mapping.array(RING_HEADER, 1, 0)[0].copy()
        if header["magic"] != RING_MAGIC:
            raise RingError(f"the magic is {bytes(header['magic'])!r}, not {RING_MAGIC!r}")
        return header

    def _open(self) -> None:
        mapping = self._mapping
        header = self._header()
        if header["abi_version"] != ABI_VERSION:
            theirs = header["abi_version"]
            raise RingError(f"the shim's ABI version is {theirs}, the agent's is {ABI_VERSION}: use one release")
        if header["record_bytes"] != EVENT_RECORD.itemsize:
            raise RingError(f"records of {header['record_bytes']} bytes, not {EVENT_RECORD.itemsize}")
        regions = []
        for name, prefix, unit in _REGIONS:
            capacity, offset = int(header[f"{prefix}_capacity"]), int(header[f"{name}_offset"])
            if capacity * unit < 64 or capacity * unit > _MAX_CAPACITY or capacity & (capacity - 1):
                raise RingError(f"{name}: a capacity of {capacity} is not an allowed power of two")
            if offset < FIXED_BYTES or offset & 7 or offset + capacity * unit > mapping.size:
                raise RingError(f"{name}: offset {offset} and capacity {capacity} do not fit {mapping.size} bytes")
            regions.append((offset, offset + capacity * unit, name))
        ordered = sorted(regions)
        for (_, end, name), (begin, _, other) in itertools.pairwise(ordered):
            if end > begin:
                raise RingError(f"{name} and {other} overlap")
        self.pid, self.rank = int(header["pid"]), int(header["rank"])
        self.local_rank, self.world = int(header["local_rank"]), int(header["world"])
        self.epoch_ns = int(header["epoch_ns"])
        self._capacity = int(header["record_capacity"])
        self._records = mapping.array(EVENT_RECORD, self._capacity, int(header["records_offset"]))
        self._definitions = MessageConsumer(
            mapping, "definitions", int(header["defs_offset"]), int(header["defs_capacity"]), DEFS_HEAD, DEFS_TAIL
        )
        self._inbox = MessageProducer(
            mapping, "inbox", int(header["inbox_offset"]), int(header["inbox_capacity"]), INBOX_HEAD, INBOX_TAIL
        )
        self._tail = int(header["tail"])
        _ = self.head
        # What is on its way to the core: (number of the message, ends of its records and definitions).
        self._in_flight: deque[tuple[int, int, int]] = deque()
        self._sent = self._taken = 0
        self._freeing = threading.Lock()
        # Ids defined so far. After a restart the earlier definitions are gone, so ids are then left to the core.
        self._known: NDArray[np.bool_] | None = None
        if self._definitions.tail == 0:
            self._known = np.zeros(4096, np.bool_)
            self._known[0] = True

    # ---- what the shim wrote ------------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """Number of records written so far."""
        head = self._mapping.u64[HEAD]
        if not 0 <= head - self._tail <= self._capacity:
            raise RingError(f"records: head {head} and tail {self._tail} do not fit a capacity of {self._capacity}")
        return head

    @property
    def tail(self) -> int:
        """Number of records sent so far."""
        return self._tail

    @property
    def closed(self) -> bool:
        """The process is exiting in order."""
        return self._mapping.u32[CLOSED] != 0

    def used_bytes(self) -> list[int]:
        """Device memory that this rank holds, per device."""
        return self._mapping.i64[USED : USED + MAX_DEVICES].tolist()

    def has_news(self) -> bool:
        """True if there is something to take; costs two loads. A payload may wait for its record (see batch)."""
        words = self._mapping.u64
        return words[HEAD] != self._tail or (words[DEFS_HEAD] != self._definitions.tail and self._shim_waits())

    def _shim_waits(self) -> bool:
        return self._mapping.u32[SPACE_WANTED] != 0

    def alive(self) -> bool:
        """True while the rank's process lives. Raises if the file was resized under us."""
        if not self._mapping.intact():
            raise RingError("the file's size was changed")
        return is_locked(self._mapping.fd)

    def views(self, end: int) -> tuple[NDArray[np.void], ...]:
        """The records from the tail to ``end`` as they lie in the ring: one view, or two where they wrap."""
        first, count = self._tail % self._capacity, end - self._tail
        until_wrap = self._capacity - first
        if count <= until_wrap:
            return (self._records[first : first + count],)
        return self._records[first:], self._records[: count - until_wrap]

    def batch(self, limit_bytes: int) -> Batch | None:
        """What there is to send, of about ``limit_bytes`` at most: half of it records, half definitions.

        A payload stays in the ring until the record that sends it is in the batch too, unless the shim waits for
        room. Where definitions alone reach the limit, the batch holds no records.
        """
        head = self.head
        end = min(head, self._tail + max(1, limit_bytes // 2 // EVENT_RECORD.itemsize))
        definitions_head = self._definitions.head
        signatures: list[Signature] = []
        payloads: list[tuple[int, bytes, int]] = []
        definitions_end, room = self._definitions.tail, limit_bytes // 2
        if definitions_head != definitions_end:
            take_all = self._shim_waits()
            for kind, body, position in self._definitions.messages(definitions_head):
                full = room < len(body) and bool(signatures or payloads)
                if kind == MessageType.PAYLOAD:
                    if len(body) < 8:
                        raise RingError(f"a payload of {len(body)} bytes")
                    seq = int.from_bytes(body[:8], "little")
                    if not take_all and seq >= end:
                        break
                    if full:  # records before the one that sends it do not need it, nor what was defined after it
                        end = max(self._tail, min(end, seq))
                        break
                    payloads.append((seq, body[8:], position))
                elif kind == MessageType.SIGNATURE:
                    if full:  # which records need it is not known
                        end = self._tail
                        break
                    signatures.append(parse_signature(body))
                elif kind != MessageType.PAD:
                    raise RingError(f"a definition of type {kind}")
                room -= len(body)
                definitions_end = position
        if end == self._tail and not signatures and not payloads:
            self._note(self._tail, definitions_end)  # a pad may be all there is, and its room be waited for
            return None
        records = b"".join(view.tobytes() for view in self.views(end))
        self._learn(signatures)
        self._check_records(np.frombuffer(records, EVENT_RECORD))
        return Batch(self._tail, end - self._tail, records, signatures, payloads, definitions_end)

    def _learn(self, signatures: list[Signature]) -> None:
        if self._known is None or not signatures:
            return
        last = max(signature.id for signature in signatures)
        if last >= len(self._known):
            grown = np.zeros(1 << last.bit_length(), np.bool_)
            grown[: len(self._known)] = self._known
            self._known = grown
        self._known[[signature.id for signature in signatures]] = True

    def _check_records(self, records: NDArray[np.void]) -> None:
        if not len(records):
            return
        expected = np.arange(self._tail, self._tail + len(records), dtype=np.uint64).astype(np.uint32)
        if not np.array_equal(records["seq"], expected):
            wrong = int(np.argmax(records["seq"] != expected))
            raise RingError(f"record {self._tail + wrong} has sequence number {records['seq'][wrong]}")
        if not _IS_KIND[records["kind"]].all():
            raise RingError(f"a record of kind {records['kind'][np.argmin(_IS_KIND[records['kind']])]}")
        blocking = (records["flags"] & RecordFlag.BLOCKING) != 0
        if (records["thread"][blocking] >= REPLY_SLOTS).any():
            raise RingError(f"a record waits in reply slot {records['thread'][blocking].max()} of {REPLY_SLOTS}")
        if self._known is None:
            return
        for column in ("sig", "call"):
            ids = records[column]
            if ids.max() >= len(self._known) or not self._known[ids].all():
                unknown = next(int(i) for i in ids if i >= len(self._known) or not self._known[i])
                raise RingError(f"a record names signature {unknown}, which was never defined")

    def sent(self, batch: Batch | None = None) -> None:
        """A batch, or another message about this rank, is on its way to the core."""
        self._sent += 1
        if batch is None:
            self._note(self._tail, self._definitions.tail)
        else:
            self._note(batch.first_seq + batch.count, batch.definitions_end)

    def taken(self, messages: int) -> None:
        """The core has taken so many messages about this rank: frees their room. From any thread."""
        if messages > self._sent:
            raise RingError(f"the core has taken {messages} messages, of which {self._sent} were sent")
        self._taken = messages
        self._free()

    @property
    def messages(self) -> int:
        """Number of messages that were sent."""
        return self._sent

    @property
    def settled(self) -> bool:
        """The core has taken all that was sent."""
        return self._taken == self._sent

    def _note(self, tail: int, definitions_end: int) -> None:
        if tail == self._tail and definitions_end == self._definitions.tail:
            return
        self._tail = tail
        self._definitions.pass_by(definitions_end)
        self._in_flight.append((self._sent, tail, definitions_end))
        self._free()

    def _free(self) -> None:
        with self._freeing:
            freed = None
            while self._in_flight and self._in_flight[0][0] <= self._taken:
                freed = self._in_flight.popleft()
            if freed is None:
                return
            _, self._mapping.u64[TAIL], definitions_end = freed
            self._definitions.free(definitions_end)
        if self._shim_waits():
            self._ring(SPACE_BELL)

    # ---- what the agent writes ----------------------------------------------------------------------------------

    @property
    def session(self) -> int:
        """The rank's number within the server, 1-based; 0: none yet."""
        return self._mapping.u32[SESSION]

    @session.setter
    def session(self, number: int) -> None:
        self._mapping.u32[SESSION] = number

    def reply(self, thread: int, seq: int, clock_ns: int, value: int, status: ReplyStatus = ReplyStatus.OK) -> None:
        """Answers the record ``seq``, for which ``thread`` waits in its slot, and wakes it."""
        if not 0 <= thread < REPLY_SLOTS:
            raise RingError(f"an answer for reply slot {thread} of {REPLY_SLOTS}")
        offset = SLOTS_OFFSET + thread * REPLY_SLOT.itemsize
        words, halves = self._mapping.i64, offset // 8
        words[halves + 1] = clock_ns
        words[halves + 2] = value
        self._mapping.i32[offset // 4 + 1] = status
        self._mapping.u32[offset // 4] = (seq + 1) & SEQ_MASK
        futex.wake(self._mapping.address(offset))
        self.publish_clock(clock_ns)

    def nudge(self, thread: int) -> None:
        """Wakes a thread that waits for an answer, without one: it then empties the inbox."""
        if 0 <= thread < REPLY_SLOTS:
            futex.wake(self._mapping.address(SLOTS_OFFSET + thread * REPLY_SLOT.itemsize))

    @property
    def delivered(self) -> int:
        """Number of the last payload that is in the inbox. An agent that died may have put the next one there too: a
        shim ignores a second one."""
        return self._mapping.u64[DELIVERED]

    def deliver(self, seq: int, data: bytes, number: int) -> bool:
        """Puts a payload into the inbox; False while there is no room for it."""
        if not self._inbox.offer(MessageType.PAYLOAD, seq.to_bytes(8, "little"), data):
            return False
        self._mapping.u64[DELIVERED] = number
        self._ring(INBOX_BELL)
        return True

    def publish_clock(self, clock_ns: int) -> None:
        """Makes the rank's clock readable to its background threads; a clock that went back is not shown (law 5)."""
        if clock_ns > self._mapping.i64[CLOCK]:
            self._mapping.i64[CLOCK] = clock_ns

    def end(self, status: ReplyStatus, reason: str) -> None:
        """Ends the process at its next call, or in the one it waits in. The first reason stands."""
        if self._mapping.u32[FATAL_STATUS]:
            return
        text = " ".join(reason.split()).encode("utf-8", errors="replace")[: FATAL_BYTES - 1]
        self._mapping.data[FATAL_OFFSET : FATAL_OFFSET + FATAL_BYTES] = text.ljust(FATAL_BYTES, b"\0")
        self._mapping.u32[FATAL_STATUS] = status
        # Waiting threads look at the status whenever they wake, so it is enough to wake every word they may wait on.
        for slot in range(REPLY_SLOTS):
            futex.wake(self._mapping.address(SLOTS_OFFSET + slot * REPLY_SLOT.itemsize))
        self._ring(SPACE_BELL)
        self._ring(INBOX_BELL)

    def _ring(self, word: int) -> None:
        self._mapping.u32[word] = (self._mapping.u32[word] + 1) & 0xFFFF_FFFF
        futex.wake(self._mapping.address(word * 4))

    def close(self) -> None:
        """Unmaps the ring."""
        self._records = np.empty(0, EVENT_RECORD)
        self._mapping.close()
