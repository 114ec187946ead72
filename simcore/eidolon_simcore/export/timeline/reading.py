"""A recorded run as trace writers read it: its names, its steps, and its spans in a window of time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.engine.interface import Op
from eidolon_simcore.export.timeline.store import Recording, RecordingError
from eidolon_simcore.ledger.sinks import NO_DEVICE

#: Operations of the host lane that take time: waits, and sleeping outside of all calls.
HOST: Final = np.zeros(256, bool)
HOST[[Op.SYNC_LANE, Op.SYNC_KEY, Op.SYNC_DEVICE, Op.RESUME]] = True


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the run, and when it began and ended in virtual time."""

    index: int
    name: str
    start_ns: int
    end_ns: int


class Lane(NamedTuple):
    """A lane of a rank: its host lane, a stream, or one on which a communicator is made."""

    server: int
    device: int

    @property
    def makes_communicators(self) -> bool:
        """Whether it is a lane on which a communicator is made, which belongs to no device."""
        return self.device == NO_DEVICE


@dataclass(frozen=True, slots=True)
class Label:
    """What spans are called, and where their cost comes from."""

    name: str
    kind: str  #: kind of the signature (kernel, gemm, copy, collective, ...), or ``call`` for a host call
    source: str  #: where its cost comes from; empty for what has none
    operator: str  #: the framework's operator, where that is known


class Timeline:
    """The recording of a run. Raises :class:`~.export.timeline.store.RecordingError` where there is none."""

    def __init__(self, run: Path) -> None:
        self.recording = Recording(run / "recording")
        names = self.recording.names
        self.labels = [Label(n["name"], n["of"], n["source"], n["operator"]) for n in names("label")]
        self.lanes = {(n["rank"], n["lane"]): Lane(n["server"], n["device"]) for n in names("lane")}
        self.ops = [n["name"] for n in names("op")]
        self.communicators = [(n["name"], tuple(n["ranks"])) for n in names("communicator")]
        self.links = names("link")
        self.patterns = names("pattern")
        self.steps = [Step(n["index"], n["name"], n["end_ns"] - n["time_ns"], n["end_ns"]) for n in names("step")]
        self.ranks = sorted({rank for rank, _ in self.lanes})

    def window(self, first: int | None, last: int | None) -> tuple[int, int]:
        """The times (ns) between which the steps of these numbers happened. None stands for the first step, or for the
        last."""
        known = {step.index: step for step in self.steps}
        if not known:
            return 0, (1 << 63) - 1
        for index in (first, last):
            if index is not None and index not in known:
                raise RecordingError(
                    f"step {index} is not in the recording, which has steps {min(known)} to {max(known)}"
                )
        start = known[first].start_ns if first is not None else 0
        return start, known[last].end_ns if last is not None else (1 << 63) - 1

    def spans(self, window: tuple[int, int], ranks: Collection[int] | None = None) -> Iterator[dict[str, NDArray[Any]]]:
        """Spans of all ranks, or of some, that reach into the window, as they were recorded: those of a lane in their
        order."""
        chosen = None if ranks is None else np.array(sorted(ranks), np.uint32)
        for block in self.recording.blocks("spans", window):
            columns = block.columns
            start = columns["start"]
            keep = (start + columns["length"] > window[0]) & (start < window[1])
            if chosen is not None:
                keep &= np.isin(columns["rank"], chosen)
            if keep.any():
                yield {name: column[keep] for name, column in columns.items()}

    def rows(self, table: str) -> Iterator[tuple[int, ...]]:
        """The rows of one of the smaller tables."""
        for block in self.recording.blocks(table):
            yield from zip(*(column.tolist() for column in block.columns.values()), strict=True)
