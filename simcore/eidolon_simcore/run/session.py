"""One rank's session: its event records, as they come, become operations of the engine.

:meth:`Session.ingest` is the way of a batch. Its records are

1. checked (:mod:`.validation`), and dropped if they have come before;
2. given lanes, for the streams that they use first;
3. turned into operations by a table, column by column, with their host times (:mod:`.host_times`) and device times
   (:mod:`.pricing`);
4. looked at one by one where they reach beyond their rank (:mod:`.effects`): collectives, marks, memory;
5. folded: what costs nothing but host time is added to the next operation, so the engine sees a fraction of them.

What goes back to the rank is in :mod:`.delivery`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.costs.sm_clock import Pace
from eidolon_simcore.engine.interface import OPERATION, Answer, Flag, Op
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.ledger.coverage import Spent
from eidolon_simcore.run.delivery import Delivery, Line
from eidolon_simcore.run.effects import COMM_LANES, Effects
from eidolon_simcore.run.event_records import MOVES, ON_STREAM, OPERATIONS, WORKS
from eidolon_simcore.run.host_times import HostTimes
from eidolon_simcore.run.pricing import Pricing
from eidolon_simcore.run.validation import Definitions, InvalidBatchError, new_records
from eidolon_simcore.run.world import World
from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import Kind, RecordFlag

# Plain numbers: looking up members of an enum costs more than the arithmetic on a small batch.
_ASK, _MORE, _NO_HOST = np.uint8(Flag.ASK), np.uint8(Flag.GROUP_MORE), np.uint8(Flag.NO_HOST)
_BACKGROUND, _HOSTLESS = np.uint8(Flag.BACKGROUND), np.uint8(Flag.NO_HOST | Flag.BACKGROUND)
_FOREGROUND, _BLOCKING = np.uint8(RecordFlag.FOREGROUND), np.uint8(RecordFlag.BLOCKING)
_GROUP_MORE, _IN_GRAPH = np.uint8(RecordFlag.GROUP_MORE), np.uint8(RecordFlag.IN_GRAPH)
_HOST, _SYNC_LANE = int(Op.HOST), int(Op.SYNC_LANE)
_IDLE, _CALLBACK = int(Kind.IDLE), int(Kind.CALLBACK)
_COLLECTIVE, _SYNC_DEVICE = int(Kind.COLLECTIVE), int(Kind.SYNC_DEVICE)


class Session:
    """The state of one connected rank."""

    def __init__(self, world: World, rank: int, server: int, number: int, line: Line) -> None:
        self.rank = rank
        self.server = server
        self.number = number  #: within the server
        self.left = False
        self.idle = False  #: all its foreground threads sleep outside our calls
        self.devices: set[int] = set()  #: that it has used
        self.next_seq = 0
        self.taken = self.acknowledged = 0  #: messages about this session on the present stream (proto: Taken)
        self.delivery = Delivery(line, world.engine.end_of)
        self._engine, self._collectives, self._sinks = world.engine, world.collectives, world.books.sinks
        self._definitions = Definitions()
        self._host_times = HostTimes(world.host_cost, world.books.labels)
        self._pricing = Pricing(world.gpu, world.costs, world.books.labels, self._definitions, self._alone_ns)
        self._effects = Effects(world, rank, server, self._definitions, self._pricing, self._host_times)
        self._lanes: set[int] = set()
        self._payload_position = 0  # in the rank's ring of definitions: payloads up to here have come

    def define(self, number: int, signature: Signature) -> None:
        """A signature, before any record that names it."""
        if not self._definitions.add(number, signature):
            return
        if signature.kind == "call":
            self._host_times.define_call(number, signature.name)
        else:
            self._host_times.define(number, signature)
            self._pricing.define(number, signature)

    # ---- records --------------------------------------------------------------------------------------------------

    def ingest(self, first_seq: int, count: int, data: bytes, payloads: Sequence[tuple[int, bytes, int]] = ()) -> bool:
        """A batch of records, and payloads (seq, bytes, position); what the core already has is dropped. True if the
        rank itself does something in it, and not only threads that watch."""
        if self.left:
            raise InvalidBatchError("records came from a rank that has left")
        records = new_records(first_seq, count, data, self.next_seq)
        for seq, payload, position in payloads:
            if position > self._payload_position:
                self._payload_position = position
                self._collectives.exchanges.payload(self.rank, seq, payload)
        if not len(records):
            return bool(payloads)
        begin = self.next_seq
        seqs = np.arange(begin, begin + len(records), dtype=np.uint64)
        self._definitions.check(records, seqs)
        self.next_seq = begin + len(records)
        self._ensure_lanes(records)
        operations = self._operations(records, seqs)
        self._engine.ingest(self.rank, operations)
        self._sinks.operations(self.rank, operations)
        acts = np.flatnonzero((records["flags"] & _FOREGROUND != 0) | MOVES[records["kind"]])
        if len(acts):
            self.idle = bool(records["kind"][acts[-1]] == _IDLE)
        return len(acts) > 0

    def _ensure_lanes(self, records: NDArray[Any]) -> None:
        used = records[ON_STREAM[records["kind"]]]
        if not len(used):
            return
        streams, first = np.unique(used["stream"], return_index=True)
        for stream, at in zip(streams.tolist(), first.tolist(), strict=True):
            if stream not in self._lanes:
                if stream >= COMM_LANES:
                    raise InvalidBatchError(f"stream id {stream}")
                self._lanes.add(stream)
                device = int(used["device"][at])
                self.devices.add(device)
                self._engine.add_lane(self.rank, stream, device)
                self._sinks.lane(self.rank, stream, self.server, device)

    def _operations(self, records: NDArray[Any], seqs: NDArray[np.uint64]) -> NDArray[Any]:
        """The batch as operations."""
        kinds = records["kind"]
        out = np.zeros(len(records), OPERATION)
        out["seq"] = seqs
        out["op"] = OPERATIONS[kinds]
        out["lane"] = records["stream"]
        out["value"] = records["value"]
        out["flags"] = _flags(records)
        out["host_ns"] = self._host_times.of(records, out["flags"] & _HOSTLESS != 0)
        work = WORKS[kinds]
        paces = self._pricing.price(out, records, work, len(self._lanes))
        blocks = out["op"] >= _SYNC_LANE
        out["label"][blocks] = self._host_times.call_label[records["call"][blocks]]
        device = kinds == _SYNC_DEVICE
        out["value"][device] = records["device"][device]
        self._expect_answers(out, records, seqs)
        made = self._effects.apply(records, seqs, out, work, paces)
        out = _fold(out)
        return _insert_syncs(out, made) if made else out

    def _expect_answers(self, out: NDArray[Any], records: NDArray[Any], seqs: NDArray[np.uint64]) -> None:
        for i in np.flatnonzero(out["flags"] & _ASK).tolist():
            kind = int(records["kind"][i])
            foreground = bool(records["flags"][i] & _FOREGROUND) and kind != _CALLBACK
            self.delivery.expect(int(seqs[i]), int(records["thread"][i]), kind, foreground)

    def _alone_ns(self, device: int, signature: Signature) -> int:
        return self._collectives.alone_ns(self.rank, Port(self.server, device), signature)

    # ---- answers --------------------------------------------------------------------------------------------------

    def answer(self, answer: Answer) -> None:
        """The engine's answer to a record, or what its communicator says in place of that."""
        value = self._collectives.communicators.answer(self.rank, answer.seq)
        self.delivery.answer(answer if value is None else replace(answer, value=value))

    def stream_closed(self) -> None:
        """Counts messages anew: the agent behind the next stream does not know what this one brought."""
        self.taken = self.acknowledged = 0

    # ---- for readers ----------------------------------------------------------------------------------------------

    @property
    def pace(self) -> Pace:
        """Clock and power of the step that is being issued."""
        return self._pricing.pace

    def spent(self) -> Iterator[Spent]:
        """The device time of each signature that was used: within steps, if the run has any."""
        return self._pricing.spent()

    def source_ns(self) -> dict[str, int]:
        """Device time so far, by the source of its cost."""
        return self._pricing.source_ns()


