"""Feeds a :class:`reference.World` to the engine, in any order in which ranks could have sent it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from reference import Operation, Result, World

from eidolon_simcore.engine.interface import OPERATION, Flag, Flow, Op, Rates
from eidolon_simcore.engine.native import NativeEngine


def table(program: list[Operation], first: int) -> np.ndarray:
    rows = np.zeros(len(program), OPERATION)
    for i, o in enumerate(program):
        rows[i] = (first + i, o.op, o.flags, o.work_class, o.lane, o.host, o.work, o.value, 0, 0)
    return rows


def build(world: World, *, optimistic: bool, keep_all: bool = False) -> tuple[NativeEngine, list[int]]:
    """The engine with everything but operations, and the handles of the collectives."""
    engine = NativeEngine(
        optimistic=optimistic, keep_all=keep_all, launch_queue=world.depth, expected_ranks=len(world.programs)
    )
    for capacity, latency in world.links:
        engine.link(capacity, latency)
    for classes in world.tables:
        engine.rates(tuple(Rates(*rates) for rates in classes))
    for rank in range(len(world.programs)):
        engine.add_rank(rank)
        for lane, device in world.lanes.items():
            engine.add_lane(rank, lane, device)
        if world.first_table:
            engine.set_rates(rank, world.first_table)
        for device in set(world.lanes.values()):
            engine.set_ports(rank, device, world.ports.get((rank, device), ()))
    handles = [
        engine.collective(c.participants, c.latency, tuple(Flow(f.route, f.bytes, f.weight) for f in c.flows))
        for c in world.collectives
    ]
    return engine, handles


@dataclass
class Played:
    spans: list[list[tuple[int, int, int, int, int, int]]]
    marks: list[dict[int, tuple[int, int]]]
    answers: list[dict[int, tuple[int, int]]]
    clocks: list[int]
    order: list[int] = field(default_factory=list)  # ends, as the timeline told them
    deadlocked: bool = False
    counters: dict[str, int] = field(default_factory=dict)


class Player:
    """One run. A rank that was asked to wait for an answer sends nothing until it has it."""

    def __init__(self, world: World, seed: int, *, optimistic: bool, keep_all: bool = False, snapshots: bool = False):
        self.world = world
        self.rng = random.Random(seed)
        self.snapshots = snapshots
        self.engine, self.handles = build(world, optimistic=optimistic, keep_all=keep_all)
        ranks = range(len(world.programs))
        self.programs = [
            [
                Operation(o.op, o.lane, o.host, o.work, self.handles[o.value], o.flags, o.work_class)
                if o.op == Op.COLLECTIVE
                else o
                for o in program
            ]
            for program in world.programs
        ]
        self.at = [0 for _ in ranks]
        self.owed: list[int | None] = [None for _ in ranks]
        self.ended = [False for _ in ranks]
        self.played = Played([[] for _ in ranks], [{} for _ in ranks], [{} for _ in ranks], [0 for _ in ranks])

    def send(self, rank: int) -> None:
        program = self.programs[rank]
        end = min(len(program), self.at[rank] + self.rng.choice([1, 1, 2, 3, 8]))
        for seq in range(self.at[rank], end):
            if program[seq].flags & Flag.ASK and program[seq].op != Op.CALLBACK:
                self.owed[rank] = seq
                end = seq + 1
                break
        self.engine.ingest(rank, table(program[self.at[rank] : end], self.at[rank]))
        self.at[rank] = end

    def collect(self) -> None:
        for answer in self.engine.answers():
            self.played.answers[answer.rank][answer.seq] = (answer.clock_ns, answer.value)
            if self.owed[answer.rank] == answer.seq:
                self.owed[answer.rank] = None

    def take(self) -> None:
        ranks, spans = self.engine.timeline()
        names = ["seq", "lane", "op", "start_ns", "end_ns", "issue_ns"]
        for rank, span in zip(ranks.tolist(), spans[names].tolist(), strict=True):
            self.played.spans[rank].append(span)
            if span[2] != Op.RESUME:  # told once its host cost is over
                self.played.order.append(span[4])
        for mark in self.engine.marks():
            self.played.marks[mark.rank][mark.seq] = (mark.issue_ns, mark.end_ns)
        for jump in self.engine.jumps():
            self.world.jumps[jump.rank, jump.seq] = jump.time_ns

    def maybe_snapshot(self) -> None:
        if self.snapshots and self.rng.random() < 0.1:
            state = self.engine.snapshot()
            other = NativeEngine()
            other.restore(state)
            self.engine = other

    def play(self) -> Played:
        ranks = range(len(self.programs))
        while not all(self.ended):
            ready = [r for r in ranks if not self.ended[r] and self.owed[r] is None]
            if not ready:
                self.collect()
                if any(owed is None for owed, ended in zip(self.owed, self.ended, strict=True) if not ended):
                    continue
                self.played.deadlocked = self.engine.deadlocked()
                assert self.played.deadlocked, "nobody can go on, and that is no deadlock"
                assert self.engine.blocked()
                break
            rank = self.rng.choice(ready)
            if self.at[rank] == len(self.programs[rank]):
                self.engine.end_rank(rank)
                self.ended[rank] = True
            else:
                self.send(rank)
            if self.rng.random() < 0.5:
                self.collect()
            if self.rng.random() < 0.1:
                self.take()
            self.maybe_snapshot()
        self.collect()
        self.take()
        self.played.clocks = [self.engine.clock(rank) for rank in ranks]
        self.played.counters = self.engine.counters()
        return self.played


def agrees(world: World, played: Played, expected: list[Result], *, final_answers: bool) -> None:
    """Asserts that every final time is the reference's."""
    assert played.order == sorted(played.order)
    for rank, result in enumerate(expected):
        spans = sorted(played.spans[rank])
        if played.deadlocked:  # what is final is right; nothing is said about the rest
            assert set(spans) <= set(result.spans)
            continue
        assert spans == result.spans, f"rank {rank}"
        assert played.marks[rank] == result.marks, f"rank {rank}"
        if result.done:
            assert played.clocks[rank] == result.clock
        if final_answers:
            for seq, (clock, _) in played.answers[rank].items():
                if world.programs[rank][seq].op != Op.CALLBACK:
                    assert clock == result.answers[seq], f"rank {rank}, operation {seq}"
