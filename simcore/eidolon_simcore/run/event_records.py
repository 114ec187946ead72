"""The event record as it lies in shared memory (``interposer/native/core/abi.h``).

What the core makes of a record's kind is in ``native/src/event_record.h``.
"""

from __future__ import annotations

import numpy as np

from eidolon_simcore.vocabulary import Kind

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
