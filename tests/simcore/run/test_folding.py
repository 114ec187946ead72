"""A folded run: processes that stand for classes of equal ranks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import BLOCKING, CORE, FOREGROUND, FakeRank
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_run import Run

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.core_plan import Fold
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.run.folding import Folding, members
from eidolon_simcore.vocabulary import Kind

FLOAT, SUM, AVERAGE = 7, 0, 4


def processes(of: Sequence[int]) -> list[int]:
    return sorted(set(of))


class Job:
    """The processes of a run with ``servers`` x ``gpus`` ranks, of which those in ``of`` are processes."""

    def __init__(self, out: Path, servers: int, gpus: int, of: Sequence[int], **changes: Any) -> None:
        self.gpus, self.world = gpus, servers * gpus
        self.real = processes(of)
        folded = len(self.real) < self.world
        self.run = Run(
            out,
            servers=servers,
            gpus_per_server=gpus,
            ranks_per_server=gpus,
            fold={"of": list(of)} if folded else None,
            **changes,
        )
        self.ranks: dict[int, FakeRank] = {}
        for rank in self.real:
            server, device = divmod(rank, gpus)
            session = 1 + sum(other // gpus == server for other in self.ranks)
            self.ranks[rank] = FakeRank(session, device=device)
            self.run.join(session, rank, self.world, server)

    def comm(self, identity: int, group: Sequence[int]) -> None:
        """All processes of a group make its communicator."""
        for at, rank in enumerate(group):
            if rank in self.ranks:
                self.ranks[rank].comm(identity, at, len(group), ",".join(map(str, group)))
        self.send()

    def send(self) -> None:
        for rank, fake in self.ranks.items():
            self.run.batch(fake, rank // self.gpus)

    def answers(self, seqs: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Clock and value by rank."""
        found = {}
        for rank, seq in seqs.items():
            found[rank] = self.run.replies(rank // self.gpus)[self.ranks[rank].session, seq]
        return found

    def last_answers(self, seqs: dict[int, int]) -> dict[int, tuple[int, int]]:
        """The same, where a rank that has its answer does nothing more. The others' ends may wait for that."""
        waiting, found = dict(seqs), {}
        while waiting:
            done = {
                rank: seq
                for rank, seq in waiting.items()
                if (self.ranks[rank].session, seq) in self.run.replies(rank // self.gpus)
            }
            assert done, f"ranks {sorted(waiting)} wait in vain"
            found.update(self.answers(done))
            for rank in done:
                del waiting[rank]
                fake = self.ranks[rank]
                left = pb.RankLeft(session=fake.session, records=fake.seq, orderly=True)
                self.run.send(rank // self.gpus, left=left)
            self.run.simulation.advance(0.0)
        return found

    def bytes_of(self, seqs: dict[int, int]) -> dict[int, bytes]:
        return {r: self.run.payloads(r // self.gpus)[self.ranks[r].session, seq] for r, seq in seqs.items()}


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def call(job: Job, name: str, count: int, payloads: dict[int, bytes], **more: Any) -> dict[int, bytes]:
    """One collective of communicator 7, and what each process gets from it."""
    seqs = {
        rank: fake.collective(name, 7, 0, count, payload=payloads[rank], dtype=FLOAT, **more)
        for rank, fake in job.ranks.items()
    }
    job.send()
    return job.bytes_of(seqs)


# ---- who is there ----------------------------------------------------------------------------------------------------


def test_a_run_is_complete_with_its_processes(tmp_path: Path) -> None:
    job = Job(tmp_path, servers=4, gpus=2, of=[0] * 7 + [7])
    assert job.run.simulation.status()["servers"] == {
        "expected": 2,
        "said_hello": [0, 3],
        "missing": [],
        "ended": {},
    }
    assert job.run.simulation.status()["ranks"]["expected"] == 2
    job.comm(7, range(8))
    seqs = {rank: fake.collective("all_reduce", 7, 0, 1 << 20) for rank, fake in job.ranks.items()}
    seqs = {rank: fake.sync() for rank, fake in job.ranks.items()}
    job.send()
    assert len(set(job.answers(seqs).values())) == 1  # it has ended for both


def test_the_summary_says_for_how_many_ranks_a_process_stands(tmp_path: Path) -> None:
    job = Job(tmp_path, servers=4, gpus=2, of=[0] * 7 + [7])
    for fake in job.ranks.values():
        fake.write(Kind.HOST, sig=fake.signature("mark", "tokens", value=10))
        fake.kernel()
        fake.mark()
    job.send()
    summary = job.run.summary()
    assert summary["fold"] == {"world": 8, "classes": [{"rank": 0, "ranks": 7}, {"rank": 7, "ranks": 1}]}
    assert summary["ranks"] == 2
    assert summary["steps"][0]["tokens"] == 80


@pytest.mark.parametrize(
    ("rank", "world", "says"),
    [(1, 8, "is rank 1 of 8"), (0, 4, "is rank 0 of 4"), (-1, -1, "has no RANK")],
    ids=["a phantom", "another world", "none"],
)
def test_a_process_that_is_no_rank_of_the_fold_ends_the_run(tmp_path: Path, rank: int, world: int, says: str) -> None:
    run = Run(tmp_path, servers=1, gpus_per_server=8, ranks_per_server=8, fold={"of": [0] * 8})
    run.join(1, rank, world)
    assert run.simulation.state == "Failed"
    assert says in run.simulation.reason
    assert "one process for each of its 1 classes" in run.simulation.reason


# ---- communicators ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("unique7", "a folded run does not know its members"),
        ("unique7@0+1x7", "joins as 0 of 8, its group is 0, 1, 2, 3, 4, 5, 6"),
        ("unique7@1+1x7,0", "joins as 0 of 8, its group is 1, 2, 3, 4, 5, 6, 7, 0"),
        ("unique7@0+1x9", "'0+1x9' is beyond the 8 ranks of the run"),
        ("unique7@0+0x8", "'0+0x8' names a rank twice"),
        ("unique7@0-7", "'0-7' is no rank and no FIRST+STRIDExCOUNT"),
    ],
)
def test_members_have_to_be_told(tmp_path: Path, name: str, says: str) -> None:
    run = Run(tmp_path, servers=1, gpus_per_server=8, ranks_per_server=8, fold={"of": [0] * 8})
    run.join(1, 0, 8)
    rank = FakeRank(1)
    rank.comm(7, 0, 8, name=name)
    run.batch(rank)
    assert run.simulation.state == "Failed"
    assert says in run.simulation.reason


def test_a_list_of_members() -> None:
    assert members("3", 4) == (3,)
    assert members("0+2x3,5", 6) == (0, 2, 4, 5)


def test_phantoms_take_part_in_dividing_a_communicator(tmp_path: Path) -> None:
    job = Job(tmp_path, servers=2, gpus=4, of=[0, 1] * 4)
    job.comm(7, range(8))
    seqs = {}
    for rank, fake in job.ranks.items():
        part = {"parent": 7, "position": 0, "color": rank, "key": rank, "rank": rank, "size": 8}
        sig = fake.signature("split", f"unique7/split0@{rank}+2x4", **part)
        seqs[rank] = fake.write(Kind.COMM_INIT, sig=sig, flags=FOREGROUND | BLOCKING)
    job.send()
    assert {rank: value for rank, (_, value) in job.answers(seqs).items()} == {0: 0 << 32 | 4, 1: 0 << 32 | 4}


def test_a_transfer_with_a_phantom_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path, servers=1, gpus=2, of=[0, 0])
    job.comm(7, range(2))
    job.ranks[0].collective("recv", 7, 0, 1, peer=1)
    job.send()
    assert "rank 0 receives from rank 1, which is no process of this folded run" in job.run.simulation.reason
    assert "spec.fold.parallel" in job.run.simulation.reason


# ---- bytes -----------------------------------------------------------------------------------------------------------


def test_a_sum_counts_a_representative_once_for_each_of_its_class(tmp_path: Path) -> None:
    job = Job(tmp_path, servers=2, gpus=4, of=[0] * 7 + [7])
    job.comm(7, range(8))
    got = call(job, "all_reduce", 1, {0: floats(2), 7: floats(5)}, redop=SUM)
    assert got == {0: floats(7 * 2 + 5), 7: floats(7 * 2 + 5)}


def test_a_mean_is_weighted(tmp_path: Path) -> None:
    job = Job(tmp_path, servers=2, gpus=4, of=[0] * 7 + [7])
    job.comm(7, range(8))
    got = call(job, "all_reduce", 1, {0: floats(2), 7: floats(10)}, redop=AVERAGE)
    assert got[0] == floats(3)


def test_a_gather_has_the_bytes_of_classes(tmp_path: Path) -> None:
    job = Job(tmp_path, servers=1, gpus=4, of=[0, 0, 0, 3])
    job.comm(7, range(4))
    got = call(job, "all_gather", 1, {0: floats(1), 3: floats(4)}, bytes=16)
    assert got[3] == floats(1, 1, 1, 4)


def test_an_all_to_all_brings_what_the_class_sends_to_its_own_place(tmp_path: Path) -> None:
    job = Job(tmp_path, servers=1, gpus=4, of=[0, 0, 0, 3])
    job.comm(7, range(4))
    got = call(job, "all_to_all", 1, {0: floats(1, 2, 3, 4), 3: floats(5, 6, 7, 8)}, bytes=16)
    assert got == {0: floats(1, 1, 1, 5), 3: floats(4, 4, 4, 8)}


def test_a_phantom_s_bytes_are_those_of_the_first_process_where_its_representative_is_no_member() -> None:
    folding = Folding(Fold((0, 0, 2, 2)), 2)
    assert folding.stand_ins([1, 2, 3]) == (1, 1, 1)
    assert folding.port(3) == Port(1, 1)
    assert folding.beside(2) == [Port(1, 1)]


# ---- times -----------------------------------------------------------------------------------------------------------

KERNELS = st.tuples(st.just("kernel"), st.integers(1 << 16, 1 << 26), st.integers(0, 40_000))
CALLS = st.tuples(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]),
    st.integers(1, 1 << 24),
    st.sampled_from(["world", "outer", "inner"]),
)
PROGRAMS = st.lists(st.one_of(KERNELS, CALLS), min_size=1, max_size=12)


