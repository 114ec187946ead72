"""What the device work of one rank costs: its time, at the clock of the step that it belongs to, and its volume.

The cost of a signature is asked for once, when it is defined. A batch is then priced by columns: the C++ ``Prices``
take base time, bytes and class from arrays that are indexed by signature.

The clock changes from step to step: at each step mark it follows from the work before the mark and from the gaps in
that work, which an outline of the rank's own operations gives (:mod:`~eidolon_simcore.costs.sm_clock`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs.display_names import display
from eidolon_simcore.costs.model import CROWDED_LANES, CROWDED_NS, SOURCES, Cost, CostModel
from eidolon_simcore.costs.sm_clock import CLASSES, FULL, LEAST_WORK_NS, Pace, pace
from eidolon_simcore.costs.work import Work, per_byte, per_launch
from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.ledger.coverage import Spent
from eidolon_simcore.ledger.labels import Labels
from eidolon_simcore.run.validation import Definitions, InvalidBatchError, grown
from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import CALL_IDS, Kind, SignatureKind

DEVICE_WORK: tuple[SignatureKind, ...] = (
    "kernel",
    "gemm",
    "conv",
    "attention",
    "library",
    "copy",
    "set",
)  #: kinds of signature that have a cost
LONGEST_NS = 86_400 * 10**9  #: of one operation: a day
_MARK, _COLLECTIVE = int(Kind.MARK), int(Kind.COLLECTIVE)
_FREE = Cost(0, "unknown", error=1.0)


class Pricing:
    """Times and volumes of one rank's device work.

    Args:
        alone_ns: the time of a collective, given the number of the device and the call's signature, if nobody waits
            and nothing runs beside it.
    """

    def __init__(
        self,
        gpu: Gpu,
        costs: CostModel,
        labels: Labels,
        definitions: Definitions,
        alone_ns: Callable[[int, Signature], int],
    ) -> None:
        self._gpu = gpu
        self._model = costs
        self._labels = labels
        self._definitions = definitions
        self._alone_ns = alone_ns
        self._costs: dict[int, Cost] = {}  # by signature
        self._prices = _engine.Prices()
        self._meter = _engine.Meter()
        self._outline = _engine.Outline()
        self._alone = np.zeros(CALL_IDS, np.int64)  # of collectives, by signature; 0: not asked for yet
        self.label = np.zeros(CALL_IDS, np.uint32)  #: of the spans of each signature
        self.pace = FULL  #: clock and power of the step that is being issued

    def define(self, number: int, signature: Signature) -> None:
        """A signature of device work, or of anything else that has spans."""
        self._alone, self.label = grown(self._alone, number), grown(self.label, number)
        cost, source, operator = None, "", None
        if signature.kind in DEVICE_WORK:
            operator = self._definitions.operator_of(signature)
            cost = self._costs[number] = self._model.cost(signature, operator)
            if not 0 <= cost.base_ns <= LONGEST_NS:
                text = f"{signature.kind} {signature.name!r} would take {cost.base_ns} ns; allowed: 0 to {LONGEST_NS}"
                raise InvalidBatchError(text)
            source = cost.source
            launch = per_launch(signature, self._gpu, operator).values()
            self._meter.define(number, launch, per_byte(signature).values())
        name, by = f"{signature.kind} {signature.name}", operator.name if operator is not None else ""
        label = self.label[number] = self._labels.number(name, display(signature), source, by)
        if cost is not None:
            source_number = SOURCES.index(source)
            self._prices.define(number, cost.base_ns, cost.by_bytes, label, cost.work_class, source_number)

    def price(self, out: NDArray[Any], records: NDArray[Any], work: NDArray[np.bool_], lanes: int) -> dict[int, Pace]:
        """Fills in time, class and label of what is ``work``, for a rank that uses so many ``lanes``. Returns the pace
        of the work before each step mark, by the mark's index."""
        gap_ns = CROWDED_NS if lanes >= CROWDED_LANES else 0
        alone_ns = self._alone_of(records)
        columns = (work, records["sig"], records["value"], out["work_ns"], out["label"], out["work_class"])
        begin = 0
        paces = {}
        for mark in np.flatnonzero(records["kind"] == _MARK).tolist():
            self._prices.take(*(column[begin:mark] for column in columns), gap_ns)
            self._outline.take(out[begin:mark].view(np.uint8), alone_ns[begin:mark])
            self._prices.begin()
            begin = mark
            paces[mark] = self.pace
            self._set_clock()
        self._prices.take(*(column[begin:] for column in columns), gap_ns)
        self._outline.take(out[begin:].view(np.uint8), alone_ns[begin:])
        return paces

    def _set_clock(self) -> None:
        """The clock of the next step, from the work of the one that ends."""
        times = self._prices.at_full_clock[:CLASSES]
        if sum(times) >= LEAST_WORK_NS:
            self.pace = pace(times, self._gpu, self._outline.cut())
            self._prices.set_pace(self.pace.slowdown)
            self._prices.cut()

    def _alone_of(self, records: NDArray[Any]) -> NDArray[np.int64]:
        """What each collective takes if nobody waits and nothing runs beside it; 0 for other records."""
        found = np.zeros(len(records), np.int64)
        calls = records["kind"] == _COLLECTIVE
        if calls.any():
            used, first = np.unique(records["sig"][calls], return_index=True)
            devices = records["device"][calls][first]
            for number, device in zip(used.tolist(), devices.tolist(), strict=True):
                if not self._alone[number]:
                    self._alone[number] = self._alone_ns(device, self._definitions.get(number))
            found[calls] = self._alone[records["sig"][calls]]
        return found

    # ---- what was done --------------------------------------------------------------------------------------------

    def meter(self, records: NDArray[Any], work: NDArray[np.bool_]) -> None:
        """Adds up what these records do, up to the next :meth:`metered`."""
        self._meter.take(work, records["sig"], records["value"])

    def metered(self) -> Work:
        """What was done since the last call."""
        return Work(*self._meter.cut())

    def spent(self) -> Iterator[Spent]:
        """The device time of each signature that was used: within steps, if the run has any."""
        for number, (count, ns, free) in enumerate(self._prices.spent()):
            if count or free:
                signature = self._definitions.get(number)
                operator = self._definitions.operator_of(signature)
                cost = self._costs.get(number, _FREE)
                yield Spent(signature, operator, count, ns, cost.source, cost.error, free)

    def source_ns(self) -> dict[str, int]:
        """Device time so far, by the source of its cost."""
        return dict(zip(SOURCES, self._prices.source_ns, strict=True))
