"""Sinks: consumers of what has become final, such as the accounts and the recorder.

The simulation takes spans from the engine in one place and hands them to its *sinks*. A sink is told of each rank its
lanes, its step marks as they were written, its matched collective calls and its final spans, in this order. Of the run
it is told each step once that is final, after all spans of all ranks up to it. Nothing is told twice and nothing is
taken back. Sinks are called while the simulation is locked. So they should be quick, and other threads may read only
what they publish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from eidolon_simcore.costs.work import Work
from eidolon_simcore.fabric.network import Pattern
from eidolon_simcore.ledger.steps import Step

NO_DEVICE = 0xFFFF  #: the device of lanes on which communicators are made


class CollectiveCall(NamedTuple):
    """A collective, or a send and its receive, whose members' calls have all come."""

    handle: int  #: the engine's handle of it
    op: str  #: named as in signatures: ``all_reduce``, ...; a send and its receive are ``send``
    bytes: int  #: the larger buffer of one member
    communicator: str
    position: int  #: its place in the communicator's order of calls
    ranks: tuple[int, ...]  #: the members in the communicator's order; sender and receiver of a pair
    seqs: tuple[int, ...]  #: sequence numbers of their records
    pattern: Pattern


class Sink(Protocol):
    """A consumer of what has become final."""

    def lane(self, rank: int, lane: int, server: int, device: int) -> None:
        """A stream of a rank, before its first span; ``device`` may be :data:`NO_DEVICE`."""

    def mark(self, rank: int, seq: int, work: Work) -> None:
        """A step mark as it was written, with the rank's work since the mark before it. Not every mark ends a step:
        :meth:`step` says which ones do."""

    def collective(self, call: CollectiveCall) -> None:
        """A matched call, before its spans."""

    def operations(self, rank: int, operations: bytes) -> None:
        """The bytes of operations (:data:`~.engine.interface.OPERATION`) that a rank has just handed to the engine."""

    def memory(self, rank: int, seq: int, device: int, allocated_bytes: int) -> None:
        """From its record ``seq`` on, a rank has this much allocated on a device."""

    def spans(self, rank: int, spans: NDArray[Any]) -> None:
        """Final spans (:data:`~.engine.interface.SPAN`) in the order of ``seq``. Their labels are numbers of the run's
        :class:`~.labels.Labels`."""

    def step(self, step: Step) -> None:
        """A final step. Its ``cuts`` say where it ends on each rank that took part."""

    def close(self) -> None:
        """The run is over; nothing follows."""


class Sinks:
    """Several sinks as one; its methods are those of :class:`Sink`."""

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self._sinks = tuple(sinks)

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self._sinks)

    def lane(self, rank: int, lane: int, server: int, device: int) -> None:
        for sink in self._sinks:
            sink.lane(rank, lane, server, device)

    def mark(self, rank: int, seq: int, work: Work) -> None:
        for sink in self._sinks:
            sink.mark(rank, seq, work)

    def collective(self, call: CollectiveCall) -> None:
        for sink in self._sinks:
            sink.collective(call)

    def operations(self, rank: int, operations: bytes) -> None:
        for sink in self._sinks:
            sink.operations(rank, operations)

    def memory(self, rank: int, seq: int, device: int, allocated_bytes: int) -> None:
        for sink in self._sinks:
            sink.memory(rank, seq, device, allocated_bytes)

    def spans(self, rank: int, spans: NDArray[Any]) -> None:
        for sink in self._sinks:
            sink.spans(rank, spans)

    def step(self, step: Step) -> None:
        for sink in self._sinks:
            sink.step(step)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