def ends(out: Path, of: Sequence[int], outer: int, inner: int, program: list[Any], **changes: Any) -> dict[int, Any]:
    """Runs a program on a mesh of outer x inner ranks; the clocks of all processes at its end."""
    job = Job(out, servers=outer, gpus=inner, of=of, **changes)
    groups = {"world": [list(range(outer * inner))]}
    groups["inner"] = [[o * inner + i for i in range(inner)] for o in range(outer)]
    groups["outer"] = [[o * inner + i for o in range(outer)] for i in range(inner)]
    numbers: dict[tuple[str, int], int] = {}
    for at, (axis, of_axis) in enumerate(groups.items()):
        for group in of_axis:
            if any(rank in job.ranks for rank in group):
                number = 1_000 * at + group[0] + 1
                job.comm(number, group)
                numbers |= {(axis, rank): number for rank in group}
    positions: dict[int, int] = dict.fromkeys(numbers.values(), 0)
    for what, size, where in program:
        for rank, fake in job.ranks.items():
            if what == "kernel":
                fake.kernel(size, host_ns=where)
            else:
                number = numbers[where, rank]
                fake.collective(what, number, positions[number], size, root=0 if what == "broadcast" else -1, stream=2)
        if what != "kernel":
            for number in {numbers[where, rank] for rank in job.ranks}:
                positions[number] += 1
    seqs = {rank: fake.sync() for rank, fake in job.ranks.items()}
    job.send()
    return job.last_answers(seqs)


