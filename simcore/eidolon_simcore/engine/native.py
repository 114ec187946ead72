"""The engine in C++ (``simcore/native``) behind :class:`~.engine.interface.NetworkEngine`.

Nothing is decided here: columns go through as bytes, and tuples come back as dataclasses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.engine.interface import (
    LAUNCH_QUEUE,
    OPERATION,
    SPAN,
    Answer,
    Blocked,
    Flow,
    Jump,
    Mark,
    OpenCall,
    Rates,
)

Columns = tuple[list[tuple[int, ...]], list[int], list[int], list[tuple[int, ...]]]


class NativeEngine:
    """See the module's docstring; the methods are those of :class:`~.engine.interface.NetworkEngine`.

    Args:
        optimistic: it answers from what is known and corrects that later, instead of waiting until an answer is final.
        expected_ranks: the horizon stays at 0 until so many ranks were added.
        launch_queue: how many launches a host may be ahead of a device; 0 stands for any number.
        keep_all: it drops nothing until every rank has ended, to compare a run with a horizon to one without.
    """

    def __init__(
        self,
        *,
        optimistic: bool = False,
        expected_ranks: int = 0,
        launch_queue: int = LAUNCH_QUEUE,
        keep_all: bool = False,
    ) -> None:
        self._engine = _engine.Engine(
            optimistic=optimistic, keep_all=keep_all, expected_ranks=expected_ranks, launch_depth=launch_queue
        )
        self._patterns: dict[tuple[Flow, ...], int] = {}

    def add_rank(self, rank: int) -> None:
        self._engine.add_rank(rank)

    def add_lane(self, rank: int, lane: int, device: int) -> None:
        self._engine.add_lane(rank, lane, device)

    def end_rank(self, rank: int) -> None:
        self._engine.end_rank(rank)

    def link(self, bytes_per_s: int, latency_ns: int = 0) -> int:
        return int(self._engine.link(bytes_per_s, latency_ns))

    def pattern(self, flows: tuple[Flow, ...]) -> int:
        if any(flow.counts for flow in flows):
            return int(self._engine.pattern(*_columns(flows)))
        known = self._patterns.get(flows)
        if known is None:
            known = self._patterns[flows] = self._engine.pattern(*_columns(flows))
        return known

    def twin(self, link: int) -> int:
        return int(self._engine.twin(link))

    def refine(self, pattern: int, flows: tuple[Flow, ...], origin: Sequence[int]) -> None:
        self._engine.refine(pattern, *_columns(flows), list(origin))

    def rates(self, classes: tuple[Rates, ...]) -> int:
        rows = [(c.alone, c.with_collective, c.with_lane, c.with_both, c.leaves) for c in classes]
        return int(self._engine.rates(rows))

    def set_rates(self, rank: int, table: int) -> None:
        self._engine.set_rates(rank, table)

    def set_ports(self, rank: int, device: int, links: tuple[int, ...]) -> None:
        self._engine.set_ports(rank, device, links)

    def reserve(self) -> int:
        return int(self._engine.reserve())

    def define(self, handle: int, participants: tuple[int, ...], latency_ns: int, flows: tuple[Flow, ...]) -> None:
        self._engine.define(handle, participants, latency_ns, self.pattern(flows))

    def define_as(self, handle: int, participants: tuple[int, ...], latency_ns: int, pattern: int) -> None:
        self._engine.define(handle, participants, latency_ns, pattern)

    def collective(self, participants: tuple[int, ...], latency_ns: int, flows: tuple[Flow, ...]) -> int:
        handle = self.reserve()
        self.define(handle, participants, latency_ns, flows)
        return handle

    def ingest(self, rank: int, operations: NDArray[np.void] | bytes) -> None:
        if not isinstance(operations, bytes):
            if operations.dtype != OPERATION:
                raise ValueError("operations are not of dtype OPERATION")
            operations = operations.tobytes()
        if operations:
            self._engine.ingest(rank, operations)

    def answers(self) -> list[Answer]:
        return [Answer(*answer) for answer in self._engine.answers()]

    def clock(self, rank: int) -> int:
        return int(self._engine.clock(rank))

    def horizon(self) -> int:
        return int(self._engine.horizon())

    def end_of(self, handle: int) -> int | None:
        end = int(self._engine.end_of(handle))
        return None if end == _engine.NEVER else end

    def spans(self, rank: int) -> NDArray[np.void]:
        spans: NDArray[np.void] = self._engine.spans(rank).view(SPAN)
        return spans

    def timeline(self) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        ranks, spans = self._engine.timeline()
        return ranks, spans.view(SPAN)

    def marks(self) -> list[Mark]:
        return [Mark(*mark) for mark in self._engine.marks()]

    def jumps(self) -> list[Jump]:
        return [Jump(*jump) for jump in self._engine.jumps()]

    def blocked(self) -> list[Blocked]:
        return [Blocked(*blocked) for blocked in self._engine.blocked()]

    def open_calls(self, rank: int) -> list[OpenCall]:
        return [OpenCall(*call) for call in self._engine.open_calls(rank)]

    def deadlocked(self) -> bool:
        return bool(self._engine.deadlocked())

    def counters(self) -> dict[str, int]:
        return dict(self._engine.counters())

    def snapshot(self) -> bytes:
        return bytes(self._engine.snapshot())

    def restore(self, state: bytes) -> None:
        self._engine.restore(state)


def _columns(flows: tuple[Flow, ...]) -> Columns:
    return (
        [flow.route for flow in flows],
        [flow.bytes for flow in flows],
        [flow.weight for flow in flows],
        [flow.counts for flow in flows],
    )
