"""What an engine must answer, computed without cleverness: everything is known beforehand, time only goes forward.

All operations of all ranks are there before the simulation begins. At each instant everything that can happen is
repeated until nothing more does, then shares and rates are computed from scratch, and time goes to the next instant at
which something ends or begins. No order among simultaneous events, no prefix sums, no history, no undo.

Integers throughout: levels in 2^-16 bytes/s, volumes in 2^-16 * 1e-9 bytes, rates and work in 2^-20.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eidolon_simcore.engine.interface import Flag, Op

LEVEL = 1 << 16
RATE = 1 << 20
NONE = Flag(0)
HOSTLESS = Flag.NO_HOST | Flag.BACKGROUND


@dataclass
class Operation:
    op: Op
    lane: int = 0
    host: int = 0
    work: int = 0
    value: int = 0
    flags: Flag = NONE
    work_class: int = 0


@dataclass(frozen=True)
class Flow:
    route: tuple[int, ...]
    bytes: int
    weight: int = 1


@dataclass(frozen=True)
class Collective:
    participants: tuple[int, ...]
    latency: int
    flows: tuple[Flow, ...] = ()


@dataclass
class World:
    programs: list[list[Operation]]
    lanes: dict[int, int] = field(default_factory=lambda: {0: 0})  # lane -> device, the same for all ranks
    links: list[tuple[int, int]] = field(default_factory=list)  # bytes/s, latency
    collectives: list[Collective] = field(default_factory=list)  # COLLECTIVE's value is the index
    tables: list[list[tuple[int, ...]]] = field(default_factory=list)  # number 1, 2, ...: five rates of each class
    first_table: int = 0
    depth: int = 0
    jumps: dict[tuple[int, int], int] = field(default_factory=dict)
    ports: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)  # (rank, device) -> links


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def fair_levels(capacities: list[int], flows: list[tuple[tuple[int, ...], int]]) -> list[int]:
    """Levels (per unit of weight) of flows (route, weight): fill all links, the least level first; links with the same
    level together. Capacities are levels, too."""
    left = list(capacities)
    levels = [-1] * len(flows)
    while -1 in levels:
        weight = [0] * len(left)
        for level, (route, w) in zip(levels, flows, strict=True):
            if level < 0:
                for link in route:
                    weight[link] += w
        at = {link: max(left[link] // weight[link], 1) for link in range(len(left)) if weight[link]}
        least = min(at.values())
        full = {link for link, level in at.items() if level == least}
        for i, (route, w) in enumerate(flows):
            if levels[i] < 0 and full & set(route):
                levels[i] = least
                for link in route:
                    left[link] -= least * w
    return levels


@dataclass(eq=False)
class Node:
    """Something on a lane. ``end`` is None until it has ended."""

    kind: str  # work, point, join, wait
    seq: int
    op: Operation
    issue: int
    table: int = 0
    start: int | None = None
    end: int | None = None
    left: int = 0
    target: Node | None = None
    group: Group | None = None


@dataclass(eq=False)
class Group:
    rank: int
    members: list[tuple[int, Operation, int]] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    closed: bool = False
    issue: int = 0
    reach: int | None = None
    end: int | None = None


@dataclass(eq=False)
class Transfer:
    flow: Flow
    start: int
    left: int
    end: int | None = None


@dataclass(eq=False)
class State:
    """A collective."""

    spec: Collective
    reached: list[Group] = field(default_factory=list)
    start: int | None = None
    end: int | None = None
    transfers: list[Transfer] = field(default_factory=list)


class Host:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.program = world.programs[number]
        self.next = 0
        self.clock = 0
        self.issue: int | None = None  # of the operation that blocks
        self.waits: list[Node] = []
        self.lanes: dict[int, list[Node]] = {lane: [] for lane in world.lanes}
        self.keys: dict[int, Node] = {}
        self.launches: dict[int, list[Node]] = {device: [] for device in world.lanes.values()}
        self.group: Group | None = None
        self.table = world.first_table
        self.marks: dict[int, tuple[int, list[Node]]] = {}
        self.spans: list[tuple[int, int, int, int, int, int]] = []  # seq, lane, op, start, end, issue
        self.answers: dict[int, int] = {}


class Simulation:
    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts = [Host(world, number) for number in range(len(world.programs))]
        self.collectives = [State(spec) for spec in world.collectives]
        self.coupled = bool(world.first_table) and any(
            len(set(row[:4])) > 1 or row[4] != RATE for row in world.tables[world.first_table - 1]
        )
        self.now = 0

    # ---- at one instant ----

    def instant(self) -> None:
        moved = True
        while moved:
            moved = False
            for host in self.hosts:
                while self.issue_next(host):
                    moved = True
                for lane in host.lanes.values():
                    moved |= self.advance(host, lane)
            for state in self.collectives:
                moved |= self.collect(state)

    def due(self, host: Host) -> int | None:
        """When the next operation is issued; None if that cannot be said yet."""
        if host.next == len(host.program) or host.issue is not None:
            return None
        op = host.program[host.next]
        time = host.clock
        if op.op == Op.RESUME:
            time = max(time, self.world.jumps[host.number, host.next])
        if not op.flags & HOSTLESS:
            time += op.host
        if self.launches(host, op):
            queue = host.launches[self.world.lanes[op.lane]]
            if self.world.depth and len(queue) >= self.world.depth:
                end = queue[-self.world.depth].end
                if end is None:
                    return None
                time = max(time, end)
        return time

    @staticmethod
    def launches(host: Host, op: Operation) -> bool:
        return op.op in (Op.WORK, Op.COLLECTIVE) and not op.flags & HOSTLESS and host.group is None

    def issue_next(self, host: Host) -> bool:
        if host.issue is not None:
            if any(node.end is None for node in host.waits):
                return False
            op = host.program[host.next]
            end = max([host.issue, *(node.end for node in host.waits if node.end is not None)])
            host.spans.append((host.next, op.lane, op.op, host.issue, end, host.issue))
            host.answers[host.next] = end
            host.clock, host.issue = end, None
            host.next += 1
            return True
        time = self.due(host)
        if time is None or time > self.now:
            return False
        op = host.program[host.next]
        self.apply(host, op, host.next, time)
        if op.op in (Op.SYNC_LANE, Op.SYNC_KEY, Op.SYNC_DEVICE) and not op.flags & Flag.BACKGROUND:
            host.issue = time
            return True
        host.answers[host.next] = time
        host.clock = time
        host.next += 1
        return True

    def apply(self, host: Host, op: Operation, seq: int, time: int) -> None:
        lane = host.lanes.get(op.lane, [])
        launches = self.launches(host, op)
        device = self.world.lanes.get(op.lane, 0)
        if op.op in (Op.WORK, Op.CALLBACK, Op.RECORD):
            node = Node("work" if op.op == Op.WORK and op.work else "point", seq, op, time, host.table)
            node.left = op.work * RATE
            lane.append(node)
            if op.op == Op.RECORD:
                host.keys[op.value] = node
            if launches:
                host.launches[device].append(node)
        elif op.op == Op.WAIT:
            if op.value in host.keys:
                lane.append(Node("wait", seq, op, time, target=host.keys[op.value]))
        elif op.op == Op.COLLECTIVE:
            group = host.group = host.group or Group(host.number)
            group.members.append((seq, op, time))
            group.issue = time
            if not any(node.op.lane == op.lane for node in group.nodes):
                node = Node("join", seq, op, time, group=group)
                group.nodes.append(node)
                lane.append(node)
            if launches:
                host.launches[device].append(group.nodes[0])
            if not op.flags & Flag.GROUP_MORE:
                group.closed = True
                host.group = None
        elif op.op == Op.MARK:
            host.marks[seq] = (time, [nodes[-1] for nodes in host.lanes.values() if nodes])
            host.table = op.value or host.table
        elif op.op == Op.SYNC_LANE:
            host.waits = lane[-1:]
        elif op.op == Op.SYNC_KEY:
            host.waits = [host.keys[op.value]] if op.value in host.keys else []
        elif op.op == Op.SYNC_DEVICE:
            host.waits = [
                nodes[-1] for number, nodes in host.lanes.items() if nodes and self.world.lanes[number] == op.value
            ]
        elif op.op == Op.RESUME:
            jumped = max(host.clock, self.world.jumps[host.number, seq])
            host.spans.append((seq, op.lane, op.op, host.clock, jumped, host.clock))

    def advance(self, host: Host, lane: list[Node]) -> bool:  # noqa: C901
        moved = False
        before = 0  # end of the node before
        for node in lane:
            if node.end is not None:
                before = node.end
                continue
            if node.start is None:
                node.start = self.now
                moved = True
            if node.kind == "point":
                node.end = self.now
            elif node.kind == "work":
                if node.left <= 0:
                    node.end = self.now
            elif node.kind == "wait":
                if node.target is not None and node.target.end is not None:
                    node.end = max(before, node.target.end)  # where it is issued plays no part
            elif node.group is not None:
                group = node.group
                if group.reach is None and group.closed and all(n.start is not None for n in group.nodes):
                    group.reach = self.now
                    for _, op, _ in group.members:
                        self.collectives[op.value].reached.append(group)
                    moved = True
                states = [self.collectives[op.value] for _, op, _ in group.members]
                if group.end is None and group.reach is not None and all(s.end is not None for s in states):
                    group.end = self.now
                    for seq, op, issue in group.members:
                        host.spans.append((seq, op.lane, op.op, group.reach, group.end, issue))
                node.end = group.end
            if node.end is None:
                return moved
            moved = True
            before = node.end
            if node.op.op in (Op.WORK, Op.CALLBACK):
                host.spans.append((node.seq, node.op.lane, node.op.op, node.start, node.end, node.issue))
        return moved

    def collect(self, state: State) -> bool:
        spec = state.spec
        if state.start is None:
            if len(state.reached) < len(spec.participants):
                return False
            state.start = self.now
            for flow in spec.flows:
                start = self.now + spec.latency + sum(self.world.links[link][1] for link in flow.route)
                left = ceil(flow.bytes * 10**9 * LEVEL, flow.weight) if flow.route else 0
                state.transfers.append(Transfer(flow, start, left))
            return True
        if state.end is not None:
            return False
        for transfer in state.transfers:
            if transfer.end is None and transfer.start <= self.now and transfer.left <= 0:
                transfer.end = self.now
        if any(transfer.end is None for transfer in state.transfers) or self.now < state.start + max(spec.latency, 1):
            return False
        state.end = self.now
        return True

    # ---- between two instants ----

    def working(self) -> list[tuple[Host, int, Node]]:
        found = []
        for host in self.hosts:
            for number, lane in host.lanes.items():
                node = next((node for node in lane if node.end is None), None)
                if node is not None and node.kind == "work":
                    found.append((host, self.world.lanes[number], node))
        return found

    def communicates(self, host: Host, device: int) -> bool:
        """A collective is under way there."""
        return any(
            state.start is not None
            and state.end is None
            and any(
                group.rank == host.number
                and any(
                    self.collectives[op.value] is state and self.world.lanes[op.lane] == device
                    for _, op, _ in group.members
                )
                for group in state.reached
            )
            for state in self.collectives
        )

    def row(self, node: Node) -> tuple[int, ...]:
        table = self.world.tables[node.table - 1] if node.table else []
        return table[node.op.work_class] if node.op.work_class < len(table) else (RATE,) * 5

    def rates(self, working: list[tuple[Host, int, Node]]) -> list[int]:
        result = []
        for host, device, node in working:
            others = any(h is host and d == device and n is not node for h, d, n in working)
            result.append(self.row(node)[self.communicates(host, device) + 2 * others])
        return result

    def capacities(self, working: list[tuple[Host, int, Node]]) -> list[int]:
        """Levels of the links, with what the work of the devices that are there leaves of them."""
        left = [RATE] * len(self.world.links)
        for host, device, node in working:
            if self.coupled and self.communicates(host, device):
                for link in self.world.ports.get((host.number, device), ()):
                    left[link] = min(left[link], self.row(node)[4])
        return [
            max(1, capacity * LEVEL * share // RATE)
            for (capacity, _), share in zip(self.world.links, left, strict=True)
        ]

    def run(self) -> None:
        while True:
            self.instant()
            working = self.working()
            rates = self.rates(working)
            moving = [t for s in self.collectives for t in s.transfers if t.end is None and t.start <= self.now]
            levels = fair_levels(self.capacities(working), [(t.flow.route, t.flow.weight) for t in moving])
            times = [self.now + ceil(n.left, rate) for (_, _, n), rate in zip(working, rates, strict=True)]
            times += [self.now + ceil(t.left, level) for t, level in zip(moving, levels, strict=True)]
            times += [t.start for s in self.collectives for t in s.transfers if t.start > self.now]
            times += [
                s.start + max(s.spec.latency, 1) for s in self.collectives if s.start is not None and s.end is None
            ]
            times += [time for host in self.hosts if (time := self.due(host)) is not None]
            times = [time for time in times if time > self.now]
            if not times:
                return
            then = min(times)
            for (_, _, node), rate in zip(working, rates, strict=True):
                node.left -= rate * (then - self.now)
            for transfer, level in zip(moving, levels, strict=True):
                transfer.left -= level * (then - self.now)
            self.now = then


@dataclass
class Result:
    spans: list[tuple[int, int, int, int, int, int]]
    marks: dict[int, tuple[int, int]]  # seq -> issue, end
    answers: dict[int, int]  # seq -> clock after the operation
    clock: int
    done: bool


def simulate(world: World) -> list[Result]:
    simulation = Simulation(world)
    simulation.run()
    results = []
    for host in simulation.hosts:
        marks = {
            seq: (issue, max([0, *(node.end for node in nodes if node.end is not None)]))
            for seq, (issue, nodes) in host.marks.items()
            if all(node.end is not None for node in nodes)
        }
        done = host.next == len(host.program) and all(n.end is not None for lane in host.lanes.values() for n in lane)
        results.append(Result(sorted(host.spans), marks, host.answers, host.clock, done))
    return results