def _flags(records: NDArray[Any]) -> NDArray[np.uint8]:
    """The engine's flags of each record. Those with ``NO_HOST`` or ``BACKGROUND`` have no host node of their own."""
    kinds, flags = records["kind"], records["flags"]
    moves = MOVES[kinds]  # written by a monitor, but about the host lane
    background = (flags & _FOREGROUND == 0) & ~moves
    graph = flags & _IN_GRAPH != 0
    ask = ((flags & _BLOCKING != 0) | (kinds == _CALLBACK)) & ~moves
    more = (kinds == _COLLECTIVE) & (flags & _GROUP_MORE != 0)
    found: NDArray[np.uint8] = ask * _ASK | more * _MORE | graph * _NO_HOST | background * _BACKGROUND
    return found


def _fold(out: NDArray[Any]) -> NDArray[Any]:
    """Drops records that cost only host time; the next operation on the host lane takes over their cost."""
    op, flags = out["op"], out["flags"]
    hostless = flags & _HOSTLESS != 0
    keep = (op != _HOST) | (flags & _ASK != 0)
    keep[-1] = True
    keep[:-1] |= keep[1:] & hostless[1:]  # what is issued together with the operation before it needs that one
    if keep.all():
        return out
    total = np.cumsum(out["host_ns"])
    out = out[keep]
    carries = (out["op"] == _HOST) & (out["flags"] & _ASK == 0)
    out["flags"][carries] = 0
    out["host_ns"] = np.diff(total[keep], prepend=0)
    return out


def _insert_syncs(out: NDArray[Any], made: list[int]) -> NDArray[Any]:
    """Puts a wait of the host behind each of these collectives, which make communicators."""
    at = np.flatnonzero(np.isin(out["seq"], made))
    syncs = out[at].copy()
    syncs["op"], syncs["flags"], syncs["host_ns"] = _SYNC_LANE, _ASK, 0
    return np.insert(out, at + 1, syncs)
