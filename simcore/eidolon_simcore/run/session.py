"""One rank's session: its event records, as they come, become operations of the engine.

Columns all the way: kinds are mapped by a table, costs are taken from arrays indexed by signature and call, and only
what needs a decision (collectives, marks, memory) is looked at record by record. Records that cost nothing but host
time are folded into the next operation, so the engine sees a fraction of them.

What arrives is checked before it is used: a batch that is not as ``simulation.proto`` says raises
:class:`InvalidBatchError`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs import hostcost
from eidolon_simcore.costs.display_names import display
from eidolon_simcore.costs.model import CROWDED_LANES, CROWDED_NS, SOURCES, Cost, CostModel
from eidolon_simcore.costs.sm_clock import CLASSES, FULL, LEAST_WORK_NS, Pace, pace
from eidolon_simcore.costs.work import Work, per_byte, per_launch
from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.engine.interface import OPERATION, Answer, Flag, NetworkEngine, Op
from eidolon_simcore.fabric.network import Port
from eidolon_simcore.ledger.coverage import Spent
from eidolon_simcore.ledger.labels import Labels
from eidolon_simcore.ledger.memory import MemoryView
from eidolon_simcore.ledger.sinks import NO_DEVICE, Sinks
from eidolon_simcore.ledger.steps import Steps
from eidolon_simcore.ledger.tally import Tally
from eidolon_simcore.run.collectives import Collectives
from eidolon_simcore.run.event_records import (
    DEPENDENT,
    LAUNCHES,
    MOVES,
    NOTED,
    ON_STREAM,
    OPERATIONS,
    POLLS,
    RECORD,
    WORKS,
    Kind,
    RecordFlag,
)
from eidolon_simcore.signature import Signature

MAX_SIGNATURES = 100_000  #: of a rank
COPY_WAIT = "cudaMemcpy"  #: what a wait without a call of its own is called: copies wait for what they copied
CALL_IDS = 1_024  #: signatures of API calls have ids below this
_MAX_ID = CALL_IDS + 2 * MAX_SIGNATURES
_COMM_LANES = 0xFFFF_0000  #: lanes on which communicators are made, on a device of their own
_KINDS = max(Kind) + 1


# plain numbers: looking up members of an enum costs more than the arithmetic on a small batch
_ASK, _MORE, _NO_HOST = np.uint8(Flag.ASK), np.uint8(Flag.GROUP_MORE), np.uint8(Flag.NO_HOST)
_BACKGROUND, _HOSTLESS = np.uint8(Flag.BACKGROUND), np.uint8(Flag.NO_HOST | Flag.BACKGROUND)
_FOREGROUND, _BLOCKING = np.uint8(RecordFlag.FOREGROUND), np.uint8(RecordFlag.BLOCKING)
_GROUP_MORE, _IN_GRAPH = np.uint8(RecordFlag.GROUP_MORE), np.uint8(RecordFlag.IN_GRAPH)
_AUTOGRAD, _PAYLOAD = np.uint8(RecordFlag.AUTOGRAD), np.uint8(RecordFlag.PAYLOAD)
_HOST, _SYNC_LANE = int(Op.HOST), int(Op.SYNC_LANE)
_K_IDLE, _K_CALLBACK, _K_HOST, _K_MARK = int(Kind.IDLE), int(Kind.CALLBACK), int(Kind.HOST), int(Kind.MARK)
_K_COLLECTIVE, _K_SLEEP, _K_SYNC_DEVICE = int(Kind.COLLECTIVE), int(Kind.SLEEP), int(Kind.SYNC_DEVICE)


class InvalidBatchError(Exception):
    """A batch that breaks the contract; the message says how."""


class LostRecordsError(InvalidBatchError):
    """Records are missing before this batch: an agent died with them."""


@dataclass(frozen=True, slots=True)
class World:
    """What sessions share."""

    engine: NetworkEngine
    costs: CostModel
    collectives: Collectives
    memory: MemoryView
    steps: Steps
    labels: Labels
    tally: Tally
    measured_host: bool
    host_factor: float  #: on host times
    host_table: hostcost.Table
    gpu: Gpu
    sinks: Sinks = field(default_factory=Sinks)


class Session:
    """The state of one connected rank. ``reply`` sends an answer: (seq, thread, clock, value)."""

    def __init__(self, world: World, rank: int, server: int, number: int, reply: Callable[..., None]) -> None:
        self.rank = rank
        self.server = server
        self.number = number
        self.left = False
        self.idle = False  # all its foreground threads sleep outside our calls
        self.devices: set[int] = set()  # that it has used
        self.next_seq = 0
        self.taken = self.acknowledged = 0  # messages about this session on the present stream (proto: Taken)
        self._world = world
        self._reply = reply
        self._signatures: dict[int, Signature] = {}
        self._label = np.zeros(CALL_IDS, np.uint32)
        self._prices = _engine.Prices()
        self._costs: dict[int, Cost] = {}  # of device work, by signature
        self.pace = FULL  #: of the step that is issued
        self._paces: deque[Pace] = deque()  #: of the work before each mark of a batch
        self._outline = _engine.Outline()  # of its time, from its own list of operations
        self._alone = np.zeros(CALL_IDS, np.int64)  # of collectives, by signature
        self._meter = _engine.Meter()  # what they do, from mark to mark
        self._compiled = np.zeros(CALL_IDS, bool)  # kernels of torch.compile
        self._entered = False  # one of them was launched since the last step's mark
        self._known = np.zeros(CALL_IDS, bool)
        self._known[0] = True
        self._host = np.zeros(CALL_IDS, np.int64)
        self._call_label = np.zeros(CALL_IDS, np.uint32)
        self._call_label[0] = world.labels.number(COPY_WAIT)
        self._lanes: set[int] = set()
        self._communicators = 0
        self._splits: set[int] = set()
        self._waiting: dict[int, tuple[int, int]] = {}  # seq -> thread, kind
        self._stands: set[int] = set()  # of those, what a foreground thread waits for
        self._awaiting: dict[int, int] = {}  # collectives whose bytes are on their way: seq -> handle
        self._held: list[tuple[Answer, int, int]] = []
        self._last: dict[int, tuple[int, int, int]] = {}  # thread -> seq, clock, value of its last answer
        self._payload_position = 0  # in the rank's definitions: payloads up to here have come
        self._payload_number = 0
        self._undelivered: deque[tuple[int, int, bytes]] = deque()  # number, seq, data: maybe not in its inbox yet

    # ---- definitions ----------------------------------------------------------------------------------------------

    def define(self, number: int, signature: Signature) -> None:
        """A signature, before any record that names it. Defining one again (after a reconnect) changes nothing."""
        if number <= 0 or number >= _MAX_ID:
            raise InvalidBatchError(f"signature id {number} is out of range")
        if signature.kind == "call" and number >= CALL_IDS:
            raise InvalidBatchError(f"call {signature.name!r} has id {number}, which is not below {CALL_IDS}")
        if number in self._signatures:
            return
        if len(self._signatures) >= MAX_SIGNATURES:
            raise InvalidBatchError(f"more than {MAX_SIGNATURES} signatures of one rank")
        self._signatures[number] = signature
        if number >= len(self._known):
            self._grow(number)
        self._known[number] = True
        if signature.kind == "call":
            self._host[number] = self._world.host_table.call_ns(signature.name)
            self._call_label[number] = self._world.labels.number(signature.name)
            return
        source = operator_name = ""
        if signature.kind in ("kernel", "gemm", "conv", "attention", "library", "copy", "set"):
            operator = self._signatures.get(signature.get("op"))
            cost = self._world.costs.cost(signature, operator)
            source, operator_name = cost.source, operator.name if operator is not None else ""
            self._compiled[number] = signature.kind == "kernel" and signature.name.startswith("triton_")
            self._costs[number] = cost
            of_launch = per_launch(signature, self._world.gpu, operator).values()
            self._meter.define(number, of_launch, per_byte(signature).values())
        name = f"{signature.kind} {signature.name}"
        label = self._label[number] = self._world.labels.number(name, display(signature), source, operator_name)
        if number in self._costs:
            cost = self._costs[number]
            source_number = SOURCES.index(cost.source)
            self._prices.define(number, cost.base_ns, cost.by_bytes, label, cost.work_class, source_number)

    def _grow(self, number: int) -> None:
        size = max(number + 1, 2 * len(self._known))
        for name in ("_label", "_known", "_compiled", "_alone"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def spent(self) -> Iterator[Spent]:
        """The device time of each signature that was used: in steps, if there were any."""
        for number, (count, ns, free) in enumerate(self._prices.spent()):
            if count or free:
                signature = self._signatures.get(number, _NONE)
                operator = self._signatures.get(signature.get("op"))
                cost = self._costs.get(number, _FREE)
                yield Spent(signature, operator, count, ns, cost.source, cost.error, free)

    def source_ns(self) -> dict[str, int]:
        """Device time so far, by the source of its cost."""
        return dict(zip(SOURCES, self._prices.source_ns, strict=True))

    # ---- records --------------------------------------------------------------------------------------------------

    def ingest(self, first_seq: int, count: int, data: bytes, payloads: Sequence[tuple[int, bytes, int]] = ()) -> bool:
        """A batch of records, and payloads (seq, bytes, position); what the core already has is dropped. True if the
        rank itself does something in it: not only threads that watch."""
        if self.left:
            raise InvalidBatchError("records of a rank that has left")
        if len(data) != count * RECORD.itemsize:
            raise InvalidBatchError(f"{len(data)} bytes for {count} records of {RECORD.itemsize}")
        if first_seq > self.next_seq:
            raise LostRecordsError(f"record {first_seq} follows record {self.next_seq - 1}")
        records = np.frombuffer(data, RECORD)[self.next_seq - first_seq :]
        for seq, payload, position in payloads:
            if position > self._payload_position:
                self._payload_position = position
                self._world.collectives.payload(self.rank, seq, payload)
        if not len(records):
            return bool(payloads)
        begin = self.next_seq
        seqs = np.arange(begin, begin + len(records), dtype=np.uint64)
        self._check(records, seqs)
        self.next_seq = begin + len(records)
        self._ensure_lanes(records)
        operations = self._operations(records, seqs)
        self._world.engine.ingest(self.rank, operations)
        self._world.sinks.operations(self.rank, operations)
        acts = np.flatnonzero((records["flags"] & _FOREGROUND != 0) | MOVES[records["kind"]])
        if len(acts):
            self.idle = bool(records["kind"][acts[-1]] == _K_IDLE)
        return len(acts) > 0

    def _check(self, records: NDArray[Any], seqs: NDArray[np.uint64]) -> None:
        if (records["seq"] != (seqs & 0xFFFF_FFFF)).any():
            raise InvalidBatchError(f"sequence numbers do not follow {int(seqs[0])}")
        if (records["kind"] >= _KINDS).any():
            raise InvalidBatchError(f"unknown kind {int(records['kind'].max())}")
        signatures = records["sig"]
        if int(signatures.max()) >= len(self._known) or not self._known[signatures].all():
            bad = next(int(s) for s in signatures if s >= len(self._known) or not self._known[s])
            raise InvalidBatchError(f"signature {bad} was never defined")
        calls = records["call"]
        if int(calls.max()) >= CALL_IDS or not self._known[calls].all():
            raise InvalidBatchError("a call that was never defined")

    def _ensure_lanes(self, records: NDArray[Any]) -> None:
        used = records[ON_STREAM[records["kind"]]]
        if not len(used):
            return
        streams, first = np.unique(used["stream"], return_index=True)
        for stream, at in zip(streams.tolist(), first.tolist(), strict=True):
            if stream not in self._lanes:
                if stream >= _COMM_LANES:
                    raise InvalidBatchError(f"stream id {stream}")
                self._lanes.add(stream)
                device = int(used["device"][at])
                self.devices.add(device)
                self._world.engine.add_lane(self.rank, stream, device)
                self._world.sinks.lane(self.rank, stream, self.server, device)

    def _operations(self, records: NDArray[Any], seqs: NDArray[np.uint64]) -> NDArray[Any]:
        """The batch as operations: mapped, noted, folded."""
        kinds, flags = records["kind"], records["flags"]
        out = np.zeros(len(records), OPERATION)
        out["seq"] = seqs
        out["op"] = OPERATIONS[kinds]
        out["lane"] = records["stream"]
        out["value"] = records["value"]
        hostless = self._flags(out, kinds, flags)
        out["host_ns"] = self._host_ns(records, kinds, hostless)
        work = WORKS[kinds]
        self._price(out, records, work)
        blocks = out["op"] >= _SYNC_LANE
        out["label"][blocks] = self._call_label[records["call"][blocks]]
        device = kinds == _K_SYNC_DEVICE
        out["value"][device] = records["device"][device]
        asks = np.flatnonzero(out["flags"] & _ASK)
        for i in asks.tolist():
            self._waiting[int(seqs[i])] = (int(records["thread"][i]), int(kinds[i]))
            if flags[i] & _FOREGROUND and kinds[i] != _K_CALLBACK:
                self._stands.add(int(seqs[i]))
        made = self._note(records, seqs, out, work)
        out = _fold(out)
        return _insert_syncs(out, made) if made else out

    def _price(self, out: NDArray[Any], records: NDArray[Any], work: NDArray[np.bool_]) -> None:
        """Durations at the clock of their step: at a step's mark the clock follows from the step's work, and from the
        time that it lacks work."""
        gap_ns = CROWDED_NS if len(self._lanes) >= CROWDED_LANES else 0
        alone_ns = self._alone_ns(records)
        columns = (work, records["sig"], records["value"], out["work_ns"], out["label"], out["work_class"])
        begin = 0
        for mark in np.flatnonzero(records["kind"] == _K_MARK).tolist():
            self._prices.take(*(column[begin:mark] for column in columns), gap_ns)
            self._outline.take(out[begin:mark].view(np.uint8), alone_ns[begin:mark])
            self._prices.begin()
            begin = mark
            self._paces.append(self.pace)
            times = self._prices.at_full_clock[:CLASSES]
            if sum(times) >= LEAST_WORK_NS:
                self.pace = pace(times, self._world.gpu, self._outline.cut())
                self._prices.set_pace(self.pace.slowdown)
                self._prices.cut()
        self._prices.take(*(column[begin:] for column in columns), gap_ns)
        self._outline.take(out[begin:].view(np.uint8), alone_ns[begin:])

    def _alone_ns(self, records: NDArray[Any]) -> NDArray[np.int64]:
        """What each collective takes if nobody waits and nothing runs beside it; 0 for other records."""
        found = np.zeros(len(records), np.int64)
        calls = records["kind"] == _K_COLLECTIVE
        if calls.any():
            used, first = np.unique(records["sig"][calls], return_index=True)
            devices = records["device"][calls][first]
            for number, device in zip(used.tolist(), devices.tolist(), strict=True):
                if not self._alone[number]:
                    port = Port(self.server, device)
                    self._alone[number] = self._world.collectives.alone_ns(self.rank, port, self._signatures[number])
            found[calls] = self._alone[records["sig"][calls]]
        return found

    def _flags(self, out: NDArray[Any], kinds: NDArray[Any], flags: NDArray[Any]) -> NDArray[np.bool_]:
        """Sets the engine's flags; returns which operations have no host node of their own."""
        moves = MOVES[kinds]  # written by a monitor, but about the host lane
        background = (flags & _FOREGROUND == 0) & ~moves
        graph = flags & _IN_GRAPH != 0
        ask = ((flags & _BLOCKING != 0) | (kinds == _K_CALLBACK)) & ~moves
        more = (kinds == _K_COLLECTIVE) & (flags & _GROUP_MORE != 0)
        out["flags"] = ask * _ASK | more * _MORE | graph * _NO_HOST | background * _BACKGROUND
        hostless: NDArray[np.bool_] = graph | background
        return hostless

    def _host_ns(self, records: NDArray[Any], kinds: NDArray[Any], hostless: NDArray[np.bool_]) -> NDArray[np.int64]:
        if self._world.measured_host:
            host = np.rint(records["host_ns"] * self._world.host_factor).astype(np.int64)
        else:
            host = self._host[records["call"]] + records["host_ns"]
            host = np.rint(host * self._world.host_factor).astype(np.int64)
            self._enter_compiled(host, records)
        host = np.where(POLLS[kinds], np.maximum(host, hostcost.POLL_NS), host)
        sleeps = kinds == _K_SLEEP
        if sleeps.any():
            host = np.where(sleeps, host + np.minimum(records["value"], np.uint64(1 << 62)).astype(np.int64), host)
        host[hostless | MOVES[kinds]] = 0
        return host

    def _enter_compiled(self, host: NDArray[np.int64], records: NDArray[Any]) -> None:
        """The first compiled kernel of a step pays for what torch.compile does before it."""
        compiled, marks = self._compiled[records["sig"]], records["kind"] == _K_MARK
        for i in np.flatnonzero(compiled | marks).tolist():
            if marks[i]:
                self._entered = False
            elif not self._entered:
                self._entered = True
                host[i] += self._world.host_table.compiled_entry

    # ---- records looked at one by one -----------------------------------------------------------------------------

    def _note(
        self, records: NDArray[Any], seqs: NDArray[np.uint64], out: NDArray[Any], work: NDArray[np.bool_]
    ) -> list[tuple[int, bool]]:
        """Handles the kinds that need a decision, and meters what is ``work`` from mark to mark. Returns (seq, asked)
        of the communicators that are made."""
        kinds = records["kind"]
        launches = np.cumsum(LAUNCHES[kinds] & (records["flags"] & _AUTOGRAD != 0))
        counted = 0
        made: list[tuple[int, bool]] = []
        launched = work, records["sig"], records["value"]
        metered = 0  # records
        noted = NOTED[kinds] | ((kinds == _K_HOST) & (records["sig"] != 0))
        for i in np.flatnonzero(noted).tolist():
            record, seq, kind = records[i], int(seqs[i]), int(kinds[i])
            signature = self._signatures.get(int(record["sig"]), _NONE)
            value = int(record["value"])
            port = Port(self.server, int(record["device"]))
            if kind == Kind.COLLECTIVE:
                payload = bool(record["flags"] & _PAYLOAD)
                out["value"][i] = self._collective(signature, port, seq, value, payload)
                out["label"][i] = self._label[int(record["sig"])]
            elif kind == Kind.COMM_INIT:
                if signature.kind == "split":
                    self._splits.add(seq)
                    out["value"][i] = self._world.collectives.split(self.rank, seq, signature)
                else:
                    out["value"][i] = self._world.collectives.join(self.rank, port, signature)
                out["lane"][i] = _COMM_LANES + self._communicators
                out["label"][i] = self._call_label[int(record["call"])]
                self._world.engine.add_lane(self.rank, _COMM_LANES + self._communicators, NO_DEVICE)
                self._world.sinks.lane(self.rank, _COMM_LANES + self._communicators, self.server, NO_DEVICE)
                self._communicators += 1
                made.append((seq, bool(out["flags"][i] & _ASK)))
                out["flags"][i] &= ~_ASK
            elif kind == Kind.COMM_DESTROY:
                self._world.collectives.leave(value)
            elif kind == Kind.MARK:
                out["value"][i] = 0
                paced = self._paces.popleft() if self._paces else self.pace
                if signature.name == "step":
                    out["op"][i] = Op.MARK
                    self._world.steps.launched(self.rank, int(launches[i]) - counted)
                    counted = int(launches[i])
                    if self._world.sinks:
                        self._meter.take(*(column[metered:i] for column in launched))
                        metered = i
                        self._world.sinks.mark(self.rank, seq, Work(*self._meter.cut()))
                    memory = self._world.memory
                    peaks, held = memory.interval(self.rank), memory.of(self.rank)
                    self._world.steps.mark(self.rank, seq, peaks, held, paced)
            elif kind == Kind.MEMORY:
                self._world.memory.update(self.rank, port, value)
                self._world.sinks.memory(self.rank, seq, port.device, value)
            elif kind == Kind.OUT_OF_MEMORY:
                self._world.memory.refused(port, value, self._world.steps.present(self.rank))
            elif kind == Kind.UNMODELLED:
                self._world.tally.unmodelled[self.rank, signature.name] = value
            elif kind == Kind.UNKNOWN_READ:
                self._world.tally.reads.add(self._site(signature), signature.get("default", 0), value)
            elif signature.kind == "mark":
                self._world.steps.report(self.rank, signature.name, signature.get("value", value))
        self._world.steps.launched(self.rank, int(launches[-1]) - counted)
        if self._world.sinks:
            self._meter.take(*(column[metered:] for column in launched))
        return made

    def _site(self, signature: Signature) -> str:
        operator = self._signatures.get(signature.get("op"))
        return signature.name if operator is None else f"{signature.name} ({operator.name})"

    def _collective(self, signature: Signature, port: Port, seq: int, position: int, payload: bool) -> int:
        if signature.kind != "collective":
            raise InvalidBatchError(f"record {seq}: a collective whose signature is of kind {signature.kind!r}")
        return self._world.collectives.call(self.rank, port, seq, signature, position, payload)

    @property
    def waits(self) -> bool:
        """A foreground thread has not been answered."""
        return bool(self._stands)

    # ---- answers --------------------------------------------------------------------------------------------------

    def answer(self, answer: Answer) -> None:
        """Sends an answer, unless bytes that it may depend on are still on their way."""
        thread, kind = self._waiting.pop(answer.seq, (-1, 0))
        if thread < 0:
            return
        if answer.seq in self._splits:
            self._splits.remove(answer.seq)
            answer = replace(answer, value=self._world.collectives.place(self.rank, answer.seq))
        if kind in DEPENDENT and self._depends(answer):
            self._held.append((answer, thread, kind))
        else:
            self._send(answer, thread)

    def _depends(self, answer: Answer) -> bool:
        ends = (self._world.engine.end_of(handle) for handle in self._awaiting.values())
        return any(end is not None and end <= answer.clock_ns for end in ends)

    def _send(self, answer: Answer, thread: int) -> None:
        self._stands.discard(answer.seq)
        self._last[thread] = (answer.seq, answer.clock_ns, answer.value)
        self._reply(answer.seq, thread, answer.clock_ns, answer.value)

    def payload_to_send(self, seq: int, data: bytes) -> int:
        """Keeps a payload until the rank's inbox has it; returns its number."""
        self._payload_number += 1
        self._undelivered.append((self._payload_number, seq, data))
        return self._payload_number

    def delivered(self, number: int) -> None:
        """The rank's inbox holds the payloads up to this number."""
        while self._undelivered and self._undelivered[0][0] <= number:
            self._undelivered.popleft()

    def stream_closed(self) -> None:
        """Messages are counted anew on the next stream: what this one brought is no news to the agent behind that."""
        self.taken = self.acknowledged = 0

    def resume(self, delivered: int) -> list[tuple[int, int, bytes]]:
        """The agent has come back: payloads (number, seq, bytes) that it may not have. Send them, then
        :meth:`repeat_answers`, which may depend on them."""
        self.delivered(delivered)
        return list(self._undelivered)

    def repeat_answers(self) -> None:
        """Sends each thread's last answer again."""
        for thread, (seq, clock, value) in self._last.items():
            self._reply(seq, thread, clock, value)

    def awaited(self, seq: int, handle: int) -> None:
        """The collective ``seq`` is matched, but the bytes it brings are not known to the core yet."""
        self._awaiting.setdefault(seq, handle)

    def bytes_sent(self, seq: int) -> None:
        """The bytes of collective ``seq`` are on the way to the rank."""
        if seq in self._awaiting:
            del self._awaiting[seq]
            held, self._held = self._held, []
            for answer, thread, kind in held:
                if self._depends(answer):
                    self._held.append((answer, thread, kind))
                else:
                    self._send(answer, thread)


_NONE = Signature("", "", {})
_FREE = Cost(0, "unknown", error=1.0)


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


def _insert_syncs(out: NDArray[Any], made: list[tuple[int, bool]]) -> NDArray[Any]:
    """Behind the collective that makes a communicator, where it blocks, the host waits for it."""
    asked = [seq for seq, ask in made if ask]
    at = np.flatnonzero(np.isin(out["seq"], asked))
    syncs = out[at].copy()
    syncs["op"], syncs["flags"], syncs["host_ns"] = _SYNC_LANE, _ASK, 0
    return np.insert(out, at + 1, syncs)
