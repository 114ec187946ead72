"""What lies where in the memory that shims and their agent share: ``native/core/abi.h`` and ``gauges_page.h``.

Those files say what every field means. Names of fields are theirs, and a test compares offsets and sizes with what a
C++ compiler makes of them. The numbers in the fields (kinds, flags, types) are words of :mod:`.vocabulary`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eidolon_interposer.vocabulary import MAX_DEVICES, REPLY_SLOTS, Kind, MessageType, RecordFlag, ReplyStatus

RING_MAGIC = b"EIDRING1"
SERVER_MAGIC = b"EIDSERV1"
SEQ_MASK = 0xFFFF_FFFF  #: records and reply slots hold the low half of a sequence number


def _structure(itemsize: int, *fields: tuple[int, str, str]) -> np.dtype[np.void]:
    offsets, names, formats = zip(*fields, strict=True)
    return np.dtype(
        {"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": itemsize}  # type: ignore[call-overload, unused-ignore]
    )


EVENT_RECORD = _structure(
    32,
    (0, "seq", "<u4"),
    (4, "kind", "u1"),
    (5, "flags", "u1"),
    (6, "thread", "<u2"),
    (8, "host_ns", "<u4"),
    (12, "call", "<u2"),
    (14, "device", "<u2"),
    (16, "stream", "<u4"),
    (20, "sig", "<u4"),
    (24, "value", "<u8"),
)

MESSAGE_HEAD = _structure(8, (0, "bytes", "<u4"), (4, "type", "<u2"), (6, "reserved", "<u2"))

REPLY_SLOT = _structure(64, (0, "reply_seq", "<u4"), (4, "status", "<i4"), (8, "clock_ns", "<i8"), (16, "value", "<i8"))

RING_HEADER = _structure(
    1856,
    (0, "magic", "S8"),
    (8, "abi_version", "<u4"),
    (12, "record_bytes", "<u4"),
    (16, "record_capacity", "<u8"),
    (24, "records_offset", "<u8"),
    (32, "defs_capacity", "<u8"),
    (40, "defs_offset", "<u8"),
    (48, "inbox_capacity", "<u8"),
    (56, "inbox_offset", "<u8"),
    (64, "pid", "<i4"),
    (68, "rank", "<i4"),
    (72, "local_rank", "<i4"),
    (76, "world", "<i4"),
    (80, "epoch_ns", "<i8"),
    (88, "session", "<u4"),
    # written by the shim
    (128, "head", "<u8"),
    (136, "defs_head", "<u8"),
    (144, "inbox_tail", "<u8"),
    (152, "closed", "<u4"),
    (156, "idle", "<u4"),
    (160, "space_wanted", "<u4"),
    (168, "answer_wait_ns", "<u8"),
    (176, "room_wait_ns", "<u8"),
    (184, "watcher_wait_ns", "<u8"),
    # written by the agent
    (192, "tail", "<u8"),
    (200, "defs_tail", "<u8"),
    (208, "inbox_head", "<u8"),
    (216, "inbox_bell", "<u4"),
    (220, "space_bell", "<u4"),
    (224, "clock_ns", "<i8"),
    (232, "fatal_status", "<u4"),
    (240, "delivered", "<u8"),
    (248, "overdue_seq", "<u8"),
    (256, "overdue_ns", "<i8"),
    (320, "fatal", "S1024"),
    # written by the shim
    (1344, "used_bytes", f"({MAX_DEVICES},)<i8"),
)

DEVICE_GAUGES = _structure(
    128,
    (0, "at_ns", "<i8"),
    (8, "energy_mj", "<i8"),
    (16, "power_mw", "<i8"),
    (24, "busy_percent", "<i8"),
    (32, "memory_percent", "<i8"),
    (40, "sm_clock_mhz", "<i8"),
    (48, "temperature_c", "<i8"),
    (56, "pcie_out_bytes_per_s", "<i8"),
    (64, "pcie_in_bytes_per_s", "<i8"),
    (72, "nvlink_out_bytes_per_s", "<i8"),
    (80, "nvlink_in_bytes_per_s", "<i8"),
)

SERVER_PAGE = _structure(
    576,
    (0, "magic", "S8"),
    (8, "abi_version", "<u4"),
    (12, "bell", "<u4"),
    (16, "listening", "<u4"),
    (20, "reserved", "<u4"),
    (24, "heartbeat_ns", "<u8"),
    (64, "used_bytes", f"({MAX_DEVICES},)<i8"),
)

SLOTS_OFFSET = RING_HEADER.itemsize
FIXED_BYTES = SLOTS_OFFSET + REPLY_SLOTS * REPLY_SLOT.itemsize  #: where the three rings may begin


def offset_of(structure: np.dtype[np.void], field: str) -> int:
    """Byte offset of a field."""
    fields = structure.fields
    assert fields is not None
    return int(fields[field][1])


def word_of(structure: np.dtype[np.void], field: str) -> int:
    """Index of a field in an array of words of the field's own size."""
    fields = structure.fields
    assert fields is not None
    dtype, offset = fields[field][:2]
    return int(offset) // int(dtype.itemsize)


def aligned(size: int) -> int:
    """The next multiple of 8: what a message of ``size`` bytes takes in its ring."""
    return (size + 7) & ~7


def enumerators() -> Iterator[tuple[str, str, int]]:
    """(C++ type, C++ name, value) of every number that the fields hold."""
    for values in (Kind, RecordFlag, MessageType, ReplyStatus):
        for name, value in values.__members__.items():
            yield values.__name__, "k" + "".join(part.capitalize() for part in name.split("_")), int(value)
