"""Records that reach beyond their rank's lanes, looked at one by one.

Most records only take time, and the native intake handles them. The few kinds here (``reaches_beyond`` in
``native/src/event_record.h``) also tell somebody something: a collective its communicator, a mark the steps, an
allocation the memory, a call that is not modelled the tally. Each kind has a handler of its own
(:attr:`Effects._handlers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from eidolon_simcore.costs.sm_clock import Pace
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.ledger.sinks import NO_DEVICE
from eidolon_simcore.run.calls import Form
from eidolon_simcore.run.pricing import Pricing
from eidolon_simcore.run.validation import Definitions, InvalidBatchError
from eidolon_simcore.run.world import World
from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import Kind, RecordFlag

COMM_LANES = 0xFFFF_0000  #: lanes from here on are those on which communicators are made; streams have lower numbers
STEP = "step"  #: name of the mark that ends a step
_BLOCKING = int(RecordFlag.BLOCKING)
_PAYLOAD = int(RecordFlag.PAYLOAD)


class Noted(NamedTuple):
    """An event record that reaches beyond its rank."""

    kind: int
    row: int  #: of its operation in the batch
    seq: int
    flags: int
    device: int
    sig: int
    value: int


class Effects:
    """What one rank's records tell others."""

    def __init__(
        self, world: World, rank: int, server: int, definitions: Definitions, pricing: Pricing, intake: Any
    ) -> None:
        self._engine, self._books = world.engine, world.books
        self._collectives, self._communicators = world.collectives, world.collectives.communicators
        self._rank = rank
        self._server, self._rank_of = server, world.rank_of
        self._definitions = definitions
        self._pricing = pricing
        self._intake = intake
        self._forms: dict[tuple[int, int], Form] = {}  # of collective calls, by signature and device
        self.verdicts: list[tuple[int, bool]] = []  #: see :meth:`.session.Session.take_verdicts`
        self._comm_lanes = 0  # of this rank so far
        self._free_lanes: list[int] = []  # of these, those on which nothing is being made
        self._busy_lanes: dict[int, int] = {}  # the others, by the sequence number of the record that is answered last
        self._handlers: dict[int, Callable[[Noted], None]] = {
            Kind.COLLECTIVE: self._collective,
            Kind.COMM_INIT: self._make_communicator,
            Kind.COMM_DESTROY: self._leave_communicator,
            Kind.MEMORY: self._allocated,
            Kind.OUT_OF_MEMORY: self._refused,
            Kind.UNMODELLED: self._unmodelled,
            Kind.UNKNOWN_READ: self._unknown_read,
            Kind.HOST: self._reported,
        }

    def apply(self) -> None:
        """Calls the handlers of what the intake has noted since it was last asked, in the order of the records."""
        for fields in self._intake.noted():
            record = Noted._make(fields)
            self._handlers[record.kind](record)
        if launches := self._intake.launches():
            self._books.steps.launched(self._rank, launches)

    def mark(self, pace: Pace) -> None:
        """The mark at which the intake stands; ``pace`` is that of the work before it."""
        seq, sig = self._intake.mark()
        if self._definitions.get(sig).name != STEP:
            return
        if self._books.sinks:
            self._books.sinks.mark(self._rank, seq, self._pricing.metered())
        memory = self._books.memory
        peaks, held = memory.interval(self._rank), memory.of(self._rank)
        self._books.steps.mark(self._rank, seq, peaks, held, pace)

    # ---- communicators --------------------------------------------------------------------------------------------

    def _collective(self, record: Noted) -> None:
        form = self._forms.get((record.sig, record.device))
        if form is None or form.communicator.gone:
            form = self._forms[record.sig, record.device] = self._form(record)
        payload = record.flags & _PAYLOAD != 0
        self._intake.join(record.row, self._collectives.call(form, self._rank, record.seq, record.value, payload))

    def _form(self, record: Noted) -> Form:
        signature = self._definitions.get(record.sig)
        if signature.kind != "collective":
            raise InvalidBatchError(f"record {record.seq}: a collective whose signature is of kind {signature.kind!r}")
        return self._collectives.form(self._rank, Port(self._server, record.device), signature)

    def _make_communicator(self, record: Noted) -> None:
        """To make a communicator is a collective on a lane of its own. The lane is used again once the rank has been
        told that it is made: whatever the rank makes then cannot begin before. Some programs make thousands."""
        signature = self._definitions.get(record.sig)
        if signature.kind == "split":
            handle = self._communicators.split(self._rank, record.seq, signature)
        else:
            port = Port(self._server, record.device)
            handle = self._communicators.join(self._rank, record.seq, port, signature)
        lane = self._free_lanes.pop() if self._free_lanes else self._add_comm_lane()
        if record.flags & _BLOCKING:
            self._busy_lanes[record.seq] = lane
        self._intake.join_on(record.row, handle, lane)

    def _add_comm_lane(self) -> int:
        lane = COMM_LANES + self._comm_lanes
        self._comm_lanes += 1
        self._engine.add_lane(self._rank, lane, NO_DEVICE)
        self._books.sinks.lane(self._rank, lane, self._server, NO_DEVICE)
        return lane

    def answered(self, seq: int) -> None:
        """The rank is told the answer to a record."""
        lane = self._busy_lanes.pop(seq, None)
        if lane is not None:
            self._free_lanes.append(lane)

    def share(self, signature: Signature) -> None:
        """A group of symmetric memory, which this rank is the first or a further one to name."""
        self._communicators.share(self._server, signature, self._rank_of)

    def _leave_communicator(self, record: Noted) -> None:
        self._communicators.leave(record.value)

    # ---- steps ----------------------------------------------------------------------------------------------------

    def _reported(self, record: Noted) -> None:
        """A number that user code reports, such as tokens; or what torch says of a timeout."""
        signature = self._definitions.get(record.sig)
        if signature.kind == "timeout":
            self.verdicts.append((record.value, signature.name == "over"))
        if signature.kind == "mark":
            self._books.steps.report(self._rank, signature.name, signature.get("value", record.value))

    # ---- memory ---------------------------------------------------------------------------------------------------

    def _allocated(self, record: Noted) -> None:
        self._books.memory.update(self._rank, Port(self._server, record.device), record.value)
        self._books.sinks.memory(self._rank, record.seq, record.device, record.value)

    def _refused(self, record: Noted) -> None:
        step = self._books.steps.present(self._rank)
        self._books.memory.refused(self._rank, Port(self._server, record.device), record.value, step)

    # ---- what is not known ----------------------------------------------------------------------------------------

    def _unmodelled(self, record: Noted) -> None:
        self._books.tally.unmodelled[self._definitions.get(record.sig).name] += record.value

    def _unknown_read(self, record: Noted) -> None:
        signature = self._definitions.get(record.sig)
        operator = self._definitions.operator_of(signature)
        site = signature.name if operator is None else f"{signature.name} ({operator.name})"
        self._books.tally.reads.add(site, signature.get("default", 0), record.value)
