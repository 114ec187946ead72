"""The plain engine: conservative, in Python, every end computed once.

Runs use :mod:`.native`; this one is what the model looks like without shared links and corrections, for tests and
benchmarks to hold it against (it implements :class:`~eidolon_simcore.engine.interface.Engine`). A
collective lasts its latency plus its slowest flow (bytes over the narrowest link of the route), whatever else is on
the wire, so an end that is known is final and the order in which ranks' operations arrive cannot matter.

How it runs. The host lane of a rank is evaluated in order. A device node is evaluated at once if the end of its lane
is known; otherwise it is queued on its lane, and so is everything behind it, until a collective completes and the
lane is *pumped*. The host goes on meanwhile; it stops only at what it must know: a synchronisation, a query, a full
launch queue. What waits is a :class:`Wait`; resolving the last end it waits for makes its rank runnable again.

Queries can be answered before the end they ask for is known. An end is unknown only because of a collective that some
rank has not reached; nobody can reach anything before the *horizon*, the least clock of all ranks that run (blocked
ranks only act after somebody who runs, idle ranks resume no earlier than the horizon), and a collective takes time.
So a query at or before the horizon is answered 0.

Speed. Columns are turned into lists once per chunk and walked with local variables. A run of plain work on one lane
is a max-plus scan, which NumPy does: with H and W the cumulated host costs and works, and q the ends that the launch
queue asks for, ``issue = H + max(clock, running max of (q - H))`` and ``end = W + max(lane end, running max of (issue
- W before))``. A run is cut at the launch queue's depth, so that q never depends on the run itself.

Memory. Spans are handed out and forgotten. Ends of keys are kept in memory for the last :data:`KEYS_KEPT` recordings
of a rank. Older ones are moved to an unlinked temporary file: waiting for one is a no-op and querying it answers 1
(at most 1,024 launches are ever outstanding, so it ended long ago), and its time can still be asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.engine.interface import LAUNCH_QUEUE, OPERATION, Answer, Blocked, Flag, Flow, Mark, Op
from eidolon_simcore.engine.lanes import (
    KEYS_KEPT,
    VECTOR_RUN,
    Chunk,
    Collective,
    Group,
    Key,
    Lane,
    Rank,
    Ring,
    Wait,
    causes,
    scan,
)

_HOSTLESS = int(Flag.NO_HOST | Flag.BACKGROUND)
_ASK, _MORE, _BACKGROUND = int(Flag.ASK), int(Flag.GROUP_MORE), int(Flag.BACKGROUND)
_HOST, _WORK, _RECORD, _WAIT, _COLLECTIVE = (int(o) for o in (Op.HOST, Op.WORK, Op.RECORD, Op.WAIT, Op.COLLECTIVE))
_SYNC_LANE, _SYNC_KEY, _SYNC_DEVICE = int(Op.SYNC_LANE), int(Op.SYNC_KEY), int(Op.SYNC_DEVICE)
_QUERY_LANE, _QUERY_KEY, _KEY_TIME, _CLOCK = int(Op.QUERY_LANE), int(Op.QUERY_KEY), int(Op.KEY_TIME), int(Op.CLOCK)
_MARK, _CALLBACK, _IDLE, _RESUME = int(Op.MARK), int(Op.CALLBACK), int(Op.IDLE), int(Op.RESUME)
_RELEASE = int(Op.RELEASE)
_PROBE = 100  #: an item of a lane's queue that tells a Wait the lane's end; no operation
_LAUNCH = 101  #: what a host blocked by a full launch queue waits for
_READS = frozenset((_QUERY_LANE, _QUERY_KEY, _KEY_TIME, _CLOCK))


class DataflowEngine:
    """See the module's docstring and :class:`~eidolon_simcore.engine.interface.Engine`."""

    def __init__(self, launch_queue: int = LAUNCH_QUEUE, keys_kept: int = KEYS_KEPT) -> None:
        self._depth = launch_queue
        self._keys_kept = keys_kept
        self._ranks: dict[int, Rank] = {}
        self._links: list[int] = []
        self._patterns: list[tuple[Flow, ...]] = []
        self._collectives: dict[int, Collective] = {}
        self._next_handle = 1
        self._runnable: deque[Rank] = deque()
        self._pump: deque[Lane] = deque()
        self._asking: set[Rank] = set()
        self._resuming: list[Rank] = []
        self._answers: list[Answer] = []
        self._marks: list[Mark] = []
        self._horizon = 0
        self._counters = dict.fromkeys(
            ("operations", "spans", "collectives", "flows", "rollbacks", "idle_jumps", "idle_jump_ns", "early_queries"),
            0,
        )

    # ---- what the session says ------------------------------------------------------------------------------------

    def add_rank(self, rank: int) -> None:
        if rank in self._ranks:
            raise ValueError(f"rank {rank} is known already")
        self._ranks[rank] = Rank(rank)

    def add_lane(self, rank: int, lane: int, device: int) -> None:
        r = self._ranks[rank]
        if lane in r.lanes:
            raise ValueError(f"rank {rank}: lane {lane} is known already")
        ring = r.rings.get(device)
        if ring is None:
            ring = r.rings[device] = Ring(self._depth)
        r.lanes[lane] = Lane(r, lane, device, ring)

    def end_rank(self, rank: int) -> None:
        self._ranks[rank].ended = True

    def link(self, bytes_per_s: int) -> int:
        if bytes_per_s <= 0:
            raise ValueError(f"a link of {bytes_per_s} bytes/s")
        self._links.append(bytes_per_s)
        return len(self._links) - 1

    def reserve(self) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._collectives[handle] = Collective(handle)
        return handle

    def define(self, handle: int, participants: tuple[int, ...], latency_ns: int, flows: tuple[Flow, ...]) -> None:
        collective = self._collectives[handle]
        if collective.left is not None:
            raise ValueError(f"collective {handle} is defined already")
        if not participants:
            raise ValueError(f"collective {handle} has no participants")
        through = 0
        for flow in flows:
            capacity = min(self._links[number] for number in flow.route)
            through = max(through, -(-flow.bytes * 1_000_000_000 // capacity))
        collective.define(participants, max(1, latency_ns + through))
        self._counters["collectives"] += 1
        self._counters["flows"] += len(flows)
        if collective.complete:
            self._complete(collective)

    def pattern(self, flows: tuple[Flow, ...]) -> int:
        self._patterns.append(flows)
        return len(self._patterns) - 1

    def define_as(self, handle: int, participants: tuple[int, ...], latency_ns: int, pattern: int) -> None:
        self.define(handle, participants, latency_ns, self._patterns[pattern])

    def collective(self, participants: tuple[int, ...], latency_ns: int, flows: tuple[Flow, ...]) -> int:
        handle = self.reserve()
        self.define(handle, participants, latency_ns, flows)
        return handle

    def ingest(self, rank: int, operations: NDArray[np.void]) -> None:
        if operations.dtype != OPERATION:
            raise ValueError("operations are not of dtype OPERATION")
        if len(operations) == 0:
            return
        r = self._ranks[rank]
        if r.ended:
            raise ValueError(f"rank {rank} has ended")
        self._counters["operations"] += len(operations)
        r.chunks.append(Chunk(operations))
        self._wake(r)

    # ---- what it asks ---------------------------------------------------------------------------------------------

    def answers(self) -> list[Answer]:
        while True:
            if self._pump:
                self._pump_lane(self._pump.popleft())
            elif self._runnable:
                r = self._runnable.popleft()
                r.queued = False
                self._run(r)
            elif not (self._answer_early() or self._resume()):
                break
        answers, self._answers = self._answers, []
        return answers

    def clock(self, rank: int) -> int:
        return self._ranks[rank].clock

    def horizon(self) -> int:
        present = self._present()
        if present is not None and present > self._horizon:
            self._horizon = present
        return self._horizon

    def spans(self, rank: int) -> NDArray[np.void]:
        spans = self._ranks[rank].take_spans()
        self._counters["spans"] += len(spans)
        return spans

    def marks(self) -> list[Mark]:
        marks, self._marks = self._marks, []
        return marks

    def blocked(self) -> list[Blocked]:
        found: list[Blocked] = []
        for r in self._ranks.values():
            wait = r.blocked
            if wait is None or not wait.pending:
                continue
            handles = causes([*(key.lane for key in wait.keys), *wait.lanes])
            found += [
                Blocked(r.number, wait.seq, handle, self._collectives[handle].missing())
                for handle in handles
                if handle in self._collectives  # others of its group may be through
            ]
        return found

    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    # ---- the host lane --------------------------------------------------------------------------------------------

    def _wake(self, r: Rank) -> None:
        if not r.queued:
            r.queued = True
            self._runnable.append(r)

    def _run(self, r: Rank) -> None:
        """Evaluates the rank's operations until it must wait or none is left."""
        if r.blocked is not None:
            if r.blocked.pending:
                self._overtake(r)
                return
            self._unblock(r)
        while r.chunks and not r.resuming:
            chunk = r.chunks[0]
            if not self._run_chunk(r, chunk):
                if r.blocked is not None:
                    self._overtake(r)
                return
            r.flush()
            r.chunks.popleft()
            r.position = 0

    def _run_chunk(self, r: Rank, chunk: Chunk) -> bool:  # noqa: C901 (the hot loop: one branch an operation)
        """True if the chunk is through."""
        ops, flag_column, lane_column, hosts, works, values, seqs, labels = chunk.columns
        runs = chunk.runs
        lanes = r.lanes
        at, starts, ends, issues = r.scalar
        add_at, add_start, add_end, add_issue = at.append, starts.append, ends.append, issues.append
        t = r.clock
        i, length = r.position, chunk.length
        while i < length:
            op = ops[i]
            flags = flag_column[i]
            issue = t if flags & _HOSTLESS else t + hosts[i]
            if op == _WORK:
                lane = lanes.get(lane_column[i]) or self._lane(r, lane_column[i], seqs[i])
                if flags & _HOSTLESS:
                    slot = -1
                else:
                    if runs is not None and runs[i] >= VECTOR_RUN and not lane.queue:
                        done = scan(lane, chunk, i, min(runs[i], self._depth), t)
                        if done:
                            if done < runs[i]:
                                runs[i + done] = runs[i] - done
                            i += done
                            t = r.clock
                            continue
                    if runs is not None and runs[i] > VECTOR_RUN:  # not now: try again a little later
                        runs[i + VECTOR_RUN] = runs[i] - VECTOR_RUN
                    ring = lane.ring
                    slot = ring.slot
                    free = ring.ends[slot]
                    if free is None:
                        self._block_on_ring(r, i, t, lane, seqs[i])
                        return False
                    if free > issue:
                        issue = free
                    t = issue
                    ring.slot = slot + 1 if slot + 1 < self._depth else 0
                if lane.queue:
                    lane.queue.append((_WORK, seqs[i], issue, works[i], labels[i], slot))
                    if slot >= 0:
                        lane.ring.ends[slot] = None
                else:
                    start = lane.end if lane.end > issue else issue  # noqa: FURB136 (a call would cost a tenth of the loop)
                    end = start + works[i]
                    lane.end = end
                    if slot >= 0:
                        lane.ring.ends[slot] = end
                    add_at(i)
                    add_start(start)
                    add_end(end)
                    add_issue(issue)
            elif op == _HOST:
                t = issue
                if flags & _ASK:
                    self._answers.append(Answer(r.number, seqs[i], t, 0))
            elif op == _RECORD:
                t = issue
                lane = lanes.get(lane_column[i]) or self._lane(r, lane_column[i], seqs[i])
                if lane.queue:
                    key = Key(lane)
                    r.keys[values[i]] = key
                    lane.queue.append((_RECORD, key, issue, values[i]))
                else:
                    r.keys[values[i]] = max(lane.end, issue)
                if len(r.keys) > 2 * self._keys_kept:
                    r.archive_keys(self._keys_kept)
            elif op == _WAIT:
                t = issue
                lane = lanes.get(lane_column[i]) or self._lane(r, lane_column[i], seqs[i])
                known = r.keys.get(values[i])
                if known is None:
                    pass
                elif lane.queue:
                    lane.queue.append((_WAIT, known))
                elif type(known) is int:
                    if known > lane.end:
                        lane.end = known
                elif isinstance(known, Key):
                    known.lanes.append(lane)
                    lane.queue.append((_WAIT, known))
            else:
                r.clock = t
                r.position = i
                if not self._run_other(r, op, flags, lane_column[i], issue, values[i], seqs[i], labels[i]):
                    return False
                t = r.clock
            i += 1
        r.clock = t
        r.position = i
        return True

    def _run_other(self, r: Rank, op: int, flags: int, lane: int, issue: int, value: int, seq: int, label: int) -> bool:
        """One of the rarer operations, with ``r.clock`` the time before it; False if the host must wait."""
        if op == _COLLECTIVE:
            return self._join(r, flags, lane, issue, value, seq, label)
        if op == _CALLBACK:
            r.clock = issue
            target = self._lane(r, lane, seq)
            if target.queue:
                target.queue.append((_CALLBACK, seq, issue, label, flags))
            else:
                self._call_back(target, seq, issue, label, flags)
            return True
        if op in (_IDLE, _RELEASE):
            r.clock, r.idle = issue, r.idle or op == _IDLE
            r.keys.pop(value if op == _RELEASE else -1, None)
            return True
        if op == _RESUME:
            r.resuming = True
            self._resuming.append(r)
            return False
        if op == _MARK:
            r.clock = issue
            if flags & _ASK:
                self._answers.append(Answer(r.number, seq, issue, 0))
            self._need(Wait(r, seq, op, False), list(r.lanes.values()), None, issue, flags)
            return True
        if op == _CLOCK:
            r.clock = issue
            if flags & _ASK:
                self._answers.append(Answer(r.number, seq, issue, 0))
            return True
        background = bool(flags & _BACKGROUND)
        if background and op in _READS:
            self._read(r, op, flags, lane, value, seq)
            return True
        lanes, key = self._wanted(r, op, lane, value, seq)
        wait = Wait(r, seq, op, for_host=not background and op != _KEY_TIME)
        wait.end = issue if op in (_SYNC_LANE, _SYNC_KEY, _SYNC_DEVICE) else 0
        if not wait.for_host:
            if not background:
                r.clock = issue
            self._need(wait, lanes, key, issue, flags)
            return True
        r.blocked = wait
        r.issue = issue
        self._need(wait, lanes, key, issue, flags)
        if wait.pending:
            wait.row = (issue, flags)
            if op in (_QUERY_LANE, _QUERY_KEY):
                self._asking.add(r)
            return False
        self._finish(r, wait, lane, label)
        return True

    def _wanted(self, r: Rank, op: int, lane: int, value: int, seq: int) -> tuple[list[Lane], int | Key | None]:
        """The lanes or the key whose end a blocking or asking operation is about."""
        if op in (_SYNC_LANE, _QUERY_LANE):
            return [self._lane(r, lane, seq)], None
        if op == _SYNC_DEVICE:
            return [x for x in r.lanes.values() if x.device == value], None
        if op in (_SYNC_KEY, _QUERY_KEY, _KEY_TIME):
            key = r.keys.get(value)
            if key is None and op == _KEY_TIME:
                key = r.archive.find(value)
                if key is None:
                    raise ValueError(f"rank {r.number}, record {seq}: event {value} was never recorded")
            return [], key
        raise ValueError(f"rank {r.number}, record {seq}: unknown operation {op}")

    @staticmethod
    def _unknown(lanes: Iterable[Lane], key: int | Key | None) -> bool:
        return isinstance(key, Key) or any(lane.queue for lane in lanes)

    def _need(self, wait: Wait, lanes: list[Lane], key: int | Key | None, issue: int, flags: int) -> None:
        """Registers ``wait`` with what is unknown of the lanes and the key; tells at once if nothing is."""
        wait.row = (issue, flags)
        for lane in lanes:
            if lane.queue:
                wait.pending += 1
                wait.lanes.append(lane)
                lane.queue.append((_PROBE, wait))
            elif lane.end > wait.end:
                wait.end = lane.end
        if isinstance(key, Key):
            wait.pending += 1
            wait.keys.append(key)
            key.waits.append(wait)
        elif key is not None and key > wait.end:
            wait.end = key
        if not wait.pending and not wait.for_host:
            self._tell(wait)

    def _known(self, wait: Wait, end: int) -> None:
        """One of the ends that ``wait`` needs has become known."""
        if end > wait.end:
            wait.end = end
        wait.pending -= 1
        if wait.pending:
            return
        if not wait.for_host:
            self._tell(wait)
        elif wait.rank.blocked is wait:
            self._wake(wait.rank)

    def _tell(self, wait: Wait) -> None:
        """Reports a wait that did not hold the host: a mark, an event's time, a background thread's read."""
        issue, flags = wait.row
        rank = wait.rank
        if wait.op == _MARK:
            self._marks.append(Mark(rank.number, wait.seq, issue, wait.end))
        elif not flags & _ASK:
            return
        elif wait.op in (_QUERY_LANE, _QUERY_KEY):
            self._answers.append(Answer(rank.number, wait.seq, issue, int(wait.end <= issue)))
        elif wait.op == _KEY_TIME:
            self._answers.append(Answer(rank.number, wait.seq, issue, wait.end))
        else:
            self._answers.append(Answer(rank.number, wait.seq, wait.end, 0))

    def _finish(self, r: Rank, wait: Wait, lane: int, label: int) -> None:
        """The host goes on behind the operation that blocked it: all it waited for is known."""
        issue, flags = wait.row
        r.blocked = None
        value = 0
        if wait.op in (_QUERY_LANE, _QUERY_KEY):
            value = int(wait.end <= issue)
            r.clock = issue
        else:
            r.clock = max(issue, wait.end)
            r.rows.append((wait.seq, lane, label, wait.op, issue, r.clock, issue))
        if flags & _ASK:
            self._answers.append(Answer(r.number, wait.seq, r.clock, value))

    def _unblock(self, r: Rank) -> None:
        wait = r.blocked
        assert wait is not None
        if wait.op == _LAUNCH:
            r.blocked = None  # the launch is evaluated again
            return
        self._asking.discard(r)
        array = r.chunks[0].array
        self._finish(r, wait, int(array["lane"][r.position]), int(array["label"][r.position]))
        r.position += 1

    def _block_on_ring(self, r: Rank, position: int, clock: int, lane: Lane, seq: int) -> None:
        wait = Wait(r, seq, _LAUNCH, True)
        wait.pending = 1
        wait.lanes = [x for x in r.lanes.values() if x.device == lane.device]
        r.blocked = wait
        r.slot_wait = (lane.ring, lane.ring.slot)
        r.clock = clock
        r.position = position

    def _fill(self, lane: Lane, slot: int, end: int) -> None:
        """The end of a launch that was queued is known."""
        ring = lane.ring
        ring.ends[slot] = end
        rank = lane.rank
        if rank.slot_wait is not None and rank.slot_wait[1] == slot and rank.slot_wait[0] is ring:
            rank.slot_wait = None
            assert rank.blocked is not None
            rank.blocked.pending = 0
            self._wake(rank)

    def _overtake(self, r: Rank) -> None:
        """Answers the background reads right behind the operation that blocks the host, and takes them out."""
        while True:
            chunk = r.chunks[0]
            ops, flag_column, lane_column, _, _, values, seqs, _ = chunk.columns
            i = r.position + 1
            while i < chunk.length and flag_column[i] & _BACKGROUND and ops[i] in _READS:
                self._read(r, ops[i], flag_column[i], lane_column[i], values[i], seqs[i])
                i += 1
            through = i == chunk.length and len(r.chunks) > 1  # reads may go on in the next chunk
            if not through and i == r.position + 1:
                return
            r.flush()
            rest = [chunk.array[r.position : r.position + 1], chunk.array[i:]]
            r.chunks.popleft()
            if through:
                rest.append(r.chunks.popleft().array)
            r.chunks.appendleft(Chunk(np.concatenate(rest)))
            r.position = 0
            if not through:
                return

    def _read(self, r: Rank, op: int, flags: int, lane: int, value: int, seq: int) -> None:
        """A background thread's read at the rank's present clock: never waits, but for an event's time."""
        if not flags & _ASK:
            return
        if op == _CLOCK:
            self._answers.append(Answer(r.number, seq, r.clock, 0))
            return
        lanes, key = self._wanted(r, op, lane, value, seq)
        if op != _KEY_TIME and self._unknown(lanes, key):
            self._answers.append(Answer(r.number, seq, r.clock, 0))
        else:
            self._need(Wait(r, seq, op, False), lanes, key, r.clock, flags)

    # ---- the horizon ----------------------------------------------------------------------------------------------

    def _present(self) -> int | None:
        """Least clock of the ranks that may act; None if all wait or have ended.

        An idle rank may while another one runs, which it may be waiting for in real time.
        """
        least: int | None = None
        resting: int | None = None
        runs = False
        for r in self._ranks.values():
            if r.ended and not r.chunks:
                continue
            if r in self._asking:
                bound = r.issue
            elif r.blocked is not None and r.blocked.pending:
                continue
            elif r.idle or r.resuming:
                resting = r.clock if resting is None else min(resting, r.clock)
                continue
            else:
                bound, runs = r.clock, True
            if least is None or bound < least:
                least = bound
        return min(least, resting) if runs and least is not None and resting is not None else least

    def _answer_early(self) -> bool:
        """Answers queries that no unknown end can make true any more."""
        if not self._asking:
            return False
        horizon = self.horizon()
        ready = sorted((r for r in self._asking if r.issue <= horizon), key=lambda r: r.number)
        for r in ready:
            wait = r.blocked
            assert wait is not None
            wait.end = r.issue + 1
            self._unblock(r)
            self._wake(r)
            self._counters["early_queries"] += 1
        return bool(ready)

    def _resume(self) -> bool:
        """Lets ranks that were idle go on, no earlier than the horizon."""
        if not self._resuming:
            return False
        horizon = self.horizon()
        for r in self._resuming:
            array = r.chunks[0].array[r.position]
            jump = max(0, (int(array["value"]) or horizon) - r.clock)  # a value repeats what an earlier run did
            if jump:
                self._counters["idle_jumps"] += 1
                self._counters["idle_jump_ns"] += jump
            before = r.clock
            r.clock += jump + int(array["host_ns"])
            seq, label, flags = int(array["seq"]), int(array["label"]), int(array["flags"])
            r.rows.append((seq, int(array["lane"]), label, _RESUME, before, before + jump, before))
            if flags & _ASK:
                self._answers.append(Answer(r.number, seq, r.clock, jump))
            r.idle = r.resuming = False
            r.position += 1
            self._wake(r)
        self._resuming.clear()
        return True

    # ---- device lanes ---------------------------------------------------------------------------------------------

    def _lane(self, r: Rank, number: int, seq: int) -> Lane:
        lane = r.lanes.get(number)
        if lane is None:
            raise ValueError(f"rank {r.number}, record {seq}: lane {number} is not known")
        return lane

    def _pump_lane(self, lane: Lane) -> None:
        """Evaluates what is queued on a lane, as far as ends are known."""
        queue = lane.queue
        rank = lane.rank
        while queue:
            item = queue[0]
            kind = item[0]
            if kind == _WORK:
                _, seq, issue, work, label, slot = item
                start = max(lane.end, issue)
                lane.end = start + work
                rank.rows.append((seq, lane.number, label, _WORK, start, lane.end, issue))
                if slot >= 0:
                    self._fill(lane, slot, lane.end)
            elif kind == _RECORD:
                _, key, issue, value = item
                end = key.end = max(lane.end, issue)
                if rank.keys.get(value) is key:
                    rank.keys[value] = end
                self._pump.extend(key.lanes)
                for wait in key.waits:
                    self._known(wait, end)
            elif kind == _WAIT:
                target = item[1]
                if isinstance(target, Key):
                    if target.end is None:
                        if lane not in target.lanes:
                            target.lanes.append(lane)
                        return
                    target = target.end
                lane.end = max(lane.end, target)
            elif kind == _PROBE:
                self._known(item[1], lane.end)
            elif kind == _CALLBACK:
                self._call_back(lane, *item[1:])
            else:
                self._reach(item[1], lane)
                return  # when the group has ended it takes itself off the queue and pumps the lane again
            queue.popleft()

    def _call_back(self, lane: Lane, seq: int, issue: int, label: int, flags: int) -> None:
        lane.end = max(lane.end, issue)
        lane.rank.rows.append((seq, lane.number, label, _CALLBACK, lane.end, lane.end, issue))
        if flags & _ASK:
            self._answers.append(Answer(lane.rank.number, seq, lane.end, 0))

    # ---- collectives ----------------------------------------------------------------------------------------------

    def _join(self, r: Rank, flags: int, number: int, issue: int, handle: int, seq: int, label: int) -> bool:
        if handle not in self._collectives:
            raise ValueError(f"rank {r.number}, record {seq}: collective {handle} is not known or over")
        lane = self._lane(r, number, seq)
        group = r.group
        if group is None:
            slot = -1
            if not flags & _HOSTLESS:  # a group is one launch, on its first lane
                ring = lane.ring
                slot = ring.slot
                free = ring.ends[slot]
                if free is None:
                    self._block_on_ring(r, r.position, r.clock, lane, seq)
                    return False
                issue = max(issue, free)
                ring.ends[slot] = None
                ring.slot = (slot + 1) % self._depth
            group = r.group = Group(r, lane, slot)
        r.clock = issue
        group.members.append((lane, handle, seq, label))
        if flags & _MORE:
            return True
        r.group = None
        group.issue = group.reached = issue
        group.lanes = list(dict.fromkeys(member[0] for member in group.members))
        group.to_come = set(group.lanes)
        for lane in group.lanes:
            lane.queue.append((_COLLECTIVE, group))
            if len(lane.queue) == 1:
                self._pump.append(lane)
        while self._pump:
            self._pump_lane(self._pump.popleft())
        return True

    def _reach(self, group: Group, lane: Lane) -> None:
        """One lane of a group has come to it; with the last, its rank has reached the collectives."""
        if lane not in group.to_come:
            return
        group.to_come.remove(lane)
        group.reached = max(group.reached, lane.end)
        if group.to_come:
            return
        group.open = len(group.members)
        for _, handle, seq, _ in group.members:
            collective = self._collectives.get(handle)
            if collective is None:
                raise ValueError(f"rank {group.rank.number}, record {seq}: collective {handle} is over")
            collective.groups.append(group)
            collective.last = max(collective.last, group.reached)
            collective.reach(group.rank.number)
            if collective.complete:
                self._complete(collective)

    def _complete(self, collective: Collective) -> None:
        del self._collectives[collective.handle]
        end = collective.last + collective.duration
        for group in collective.groups:
            group.end = max(group.end, end)
            group.open -= 1
            if not group.open:
                self._leave(group)

    def _leave(self, group: Group) -> None:
        rank = group.rank
        for lane, _, seq, label in group.members:
            rank.rows.append((seq, lane.number, label, _COLLECTIVE, group.reached, group.end, group.issue))
        if group.slot >= 0:
            self._fill(group.first, group.slot, group.end)
        for lane in group.lanes:
            lane.queue.popleft()
            lane.end = group.end
            self._pump.append(lane)