#: Fabrics on which equal ranks stay equal. Where a hash puts flows on cables, some of them meet, and ranks differ.
FABRICS: dict[str, dict[str, Any] | None] = {
    "full": None,
    "oversubscribed": {"type": "leaf-spine", "servers_per_leaf": 1, "oversubscription": 4, "routing": "spray"},
    "rails": {"type": "rail", "servers_per_pod": 2, "oversubscription": 2, "routing": "spray"},
}


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    program=PROGRAMS,
    outer=st.sampled_from([2, 4]),
    inner=st.sampled_from([1, 2, 4]),
    fabric=st.sampled_from(sorted(FABRICS)),
)
def test_a_folded_program_ends_when_the_whole_one_does(
    tmp_path_factory: pytest.TempPathFactory, program: list[Any], outer: int, inner: int, fabric: str
) -> None:
    network = {**CORE["network"], "topology": FABRICS[fabric]}

    def run(name: str, of: Sequence[int]) -> dict[int, Any]:
        return ends(tmp_path_factory.mktemp(name), of, outer, inner, program, network=network)

    whole = run("whole", range(outer * inner))
    replica = run("replica", [rank % inner for rank in range(outer * inner)])
    one = run("one", [0] * (outer * inner))
    assert replica == {rank: whole[rank] for rank in range(inner)}
    assert one == {0: whole[0]}
