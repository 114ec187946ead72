"""What the simulation core asks of an engine.

An engine turns *lanes of work* into *times*. It knows ranks, lanes, events and collectives; it knows nothing of CUDA,
signatures, kernels' names or gRPC. The session feeds it columns of operations whose cost is already decided; it answers
with virtual times.

The model (laws 3 to 5 of docs/architecture.md)
-----------------------------------------------
* A **rank** has one host lane and any number of device lanes (streams), each on one device.
* Every operation has a **host node**: it is issued ``host_ns`` after the host node before it on the rank's lane.
* Device operations add a **device node** on a lane. It starts at ``max(end of the lane, time of its host node, what
  the lane waits for)`` and lasts ``work_ns`` at the reference rate; ``work_class`` says what kind of work it is, and
  so which rate applies.
* ``RECORD`` names the present end of a lane with a key; ``WAIT`` makes a lane wait for a key. Waiting for a key that
  was never recorded does nothing, as in CUDA. A recording is a device node without work: on an idle lane its end is
  the time at which it was issued.
* The **launch queue** of a device is :data:`LAUNCH_QUEUE` deep. A *launch* is a ``WORK`` or ``COLLECTIVE`` operation
  with neither ``NO_HOST`` nor ``BACKGROUND``; a group of collectives is one launch, on the device of its first. The
  host node of a launch also waits for the end of an earlier one: the one that many launches before it, by the same
  rank on the same device.
* Blocking operations (``SYNC_*``) hold the host lane until the device nodes that they wait for have ended. They are
  host nodes like any other, so a later correction of what they waited for moves everything behind them.
* A **collective** starts when every participant has reached it, each on its own lane, and ends on all of them when
  its flows are through, at least 1 ns later. Consecutive operations with ``GROUP_MORE`` set, and the one after them,
  are one group. A group is reached when its last operation was issued and all its lanes have come to it. Its lanes go
  on when all its collectives have ended. The span of every member starts where the group was reached and ends with
  the group.
* A **query** by a foreground thread is answered once its answer can no longer change. That is when the end that it
  asks for is known, or as soon as no rank may act before the query's time: what is still unknown then ends later, so
  the answer is 0. ``BACKGROUND`` reads never wait. They may overtake a blocked host lane, and an end that is not yet
  known is answered 0.

Times are integer nanoseconds since the start of the run. The finished timeline is the same, to the bit, for every order
in which ranks' operations arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore import vocabulary

#: How many launches a host may be ahead of a device.
LAUNCH_QUEUE = 1024


#: Kinds of operation and their flags: ``proto/vocabulary.toml`` declares them, for the C++ engine too.
Op = vocabulary.Op
Flag = vocabulary.OpFlag

#: One operation of a rank. ``seq`` is the rank-wide sequence number of the event record it came from.
OPERATION = np.dtype(
    [
        ("seq", "<u8"),
        ("op", "u1"),
        ("flags", "u1"),
        ("work_class", "<u2"),
        ("lane", "<u4"),
        ("host_ns", "<i8"),
        ("work_ns", "<i8"),
        ("value", "<u8"),
        ("label", "<u4"),
        ("pad", "<u4"),
    ],
    align=False,
)

#: One final device node or host wait, in the order of the rank's operations. ``op`` is an :class:`Op`.
SPAN = np.dtype(
    [
        ("seq", "<u8"),
        ("lane", "<u4"),
        ("label", "<u4"),
        ("op", "u1"),
        ("pad", "u1", (7,)),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("issue_ns", "<i8"),
    ],
    align=False,
)


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes along a route. The route has numbers of links from :meth:`Engine.link`, each of them once. Where links are
    shared, a flow gets ``weight`` times the fair level.

    A flow may stand for many equal ones, over links of which each stands for many equal ones. Then ``counts`` says, for
    each link of the route, how many flows such as this one are on it."""

    route: tuple[int, ...]
    bytes: int
    weight: int = 1
    counts: tuple[int, ...] = ()

    def loads(self) -> Iterator[tuple[int, int]]:
        """Each link of the route, and the bytes that this flow, and those for which it stands, put on it."""
        for link, count in zip(self.route, self.counts or (1,) * len(self.route), strict=True):
            yield link, self.bytes * count


