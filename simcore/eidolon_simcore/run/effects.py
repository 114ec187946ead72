"""Records that reach beyond their rank's lanes, looked at one by one.

Most records only take time and are handled by columns. The few kinds here (:data:`~.event_records.NOTED`) also tell
somebody something: a collective its communicator, a mark the steps, an allocation the memory, a call that is not
modelled the tally. Each kind has a handler of its own (:attr:`Effects._handlers`); handlers may change the row of the
batch's operations that belongs to their record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.costs.sm_clock import Pace
from eidolon_simcore.engine.interface import Flag, Op
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.ledger.sinks import NO_DEVICE
from eidolon_simcore.run.event_records import LAUNCHES, NOTED
from eidolon_simcore.run.host_times import HostTimes
from eidolon_simcore.run.pricing import Pricing
from eidolon_simcore.run.validation import Definitions, InvalidBatchError
from eidolon_simcore.run.world import World
from eidolon_simcore.vocabulary import Kind, RecordFlag

COMM_LANES = 0xFFFF_0000  #: lanes from here on are those on which communicators are made; streams have lower numbers
_ASK, _AUTOGRAD = np.uint8(Flag.ASK), np.uint8(RecordFlag.AUTOGRAD)
_PAYLOAD = int(RecordFlag.PAYLOAD)
_HOST = int(Kind.HOST)


class Record(NamedTuple):
    """An event record as Python numbers; the fields are those of :data:`~.event_records.RECORD`."""

    seq: int  # its lower 32 bits
    kind: int
    flags: int
    thread: int
    host_ns: int
    call: int
    device: int
    stream: int
    sig: int
    value: int


@dataclass(slots=True)
class Batch:
    """A batch on its way from records to operations. All columns have one row for each record."""

    records: NDArray[Any]
    seqs: NDArray[np.uint64]
    operations: NDArray[Any]
    work: NDArray[np.bool_]  #: which records are device work
    paces: dict[int, Pace]  #: of the work before each step mark, by the mark's row
    launches: NDArray[np.int64]  #: launches of autograd threads up to each row
    counted: int = 0  #: of them, how many the steps know
    metered: int = 0  #: rows whose work is metered
    made: list[int] = field(default_factory=list)  #: records that make a communicator and block until it is made


class Effects:
    """What one rank's records tell others."""

    def __init__(
        self, world: World, rank: int, server: int, definitions: Definitions, pricing: Pricing, host_times: HostTimes
    ) -> None:
        self._engine, self._books = world.engine, world.books
        self._collectives, self._communicators = world.collectives, world.collectives.communicators
        self._rank = rank
        self._server = server
        self._definitions = definitions
        self._pricing = pricing
        self._host_times = host_times
        self._made = 0  # communicators of this rank so far
        self._handlers: dict[int, Callable[[Batch, int, int, Record], None]] = {
            Kind.COLLECTIVE: self._collective,
            Kind.COMM_INIT: self._make_communicator,
            Kind.COMM_DESTROY: self._leave_communicator,
            Kind.MARK: self._mark,
            Kind.MEMORY: self._allocated,
            Kind.OUT_OF_MEMORY: self._refused,
            Kind.UNMODELLED: self._unmodelled,
            Kind.UNKNOWN_READ: self._unknown_read,
            Kind.HOST: self._reported,
        }

    def apply(
        self,
        records: NDArray[Any],
        seqs: NDArray[np.uint64],
        operations: NDArray[Any],
        work: NDArray[np.bool_],
        paces: dict[int, Pace],
    ) -> list[int]:
        """Calls the handlers in the order of the records, and meters what is ``work`` from mark to mark. Returns the
        sequence numbers of records that make a communicator and block until it is made."""
        kinds = records["kind"]
        launches = np.cumsum(LAUNCHES[kinds] & (records["flags"] & _AUTOGRAD != 0))
        batch = Batch(records, seqs, operations, work, paces, launches)
        noted = np.flatnonzero(NOTED[kinds] | ((kinds == _HOST) & (records["sig"] != 0)))
        for row, fields in zip(noted.tolist(), records[noted].tolist(), strict=True):
            record = Record._make(fields)
            self._handlers[record.kind](batch, row, int(seqs[row]), record)
        self._books.steps.launched(self._rank, int(launches[-1]) - batch.counted)
        if self._books.sinks:
            self._pricing.meter(records[batch.metered :], work[batch.metered :])
        return batch.made

    # ---- communicators --------------------------------------------------------------------------------------------

    def _collective(self, batch: Batch, row: int, seq: int, record: Record) -> None:
        signature = self._definitions.get(record.sig)
        if signature.kind != "collective":
            raise InvalidBatchError(f"record {seq}: a collective whose signature is of kind {signature.kind!r}")
        port, payload = Port(self._server, record.device), bool(record.flags & _PAYLOAD)
        handle = self._collectives.call(self._rank, port, seq, signature, record.value, payload)
        batch.operations["value"][row] = handle
        batch.operations["label"][row] = self._pricing.label[record.sig]

    def _make_communicator(self, batch: Batch, row: int, seq: int, record: Record) -> None:
        """To make a communicator is a collective on a lane of its own."""
        signature, out = self._definitions.get(record.sig), batch.operations
        if signature.kind == "split":
            out["value"][row] = self._communicators.split(self._rank, seq, signature)
        else:
            port = Port(self._server, record.device)
            out["value"][row] = self._communicators.join(self._rank, seq, port, signature)
        lane = COMM_LANES + self._made
        self._made += 1
        self._engine.add_lane(self._rank, lane, NO_DEVICE)
        self._books.sinks.lane(self._rank, lane, self._server, NO_DEVICE)
        out["lane"][row] = lane
        out["label"][row] = self._host_times.call_label[record.call]
        if out["flags"][row] & _ASK:  # the wait that is put behind it asks instead
            batch.made.append(seq)
            out["flags"][row] &= ~_ASK

    def _leave_communicator(self, batch: Batch, row: int, seq: int, record: Record) -> None:
        self._communicators.leave(record.value)

    # ---- steps ----------------------------------------------------------------------------------------------------

    def _mark(self, batch: Batch, row: int, seq: int, record: Record) -> None:
        batch.operations["value"][row] = 0
        if self._definitions.get(record.sig).name != "step":
            return
        batch.operations["op"][row] = Op.MARK
        launches = int(batch.launches[row])
        self._books.steps.launched(self._rank, launches - batch.counted)
        batch.counted = launches
        if self._books.sinks:
            self._pricing.meter(batch.records[batch.metered : row], batch.work[batch.metered : row])
            batch.metered = row
            self._books.sinks.mark(self._rank, seq, self._pricing.metered())
        memory = self._books.memory
        peaks, held = memory.interval(self._rank), memory.of(self._rank)
        self._books.steps.mark(self._rank, seq, peaks, held, batch.paces[row])

    def _reported(self, batch: Batch, row: int, seq: int, record: Record) -> None:
        """A number that user code reports, such as tokens."""
        signature = self._definitions.get(record.sig)
        if signature.kind == "mark":
            self._books.steps.report(self._rank, signature.name, signature.get("value", record.value))

    # ---- memory ---------------------------------------------------------------------------------------------------

    def _allocated(self, batch: Batch, row: int, seq: int, record: Record) -> None:
        self._books.memory.update(self._rank, Port(self._server, record.device), record.value)
        self._books.sinks.memory(self._rank, seq, record.device, record.value)

    def _refused(self, batch: Batch, row: int, seq: int, record: Record) -> None:
        step = self._books.steps.present(self._rank)
        self._books.memory.refused(self._rank, Port(self._server, record.device), record.value, step)

    # ---- what is not known ----------------------------------------------------------------------------------------

    def _unmodelled(self, batch: Batch, row: int, seq: int, record: Record) -> None:
        self._books.tally.unmodelled[self._definitions.get(record.sig).name] += record.value

    def _unknown_read(self, batch: Batch, row: int, seq: int, record: Record) -> None:
        signature = self._definitions.get(record.sig)
        operator = self._definitions.operator_of(signature)
        site = signature.name if operator is None else f"{signature.name} ({operator.name})"
        self._books.tally.reads.add(site, signature.get("default", 0), record.value)
