"""What the simulation core asks of an engine.

An engine turns *lanes of work* into *times*. It knows ranks, lanes, events and collectives; it knows nothing of CUDA,
signatures, kernels' names or gRPC. The session feeds it columns of operations whose cost is already decided; it answers
with virtual times.

The model (laws 3 to 5 of docs/architecture.md)
-----------------------------------------------
* A **rank** has one host lane and any number of device lanes (streams), each on one device.
* Every operation has a **host node**: it is issued ``host_ns`` after the host node before it on the rank's lane.
* Device operations add a **device node** on a lane: it starts at ``max(end of the lane, time of its host node, what
  the lane waits for)`` and lasts ``work_ns`` (at reference rate; ``work_class`` says what kind of work it is, so that
  a rate can apply).
* ``RECORD`` names the present end of a lane with a key; ``WAIT`` makes a lane wait for a key. Waiting for a key that
  was never recorded is a no-op, as in CUDA. A recording is a device node of no work: on an idle lane its end is the
  time at which it was issued.
* The **launch queue** of a device is :data:`LAUNCH_QUEUE` deep: the host node of a ``WORK`` or ``COLLECTIVE``
  operation (with neither ``NO_HOST`` nor ``BACKGROUND``) also waits for the end of the launch that many before it by
  the same rank on the same device. Only such operations count as launches; a group of collectives is one, on the
  device of its first.
* Blocking operations (``SYNC_*``) hold the host lane until the device nodes they wait for have ended: they are host
  nodes like any other, so a later correction of what they waited for moves everything behind them.
* A **collective** starts when every participant has reached it, each on its own lane, and ends on all of them when
  its flows are through, at least 1 ns later. Consecutive operations with ``GROUP_MORE`` set are one group: it is
  reached when its last operation was issued and all its lanes have come to it, and its lanes go on when all of it
  have ended. Every member's span starts where the group was reached and ends with the group.
* A **query** by a foreground thread is answered once its answer can no longer change: by the end asked for, or with 0
  as soon as no rank may act before the query's time (what is still unknown then ends later). ``BACKGROUND`` reads
  never wait: they may overtake a blocked host lane, and an end that is not yet known is answered 0.

Times are integer nanoseconds since the start of the run. The finished timeline is the same, to the bit, for every order
in which ranks' operations arrive.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

#: Launches that a host may be ahead of a device.
LAUNCH_QUEUE = 1024


class Op(enum.IntEnum):
    """Kinds of operation an engine understands (a coarser set than event-record kinds)."""

    HOST = 0  #: host node only
    WORK = 1  #: device node of ``work_ns`` on ``lane``
    RECORD = 2  #: key ``value`` names the end of ``lane``
    WAIT = 3  #: ``lane`` waits for key ``value``
    COLLECTIVE = 4  #: joins collective ``value`` (a handle from :meth:`Engine.collective`) on ``lane``
    SYNC_LANE = 5  #: host waits for ``lane``
    SYNC_KEY = 6  #: host waits for key ``value``
    SYNC_DEVICE = 7  #: host waits for all lanes of the rank on device ``value``
    QUERY_LANE = 8  #: answer value 1 if all work of ``lane`` ended at or before the host node's time, else 0
    QUERY_KEY = 9  #: same for key ``value``
    KEY_TIME = 10  #: answer value = end of key ``value``, ns; -1 if it has not ended; host waits for nothing
    CLOCK = 11  #: answer the time only
    MARK = 12  #: step mark: its end is the latest end of all lanes of the rank, no lane waits
    CALLBACK = 13  #: device node of zero work; answered with its end as clock when final (the host does not wait)
    IDLE = (
        14  #: the rank will not act before it resumes (``BACKGROUND`` reads do not count; acting without RESUME is one)
    )
    RESUME = 15  #: its host lane continues at max(its own time, horizon); the jump is recorded
    RELEASE = 16  #: key ``value`` will not be named again (optional: saves memory)


class Flag(enum.IntFlag):
    """Bits of the ``flags`` column."""

    ASK = 1  #: an answer is wanted for this operation
    GROUP_MORE = 2  #: the next operation belongs to the same group
    NO_HOST = 4  #: no host node of its own: issued together with the operation before it (graph replay)
    BACKGROUND = 8  #: issued by a thread that does not advance the host lane: host_ns is 0 by construction


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

#: One final device node (or host wait), in the order of the rank's operations. ``kind`` is an :class:`Op`.
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
    """Bytes along a route: link numbers from :meth:`Engine.link`, each used once. Where links are shared, a flow gets
    ``weight`` times the fair level."""

    route: tuple[int, ...]
    bytes: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an operation with :attr:`Flag.ASK`."""

    rank: int
    seq: int
    clock_ns: int  #: the host lane's time after the operation
    value: int  #: meaning by operation; 0 where none


@dataclass(frozen=True, slots=True)
class Mark:
    """A final step mark of one rank."""

    rank: int
    seq: int
    issue_ns: int  #: host time of the mark
    end_ns: int  #: end of all device work the rank issued before it


@dataclass(frozen=True, slots=True)
class Blocked:
    """One rank that cannot go on, and why; see :meth:`Engine.blocked`."""

    rank: int
    seq: int
    collective: int  #: handle of the collective that is incomplete
    missing: tuple[int, ...]  #: ranks that have not reached it


