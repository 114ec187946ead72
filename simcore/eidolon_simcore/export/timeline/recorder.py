"""The recorder: a sink (:mod:`.ledger.sinks`) that writes what is final into a recording.

The tables of the recording have one row each for ...

======== ==============================================================================================================
spans    an operation of a device, or a wait of the host: ``rank lane label op start length ahead seq call``; ``ahead``
         is how long before its start it was issued, ``call`` that of a collective (0 stands for none)
calls    a collective: ``call op bytes communicator position pattern`` (``op`` and the last two are numbers of names)
orders   what orders lanes of a rank: ``rank seq op lane value``; with the spans it says what depends on what
memory   what a rank has allocated on a device from a time on: ``rank device time bytes``
steps    the end of a step on a rank: ``step rank end``
progress where the engine was: ``time rollbacks depth`` (the last two since the row before)
======== ==============================================================================================================

Times are nanoseconds of virtual time. The recorder itself keeps only what is under way: calls whose spans have yet to
come, and changes of memory whose time is not known yet. It hands arrays over once :data:`ROWS` rows have come together
or a step has ended.

A change of memory is a record without a time of its own: it gets the time at which the next operation of its rank was
issued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.core_plan import Plan
from eidolon_simcore.costs.work import Work
from eidolon_simcore.engine.interface import OPERATION, NetworkEngine, Op, loads
from eidolon_simcore.export.timeline.store import Columns, Writer
from eidolon_simcore.fabric.network import Network, Pattern
from eidolon_simcore.ledger.labels import Labels
from eidolon_simcore.ledger.sinks import CollectiveCall, Sink
from eidolon_simcore.ledger.steps import Step

ROWS: Final = 1 << 16  #: rows of a block
#: Operations that say what waits for what.
ORDERS: Final = np.zeros(256, bool)
ORDERS[[Op.RECORD, Op.WAIT, Op.SYNC_LANE, Op.SYNC_KEY, Op.SYNC_DEVICE]] = True


def recorders(plan: Plan, out: Path, engine: NetworkEngine) -> list[Callable[[Labels, Network], Sink]]:
    """Makers of the sinks that record the run: one recorder, or none if the plan does not ask for it."""
    limit_bytes = plan.recording_limit_bytes
    if limit_bytes is None:
        return []
    return [lambda labels, network: Recorder(out / "recording", limit_bytes, labels, network, engine.counters)]


@dataclass(slots=True)
class _Rank:
    calls: dict[int, int] = field(default_factory=dict)  # seq -> call
    memory: deque[tuple[int, int, int]] = field(default_factory=deque)  # seq, device, bytes
    last_ns: int = 0


class Recorder:
    """See the module's docstring; the methods of a sink are those of :class:`~.ledger.sinks.Sink`.

    Args:
        directory: where the recording goes.
        limit_bytes: the greatest size of the recording.
        labels: the labels of the run, which grow.
        network: the network whose links the patterns of collectives name.
        counters: gives the engine's counters.
    """

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        labels: Labels,
        network: Network,
        counters: Callable[[], dict[str, int]],
    ) -> None:
        self._writer = Writer(directory, limit_bytes)
        self._labels, self._labelled = labels, 0
        self._network, self._linked = network, 0
        self._counters, self._counted = counters, (0, 0)
        self._ranks: dict[int, _Rank] = {}
        self._numbers: dict[str, dict[Any, int]] = {}  # numbers of names, by kind
        self._patterns: dict[int, tuple[int, Pattern]] = {}  # by identity, which the kept pattern holds
        self._spans: list[tuple[int, NDArray[Any], NDArray[np.uint64] | None]] = []
        self._orders: list[tuple[int, NDArray[Any]]] = []
        self._calls: list[tuple[int, ...]] = []
        self._memory: list[tuple[int, ...]] = []
        self._rows = 0
        self._end_ns = 0

    # ---- as a sink ------------------------------------------------------------------------------------------------

    def lane(self, rank: int, lane: int, server: int, device: int) -> None:
        self._writer.name("lane", rank=rank, lane=lane, server=server, device=device)

    def mark(self, rank: int, seq: int, work: Work) -> None:
        """Marks are not recorded: steps say where they end."""

    def collective(self, call: CollectiveCall) -> None:
        for rank, seq in zip(call.ranks, call.seqs, strict=True):
            self._rank(rank).calls[seq] = call.handle
        op = self._number("op", call.op, lambda: {"name": call.op})
        ranks = call.ranks
        group = self._number(
            "communicator", (call.communicator, ranks), lambda: {"name": call.communicator, "ranks": ranks}
        )
        self._calls.append((call.handle, op, call.bytes, group, call.position, self._pattern(call.pattern)))

    def memory(self, rank: int, seq: int, device: int, allocated_bytes: int) -> None:
        self._rank(rank).memory.append((seq, device, allocated_bytes))

    def operations(self, rank: int, operations: bytes) -> None:
        rows = np.frombuffer(operations, OPERATION)
        kept = rows[ORDERS[rows["op"]]]
        if len(kept):
            self._orders.append((rank, kept))

    def spans(self, rank: int, spans: NDArray[Any]) -> None:
        state = self._rank(rank)
        if state.memory:
            self._place(rank, state, spans)
        calls = None
        if state.calls:
            at = np.flatnonzero(spans["op"] == Op.COLLECTIVE)
            if len(at):
                calls = np.zeros(len(spans), np.uint64)
                calls[at] = [state.calls.pop(seq, 0) for seq in spans["seq"][at].tolist()]
        state.last_ns = max(state.last_ns, int(spans["end_ns"].max()))
        self._spans.append((rank, spans, calls))
        self._rows += len(spans)
        if self._rows >= ROWS:
            self._flush()

    def step(self, step: Step) -> None:
        self._end_ns = step.end_ns
        self._writer.name("step", index=step.index, name=step.name, end_ns=step.end_ns, time_ns=step.time_ns)
        rows = [(step.index, rank, cut.end_ns) for rank, cut in step.cuts.items()]
        self._table("steps", ("step", "rank", "end"), rows)
        self._flush()

    def close(self) -> None:
        for rank, state in self._ranks.items():
            self._memory += [(rank, device, state.last_ns, count) for _, device, count in state.memory]
        self._flush()
        self._writer.close({"ranks": len(self._ranks)})

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _rank(self, rank: int) -> _Rank:
        found = self._ranks.get(rank)
        if found is None:
            found = self._ranks[rank] = _Rank()
        return found

    def _number(self, kind: str, key: Any, describe: Callable[[], Mapping[str, Any]]) -> int:
        numbers = self._numbers.setdefault(kind, {})
        found = numbers.get(key)
        if found is None:
            found = numbers[key] = len(numbers)
            self._writer.name(kind, **describe())
        return found

    def _pattern(self, pattern: Pattern) -> int:
        known = self._patterns.get(id(pattern))
        if known is not None:
            return known[0]
        on = loads(pattern.flows)
        number = self._number(
            "pattern",
            (pattern.latency_ns, tuple(on.items())),
            lambda: {"latency_ns": pattern.latency_ns, "links": list(on), "bytes": list(on.values())},
        )
        self._patterns[id(pattern)] = number, pattern
        return number

    def _place(self, rank: int, state: _Rank, spans: NDArray[Any]) -> None:
        """Gives changes of memory the times at which they happened."""
        seqs = spans["seq"]
        last = int(seqs[-1])
        while state.memory and state.memory[0][0] <= last:
            seq, device, count = state.memory.popleft()
            at = int(np.searchsorted(seqs, seq))
            state.last_ns = max(state.last_ns if at == 0 else 0, int(spans["issue_ns"][at]))
            self._memory.append((rank, device, int(spans["issue_ns"][at]), count))

    def _flush(self) -> None:
        """Hands over everything that has come together. Names go first, since rows refer to them."""
        for label in self._labels.all[self._labelled :]:
            kind = label.name.partition(" ")[0] if label.shown else "call"
            shown = label.shown or label.name
            self._writer.name("label", name=shown, of=kind, source=label.source, operator=label.operator)
        self._labelled = len(self._labels.all)
        for link in self._network.links()[self._linked :]:
            self._writer.name("link", name=link.name, tier=link.tier, bytes_per_s=link.bytes_per_s)
        self._linked = len(self._network.links())
        self._table("calls", ("call", "op", "bytes", "communicator", "position", "pattern"), self._calls)
        self._table("memory", ("rank", "device", "time", "bytes"), self._memory)
        self._calls, self._memory = [], []
        orders, self._orders = self._orders, []
        if orders:
            self._writer.block("orders", lambda: _order_columns(orders), self._present)
        spans, self._spans = self._spans, []
        if spans:
            self._writer.block("spans", lambda: _span_columns(spans), _window)
        self._rows = 0
        self._progress()

    def _progress(self) -> None:
        counters = self._counters()
        now = counters.get("rollbacks", 0), counters.get("rollback_depth_ns_sum", 0)
        row = (self._end_ns, now[0] - self._counted[0], now[1] - self._counted[1])
        self._counted = now
        self._table("progress", ("time", "rollbacks", "depth"), [row])

    def _table(self, name: str, columns: Sequence[str], rows: Sequence[tuple[int, ...]]) -> None:
        if rows:
            made = dict(zip(columns, np.array(rows, np.int64).T, strict=True))
            self._writer.block(name, lambda: made, self._present)

    def _present(self, _: Columns) -> tuple[int, int]:
        return 0, 1 << 62


def _span_columns(parts: Sequence[tuple[int, NDArray[Any], NDArray[np.uint64] | None]]) -> Columns:
    spans = np.concatenate([part for _, part, _ in parts])
    lengths = [len(part) for _, part, _ in parts]
    return {
        "rank": np.repeat(np.array([rank for rank, _, _ in parts], np.uint32), lengths),
        "lane": spans["lane"],
        "label": spans["label"],
        "op": spans["op"],
        "start": spans["start_ns"],
        "length": spans["end_ns"] - spans["start_ns"],
        "ahead": spans["start_ns"] - spans["issue_ns"],
        "seq": spans["seq"],
        "call": np.concatenate(
            [np.zeros(len(part), np.uint64) if calls is None else calls for _, part, calls in parts]
        ),
    }


def _order_columns(parts: Sequence[tuple[int, NDArray[Any]]]) -> Columns:
    rows = np.concatenate([part for _, part in parts])
    return {
        "rank": np.repeat(np.array([rank for rank, _ in parts], np.uint32), [len(part) for _, part in parts]),
        **{name: rows[name] for name in ("seq", "op", "lane", "value")},
    }


def _window(columns: Columns) -> tuple[int, int]:
    return int(columns["start"].min()), int((columns["start"] + columns["length"]).max())
