"""What the plain engine keeps: lanes, rings, keys, collectives, ranks. The rules are in :mod:`.dataflow`."""

from __future__ import annotations

import tempfile
import weakref
from collections import deque
from itertools import islice
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.engine.interface import SPAN, Op

KEYS_KEPT = 200_000  #: recordings of a rank whose ends stay in memory
VECTOR_RUN = 48  #: runs of plain work at least this long are evaluated as one scan

_WORK = int(Op.WORK)

Item: TypeAlias = tuple[Any, ...]
Row: TypeAlias = tuple[int, int, int, int, int, int, int]  # seq, lane, label, op, start, end, issue


class Key:
    """A recording whose end is not known yet."""

    __slots__ = ("end", "lane", "lanes", "waits")

    def __init__(self, lane: Lane) -> None:
        self.end: int | None = None
        self.lane = lane
        self.lanes: list[Lane] = []  # stopped at a WAIT for it
        self.waits: list[Wait] = []


class Wait:
    """Ends that somebody needs: how many are unknown yet, and the latest of those that are."""

    __slots__ = ("end", "for_host", "keys", "lanes", "op", "pending", "rank", "row", "seq")

    def __init__(self, rank: Rank, seq: int, op: int, for_host: bool) -> None:
        self.rank = rank
        self.seq = seq
        self.op = op
        self.for_host = for_host  # the rank's host lane stands still until it is resolved
        self.pending = 0
        self.end = 0
        self.row: tuple[int, int] = (0, 0)  # issue time, flags
        self.lanes: list[Lane] = []
        self.keys: list[Key] = []


class Ring:
    """Ends of the last launches on one device of a rank, None where not known yet."""

    __slots__ = ("ends", "slot")

    def __init__(self, depth: int) -> None:
        self.ends: list[int | None] = [0] * depth
        self.slot = 0


class Lane:
    __slots__ = ("device", "end", "number", "queue", "rank", "ring")

    def __init__(self, rank: Rank, number: int, device: int, ring: Ring) -> None:
        self.rank = rank
        self.number = number
        self.device = device
        self.ring = ring
        self.end = 0  # of the part that is known
        self.queue: deque[Item] = deque()  # what follows it; empty: the lane's end is known


class Group:
    """Collectives of one rank that are reached and left together."""

    __slots__ = ("end", "first", "issue", "lanes", "members", "open", "rank", "reached", "slot", "to_come")

    def __init__(self, rank: Rank, first: Lane, slot: int) -> None:
        self.rank = rank
        self.first = first
        self.slot = slot  # of the launch queue of the first lane's device; -1: not a launch
        self.members: list[tuple[Lane, int, int, int]] = []  # lane, handle, seq, label
        self.lanes: list[Lane] = []
        self.issue = 0
        self.reached = 0
        self.to_come: set[Lane] = set()
        self.open = 0
        self.end = 0


class Collective:
    """Who takes part (None until defined), how often each has yet to reach it, and the groups that wait for its end."""

    __slots__ = ("arrived", "duration", "groups", "handle", "last", "left", "open")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.left: dict[int, int] | None = None
        self.open = 0  # arrivals still to come, once defined
        self.duration = 1
        self.arrived: list[int] = []  # before it was defined
        self.groups: list[Group] = []
        self.last = 0

    def define(self, participants: tuple[int, ...], duration_ns: int) -> None:
        self.duration = duration_ns
        self.open = len(participants)
        self.left = {}
        for rank in participants:
            self.left[rank] = self.left.get(rank, 0) + 1
        for rank in self.arrived:
            self._count(rank)

    def reach(self, rank: int) -> None:
        if self.left is None:
            self.arrived.append(rank)
        else:
            self._count(rank)

    def _count(self, rank: int) -> None:
        assert self.left is not None
        if not self.left.get(rank):
            raise ValueError(f"rank {rank} is not a participant of collective {self.handle}, or joined it twice")
        self.left[rank] -= 1
        self.open -= 1

    @property
    def complete(self) -> bool:
        return self.left is not None and self.open == 0

    def missing(self) -> tuple[int, ...]:
        return tuple(sorted(rank for rank, count in (self.left or {}).items() if count))


