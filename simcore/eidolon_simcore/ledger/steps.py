"""From marks to steps.

A mark notes the end of all device work that its rank issued before it. Chained optimizers, ZeRO groups and pipeline
parts mark several times in a step. So marks without a launch from an autograd thread between them count as one, at the
place of the last. A mark counts once the next backward pass begins, or its rank leaves. (Every mark makes a step on a
rank that has never launched from an autograd thread, such as one that calls ``eidolon.step()`` in a loop.)

The k-th step of every rank is the same step. It ends when the last rank ends it, and takes the time since the end of
the step before. Steps are numbered from 1. The first is named ``startup``: it began with the process, so its time also
holds building the model and warming up. A rank that left with fewer marks is not waited for; the summary states the
number of steps of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from eidolon_simcore.costs.sm_clock import FULL, Pace
from eidolon_simcore.engine.interface import Mark
from eidolon_simcore.fabric.network import Port

STARTUP = "startup"
_K = TypeVar("_K")


class Cut(NamedTuple):
    """Where a step ends on a rank: the sequence number of its mark, and the mark's end."""

    seq: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """A final step."""

    index: int
    name: str
    end_ns: int
    time_ns: int
    peak_bytes: dict[Port, int]
    reports: dict[str, int]  #: what user code reported in it, summed over the ranks
    cuts: dict[int, Cut] = field(default_factory=dict)  #: where it ends on each rank that took part
    allocated_bytes: dict[Port, int] = field(default_factory=dict)  #: at the marks
    paces: dict[int, Pace] = field(default_factory=dict)  #: clock and power of each rank's work in it


@dataclass(slots=True)
class _Counted:
    seq: int
    peaks: dict[Port, int]
    reports: dict[str, int]
    allocated: dict[Port, int] = field(default_factory=dict)
    pace: Pace = FULL


@dataclass(slots=True)
class _Rank:
    open: _Counted | None = None  # the last mark, which a further one may still replace
    counted: list[_Counted] = field(default_factory=list)
    taken: int = 0  # how many marks were counted and have gone into final steps
    launched: bool = False  # whether an autograd thread has ever launched anything
    reports: dict[str, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)  # seq -> end
    left: bool = False
    stands_for: int = 1  # ranks of the run

    @property
    def number(self) -> int:
        return self.taken + len(self.counted)


class Steps:
    """Takes marks and gives final steps."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._expected = 1
        self._last_end = 0
        self._index = 0

    def expect(self, ranks: int) -> None:
        """No step is final before this many ranks have joined."""
        self._expected = max(self._expected, ranks)

    def join(self, rank: int, stands_for: int = 1) -> None:
        """A rank takes part in the steps from now on. What it reports counts once for each rank that it stands for."""
        self._ranks[rank] = _Rank(stands_for=stands_for)

    def leave(self, rank: int) -> None:
        """A rank has ended: its last mark counts, and no further ones are waited for."""
        r = self._ranks[rank]
        self._count(r)
        r.left = True

    def launched(self, rank: int, count: int) -> None:
        """Autograd threads of the rank have made so many launches since the last call."""
        if count:
            r = self._ranks[rank]
            self._count(r)
            r.launched = True

    def mark(
        self,
        rank: int,
        seq: int,
        peaks: dict[Port, int],
        allocated: Mapping[Port, int] = MappingProxyType({}),
        pace: Pace = FULL,
    ) -> None:
        """A step mark, with the rank's memory peaks and the pace of its work since the mark before it, and with what it
        has allocated now."""
        r = self._ranks[rank]
        if not r.launched:
            self._count(r)
        new = _Counted(seq, peaks, r.reports, dict(allocated), pace)
        r.reports = {}
        if r.open is not None:  # one step with the mark before it
            for port, peak in r.open.peaks.items():
                new.peaks[port] = max(new.peaks.get(port, 0), peak)
            for name, value in r.open.reports.items():
                new.reports[name] = new.reports.get(name, 0) + value
            new.pace = r.open.pace  # that of the step: chained optimizers do little between their marks
            r.ends.pop(r.open.seq, None)
        r.open = new

    def report(self, rank: int, name: str, value: int) -> None:
        """A number that user code reported, such as tokens. It belongs to the next mark."""
        r = self._ranks[rank]
        r.reports[name] = r.reports.get(name, 0) + value * r.stands_for

    def present(self, rank: int) -> int:
        """Number of the step that the rank is in."""
        r = self._ranks[rank]
        return r.number + (2 if r.open is not None else 1)

    def ended(self, mark: Mark) -> None:
        """The engine knows the end of a mark."""
        self._ranks[mark.rank].ends[mark.seq] = mark.end_ns

    def final(self) -> Iterator[Step]:
        """Steps that have become final; each is given once."""
        while True:
            ready = self._next()
            if ready is None:
                return
            yield ready

    def counts(self) -> dict[int, int]:
        """How many steps each rank has marked."""
        return {rank: r.number for rank, r in sorted(self._ranks.items())}

    @staticmethod
    def _count(r: _Rank) -> None:
        if r.open is not None:
            r.counted.append(r.open)
            r.open = None

    def _next(self) -> Step | None:
        if len(self._ranks) < self._expected:
            return None
        taking = []
        for rank, r in self._ranks.items():
            if r.taken < self._index or (r.left and not r.counted):
                continue  # it left with fewer marks
            if not r.counted or r.counted[0].seq not in r.ends:
                return None
            taking.append((rank, r))
        if not taking:
            return None
        end = self._last_end
        peaks: dict[Port, int] = {}
        reports: dict[str, int] = {}
        allocated: dict[Port, int] = {}
        cuts: dict[int, Cut] = {}
        paces: dict[int, Pace] = {}
        for rank, r in taking:
            counted = r.counted.pop(0)
            r.taken += 1
            cuts[rank] = Cut(counted.seq, r.ends.pop(counted.seq))
            paces[rank] = counted.pace
            end = max(end, cuts[rank].end_ns)
            _add(allocated, counted.allocated)
            _add(peaks, counted.peaks)
            _add(reports, counted.reports)
        self._index += 1
        time = end - self._last_end
        self._last_end = end
        name = STARTUP if self._index == 1 else "step"
        return Step(self._index, name, end, time, dict(sorted(peaks.items())), reports, cuts, allocated, paces)


def _add(into: dict[_K, int], values: dict[_K, int]) -> None:
    for key, value in values.items():
        into[key] = into.get(key, 0) + value
