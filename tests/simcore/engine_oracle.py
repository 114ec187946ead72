"""A second, slower opinion on what an engine must answer: evaluates whole programs over and over until nothing changes.

It shares nothing with the engine but the definitions of operations. Every pass walks each rank's operations from the
start with what is known so far (``None`` is unknown and spreads), then completes the collectives that all have reached.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eidolon_simcore.engine.interface import Flag, Op

NONE = Flag(0)


@dataclass
class Operation:
    op: Op
    lane: int = 0
    host: int = 0
    work: int = 0
    value: int = 0
    flags: Flag = NONE


@dataclass
class Result:
    spans: list[tuple[int, int, Op, int, int]] = field(default_factory=list)  # seq, lane, op, start, end
    answers: dict[int, tuple[int, int]] = field(default_factory=dict)  # seq -> clock, value
    marks: dict[int, int] = field(default_factory=dict)
    clock: int | None = 0


def latest(*ends: int | None) -> int | None:
    return None if any(end is None for end in ends) else max(ends)  # type: ignore[type-var]


def solve(
    programs: dict[int, list[Operation]],
    devices: dict[int, int],
    collectives: dict[int, tuple[tuple[int, ...], int]],
    depth: int,
) -> dict[int, Result]:
    """``devices``: lane -> device; ``collectives``: handle -> participants, duration."""
    ends: dict[int, int] = {}
    while True:
        arrivals: dict[int, list[int]] = {handle: [] for handle in collectives}
        results = {rank: walk(program, devices, ends, arrivals, depth) for rank, program in programs.items()}
        new = {
            handle: max(arrivals[handle]) + duration
            for handle, (participants, duration) in collectives.items()
            if len(arrivals[handle]) == len(participants)
        }
        if new == ends:
            return results
        ends = new


def walk(  # noqa: C901
    program: list[Operation], devices: dict[int, int], ends: dict[int, int], arrivals: dict[int, list[int]], depth: int
) -> Result:
    out = Result()
    t: int | None = 0
    lane_end: dict[int, int | None] = dict.fromkeys(devices, 0)
    launches: dict[int, list[int | None]] = {device: [] for device in devices.values()}
    keys: dict[int, int | None] = {}
    group: list[tuple[int, Operation]] = []
    counted = False
    for seq, o in enumerate(program):
        hostless = bool(o.flags & (Flag.NO_HOST | Flag.BACKGROUND))
        issue = t if hostless or t is None else t + o.host
        counts = o.op in (Op.WORK, Op.COLLECTIVE) and not hostless and not group
        queue = launches[devices[o.lane]]
        if counts and len(queue) >= depth:
            issue = latest(issue, queue[-depth])
        clock, value, ask = issue, 0, bool(o.flags & Flag.ASK)
        if o.op == Op.WORK:
            start = latest(lane_end[o.lane], issue)
            lane_end[o.lane] = None if start is None else start + o.work
            if counts:
                queue.append(lane_end[o.lane])
            if start is not None:
                out.spans.append((seq, o.lane, o.op, start, start + o.work))
        elif o.op == Op.RECORD:
            keys[o.value] = latest(lane_end[o.lane], issue)
        elif o.op == Op.WAIT:
            lane_end[o.lane] = latest(lane_end[o.lane], keys.get(o.value, 0))
        elif o.op == Op.COLLECTIVE:
            counted = counts if not group else counted
            group.append((seq, o))
            if not o.flags & Flag.GROUP_MORE:
                reached = latest(issue, *(lane_end[x.lane] for _, x in group))
                if reached is not None:
                    for _, x in group:
                        arrivals[x.value].append(reached)
                end = latest(*(ends.get(x.value) for _, x in group))
                if reached is not None and end is not None:
                    out.spans += [(s, x.lane, x.op, reached, end) for s, x in group]
                for _, x in group:
                    lane_end[x.lane] = end
                if counted:
                    launches[devices[group[0][1].lane]].append(end)
                group = []
        elif o.op in (Op.SYNC_LANE, Op.SYNC_KEY, Op.SYNC_DEVICE):
            if o.op == Op.SYNC_LANE:
                end = lane_end[o.lane]
            elif o.op == Op.SYNC_KEY:
                end = keys.get(o.value, 0)
            else:
                end = latest(0, *(e for lane, e in lane_end.items() if devices[lane] == o.value))
            clock = latest(issue, end)
            if issue is not None and clock is not None:
                out.spans.append((seq, o.lane, o.op, issue, clock))
        elif o.op in (Op.QUERY_LANE, Op.QUERY_KEY):
            end = lane_end[o.lane] if o.op == Op.QUERY_LANE else keys.get(o.value, 0)
            clock = latest(issue, None if end is None else 0)
            value = int(issue is not None and end is not None and end <= issue)
        elif o.op == Op.KEY_TIME:
            ask = ask and keys[o.value] is not None
            value = keys[o.value] or 0
        elif o.op == Op.MARK:
            end = latest(0, *lane_end.values())
            if end is not None and issue is not None:
                out.marks[seq] = end
        elif o.op == Op.CALLBACK:
            lane_end[o.lane] = latest(lane_end[o.lane], issue)
            end = lane_end[o.lane]
            if end is not None:
                out.spans.append((seq, o.lane, o.op, end, end))
                if ask:
                    out.answers[seq] = (end, 0)
            ask = False
        t = clock
        if ask and clock is not None:
            out.answers[seq] = (clock, value)
    out.clock = t
    out.spans.sort()
    return out
