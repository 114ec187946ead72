"""The quotient of the network: the same times, to the bit, as with all links and flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import fabrics
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eidolon_simcore import catalogue
from eidolon_simcore.engine.interface import OPERATION, REFERENCE_RATE, Op, Rates
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.fabric import tuner
from eidolon_simcore.fabric.network import Network, Pattern
from eidolon_simcore.fabric.topology import Port

MIB = 1 << 20
RATES = (
    Rates(),
    Rates(leaves=REFERENCE_RATE // 2),
    Rates(leaves=REFERENCE_RATE // 3, with_collective=REFERENCE_RATE // 2, with_both=REFERENCE_RATE // 2),
)
LANES = 6


def network(*, folded: bool, **fields: Any) -> Network:
    """A network on an engine of its own with two ranks, which have lanes for calls and one for kernels."""
    gpus = fields.pop("gpus", 4)
    engine = NativeEngine(expected_ranks=2)
    table = engine.rates(RATES)
    for rank in range(2):
        engine.add_rank(rank)
        for lane in range(LANES):
            engine.add_lane(rank, lane, 0)
        engine.set_rates(rank, table)
    return Network(engine, catalogue.gpu("h100-sxm"), fabrics.make(gpus=gpus, **fields), folded=folded)


@dataclass
class Program:
    """What two ranks do, handed to the engine bit by bit: time goes on to each call before the next is known."""

    network: Network
    seq: int = 0
    times: list[tuple[int, int, int, int]] = field(default_factory=list)

    def send(self, rank: int, op: Op, lane: int = 0, host: int = 0, work: int = 0, value: int = 0) -> None:
        row = np.zeros(1, OPERATION)
        kind = value if op == Op.WORK else 0
        row[0] = (self.seq, op, 0, kind, lane, host, work, 0 if op == Op.WORK else value, 0, 0)
        self.seq += 1
        self.network._engine.ingest(rank, row)

    def wait(self, ns: int) -> None:
        """The hosts of both ranks go on."""
        for rank in range(2):
            self.send(rank, Op.RECORD, LANES - 1, host=ns, value=7)
        assert self.network._engine.answers() == []

    def call(self, rank: int, pattern: Pattern) -> None:
        engine = self.network._engine
        handle = engine.reserve()
        engine.define_as(handle, (rank,), pattern.latency_ns, pattern.number)
        self.send(rank, Op.COLLECTIVE, self.seq % (LANES - 2), value=handle)

    def kernel(self, rank: int, ns: int, kind: int) -> None:
        self.send(rank, Op.WORK, LANES - 2, work=ns, value=kind)

    def finish(self) -> list[tuple[int, int, int, int]]:
        engine = self.network._engine
        for rank in range(2):
            engine.end_rank(rank)
        assert engine.answers() == []
        ranks, spans = engine.timeline()
        rows = zip(ranks.tolist(), *(spans[k].tolist() for k in ("seq", "start_ns", "end_ns")), strict=True)
        return sorted(rows)


def groups(servers: int, gpus: int, family: str) -> list[list[Port]]:
    if family == "inside":
        return [[Port(s, g) for g in range(gpus)] for s in range(servers)]
    if family == "across":
        return [[Port(s, g) for s in range(servers)] for g in range(gpus)]
    if family == "halves":
        half = servers // 2
        return [[Port(s + h * half, g) for s in range(half)] for h in range(2) for g in range(gpus)]
    if family == "strided":
        return [[Port(s, g) for s in range(h, servers, 2)] for h in range(2) for g in range(gpus)]
    return [[Port(s, g) for s in range(servers) for g in range(gpus)]]


FAMILIES = ("inside", "across", "halves", "strided", "whole")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@st.composite
def fabric(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, Any] = {"servers": draw(st.sampled_from([2, 4, 6, 8])), "gpus": draw(st.sampled_from([2, 4]))}
    fields["nics_per_server"] = draw(st.sampled_from([1, 2, 4]))
    kind = draw(st.sampled_from(["crossbar", "rail", "leaf-spine", "fat-tree", "torus", "dragonfly"]))
    if kind == "crossbar":
        return fields
    fields |= {"type": kind, "routing": draw(st.sampled_from(["ecmp", "spray"])), "seed": draw(st.integers(0, 5))}
    if kind in ("rail", "leaf-spine", "fat-tree"):
        fields["oversubscription"] = draw(st.sampled_from([1, 2, 4]))
    if kind == "rail":
        fields["servers_per_pod"] = draw(st.sampled_from([1, 2, 4]))
    if kind in ("leaf-spine", "fat-tree"):
        fields["servers_per_leaf"] = draw(st.sampled_from([1, 2]))
    if kind == "fat-tree":
        fields["leaves_per_pod"] = 2
    if kind == "torus":
        fields["dimensions"] = [2, fields["servers"] // 2]
    if kind == "dragonfly":
        fields |= {"routers_per_group": 2, "servers_per_router": 1, "cables_between_groups": 1}
    return fields


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    call = st.tuples(
        st.just("call"),
        st.integers(0, 1),
        st.sampled_from(FAMILIES),
        st.sampled_from(OPS),
        st.sampled_from([MIB, 16 * MIB, 256 * MIB]),
        st.sampled_from(["", "Ring", "Tree"]),
    )
    send = st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 3), st.sampled_from([MIB, 128 * MIB]))
    kernel = st.tuples(st.just("kernel"), st.integers(0, 1), st.integers(1_000, 500_000), st.integers(0, 2))
    wait = st.tuples(st.just("wait"), st.sampled_from([0, 1_000, 30_000, 300_000]))
    found = draw(st.lists(st.tuples(st.one_of(call, call, send, kernel), wait), min_size=3, max_size=10))
    return [step for pair in found for step in pair]


def played(
    program: Program, fields: dict[str, Any], todo: Sequence[tuple[Any, ...]]
) -> list[tuple[int, int, int, int]]:
    servers, gpus, net = fields["servers"], fields["gpus"], program.network
    for rank in range(2):  # the GPUs at even and at odd places of all servers
        mine = [Port(s, g) for s in range(servers) for g in range(rank, gpus, 2)]
        net._engine.set_ports(rank, 0, net.ports(*mine))
    for step in todo:
        match step:
            case ("call", rank, family, op, size, algorithm):
                first, *others = groups(servers, gpus, family)
                wanted = tuner.options({"NCCL_ALGO": algorithm} if algorithm else {})
                program.call(rank, net.collective(op, size, net.team(first, wanted, others)))
            case ("send", rank, distance, size):
                pairs = [(Port(s, g), Port((s + distance) % servers, g)) for s in range(servers) for g in range(gpus)]
                program.call(rank, net.pair(*pairs[0], size, siblings=pairs[1:]))
            case ("kernel", rank, ns, kind):
                program.kernel(rank, ns, kind)
            case ("wait", ns):
                program.wait(ns)
    return program.finish()


@settings(max_examples=150, deadline=None)
@given(fabric(), steps())
def test_classes_take_the_time_of_all_links(fields: dict[str, Any], todo: list[tuple[Any, ...]]) -> None:
    whole = played(Program(network(folded=False, **fields)), fields, todo)
    classes = played(Program(network(folded=True, **fields)), fields, todo)
    assert classes == whole
