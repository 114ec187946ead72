"""The agent's end of one rank's ring.

:class:`RingReader` maps the ring file that a shim made and checks its layout, once. The rest is native
(``native/agent/ring.cpp``): nothing in Python runs for a record, a payload or an answer. Signatures, which come once
each, are parsed here.

Nothing in the file is trusted. What does not fit raises :class:`RingError`; the caller then fails that rank and no
other.
"""

from __future__ import annotations

import fcntl
import itertools
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eidolon_interposer import futex
from eidolon_interposer._ring import Batch, Ring, pack
from eidolon_interposer.abi import (
    EVENT_RECORD,
    FIXED_BYTES,
    REPLY_SLOT,
    RING_HEADER,
    RING_MAGIC,
    SLOTS_OFFSET,
    offset_of,
    word_of,
)
from eidolon_interposer.mapping import SharedMapping
from eidolon_interposer.messages import RingError
from eidolon_interposer.vocabulary import ABI_VERSION, MAX_DEVICES, REPLY_SLOTS, Kind, ReplyStatus
from eidolon_proto.v1 import simulation_pb2 as pb

__all__ = ["Batch", "RingError", "RingReader", "Signature", "pack"]

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
REAL_WAITS = [word_of(RING_HEADER, f"{what}_wait_ns") for what in ("answer", "room", "watcher")]

_REGIONS = (("records", "record", EVENT_RECORD.itemsize), ("defs", "defs", 1), ("inbox", "inbox", 1))
_KINDS = bytes(Kind)
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


def packed_signature(body: bytes) -> bytes:
    """The same as the bytes of a ``Signature`` of the protocol."""
    s = parse_signature(body)
    packed: bytes = pb.Signature(id=s.id, kind=s.kind, name=s.name, attributes=s.attributes).SerializeToString()
    return packed


class RingReader(Ring):
    """Reads one ring and writes what goes back: replies, payloads, clocks, the end."""

    def __init__(self, path: Path) -> None:
        self._mapping = _mapped(path)
        try:
            header = _header(self._mapping)
            self.pid, self.rank = int(header["pid"]), int(header["rank"])
            self.local_rank, self.world = int(header["local_rank"]), int(header["world"])
            self.epoch_ns = int(header["epoch_ns"])
            layout = _layout(header, self._mapping.size)
            super().__init__(self._mapping.memory(), **layout, kinds=_KINDS, parse_signature=packed_signature)
        except BaseException:
            self._mapping.close()
            raise

    # ---- what the shim wrote ------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """The process is exiting in order."""
        return self._mapping.u32[CLOSED] != 0

    def used_bytes(self) -> list[int]:
        """Device memory that this rank holds, per device."""
        return self._mapping.i64[USED : USED + MAX_DEVICES].tolist()

    @property
    def real_waits_ns(self) -> list[int]:
        """Real time in which threads of the rank waited: for answers, for room in the ring, for threads that watch."""
        return [self._mapping.u64[word] for word in REAL_WAITS]

    def alive(self) -> bool:
        """True while the rank's process lives. Raises if somebody has changed the file's size."""
        if damage := self.damage():
            raise RingError(damage)
        return is_locked(self._mapping.fd)

    def damage(self) -> str:
        """As :meth:`SharedMapping.damage`: the reason behind whatever else seems wrong in the ring."""
        return self._mapping.damage()

    # ---- what the agent writes ----------------------------------------------------------------------------------

    @property
    def session(self) -> int:
        """The rank's number within the server, 1-based; 0: none yet."""
        return self._mapping.u32[SESSION]

    @session.setter
    def session(self, number: int) -> None:
        self._mapping.u32[SESSION] = number

    @property
    def delivered(self) -> int:
        """Number of the last payload that is in the inbox. An agent that died may have put the next one there too: a
        shim ignores a second one."""
        return self._mapping.u64[DELIVERED]

    def end(self, status: ReplyStatus, reason: str) -> None:
        """Ends the process at its next call, or in the one it waits in. The first reason stands."""
        _end(self._mapping, status, reason)

    def close(self) -> None:
        """Unmaps the ring."""
        self.unmap()
        self._mapping.close()


def end_only(path: Path, reason: str) -> None:
    """Ends the process behind a ring that cannot be read, if it is a ring at all."""
    mapping = _mapped(path)
    try:
        _header(mapping)
        _end(mapping, ReplyStatus.FAILED, reason)
    finally:
        mapping.close()


def _mapped(path: Path) -> SharedMapping:
    try:
        return SharedMapping(path)
    except (OSError, ValueError) as error:
        raise RingError(f"cannot map it: {error}") from error


def _header(mapping: SharedMapping) -> np.void:
    """The header, if the file is a ring of some version."""
    if mapping.size < FIXED_BYTES:
        raise RingError(f"{mapping.size} bytes are less than the fixed part of {FIXED_BYTES}")
    header: np.void = mapping.array(RING_HEADER, 1, 0)[0].copy()
    if header["magic"] != RING_MAGIC:
        raise RingError(f"the magic is {bytes(header['magic'])!r}, not {RING_MAGIC!r}")
    return header


def _layout(header: np.void, size: int) -> dict[str, int]:
    """Where the three rings lie in a file of ``size`` bytes, as :class:`Ring` takes it, checked."""
    if header["abi_version"] != ABI_VERSION:
        theirs = header["abi_version"]
        raise RingError(f"the shim's ABI version is {theirs}, the agent's is {ABI_VERSION}: use one release")
    if header["record_bytes"] != EVENT_RECORD.itemsize:
        raise RingError(f"records of {header['record_bytes']} bytes, not {EVENT_RECORD.itemsize}")
    layout: dict[str, int] = {}
    regions = []
    for name, prefix, unit in _REGIONS:
        capacity, offset = int(header[f"{prefix}_capacity"]), int(header[f"{name}_offset"])
        if capacity * unit < 64 or capacity * unit > _MAX_CAPACITY or capacity & (capacity - 1):
            raise RingError(f"{name}: a capacity of {capacity} is not an allowed power of two")
        if offset < FIXED_BYTES or offset & 7 or offset + capacity * unit > size:
            raise RingError(f"{name}: offset {offset} and capacity {capacity} do not fit {size} bytes")
        regions.append((offset, offset + capacity * unit, name))
        layout |= {f"{prefix}_capacity": capacity, f"{name}_offset": offset}
    for (_, end, name), (begin, _, other) in itertools.pairwise(sorted(regions)):
        if end > begin:
            raise RingError(f"{name} and {other} overlap")
    return layout


def _end(mapping: SharedMapping, status: ReplyStatus, reason: str) -> None:
    if mapping.u32[FATAL_STATUS]:
        return
    text = " ".join(reason.split()).encode("utf-8", errors="replace")[: FATAL_BYTES - 1]
    mapping.data[FATAL_OFFSET : FATAL_OFFSET + FATAL_BYTES] = text.ljust(FATAL_BYTES, b"\0")
    mapping.u32[FATAL_STATUS] = status
    # Waiting threads look at the status whenever they wake, so it is enough to wake every word they may wait on.
    for slot in range(REPLY_SLOTS):
        futex.wake(mapping.address(SLOTS_OFFSET + slot * REPLY_SLOT.itemsize))
    for bell in (SPACE_BELL, INBOX_BELL):
        mapping.u32[bell] = (mapping.u32[bell] + 1) & 0xFFFF_FFFF
        futex.wake(mapping.address(bell * 4))