def loads(flows: Iterable[Flow]) -> dict[int, int]:
    """The bytes on each link that some flow uses."""
    found: dict[int, int] = {}
    for flow in flows:
        for link, size in flow.loads():
            found[link] = found.get(link, 0) + size
    return found


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an operation with :attr:`Flag.ASK`."""

    rank: int
    seq: int
    clock_ns: int  #: the host lane's time after the operation
    value: int  #: see :class:`Op` for its meaning; 0 where it has none


@dataclass(frozen=True, slots=True)
class Mark:
    """A final step mark of one rank."""

    rank: int
    seq: int
    issue_ns: int  #: host time of the mark
    end_ns: int  #: end of all device work the rank issued before it


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A rank's call of a collective that has not ended yet, as far as is known."""

    seq: int
    issue_ns: int  #: host time of the call
    lane: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """A rank that cannot go on, and why; see :meth:`Engine.blocked`."""

    rank: int
    seq: int
    collective: int  #: handle of the collective that is incomplete
    missing: tuple[int, ...]  #: ranks that have not reached it


class Engine(Protocol):
    """Turns lanes of work into times. It is not thread-safe: the simulation core calls it from one thread."""

    def add_rank(self, rank: int) -> None:
        """Makes ``rank`` (a small integer chosen by the caller) known; its clock starts at 0."""

    def add_lane(self, rank: int, lane: int, device: int) -> None:
        """Makes a lane known. The caller chooses its number, which is unique within the rank."""

    def end_rank(self, rank: int) -> None:
        """The rank will send nothing more. Collectives it did not reach stay incomplete."""

    def link(self, bytes_per_s: int) -> int:
        """Makes a link of the network with this capacity; returns its number."""

    def set_ports(self, rank: int, device: int, links: tuple[int, ...]) -> None:
        """States the links at which a device of a rank is, before a collective is under way on it.

        While a collective is under way, these links have the capacity that the device's other work
        :attr:`leaves <Rates.leaves>`: the least share, where several lanes work or several devices have the same link.
        The rank needs a table of rates in which work and collectives slow each other down
        (:meth:`NetworkEngine.set_rates`).
        """

    def collective(self, participants: tuple[int, ...], latency_ns: int, flows: tuple[Flow, ...]) -> int:
        """Makes a collective of these ranks; returns its handle. Participants join with :attr:`Op.COLLECTIVE`. Its
        flows start ``latency_ns`` after the last participant has reached it, and it ends when the last flow has."""

    def reserve(self) -> int:
        """A handle for a collective whose participants are not known yet, such as the making of a communicator. Ranks
        may join it; they wait until :meth:`define` says who takes part."""

    def define(self, handle: int, participants: tuple[int, ...], latency_ns: int, flows: tuple[Flow, ...]) -> None:
        """States, once, what a reserved collective is. ``collective(...)`` is ``reserve()`` and ``define(...)`` in one.
        A rank that takes part twice is named twice and joins twice."""

    def pattern(self, flows: tuple[Flow, ...]) -> int:
        """The number of a set of flows that is used again and again; see :meth:`define_as`. Equal sets have one number,
        unless their flows have counts."""

    def twin(self, link: int) -> int:
        """Makes a link that is as ``link`` is now, with the same ports; returns its number. Both stand for a part of
        the equal links for which the one stood."""

    def refine(self, pattern: int, flows: tuple[Flow, ...], origin: Sequence[int]) -> None:
        """Puts other flows in the place of a pattern's, all of which have counts. ``origin`` says for each of them of
        which flow before it is a part, by its place in the pattern. It has the bytes and the weight of that one. What
        is under way goes on as its parts from here. Not for an engine that goes back in time."""

    def define_as(self, handle: int, participants: tuple[int, ...], latency_ns: int, pattern: int) -> None:
        """Does what :meth:`define` does, with the number of a pattern in place of the flows."""

    def ingest(self, rank: int, operations: NDArray[np.void] | bytes) -> None:
        """Appends operations (:data:`OPERATION`), or the bytes of such, in rank order."""

    def answers(self) -> list[Answer]:
        """Advances as far as possible. Returns answers that have become known, each once."""

    def clock(self, rank: int) -> int:
        """The present time of the rank's host lane, which is that of its last issued operation."""

    def horizon(self) -> int:
        """Nothing before this time can change any more."""

    def spans(self, rank: int) -> NDArray[np.void]:
        """Final spans (:data:`SPAN`) since the last call, in order of ``seq``; the engine forgets them."""

    def marks(self) -> list[Mark]:
        """Final step marks since the last call."""

    def blocked(self) -> list[Blocked]:
        """Ranks whose host waits for an incomplete collective, directly or through a lane."""

    def counters(self) -> dict[str, int]:
        """Counts of operations, spans, collectives, flows, rollbacks and so on, for metrics."""


