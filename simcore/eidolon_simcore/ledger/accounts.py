"""Accounts of a run: where each step's time went, what was computed and communicated, for every rank and device.

:class:`Accounts` is a sink (:mod:`.sinks`) over the C++ ledger of spans (``native/src/accounts.h``). The ledger knows
intervals and marks; here they get the names of devices, kinds of collective and links. Figures are booked a step at a
time, once the step is final, into two sets of columns: those of the last step, and totals. The first step ("startup":
building the model, warming up) is booked as a step but is left out of the totals, so that a ratio of two totals tells
of training alone.

A device's time is divided into five parts that add up to the whole:

* ``compute``: something runs that is neither a collective nor a host copy;
* ``communication``: a collective runs and nothing computes (it is *exposed*);
* ``copy``: only copies to or from the host run;
* ``host``: nothing runs, because the host has not issued it yet;
* ``idle``: nothing runs, because what was issued waits.

Two more columns are beside them. ``overlap`` is the part of ``compute`` during which a collective runs. ``wait`` is the
time in which the rank had come to a collective and others had not: it is longest for the fastest rank and shortest for
a straggler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs.work import WORK_FIELDS, Work
from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.engine.interface import loads
from eidolon_simcore.fabric.network import Network, Pattern, Port
from eidolon_simcore.ledger.sinks import CollectiveCall
from eidolon_simcore.ledger.steps import STARTUP, Step

#: Columns of the ledger's rows, in nanoseconds.
TIMES = ("window", "compute", "communication", "copy", "host", "idle", "overlap", "wait")
#: Columns that add up to the window.
SPLIT = ("compute", "communication", "copy", "host", "idle")
MAX_LINKS = 4_096  #: links that the summary names
_WHO = 2  # rank and device come before these columns in the ledger's rows
_COMPUTE, _COMMUNICATE, _COPY = 0, 1, 2
_ACTIVITY = {"copy h2d": _COPY, "copy d2h": _COPY, "copy h2h": _COPY, "copy p2p": _COMMUNICATE}
_BUS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


@dataclass(frozen=True, slots=True)
class KindTotal:
    """Sums over the collectives of one kind. ``bytes`` counts the larger buffer of one member, ``bus_bytes`` is defined
    as in nccl-tests. ``ns`` counts from when the last member has come until the end."""

    count: int = 0
    bytes: int = 0
    bus_bytes: int = 0
    ns: int = 0

    def __add__(self, other: KindTotal) -> KindTotal:
        return KindTotal(*(a + b for a, b in zip(self._values(), other._values(), strict=True)))

    def _values(self) -> tuple[int, ...]:
        return self.count, self.bytes, self.bus_bytes, self.ns


@dataclass(frozen=True, slots=True)
class Ledger:
    """Figures of every device that a rank works on, one row each, in the order of ``ports``. A ledger is never changed
    once it is made."""

    ports: tuple[Port, ...]
    ranks: tuple[int, ...]
    times: NDArray[np.int64]  #: row x :data:`TIMES`
    work: NDArray[np.float64]  #: row x :data:`~.costs.work.WORK_FIELDS`
    kinds: Mapping[str, KindTotal]  #: by kind of collective
    link_bytes: NDArray[np.int64]  #: by number of the link

    def column(self, name: str) -> NDArray[np.int64]:
        """One of :data:`TIMES`."""
        column: NDArray[np.int64] = self.times[:, TIMES.index(name)]
        return column

    def working(self, name: str) -> NDArray[np.float64]:
        """One of :data:`~.costs.work.WORK_FIELDS`."""
        column: NDArray[np.float64] = self.work[:, WORK_FIELDS.index(name)]
        return column

    def split(self) -> dict[str, int]:
        """Mean times over the devices, in nanoseconds: the parts of the window, and the overlap."""
        if not len(self.times):
            return {}
        means = dict(zip(TIMES, self.times.mean(axis=0).tolist(), strict=True))
        return {f"{name}_ns": round(means[name]) for name in (*SPLIT, "overlap")}


def empty_ledger() -> Ledger:
    """The ledger of a run that has had no steps so far."""
    return Ledger(
        (), (), np.zeros((0, len(TIMES)), np.int64), np.zeros((0, len(WORK_FIELDS))), {}, np.zeros(0, np.int64)
    )


class Accounts:
    """See the module's docstring; the methods of a sink are those of :class:`~.sinks.Sink`.

    Args:
        labels: the names of spans, which grow during the run.
        idle_label: number of the label of idle spans.
    """

    def __init__(self, labels: Sequence[str], idle_label: int, network: Network) -> None:
        self._ledger = _engine.Accounts(idle_label)
        self._labels = labels
        self._labelled = 0
        self._network = network
        self._servers: dict[int, int] = {}  # by rank
        self._devices: dict[int, list[int]] = {}  # by rank, in the order in which they came
        self._kinds: dict[str, int] = {}
        self._patterns: dict[int, int] = {}  # by the identity of the object
        self._loads: list[tuple[Pattern, NDArray[np.int64], NDArray[np.int64]]] = []
        self._rows = np.zeros((0, 2), np.int64)  # rank and device, of the last step
        self._ports_and_ranks: tuple[tuple[Port, ...], tuple[int, ...]] = (), ()
        self.last = empty_ledger()  #: of the last final step
        self.total = empty_ledger()  #: of all final steps but the first

    # ---- as a sink ------------------------------------------------------------------------------------------------

    def lane(self, rank: int, lane: int, server: int, device: int) -> None:
        self._servers[rank] = server
        self._ledger.add_lane(rank, lane, device)

    def mark(self, rank: int, seq: int, work: Work) -> None:
        self._ledger.mark(rank, seq, work.values())

    def collective(self, call: CollectiveCall) -> None:
        kind = self._kinds.setdefault(call.op, len(self._kinds))
        n = len(call.ranks)
        bus_bytes = round(call.bytes * _BUS[call.op](n)) if call.op in _BUS else call.bytes
        self._ledger.add_collective(kind, self._pattern(call.pattern), call.bytes, bus_bytes, call.ranks, call.seqs)

    def operations(self, rank: int, operations: bytes) -> None:
        """Operations are not booked: their spans are."""

    def memory(self, rank: int, seq: int, device: int, allocated_bytes: int) -> None:
        """Memory is not booked: each step brings its peaks."""

    def spans(self, rank: int, spans: NDArray[Any]) -> None:
        if self._labelled < len(self._labels):
            self._set_labels()
        self._ledger.take(rank, spans.view(np.uint8))

    def step(self, step: Step) -> None:
        cuts = np.array([(rank, cut.seq, cut.end_ns) for rank, cut in sorted(step.cuts.items())], np.int64)
        rows, kinds, patterns = self._ledger.cut(*np.ascontiguousarray(cuts.reshape(-1, 3).T))
        rows = rows.view(np.int64).reshape(-1, _WHO + len(TIMES) + len(WORK_FIELDS))
        kinds = kinds.view(np.int64).reshape(-1, 5)[:, 1:].tolist()
        self.last = Ledger(
            *self._who(rows[:, :_WHO]),
            rows[:, _WHO : _WHO + len(TIMES)],
            rows[:, _WHO + len(TIMES) :].view(np.float64),
            {op: KindTotal(*kind) for op, kind in zip(self._kinds, kinds, strict=False) if kind[0]},
            self._carried(patterns.view(np.int64)),
        )
        if step.name != STARTUP:
            self.total = _add(self.total, self.last)

    def close(self) -> None:
        """Does nothing, since nothing is open."""

    # ---- for readers ----------------------------------------------------------------------------------------------

    def waits(self) -> dict[int, tuple[int, int]]:
        """How often and how long (ns) hosts waited so far, by label."""
        rows = self._ledger.waits().view(np.int64).reshape(-1, 3).tolist()
        return {label: (count, ns) for label, count, ns in rows}

    def summary(self) -> dict[str, Any]:
        """Totals for the summary of the run: its collectives, its links (the fullest first), and where the time of each
        device went."""
        total = self.total
        columns = [*SPLIT, "overlap", "wait"]
        bytes_ = total.link_bytes.tolist()
        used = [(link, bytes_[link.number]) for link in self._network.links() if link.number < len(bytes_)]
        used.sort(key=lambda entry: (-entry[1] / entry[0].bytes_per_s, entry[0].name))
        return {
            "collectives": [
                {"op": op, "count": k.count, "bytes": k.bytes, "bus_bytes": k.bus_bytes, "ns": k.ns}
                for op, k in sorted(total.kinds.items())
            ],
            "links": [
                {"name": link.name, "tier": link.tier, "bytes_per_s": link.bytes_per_s, "bytes": count}
                for link, count in used[:MAX_LINKS]
            ],
            "ranks_split": [
                {"rank": rank, "server": port.server, "device": port.device}
                | {f"{name}_ns": ns for name, ns in zip(columns, row, strict=True)}
                for rank, port, row in zip(
                    total.ranks,
                    total.ports,
                    total.times[:, [TIMES.index(name) for name in columns]].tolist(),
                    strict=True,
                )
            ],
        }

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _set_labels(self) -> None:
        """Tells the ledger what the spans with new labels do."""
        for number in range(self._labelled, len(self._labels)):
            activity = _ACTIVITY.get(self._labels[number])
            if activity is not None:
                self._ledger.set_label(number, activity)
        self._labelled = len(self._labels)

    def _who(self, rows: NDArray[np.int64]) -> tuple[tuple[Port, ...], tuple[int, ...]]:
        """Ports and ranks of rows (rank, device). They are mostly the same as in the step before."""
        if not np.array_equal(rows, self._rows):
            self._rows = rows
            ranks = tuple(rows[:, 0].tolist())
            devices = rows[:, 1].tolist()
            ports = tuple(Port(self._servers[rank], device) for rank, device in zip(ranks, devices, strict=True))
            self._ports_and_ranks = ports, ranks
        return self._ports_and_ranks

    def _pattern(self, pattern: Pattern) -> int:
        found = self._patterns.get(id(pattern))
        if found is None:
            found = self._patterns[id(pattern)] = len(self._loads)
            columns = np.array(list(loads(pattern.flows).items()), np.int64).reshape(-1, 2)
            self._loads.append((pattern, columns[:, 0], columns[:, 1]))
        return found

    def _carried(self, patterns: NDArray[np.int64]) -> NDArray[np.int64]:
        out = np.zeros(len(self._network.links()), np.int64)
        for number in np.flatnonzero(patterns).tolist():
            _, links, loads = self._loads[number]
            out[links] += loads * patterns[number]
        return out


def _add(total: Ledger, step: Ledger) -> Ledger:
    """The sum, by rank and device, in the step's order. Devices that took no part in the step stay at the end."""
    nothing = KindTotal()
    kinds = {
        kind: total.kinds.get(kind, nothing) + step.kinds.get(kind, nothing)
        for kind in dict.fromkeys((*total.kinds, *step.kinds))
    }
    links = np.zeros(max(len(total.link_bytes), len(step.link_bytes)), np.int64)
    links[: len(total.link_bytes)] += total.link_bytes
    links[: len(step.link_bytes)] += step.link_bytes
    if total.ranks == step.ranks and total.ports == step.ports:
        return Ledger(step.ports, step.ranks, total.times + step.times, total.work + step.work, kinds, links)
    keys = dict.fromkeys(zip(step.ranks, step.ports, strict=True))
    keys.update(dict.fromkeys(zip(total.ranks, total.ports, strict=True)))
    times, work = np.zeros((len(keys), len(TIMES)), np.int64), np.zeros((len(keys), len(WORK_FIELDS)))
    where = {key: number for number, key in enumerate(keys)}
    for ledger in (total, step):
        rows = [where[key] for key in zip(ledger.ranks, ledger.ports, strict=True)]
        times[rows] += ledger.times
        work[rows] += ledger.work
    return Ledger(tuple(port for _, port in keys), tuple(rank for rank, _ in keys), times, work, kinds, links)


def flops(ledger: Ledger, multiplicity: Mapping[int, int] = MappingProxyType({})) -> float:
    """Floating-point operations of the matrix units in the ledger's steps. ``multiplicity``: for how many ranks a rank
    stands, where that is not itself alone."""
    ranks = np.array([multiplicity.get(rank, 1) for rank in ledger.ranks], np.float64)
    return float((ledger.working("flops") * ranks).sum())


def mfu(flops_: float, time_ns: int, gpus: Iterable[tuple[Gpu, int]]) -> float | None:
    """The share of the devices' matrix peak for half-precision types that they reach with ``flops_`` in ``time_ns``.
    Operations count as they are executed, recomputation included. ``gpus``: models, and how many devices of each there
    are. None where there is nothing to divide by."""
    peak = sum(gpu.peak_flops("bf16") * count for gpu, count in gpus) * time_ns / 1e9
    return flops_ / peak if peak > 0 else None
