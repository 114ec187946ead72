"""What the device work of one rank costs: its time, at the clock of the step that it belongs to, and its volume.

The cost of a signature is asked for once, when it is defined. The native intake of records then looks it up, record by
record (``native/src/prices.h``).

The clock changes from step to step: at each step mark it follows from the work before the mark and from the gaps in
that work, which an outline of the rank's own operations gives (:mod:`~eidolon_simcore.costs.sm_clock`).
"""

from __future__ import annotations

from collections.abc import Iterator

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs.display_names import display
from eidolon_simcore.costs.model import SOURCES, Cost, CostModel
from eidolon_simcore.costs.sm_clock import CLASSES, FULL, LEAST_WORK_NS, pace
from eidolon_simcore.costs.work import Work, per_byte, per_launch
from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.ledger.coverage import Spent
from eidolon_simcore.ledger.labels import Labels
from eidolon_simcore.run.validation import Definitions, InvalidBatchError
from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import SignatureKind

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
_FREE = Cost(0, "unknown", error=1.0)


class Pricing:
    """Times and volumes of one rank's device work."""

    def __init__(self, gpu: Gpu, costs: CostModel, labels: Labels, definitions: Definitions) -> None:
        self._gpu = gpu
        self._model = costs
        self._labels = labels
        self._definitions = definitions
        self._costs: dict[int, Cost] = {}  # by signature
        self._collectives: dict[int, str] = {}  # the source of the time of each, by signature
        self.prices = _engine.Prices()
        self.meter = _engine.Meter()
        self.outline = _engine.Outline()
        self.pace = FULL  #: clock and power of the step that is being issued

    def define(self, number: int, signature: Signature) -> int:
        """A signature of device work, or of anything else that has spans; returns the label of these."""
        cost, source, operator = None, "", None
        if signature.kind in DEVICE_WORK:
            operator = self._definitions.operator_of(signature)
            cost = self._costs[number] = self._model.cost(signature, operator)
            if not 0 <= cost.base_ns <= LONGEST_NS:
                text = f"{signature.kind} {signature.name!r} would take {cost.base_ns} ns; allowed: 0 to {LONGEST_NS}"
                raise InvalidBatchError(text)
            source = cost.source
            launch = per_launch(signature, self._gpu, operator).values()
            self.meter.define(number, launch, per_byte(signature).values())
        name, by = f"{signature.kind} {signature.name}", operator.name if operator is not None else ""
        label = self._labels.number(name, display(signature), source, by)
        if cost is not None:
            source_number = SOURCES.index(source)
            self.prices.define(number, cost.base_ns, cost.by_bytes, label, cost.work_class, source_number)
        return label

    def next_step(self) -> None:
        """Sets the clock of the next step, from the work of the one that ends."""
        times = self.prices.at_full_clock[:CLASSES]
        if sum(times) >= LEAST_WORK_NS:
            self.pace = pace(times, self._gpu, self.outline.cut())
            self.prices.set_pace(self.pace.slowdown)
            self.prices.cut()

    def define_collective(self, number: int, alone_ns: int, source: str) -> None:
        """A collective that takes so long if nobody waits. The engine finds how long it takes in truth; this is what
        counts as its device time."""
        self._collectives[number] = source
        self.prices.define(number, alone_ns, [], 0, 0, SOURCES.index(source))

    # ---- what was done --------------------------------------------------------------------------------------------

    def metered(self) -> Work:
        """What was done since the last call."""
        return Work(*self.meter.cut())

    def spent(self) -> Iterator[Spent]:
        """The device time of each signature that was used: in the steps, or in all before the second step has ended."""
        for number, (count, ns, free) in enumerate(self.prices.spent()):
            if count or free:
                signature = self._definitions.get(number)
                if signature.kind == "collective":
                    yield Spent(signature, None, count, ns, self._collectives.get(number, "unknown"), None)
                    continue
                operator = self._definitions.operator_of(signature)
                cost = self._costs.get(number, _FREE)
                yield Spent(signature, operator, count, ns, cost.source, cost.error, free)

    def source_ns(self) -> dict[str, int]:
        """The same, summed by the source of the cost."""
        return dict(zip(SOURCES, self.prices.source_ns, strict=True))

    def startup_ns(self) -> dict[str, int]:
        """Device time before the first step's end, by the source of its cost. It is 0 where :meth:`spent` has it."""
        return dict(zip(SOURCES, self.prices.startup_ns, strict=True))
