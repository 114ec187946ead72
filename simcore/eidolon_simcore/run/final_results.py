"""What has become final: the engine's spans go to the books, and steps to the report as well.

Spans are final in the order of their rank's operations. A step is final once its mark is final on every rank that took
part; it is told after all spans in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.core_plan import Plan
from eidolon_simcore.engine.interface import Engine
from eidolon_simcore.export.summary import Report
from eidolon_simcore.ledger import power
from eidolon_simcore.ledger.books import Books
from eidolon_simcore.ledger.snapshot import Progress
from eidolon_simcore.ledger.steps import Step


class FinalResults:
    """Takes what is final from the engine, each thing once.

    Args:
        taken: is told of the final spans of a rank.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        books: Books,
        report: Report,
        taken: Callable[[int, NDArray[np.void]], None] = lambda _rank, _spans: None,
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._books = books
        self._report = report
        self._taken = taken
        self.virtual_ns = 0  #: the latest end of any span so far
        self.progress = Progress()

    def take_spans(self, ranks: Iterable[int]) -> None:
        """Final spans of these ranks go to the sinks."""
        for rank in ranks:
            spans = self._engine.spans(rank)
            if len(spans):
                self.virtual_ns = max(self.virtual_ns, int(spans["end_ns"].max()))
                self._books.sinks.spans(rank, spans)
                self._taken(rank, spans)

    def take_steps(self, ranks: Iterable[int]) -> Iterator[Step]:
        """Steps that have become final, once they are booked; ``ranks`` are all that there are. Steps beyond those that
        the plan asks for are left out."""
        for mark in self._engine.marks():
            self._books.steps.ended(mark)
        taken = False
        for step in self._books.steps.final():
            if not taken:  # a step comes after every span in it
                taken = True
                self.take_spans(ranks)
            if self._plan.steps is not None and len(self._report.steps) >= self._plan.steps:
                return
            self._book(step)
            yield step

    def _book(self, step: Step) -> None:
        self._books.sinks.step(step)
        last = self._books.accounts.last
        energy_j = power.energy_j(self._plan.devices, last, step)
        self.progress = self.progress.plus(step, self._report.step(step, last), energy_j)