class Engine(Protocol):
    """Lanes of work to times. Not thread-safe: the simulation core calls it from one thread."""

    def add_rank(self, rank: int) -> None:
        """Makes ``rank`` (a small integer chosen by the caller) known; its clock starts at 0."""

    def add_lane(self, rank: int, lane: int, device: int) -> None:
        """Makes a lane known: lane numbers are the caller's, unique within the rank."""

    def end_rank(self, rank: int) -> None:
        """The rank will send nothing more. Collectives it did not reach stay incomplete."""

    def link(self, bytes_per_s: int) -> int:
        """A link of the network with this capacity; returns its number."""

    def set_ports(self, rank: int, device: int, links: tuple[int, ...]) -> None:
        """The links at which a device of a rank is, said before a collective is under way on it. While one is, they
        have what the device's work beside it :attr:`Rates.leaves`: the least, where several lanes work or a link is
        several devices'. It takes a table of rates that couples (:meth:`NetworkEngine.set_rates`)."""

    def collective(self, participants: tuple[int, ...], latency_ns: int, flows: tuple[Flow, ...]) -> int:
        """A collective of these ranks: ``latency_ns`` after the last of them reached it its flows start; it ends when
        the last flow has. Returns its handle. Participants join with :attr:`Op.COLLECTIVE`."""

    def reserve(self) -> int:
        """A handle for a collective whose participants are not known yet (a communicator that is being made): ranks may
        join it, and wait until :meth:`define` says who takes part."""

    def define(self, handle: int, participants: tuple[int, ...], latency_ns: int, flows: tuple[Flow, ...]) -> None:
        """Says once what a reserved collective is; ``collective(...)`` is ``reserve()`` and ``define(...)`` in one. A
        rank that takes part twice is named twice and joins twice."""

    def pattern(self, flows: tuple[Flow, ...]) -> int:
        """Flows that are used again and again, said once; see :meth:`define_as`."""

    def define_as(self, handle: int, participants: tuple[int, ...], latency_ns: int, pattern: int) -> None:
        """:meth:`define` with the number of a pattern."""

    def ingest(self, rank: int, operations: NDArray[np.void]) -> None:
        """Appends operations (:data:`OPERATION`) in rank order."""

    def answers(self) -> list[Answer]:
        """Advances as far as possible and returns answers that became known, each once."""

    def clock(self, rank: int) -> int:
        """The present time of the rank's host lane (of its last issued operation)."""

    def horizon(self) -> int:
        """Nothing before this time can change any more."""

    def spans(self, rank: int) -> NDArray[np.void]:
        """Final spans (:data:`SPAN`) since the last call, in order of ``seq``; the engine forgets them."""

    def marks(self) -> list[Mark]:
        """Final step marks since the last call."""

    def blocked(self) -> list[Blocked]:
        """Ranks whose host waits for an incomplete collective (directly or through a lane)."""

    def counters(self) -> dict[str, int]:
        """Operations, spans, collectives, flows, rollbacks, ... for metrics."""


#: The reference rate of device work: rates are integers in this unit.
REFERENCE_RATE = 1 << 20


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a class of work goes on a device, in 1/:data:`REFERENCE_RATE` of the reference rate."""

    alone: int = REFERENCE_RATE
    with_collective: int = REFERENCE_RATE  #: while a collective is under way on the device
    with_lane: int = REFERENCE_RATE  #: while another lane of the device works
    with_both: int = REFERENCE_RATE
    leaves: int = REFERENCE_RATE  #: of the device's ports to collectives while it runs; at most all


@dataclass(frozen=True, slots=True)
class Jump:
    """An input that came from the engine's own state: a rank that resumed (or joined late) did so at ``time_ns``.
    Sent as ``value`` of its ``RESUME``, it makes another run of the same records the same."""

    rank: int
    seq: int
    time_ns: int


class NetworkEngine(Engine, Protocol):
    """An engine with a network whose links are shared, and with corrections.

    Links are shared max-min fairly. In the *conservative* mode an answer is final: what depends on flows waits until no
    rank may act before its end, work on a rank's own lanes and collectives without flows do not. In the *optimistic*
    mode an answer is given with what is known, and what arrives late corrects the timeline and the next clocks. Spans
    and marks are final in both, and the same.
    """

    def link(self, bytes_per_s: int, latency_ns: int = 0) -> int:
        """Flows over the link start ``latency_ns`` later."""

    def rates(self, classes: tuple[Rates, ...]) -> int:
        """A table of rates by ``work_class``; returns its number, at least 1. Classes beyond it have the reference
        rate. A ``MARK`` with this number as ``value`` puts it in force for the operations issued after it."""

    def set_rates(self, rank: int, table: int) -> None:
        """The table in force at first. A table whose rates differ by what else happens on the device needs one such
        here, before the rank's first operation."""

    def end_of(self, handle: int) -> int | None:
        """When a collective ends, as far as that is known now; None if it is not. 0 if it ended so long ago that it is
        forgotten."""

    def timeline(self) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Ranks and final spans of all of them since the last call (of this or :meth:`spans`), in order of end."""

    def jumps(self) -> list[Jump]:
        """Resumptions since the last call."""

    def deadlocked(self) -> bool:
        """Every rank that has not ended waits, and nothing is under way: :meth:`blocked` says for whom."""

    def snapshot(self) -> bytes:
        """The whole state."""

    def restore(self, state: bytes) -> None:
        """Back to a state of an engine of the same build."""