class Chunk:
    """Operations as lists, with the length of the run of plain work that starts at each of them."""

    __slots__ = ("array", "columns", "length", "runs")

    def __init__(self, operations: NDArray[np.void]) -> None:
        self.array = operations
        self.length = len(operations)
        names = ("op", "flags", "lane", "host_ns", "work_ns", "value", "seq", "label")
        self.columns = tuple(operations[name].tolist() for name in names)
        self.runs = self._runs()

    def _runs(self) -> list[int] | None:
        if self.length < VECTOR_RUN:
            return None
        ops, lanes = self.array["op"], self.array["lane"]
        breaks = np.ones(self.length + 1, bool)  # position i cannot continue the run of i-1
        plain = (ops == _WORK) & (self.array["flags"] == 0)
        breaks[1:-1] = ~(plain[1:] & plain[:-1] & (lanes[1:] == lanes[:-1]))
        starts = np.flatnonzero(breaks)
        lengths = np.where(plain[starts[:-1]], np.diff(starts), 0)
        if not len(lengths) or lengths.max() < VECTOR_RUN:
            return None
        runs = np.zeros(self.length, np.int64)
        runs[starts[:-1]] = lengths
        return runs.tolist()


class Archive:
    """Ends of old keys, in blocks of an unlinked temporary file; the index in memory is 32 bytes a block."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._blocks: list[tuple[int, int, int, int]] = []  # least key, greatest key, offset, count

    def add(self, items: list[tuple[int, int]]) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="eidolon-keys-")  # noqa: SIM115 (closed with the archive)
            weakref.finalize(self, self._file.close)
        block = np.array(sorted(items), "<i8")
        offset = self._file.seek(0, 2)
        self._file.write(block.tobytes())
        self._blocks.append((int(block[0, 0]), int(block[-1, 0]), offset, len(block)))

    def find(self, key: int) -> int | None:
        for low, high, offset, count in reversed(self._blocks):
            if low <= key <= high:
                assert self._file is not None
                self._file.seek(offset)
                block = np.frombuffer(self._file.read(count * 16), "<i8").reshape(count, 2)
                at = int(np.searchsorted(block[:, 0], key))
                if at < count and block[at, 0] == key:
                    return int(block[at, 1])
        return None


class Rank:
    __slots__ = (
        "archive",
        "blocked",
        "chunks",
        "clock",
        "ended",
        "group",
        "idle",
        "issue",
        "keys",
        "lanes",
        "number",
        "position",
        "queued",
        "resuming",
        "rings",
        "rows",
        "scalar",
        "slot_wait",
        "spans",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.clock = 0
        self.lanes: dict[int, Lane] = {}
        self.rings: dict[int, Ring] = {}
        self.keys: dict[int, int | Key] = {}
        self.archive = Archive()
        self.chunks: deque[Chunk] = deque()
        self.position = 0  # in the first chunk
        self.blocked: Wait | None = None
        self.issue = 0  # of the operation that blocks
        self.slot_wait: tuple[Ring, int] | None = None
        self.group: Group | None = None
        self.idle = False
        self.resuming = False
        self.ended = False
        self.queued = False  # in the engine's list of runnable ranks
        self.scalar: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        self.rows: list[Row] = []
        self.spans: list[NDArray[np.void]] = []

    def flush(self) -> None:
        """Turns the spans noted while walking the first chunk into an array."""
        at, starts, ends, issues = self.scalar
        if not at:
            return
        rows = self.chunks[0].array[at]
        block = np.zeros(len(at), SPAN)
        for name in ("seq", "lane", "label", "op"):
            block[name] = rows[name]
        block["start_ns"], block["end_ns"], block["issue_ns"] = starts, ends, issues
        self.spans.append(block)
        for column in self.scalar:
            column.clear()

    def take_spans(self) -> NDArray[np.void]:
        """Final spans in order of their numbers, up to the first operation that is issued but not final."""
        self.flush()
        if self.rows:
            block = np.zeros(len(self.rows), SPAN)
            names = ("seq", "lane", "label", "op", "start_ns", "end_ns", "issue_ns")
            for name, column in zip(names, zip(*self.rows, strict=True), strict=True):
                block[name] = column
            self.spans.append(block)
            self.rows.clear()
        if not self.spans:
            return np.zeros(0, SPAN)
        spans = self.spans[0] if len(self.spans) == 1 else np.concatenate(self.spans)
        spans = spans[np.argsort(spans["seq"], kind="stable")]
        limit = self._first_open()
        keep = len(spans) if limit is None else int(np.searchsorted(spans["seq"], limit))
        self.spans = [spans[keep:]] if keep < len(spans) else []
        return spans[:keep]

    def _first_open(self) -> int | None:
        seqs = [member[2] for member in self.group.members] if self.group else []
        for lane in self.lanes.values():
            for item in lane.queue:
                if item[0] in (int(Op.WORK), int(Op.CALLBACK)):
                    seqs.append(item[1])
                    break
                if item[0] == int(Op.COLLECTIVE):
                    seqs.append(item[1].members[0][2])
                    break
        return min(seqs) if seqs else None

    def archive_keys(self, count: int) -> None:
        """Moves those of the oldest ``count`` keys whose ends are known to the archive."""
        known = [(key, end) for key, end in islice(self.keys.items(), count) if isinstance(end, int)]
        if known:
            self.archive.add(known)
        for key, _ in known:
            del self.keys[key]


def causes(lanes: list[Lane]) -> list[int]:
    """Handles of the collectives that keep the ends of these lanes unknown."""
    stack, seen, handles = list(lanes), set[Lane](), dict[int, None]()
    while stack:
        lane = stack.pop()
        if lane in seen or not lane.queue:
            continue
        seen.add(lane)
        kind, what = lane.queue[0][:2]
        if kind == int(Op.WAIT) and isinstance(what, Key):
            stack.append(what.lane)
        elif kind == int(Op.COLLECTIVE):
            stack.extend(what.to_come)
            if not what.to_come:
                handles.update(dict.fromkeys(handle for _, handle, _, _ in what.members))
    return list(handles)


def scan(lane: Lane, chunk: Chunk, i: int, count: int, t: int) -> int:
    """Evaluates a run of ``count`` plain works on a lane whose end is known, from the host's time ``t``.

    Returns how many it did: 0 if the launch queue has unknown ends. The formula is in :mod:`.dataflow`.
    """
    ring, r = lane.ring, lane.rank
    depth = len(ring.ends)
    slot = ring.slot
    queue = (ring.ends[slot : slot + count] + ring.ends[: max(0, slot + count - depth)])[:count]
    if None in queue:
        return 0
    run = chunk.array[i : i + count]
    host = np.cumsum(run["host_ns"])
    work = np.cumsum(run["work_ns"])
    issue = host + np.maximum(np.maximum.accumulate(np.array(queue, np.int64) - host), t)
    end = work + np.maximum(np.maximum.accumulate(issue - (work - run["work_ns"])), lane.end)
    block = np.zeros(count, SPAN)
    for name in ("seq", "lane", "label", "op"):
        block[name] = run[name]
    block["start_ns"] = end - run["work_ns"]
    block["end_ns"] = end
    block["issue_ns"] = issue
    r.spans.append(block)
    ends = end.tolist()
    tail = min(count, depth - slot)
    ring.ends[slot : slot + tail] = ends[:tail]
    ring.ends[: count - tail] = ends[tail:]
    ring.slot = (slot + count) % depth
    lane.end = ends[-1]
    r.clock = int(issue[-1])
    return count
