"""The native way from records to operations, against a plain re-statement of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.engine.interface import OPERATION, Flag, Op
from eidolon_simcore.run.event_records import RECORD
from eidolon_simcore.vocabulary import Kind, RecordFlag

FACTOR, POLL_NS, ENTRY_NS, CROWDED_LANES, CROWDED_NS = 1.25, 1_000, 50_000, 3, 950
CALLS = {0: (0, 9), 1: (5_000, 10), 2: (700, 11)}  # host ns, label
KERNEL, COMPILED, COPY, COLLECTIVE, STEP, OTHER = range(1024, 1030)  # signatures
PRICES = {KERNEL: (2_000, 20, 3), COMPILED: (3_000, 21, 2), COPY: (100, 22, 1)}  # ns, label, class
LABELS = {COLLECTIVE: 30, STEP: 31, OTHER: 32}
OPERATIONS = {
    Kind.KERNEL: Op.WORK,
    Kind.COPY: Op.WORK,
    Kind.SET: Op.WORK,
    Kind.EVENT_RECORD: Op.RECORD,
    Kind.STREAM_WAIT: Op.WAIT,
    Kind.COLLECTIVE: Op.COLLECTIVE,
    Kind.CALLBACK: Op.CALLBACK,
    Kind.SYNC_STREAM: Op.SYNC_LANE,
    Kind.SYNC_EVENT: Op.SYNC_KEY,
    Kind.SYNC_DEVICE: Op.SYNC_DEVICE,
    Kind.QUERY_STREAM: Op.QUERY_LANE,
    Kind.QUERY_EVENT: Op.QUERY_KEY,
    Kind.EVENT_TIME: Op.KEY_TIME,
    Kind.CLOCK: Op.CLOCK,
    Kind.IDLE: Op.IDLE,
    Kind.RESUME: Op.RESUME,
    Kind.COMM_INIT: Op.COLLECTIVE,
}
STREAMS = (*(Kind.KERNEL, Kind.COPY, Kind.SET, Kind.EVENT_RECORD, Kind.STREAM_WAIT, Kind.COLLECTIVE, Kind.CALLBACK),)
STREAMS += (Kind.SYNC_STREAM, Kind.QUERY_STREAM)
POLLS = (Kind.QUERY_STREAM, Kind.QUERY_EVENT, Kind.EVENT_TIME, Kind.CLOCK)
NOTED = (*(Kind.COLLECTIVE, Kind.COMM_INIT, Kind.COMM_DESTROY, Kind.MEMORY, Kind.OUT_OF_MEMORY),)
NOTED += (Kind.UNMODELLED, Kind.UNKNOWN_READ)
FIELDS = ("seq", "op", "flags", "lane", "host_ns", "work_ns", "value", "label", "work_class")


class Record(NamedTuple):
    """The fields of an event record, but for its number."""

    kind: int
    flags: int = RecordFlag.FOREGROUND
    thread: int = 0
    host_ns: int = 0
    call: int = 0
    device: int = 0
    stream: int = 1
    sig: int = 0
    value: int = 0


def intake(measured: bool = False) -> Any:
    """An intake with the definitions above."""
    prices, meter, outline = _engine.Prices(), _engine.Meter(), _engine.Outline()
    made = _engine.Intake(
        *(prices, meter, outline),
        measured=measured,
        factor=FACTOR,
        poll_ns=POLL_NS,
        compiled_entry_ns=ENTRY_NS,
        crowded_lanes=CROWDED_LANES,
        crowded_ns=CROWDED_NS,
    )
    for number, (ns, label) in CALLS.items():
        made.define_call(number, ns, label)
    for number, (ns, label, work_class) in PRICES.items():
        prices.define(number, ns, [(0, 0.0), (100, 50.0)] if number == COPY else [], label, work_class, 0)
        made.define(number, label, number == COMPILED)
    for number, label in LABELS.items():
        made.define(number, label, step=number == STEP)
    return made


def packed(seq: int, records: Sequence[Record]) -> bytes:
    rows = [(seq + i & 0xFFFFFFFF, *record) for i, record in enumerate(records)]
    return np.array(rows, RECORD).tobytes()


def taken(made: Any, seq: int, records: Sequence[Record]) -> list[tuple[int, ...]]:
    """The operations of a batch. Communicators that it makes are on lanes from 1,000 on; all handles are 77."""
    made.open(seq, packed(seq, records))
    more = True
    while more:
        more = made.translate()
        for kind, row, at, *_ in made.noted():
            if kind == Kind.COLLECTIVE:
                made.join(row, 77)
            elif kind == Kind.COMM_INIT:
                made.join_on(row, 77, 1_000 + at % 1_000)
    out = np.frombuffer(made.close(), OPERATION)
    return [tuple(int(row[name]) for name in FIELDS) for row in out]


# ---- the same, said plainly ------------------------------------------------------------------------------------------


class Plain:
    """An intake whose device work is not paced."""

    def __init__(self, measured: bool) -> None:
        self.measured = measured
        self.entered = False
        self.streams: set[int] = set()

    def taken(self, seq: int, records: Sequence[Record]) -> list[tuple[int, ...]]:
        self.streams |= {record.stream for record in records if record.kind in STREAMS}
        made = [self.operation(seq + i, record) for i, record in enumerate(records)]
        return list(folded(made))

    def operation(self, seq: int, record: Record) -> dict[str, int]:
        kind, flags = Kind(record.kind), record.flags
        moves = kind in (Kind.IDLE, Kind.RESUME)
        out = dict.fromkeys(FIELDS, 0) | {"seq": seq, "lane": record.stream, "value": record.value}
        out["op"] = OPERATIONS.get(kind, Op.HOST)
        if flags & RecordFlag.IN_GRAPH:
            out["flags"] |= Flag.NO_HOST
        if not moves and not flags & RecordFlag.FOREGROUND:
            out["flags"] |= Flag.BACKGROUND
        if not moves and (flags & RecordFlag.BLOCKING or kind == Kind.CALLBACK):
            out["flags"] |= Flag.ASK
        if kind == Kind.COLLECTIVE and flags & RecordFlag.GROUP_MORE:
            out["flags"] |= Flag.GROUP_MORE
        host_ns = self.host_ns(kind, record)
        out["host_ns"] = 0 if moves or out["flags"] & (Flag.NO_HOST | Flag.BACKGROUND) else host_ns
        if out["op"] == Op.WORK and record.sig in PRICES:
            ns, out["label"], out["work_class"] = PRICES[record.sig]
            if record.sig == COPY:
                ns += round(record.value / 2)
            out["work_ns"] = ns + (CROWDED_NS if len(self.streams) >= CROWDED_LANES else 0)
        elif kind == Kind.COLLECTIVE:
            out["label"], out["value"] = LABELS.get(record.sig, PRICES.get(record.sig, (0, 0))[1]), 77
        elif kind == Kind.COMM_INIT:
            out["label"], out["value"], out["lane"] = CALLS[record.call][1], 77, 1_000 + seq % 1_000
        elif out["op"] >= Op.SYNC_LANE:
            out["label"] = CALLS[record.call][1]
        if kind == Kind.SYNC_DEVICE:
            out["value"] = record.device
        if kind == Kind.MARK:
            out["op"], out["value"] = Op.MARK if record.sig == STEP else Op.HOST, 0
        return out

    def host_ns(self, kind: Kind, record: Record) -> int:
        host_ns = round((record.host_ns + (0 if self.measured else CALLS[record.call][0])) * FACTOR)
        if kind == Kind.MARK:
            self.entered = False
        elif record.sig == COMPILED and not self.entered and not self.measured:
            self.entered = True
            host_ns += ENTRY_NS
        if kind in POLLS:
            host_ns = max(host_ns, POLL_NS)
        return host_ns + (record.value if kind == Kind.SLEEP else 0)


def folded(operations: Sequence[dict[str, int]]) -> Iterator[tuple[int, ...]]:
    """Whatever only costs host time goes, and the next operation that stays takes over its cost. It stays if it is the
    last, or if an operation that stays for its own sake is issued together with it. A communicator that its thread
    waits for is made, and then waited for."""
    own = [op["op"] != Op.HOST or bool(op["flags"] & Flag.ASK) or op is operations[-1] for op in operations]
    host_ns = 0
    for i, op in enumerate(operations):
        host_ns += op["host_ns"]
        together = own[i] or (own[i + 1] and bool(operations[i + 1]["flags"] & (Flag.NO_HOST | Flag.BACKGROUND)))
        if not together:
            continue
        kept = {**op, "host_ns": host_ns}
        host_ns = 0
        if op["op"] == Op.HOST and not op["flags"] & Flag.ASK:
            kept["flags"] = 0
        waits = op["lane"] >= 1_000 and bool(op["flags"] & Flag.ASK)
        if waits:
            kept["flags"] &= ~Flag.ASK
        yield tuple(kept[name] for name in FIELDS)
        if waits:
            kept |= {"op": Op.SYNC_LANE, "flags": Flag.ASK, "host_ns": 0}
            yield tuple(kept[name] for name in FIELDS)


RECORDS = st.builds(
    Record,
    kind=st.sampled_from([int(kind) for kind in Kind] + 5 * [int(Kind.HOST), int(Kind.KERNEL), int(Kind.MARK)]),
    flags=st.integers(0, 63),
    thread=st.integers(0, 3),
    host_ns=st.integers(0, 10_000).map(lambda n: 4 * n),  # times FACTOR a whole number: no halves to round
    call=st.sampled_from(sorted(CALLS)),
    device=st.integers(0, 1),
    stream=st.integers(1, 4),
    sig=st.sampled_from([0, *PRICES, *LABELS]),
    value=st.integers(0, 1 << 20).map(lambda n: 2 * n),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.lists(st.lists(RECORDS, min_size=1, max_size=12), max_size=6), st.booleans())
def test_batches_become_the_operations_that_are_stated(batches: list[list[Record]], measured: bool) -> None:
    made, plain = intake(measured), Plain(measured)
    seq = (1 << 32) - 20
    for records in batches:
        assert taken(made, seq, records) == plain.taken(seq, records)
        asks = [
            (seq + i, r.thread, r.kind, bool(r.flags & RecordFlag.FOREGROUND) and r.kind != Kind.CALLBACK)
            for i, r in enumerate(records)
            if r.kind not in (Kind.IDLE, Kind.RESUME) and (r.flags & RecordFlag.BLOCKING or r.kind == Kind.CALLBACK)
        ]
        assert made.asks() == asks
        acts = [r.kind for r in records if r.flags & RecordFlag.FOREGROUND or r.kind in (Kind.IDLE, Kind.RESUME)]
        assert made.acted() == bool(acts)
        assert made.idle() == (acts[-1:] == [Kind.IDLE])
        seq += len(records)


@given(st.lists(RECORDS, min_size=1, max_size=20))
def test_what_reaches_beyond_the_rank_is_noted_from_mark_to_mark(records: list[Record]) -> None:
    made = intake()
    made.open(5, packed(5, records))
    pieces: list[list[int]] = [[]]
    launches = [0]
    for i, record in enumerate(records):
        if record.kind == Kind.MARK:
            pieces.append([])
            launches.append(0)
        if record.kind in NOTED or (record.kind == Kind.HOST and record.sig):
            pieces[-1].append(5 + i)
        launch = record.kind in (Kind.KERNEL, Kind.COLLECTIVE, Kind.GRAPH_LAUNCH)
        launches[-1] += launch and bool(record.flags & RecordFlag.AUTOGRAD)
    marks = [(5 + i, record.sig) for i, record in enumerate(records) if record.kind == Kind.MARK]
    for number, (piece, count) in enumerate(zip(pieces, launches, strict=True)):
        assert made.translate() == (number < len(marks))
        assert [seq for _, _, seq, *_ in made.noted()] == piece
        assert made.launches() == count
        if number < len(marks):
            assert made.mark() == marks[number]


def test_streams_and_collectives_are_told_when_they_are_used_first() -> None:
    made = intake()
    first = [Record(Kind.KERNEL, sig=KERNEL, stream=7, device=1), Record(Kind.COLLECTIVE, sig=COLLECTIVE, stream=3)]
    made.open(0, packed(0, first))
    assert (made.new_lanes(), made.new_calls()) == ([(3, 0), (7, 1)], [(COLLECTIVE, 0)])
    made.open(2, packed(2, first))
    assert (made.new_lanes(), made.new_calls()) == ([], [(COLLECTIVE, 0)])  # its time alone was not stated
    made.set_alone(COLLECTIVE, 5)
    made.open(4, packed(4, first))
    assert made.new_calls() == []


def test_records_that_came_before_are_left_out() -> None:
    made = intake()
    records = [Record(Kind.CLOCK, call=1) for _ in range(3)]
    made.open(6, packed(4, records), 2)
    assert not made.translate()
    assert np.frombuffer(made.close(), OPERATION)["seq"].tolist() == [6]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([Record(77)], "unknown kind 77"),
        ([Record(Kind.KERNEL, sig=5_000)], "names signature 5000, which was never defined"),
        ([Record(Kind.KERNEL, sig=3)], "names signature 3, which was never defined"),
        ([Record(Kind.HOST, call=3)], "names a call that was never defined"),
        ([Record(Kind.HOST, call=4_000)], "names a call that was never defined"),
    ],
)
def test_a_batch_that_names_what_is_not_defined_is_refused(records: list[Record], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        intake().open(0, packed(0, records))


def test_a_batch_whose_numbers_do_not_follow_is_refused() -> None:
    with pytest.raises(ValueError, match="sequence numbers do not follow 4"):
        intake().open(4, packed(5, [Record(Kind.HOST)]))
