"""Random worlds: ranks, streams, events, collectives, flows, device rates, topologies, idle ranks, ties, empty work."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from reference import RATE, Collective, Flow, Operation, World

from eidolon_simcore.engine.interface import Flag, Op

LANES = {0: 0, 1: 0, 2: 1}


def topology(rng: random.Random) -> tuple[list[tuple[int, int]], list[tuple[int, ...]]]:
    """Links and routes over them: few links, so that flows meet."""
    links = [(rng.choice([1, 2, 3, 5, 7, 10]) * 10**9, rng.choice([0, 0, 0, 3])) for _ in range(rng.randint(1, 6))]
    routes = [
        tuple(rng.sample(range(len(links)), rng.randint(1, min(3, len(links))))) for _ in range(rng.randint(1, 6))
    ]
    return links, routes


def flows(rng: random.Random, routes: list[tuple[int, ...]]) -> tuple[Flow, ...]:
    kinds = [Flow(rng.choice(routes), rng.choice([0, 1, 60, 100, 999]), rng.choice([1, 1, 2, 3])) for _ in range(3)]
    return tuple(rng.choice(kinds) for _ in range(rng.choice([0, 1, 1, 2, 4])))


def filler(rng: random.Random, world: World, rank: int) -> None:
    program = world.programs[rank]
    for _ in range(rng.randrange(6)):
        op = rng.choice(
            [Op.WORK] * 6
            + [Op.HOST, Op.RECORD, Op.RECORD, Op.WAIT, Op.WAIT, Op.SYNC_LANE, Op.SYNC_KEY, Op.SYNC_DEVICE]
            + [Op.QUERY_LANE, Op.QUERY_KEY, Op.KEY_TIME, Op.CLOCK, Op.MARK, Op.CALLBACK]
        )
        flags = Flag(0)
        if op >= Op.SYNC_LANE and rng.random() < 0.7:
            flags |= Flag.ASK
        if op in (Op.WORK, Op.RECORD, Op.WAIT) and rng.random() < 0.15:
            flags |= Flag.NO_HOST
        o = Operation(op, rng.randrange(3), rng.choice([0, 0, 1, 5, 20, 60]), flags=flags)
        if op == Op.WORK:
            o.work = rng.choice([0, 1, 7, 20, 50, 100])
            o.work_class = rng.randrange(3)
            program += [
                Operation(op, o.lane, o.host, o.work, 0, flags, o.work_class)
                for _ in range(rng.choice([1, 1, 1, 1, 12]))
            ]
            continue
        if op in (Op.RECORD, Op.WAIT, Op.SYNC_KEY, Op.QUERY_KEY, Op.KEY_TIME):
            o.value = rng.randrange(3)
        elif op == Op.SYNC_DEVICE:
            o.value = rng.randrange(2)
        elif op == Op.MARK and world.tables:
            o.value = rng.randrange(len(world.tables) + 1)
        program.append(o)
    if rng.random() < 0.1:
        program += [Operation(Op.IDLE), Operation(Op.RESUME, host=rng.choice([0, 4]))]


def rates(rng: random.Random, *, coupled: bool) -> list[tuple[int, ...]]:
    def one() -> int:
        return rng.choice([RATE, RATE // 2, RATE * 3 // 4, RATE - 1, RATE * 2])

    def leaves() -> int:
        return rng.choice([RATE, RATE // 2, RATE // 3, RATE - 1])

    return [(one(), one(), one(), one(), leaves()) if coupled else ((one(),) * 4 + (RATE,)) for _ in range(2)]


def random_world(rng: random.Random, ranks: int, meetings: int, kind: str, depth: int) -> World:
    """Ranks meet their collectives in one global order, but now and then one swaps two of its own (a deadlock)."""
    links, routes = topology(rng)
    tables = [rates(rng, coupled=kind == "coupled") for _ in range(2)] if kind != "plain" else []
    if kind == "coupled":
        tables[0][0] = (RATE, RATE // 2, RATE // 3, RATE // 5, RATE // 2)
    world = World(
        [[] for _ in range(ranks)],
        LANES,
        links,
        [],
        tables,
        rng.choice([0, 1]) if kind == "scaled" else int(kind == "coupled"),
        depth,
    )
    for rank in range(ranks):  # few links, so that some are a port of two
        for device in (0, 1) if rng.random() < 0.8 else ():
            world.ports[rank, device] = tuple(rng.sample(range(len(links)), rng.randint(0, min(2, len(links)))))
    swap = rng.random() < 0.05
    for _ in range(meetings):
        for rank in range(ranks):
            filler(rng, world, rank)
        joins: dict[int, list[Operation]] = {}
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            members = tuple(rng.sample(range(ranks), rng.randint(1, ranks)))
            if rng.random() < 0.05:
                members += members[:1]
            world.collectives.append(Collective(members, rng.choice([0, 0, 10, 33]), flows(rng, routes)))
            for rank in members:
                flags = Flag.NO_HOST if rng.random() < 0.1 else Flag(0)
                value = len(world.collectives) - 1
                joins.setdefault(rank, []).append(
                    Operation(Op.COLLECTIVE, rng.randrange(3), rng.choice([0, 0, 7, 30]), value=value, flags=flags)
                )
        grouped = rng.random() < 0.7
        for rank, joined in joins.items():
            for operation in joined[:-1] if grouped else []:
                operation.flags |= Flag.GROUP_MORE
            if swap and rank == 0 and not grouped:
                joined.reverse()
            world.programs[rank] += joined
    for rank in range(ranks):
        filler(rng, world, rank)
        world.programs[rank].append(Operation(Op.MARK))
        if rng.random() < 0.5:
            world.programs[rank].append(Operation(Op.SYNC_DEVICE, value=0, flags=Flag.ASK))
    return world


KINDS = ["plain", "plain", "scaled", "coupled"]
DEPTHS = [0, 0, 1, 2, 5, 40]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    return random_world(
        draw(st.randoms(use_true_random=False)),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 10)),
        draw(st.sampled_from(KINDS)),
        draw(st.sampled_from(DEPTHS)),
    )