#: The reference rate of device work; rates are integers in this unit.
REFERENCE_RATE = 1 << 20


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a class of work goes on a device, in 1/:data:`REFERENCE_RATE` of the reference rate."""

    alone: int = REFERENCE_RATE
    with_collective: int = REFERENCE_RATE  #: while a collective is under way on the device
    with_lane: int = REFERENCE_RATE  #: while another lane of the device works
    with_both: int = REFERENCE_RATE
    leaves: int = REFERENCE_RATE  #: what it leaves collectives of the device's ports while it runs; at most all


@dataclass(frozen=True, slots=True)
class Jump:
    """A rank that resumed, or joined late, did so at ``time_ns``. This time is an input that depends on the engine's
    state when it came. Another run of the same records that sends it as ``value`` of the ``RESUME`` is the same."""

    rank: int
    seq: int
    time_ns: int


class NetworkEngine(Engine, Protocol):
    """An engine with a network whose links are shared, and with corrections.

    Links are shared max-min fairly. In the *conservative* mode an answer is final. What depends on flows waits until no
    rank may act before its end; work on a rank's own lanes, and collectives without flows, need not wait. In the
    *optimistic* mode an answer is given from what is known, and what arrives late corrects the timeline and the next
    clocks. Spans and marks are final in both modes, and the same.
    """

    def link(self, bytes_per_s: int, latency_ns: int = 0) -> int:
        """Makes a link as :meth:`Engine.link` does. Flows over it start ``latency_ns`` later."""

    def rates(self, classes: tuple[Rates, ...]) -> int:
        """Makes a table of rates by ``work_class``; returns its number, at least 1. Classes beyond the table have the
        reference rate. A ``MARK`` with this number as ``value`` puts the table in force for the operations after it."""

    def set_rates(self, rank: int, table: int) -> None:
        """Puts a table in force for a rank, before its first operation. If any later table of the rank has rates that
        depend on what else happens on the device, this first one must have such rates too."""

    def end_of(self, handle: int) -> int | None:
        """When a collective ends, as far as that is known now; None if it is not known. 0 if it ended so long ago that
        it is forgotten."""

    def timeline(self) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Final spans of all ranks since the last call of this or of :meth:`spans`, in the order of their ends, and the
        rank of each."""

    def jumps(self) -> list[Jump]:
        """Resumptions since the last call."""

    def open_calls(self, rank: int) -> list[OpenCall]:
        """Calls of the rank that are issued and whose collectives have no end yet, in order."""

    def deadlocked(self) -> bool:
        """True if every rank that has not ended waits, and nothing is under way; :meth:`blocked` says for whom."""

    def snapshot(self) -> bytes:
        """The whole state of the engine."""

    def restore(self, state: bytes) -> None:
        """Goes back to a state that :meth:`snapshot` of an engine of the same build gave."""
