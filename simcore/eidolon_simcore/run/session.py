"""One rank's session: its event records, as they come, become operations of the engine.

:meth:`Session.ingest` is the way of a batch. The native intake (``native/src/intake.h``) checks its records, gives
them lanes, host times and device times, and turns them into operations. The session stands beside it:

* it makes lanes for the streams that a batch uses first;
* it drops records that have come before (:mod:`.validation`);
* at each step mark it sets the pace of the work that follows (:mod:`.pricing`);
* records that reach beyond their rank have handlers (:mod:`.effects`): collectives, marks, memory.

What goes back to the rank is in :mod:`.delivery`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from eidolon_simcore.costs.model import CROWDED_LANES, CROWDED_NS
from eidolon_simcore.costs.sm_clock import Pace
from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.engine.interface import Answer
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.ledger.coverage import Spent
from eidolon_simcore.run.delivery import Delivery, Line
from eidolon_simcore.run.effects import COMM_LANES, STEP, Effects
from eidolon_simcore.run.host_times import COPY_WAIT, is_compiled
from eidolon_simcore.run.pricing import Pricing
from eidolon_simcore.run.validation import Definitions, InvalidBatchError, known_records
from eidolon_simcore.run.world import World
from eidolon_simcore.signature import Signature

LONGEST_TIMEOUT_MS = 10 * 365 * 86_400_000  #: longer ones are never over


class Session:
    """The state of one connected rank."""

    def __init__(self, world: World, rank: int, server: int, number: int, line: Line) -> None:
        self.rank = rank
        self.server = server
        self.number = number  #: within the server
        self.left = False
        self.idle = False  #: all its foreground threads sleep outside our calls
        self.timeouts_ns: set[int] = set()  #: of the program's process groups
        self.shortest_timeout_ns: int | None = None  #: the least of them
        self.looked_ns = 0  #: how far its clock was when its spans were last looked at for one that is over
        self.devices: set[int] = set()  #: that it has used
        self.next_seq = 0
        self.taken = self.acknowledged = 0  #: messages about this session on the present stream (proto: Taken)
        self.delivery = Delivery(line, world.engine.end_of)
        self._engine, self._collectives, self._sinks = world.engine, world.collectives, world.books.sinks
        self._host_cost, self._labels = world.host_cost, world.books.labels
        self._definitions = Definitions()
        self._pricing = Pricing(world.gpu, world.costs, self._labels, self._definitions)
        self._intake = _engine.Intake(
            self._pricing.prices,
            self._pricing.meter,
            self._pricing.outline,
            crowded_lanes=CROWDED_LANES,
            crowded_ns=CROWDED_NS,
            **world.host_cost.settings(),
        )
        self._intake.define_call(0, 0, self._labels.number(COPY_WAIT))
        self._effects = Effects(world, rank, server, self._definitions, self._pricing, self._intake)
        self._payload_position = 0  # in the rank's ring of definitions: payloads up to here have come

    def define(self, number: int, signature: Signature) -> None:
        """A signature, before any record that names it."""
        if not self._definitions.add(number, signature):
            return
        if signature.kind == "timeout":
            self._name_timeout(signature.get("ms", 0))
        if signature.kind == "symmetric":
            self._effects.share(signature)
        if signature.kind == "call":
            label = self._labels.number(signature.name)
            self._intake.define_call(number, self._host_cost.table.call_ns(signature.name), label)
        else:
            label = self._pricing.define(number, signature)
            self._intake.define(number, label, is_compiled(signature), signature.name == STEP)

    def _name_timeout(self, ms: int) -> None:
        """One more timeout of the program's process groups."""
        if 0 < ms < LONGEST_TIMEOUT_MS:
            self.timeouts_ns.add(ms * 1_000_000)
            self.shortest_timeout_ns = min(self.timeouts_ns)

    def take_verdicts(self) -> list[tuple[int, bool]]:
        """What torch says of calls that may have lasted too long, each once: the number of the record, and whether it
        ends the process."""
        verdicts, self._effects.verdicts = self._effects.verdicts, []
        return verdicts

    # ---- records --------------------------------------------------------------------------------------------------

    def ingest(self, first_seq: int, count: int, data: bytes, payloads: Sequence[tuple[int, bytes, int]] = ()) -> bool:
        """A batch of records, and payloads (seq, bytes, position); what the core already has is dropped. True if the
        rank itself does something in it, and not only threads that watch."""
        if self.left:
            raise InvalidBatchError("records came from a rank that has left")
        known = known_records(first_seq, count, data, self.next_seq)
        for seq, payload, position in payloads:
            if position > self._payload_position:
                self._payload_position = position
                self._collectives.exchanges.payload(self.rank, seq, payload)
        if known == count:
            return bool(payloads)
        self._open(data, known)
        self.next_seq = first_seq + count
        intake = self._intake
        while intake.translate():
            self._effects.apply()
            pace = self._pricing.pace
            self._pricing.next_step()
            self._effects.mark(pace)
        self._effects.apply()
        for ask in intake.asks():
            self.delivery.expect(*ask)
        operations = intake.close()
        self._engine.ingest(self.rank, operations)
        self._sinks.operations(self.rank, operations)
        acted = bool(intake.acted())
        if acted:
            self.idle = intake.idle()
        return acted

    def _open(self, data: bytes, known: int) -> None:
        """Hands a batch to the intake, and makes known what it uses first."""
        try:
            self._intake.open(self.next_seq, data, known)
        except ValueError as error:
            raise InvalidBatchError(str(error)) from error
        for stream, device in self._intake.new_lanes():
            if stream >= COMM_LANES:
                raise InvalidBatchError(f"stream id {stream}")
            self.devices.add(device)
            self._engine.add_lane(self.rank, stream, device)
            self._sinks.lane(self.rank, stream, self.server, device)
        for number, device in self._intake.new_calls():
            port = Port(self.server, device)
            pattern = self._collectives.pattern(self.rank, port, self._definitions.get(number))
            if pattern is not None:
                self._pricing.define_collective(number, pattern.alone_ns, pattern.source)
                self._intake.set_alone(number, pattern.alone_ns)

    # ---- answers --------------------------------------------------------------------------------------------------

    def answer(self, answer: Answer) -> None:
        """The engine's answer to a record, or what its communicator says in place of that."""
        self._effects.answered(answer.seq)
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
        """The device time of each signature that was used: in the steps, or in all before the second step has ended."""
        return self._pricing.spent()

    def source_ns(self) -> dict[str, int]:
        """The same, summed by the source of the cost."""
        return self._pricing.source_ns()

    def startup_ns(self) -> dict[str, int]:
        """Device time before the first step's end, by the source of its cost. It is 0 where :meth:`spent` has it."""
        return self._pricing.startup_ns()
