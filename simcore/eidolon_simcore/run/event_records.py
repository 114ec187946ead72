"""The event record as it lies in shared memory (``interposer/native/core/abi.h``), and what the core reads from it."""

from __future__ import annotations

import numpy as np

from eidolon_simcore.vocabulary import Kind, Op

RECORD = np.dtype(
    [
        ("seq", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("thread", "<u2"),
        ("host_ns", "<u4"),
        ("call", "<u2"),
        ("device", "<u2"),
        ("stream", "<u4"),
        ("sig", "<u4"),
        ("value", "<u8"),
    ]
)
assert RECORD.itemsize == 32

#: What the engine does for a kind; HOST where a record only costs host time.
OPERATIONS = np.full(256, int(Op.HOST), np.uint8)
for _kind, _op in (
    *((kind, Op.WORK) for kind in (Kind.KERNEL, Kind.COPY, Kind.SET)),
    *((Kind.EVENT_RECORD, Op.RECORD), (Kind.STREAM_WAIT, Op.WAIT), (Kind.COLLECTIVE, Op.COLLECTIVE)),
    *((Kind.CALLBACK, Op.CALLBACK), (Kind.SYNC_STREAM, Op.SYNC_LANE), (Kind.SYNC_EVENT, Op.SYNC_KEY)),
    *((Kind.SYNC_DEVICE, Op.SYNC_DEVICE), (Kind.QUERY_STREAM, Op.QUERY_LANE), (Kind.QUERY_EVENT, Op.QUERY_KEY)),
    *((Kind.EVENT_TIME, Op.KEY_TIME), (Kind.CLOCK, Op.CLOCK), (Kind.COMM_INIT, Op.COLLECTIVE)),
    *((Kind.IDLE, Op.IDLE), (Kind.RESUME, Op.RESUME)),
):
    OPERATIONS[_kind] = int(_op)


def mask(*kinds: Kind) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A table that is true for these kinds."""
    table = np.zeros(256, bool)
    table[list(kinds)] = True
    return table


#: Kinds that touch a stream: its lane must be known.
ON_STREAM = mask(
    *(Kind.KERNEL, Kind.COPY, Kind.SET, Kind.EVENT_RECORD, Kind.STREAM_WAIT, Kind.COLLECTIVE, Kind.CALLBACK),
    *(Kind.SYNC_STREAM, Kind.QUERY_STREAM),
)
#: Kinds that poll: they cost at least a microsecond (law 5).
POLLS = mask(Kind.QUERY_STREAM, Kind.QUERY_EVENT, Kind.EVENT_TIME, Kind.CLOCK)
#: Kinds that say whether the rank acts at all; a monitor thread writes them.
MOVES = mask(Kind.IDLE, Kind.RESUME)
#: Kinds with a duration on the device.
WORKS = mask(Kind.KERNEL, Kind.COPY, Kind.SET)
#: Kinds whose answer can depend on what a collective brought.
DEPENDENT = frozenset(
    (
        Kind.SYNC_STREAM,
        Kind.SYNC_EVENT,
        Kind.SYNC_DEVICE,
        Kind.QUERY_STREAM,
        Kind.QUERY_EVENT,
        Kind.EVENT_TIME,
        Kind.CALLBACK,
    )
)
#: Launches that tell one optimizer step from the next when an autograd thread makes them.
LAUNCHES = mask(Kind.KERNEL, Kind.COLLECTIVE, Kind.GRAPH_LAUNCH)
#: Kinds that the session looks at one by one.
NOTED = mask(
    *(Kind.COLLECTIVE, Kind.COMM_INIT, Kind.COMM_DESTROY, Kind.MARK, Kind.MEMORY, Kind.OUT_OF_MEMORY),
    *(Kind.UNMODELLED, Kind.UNKNOWN_READ),
)
