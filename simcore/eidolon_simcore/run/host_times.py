"""What the host lane of one rank spends: the time of each record's call, and of what its thread did before it.

By default the time of a call comes from a table by its name, and the shim states in the record what the thread did
before it. With measured host cost, the record holds the thread's CPU time since the record before it, call included.
Both are multiplied by a factor (:class:`HostCost`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.core_plan import Plan
from eidolon_simcore.costs import hostcost
from eidolon_simcore.ledger.labels import Labels
from eidolon_simcore.run.event_records import MOVES, POLLS
from eidolon_simcore.run.validation import grown
from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import CALL_IDS, Kind

COPY_WAIT = "cudaMemcpy"  #: label of a wait without a call of its own: copies wait for what they copied
_MARK, _SLEEP = int(Kind.MARK), int(Kind.SLEEP)
_LONGEST_SLEEP_NS = np.uint64(1 << 62)


@dataclass(frozen=True, slots=True)
class HostCost:
    """How host time is told in a run: the same for all its ranks."""

    table: hostcost.Table
    measured: bool  #: records hold CPU time that was measured
    factor: float  #: on all host times
    note: str  #: for the summary: where the figures come from

    @classmethod
    def of(cls, plan: Plan) -> HostCost:
        """What the plan asks for. A measured host runs a fixed load first, to compare this machine's CPU."""
        table = plan.host_table
        if plan.host_cost == "measured":
            return cls(table, True, *table.factor())
        return cls(table, False, hostcost.beside_others(plan.ranks_per_server), table.stated())


class HostTimes:
    """Host times of one rank's records."""

    def __init__(self, cost: HostCost, labels: Labels) -> None:
        self._cost = cost
        self._labels = labels
        self._call_ns = np.zeros(CALL_IDS, np.int64)
        self.call_label = np.zeros(CALL_IDS, np.uint32)  #: label of a wait in each call
        self.call_label[0] = labels.number(COPY_WAIT)
        self._compiled = np.zeros(CALL_IDS, bool)  # by signature: a kernel of torch.compile
        self._entered = False  # a compiled kernel was launched since the last step's mark

    def define_call(self, number: int, name: str) -> None:
        """An API call with this id."""
        self._call_ns[number] = self._cost.table.call_ns(name)
        self.call_label[number] = self._labels.number(name)

    def define(self, number: int, signature: Signature) -> None:
        """Any other signature with this id."""
        self._compiled = grown(self._compiled, number)
        self._compiled[number] = signature.kind == "kernel" and signature.name.startswith("triton_")

    def of(self, records: NDArray[Any], hostless: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Nanoseconds of host time for each record; those that have no host node of their own take none."""
        kinds = records["kind"]
        if self._cost.measured:
            host = np.rint(records["host_ns"] * self._cost.factor).astype(np.int64)
        else:
            host = self._call_ns[records["call"]] + records["host_ns"]
            host = np.rint(host * self._cost.factor).astype(np.int64)
            self._enter_compiled(host, records)
        host = np.where(POLLS[kinds], np.maximum(host, hostcost.POLL_NS), host)
        sleeps = kinds == _SLEEP
        if sleeps.any():
            host = np.where(sleeps, host + np.minimum(records["value"], _LONGEST_SLEEP_NS).astype(np.int64), host)
        host[hostless | MOVES[kinds]] = 0
        return host

    def _enter_compiled(self, host: NDArray[np.int64], records: NDArray[Any]) -> None:
        """The first compiled kernel of a step pays for what torch.compile does before it."""
        compiled, marks = self._compiled[records["sig"]], records["kind"] == _MARK
        for i in np.flatnonzero(compiled | marks).tolist():
            if marks[i]:
                self._entered = False
            elif not self._entered:
                self._entered = True
                host[i] += self._cost.table.compiled_entry
