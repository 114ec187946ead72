"""Matching: calls of several ranks become one collective, or end the run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fakes import FOREGROUND, MORE, FakeRank
from simulated_run import Run, pair

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.fabric.network import Port
from eidolon_simcore.run.collectives import Collectives, _scale
from eidolon_simcore.run.watchdogs import NobodySkips
from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import Kind


def collectives_of(run: Run) -> Collectives:
    """The run's own, which a watchdog has too."""
    [found] = [one.collectives for one in run.simulation._watchdogs if isinstance(one, NobodySkips)]
    return found


@pytest.mark.parametrize("late", [False, True])
def test_a_send_brings_its_bytes_to_the_receiver(run: Run, late: bool) -> None:
    ranks = pair(run)
    send = ranks[0].collective("send", 7, 0, 3, dtype=1, bytes=3, peer=1, payload=b"abc")
    if late:
        ranks[0]._payloads.clear()
    receive = ranks[1].collective("recv", 7, 0, 3, dtype=1, bytes=3, peer=0, payload=b"")
    ranks[1]._payloads.clear()
    sync = ranks[1].sync()
    run.batch(ranks[1])
    ranks[0].sync()  # until then it might still put something on the wire
    run.batch(ranks[0])
    if late:
        assert run.payloads() == {}
        assert (2, sync) not in run.replies()
        ranks[0].late_payload(send, b"abc")
        run.batch(ranks[0])
    assert run.payloads() == {(2, receive): b"abc"}
    assert (2, sync) in run.replies()


def test_unknown_bytes_come_as_an_empty_payload(run: Run) -> None:
    ranks = pair(run)
    for rank in ranks:
        rank.collective("all_reduce", 7, 0, 1, payload=b"")
        run.batch(rank)
    assert set(run.payloads().values()) == {b""}
    assert len(run.payloads()) == 2


def test_an_all_to_all_by_sends_takes_as_long_as_its_busiest_port(tmp_path: Path) -> None:
    size = 1 << 28
    times = {}
    for n in (2, 4):
        run = Run(tmp_path / str(n), gpus_per_server=4, ranks_per_server=4, host_cost="measured")
        ranks = [FakeRank(i + 1, device=i) for i in range(n)]
        for i, rank in enumerate(ranks):
            run.join(rank.session, i, n)
            rank.comm(7, i, n)
            run.batch(rank)
        start = run.replies()[1, 0][0]
        for rank in ranks:
            for peer in range(n):
                part = {"dtype": 1, "bytes": size // n, "peer": peer}
                rank.collective("send", 7, 0, size // n, flags=FOREGROUND | MORE, **part)
                last = FOREGROUND | (MORE if peer + 1 < n else 0)
                rank.collective("recv", 7, 0, size // n, flags=last, **part)
            sync = rank.sync()
            run.batch(rank)
        times[n] = (run.replies()[1, sync][0] - start) / 1e3
        assert run.simulation.state is None
    assert times[2] == pytest.approx(510, rel=0.2)  # measured all_to_all of 256 MiB
    assert times[4] == pytest.approx(662, rel=0.25)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda r: r.comm(7, 1, 2), "rank 1 joins as 1, which rank 1 is already"),
        (lambda r: r.comm(7, 0, 3), "rank 1 joins as 0 of 3, others as members of 2"),
        (lambda r: r.collective("all_reduce", 8, 0, 1), "communicator that does not exist"),
        (
            lambda r: r.collective("all_reduce", 7, 0, 1, device=0),
            "rank 1 is not a member of communicator unique7 on device 0",
        ),
        (lambda r: r.collective("send", 7, 0, 1, peer=5), "send with peer 5 in communicator unique7 of 2"),
        (lambda r: [r.collective("send", 7, 0, 1, peer=0) for _ in "ab"], "makes the same call twice"),
    ],
)
def test_calls_that_contradict_each_other_end_the_run(run: Run, write: Any, words: str) -> None:
    ranks = pair(run)
    write(ranks[1])
    run.batch(ranks[1])
    assert run.simulation.state == "Failed"
    assert words in run.simulation.reason


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (
            {"name": "all_reduce", "count": 4},
            {"name": "all_reduce", "count": 5},
            "rank 0 calls all_reduce(count 4, float32, operation 0), "
            "rank 1 calls all_reduce(count 5, float32, operation 0)",
        ),
        (
            {"name": "all_gather", "count": 4},
            {"name": "all_gather", "count": 4, "dtype": 6},
            "rank 0 calls all_gather(count 4, float32), rank 1 calls all_gather(count 4, float16)",
        ),
        (
            {"name": "reduce_scatter", "count": 4},
            {"name": "reduce_scatter", "count": 4, "redop": 2},
            "rank 0 calls reduce_scatter(count 4, float32, operation 0), "
            "rank 1 calls reduce_scatter(count 4, float32, operation 2)",
        ),
        (
            {"name": "broadcast", "count": 4, "root": 0},
            {"name": "broadcast", "count": 4, "root": 1},
            "rank 0 calls broadcast(count 4, float32, root 0), rank 1 calls broadcast(count 4, float32, root 1)",
        ),
        (
            {"name": "reduce", "count": 4, "root": 1},
            {"name": "broadcast", "count": 4, "root": 1},
            "rank 0 calls reduce(count 4, float32, root 1, operation 0), "
            "rank 1 calls broadcast(count 4, float32, root 1)",
        ),
    ],
    ids=["count", "dtype", "operation", "root", "name"],
)
def test_members_that_call_something_else_end_the_run_and_both_are_quoted(
    run: Run, one: dict[str, Any], other: dict[str, Any], said: str
) -> None:
    for rank, call in zip(pair(run), (one, other), strict=True):
        rank.collective(**call, comm=7, position=3)
        run.batch(rank)
    assert (run.simulation.state, run.simulation.cause) == ("Failed", "CollectiveMismatch")
    assert run.simulation.reason == f"communicator unique7, call 3: {said}"


@pytest.mark.parametrize("root", [-1, 2])
def test_a_root_that_is_no_member_ends_the_run(run: Run, root: int) -> None:
    rank, _ = pair(run)
    rank.collective("broadcast", 7, 0, 4, root=root)
    run.batch(rank)
    assert run.simulation.reason == f"broadcast with root {root} in communicator unique7 of 2"


def test_the_last_member_is_a_root_and_the_one_behind_it_no_peer(run: Run) -> None:
    ranks = pair(run)
    for rank in ranks:
        rank.collective("broadcast", 7, 0, 4, root=1)
        run.batch(rank)
    assert run.simulation.state is None
    ranks[0].collective("send", 7, 0, 4, peer=2)
    run.batch(ranks[0])
    assert run.simulation.reason == "rank 0: send with peer 2 in communicator unique7 of 2"


def test_what_a_call_puts_on_the_wire_is_known_before_the_other_members_call(run: Run) -> None:
    """A send and its receive are the same bytes on the same way; the other direction is another. Who is no member, or
    names one, gets None."""
    pair(run)
    collectives = collectives_of(run)
    here, there = Port(0, 0), Port(0, 1)

    def wire(rank: int, port: Port, name: str, peer: int = -1, comm: int = 7, bytes_: int = 1 << 20) -> Any:
        attributes = {"comm": comm, "count": bytes_, "dtype": 1, "bytes": bytes_, "root": -1, "peer": peer, "redop": 0}
        return collectives.pattern(rank, port, Signature("collective", name, attributes))

    forth = wire(0, here, "send", peer=1)
    assert forth == wire(1, there, "recv", peer=0)
    assert wire(0, here, "send", peer=1, bytes_=64 << 20).flows[0].bytes > forth.flows[0].bytes
    assert wire(1, there, "send", peer=0).flows[0].route != forth.flows[0].route
    assert wire(1, there, "send", peer=0) == wire(0, here, "recv", peer=1)
    assert wire(0, here, "all_reduce").flows == wire(1, there, "all_reduce").flows
    for found in (
        wire(0, here, "send", peer=2),
        wire(0, there, "all_reduce"),
        wire(0, here, "all_reduce", comm=8),
    ):
        assert found is None


def test_a_communicator_that_lacks_members_says_which(run: Run) -> None:
    for number, session in ((0, 1), (2, 2)):
        run.join(session, session - 1, 2)
        rank = FakeRank(session, device=session - 1)
        rank.comm(7, number, 4)
        run.batch(rank)
    assert collectives_of(run).waiting_for_members() == ["communicator unique7 lacks its ranks 1, 3 of 4"]


@pytest.mark.parametrize(("bits", "scale"), [({}, None), ({"scale": -1}, None), ({"scale": 0x3FD0 << 48}, 0.25)])
def test_the_factor_of_a_scaled_sum_is_a_double_of_which_the_bits_are_told(
    bits: dict[str, int], scale: float | None
) -> None:
    assert _scale(Signature("collective", "all_reduce", bits)) == scale


@pytest.mark.parametrize("sizes", [(3, 4), (4, 3)])
def test_a_send_of_another_size_than_its_receive_ends_the_run(run: Run, sizes: tuple[int, int]) -> None:
    ranks = pair(run)
    for rank, name, size in zip(ranks, ("send", "recv"), sizes, strict=True):
        rank.collective(name, 7, 0, size, dtype=1, bytes=size, peer=int(name == "send"))
        run.batch(rank)
    assert (run.simulation.state, run.simulation.cause) == ("Failed", "CollectiveMismatch")
    for rank, name, size in zip((0, 1), ("send", "recv"), sizes, strict=True):
        assert re.search(rf"rank {rank} .*{name}.* {size}\b", run.simulation.reason), run.simulation.reason


def test_gpus_that_no_way_joins_any_more_end_the_run_and_are_named(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        servers=2,
        gpus_per_server=1,
        ranks_per_server=1,
        network={
            "inter_bytes_per_s": 50_000_000_000,
            "inter_latency_ns": 2_000,
            "intra_bytes_per_s": None,
            "topology": {"type": "leaf-spine", "servers_per_leaf": 1, "spines": 1, "failed": ["spine0"]},
        },
    )
    for server in range(2):
        run.join(1, server, 2, server)
        rank = FakeRank(1)
        rank.comm(7, server, 2)
        run.batch(rank, server)
    assert (run.simulation.state, run.simulation.cause) == ("Failed", "NoRoute")
    assert run.simulation.reason == "no way leads from server0/nic0 to server1/nic0 any more"


@pytest.mark.parametrize("pairwise", [False, True])
def test_a_rank_that_goes_on_without_a_collective_is_named_after_some_virtual_time(run: Run, pairwise: bool) -> None:
    ranks = pair(run)
    if pairwise:
        ranks[0].collective("send", 7, 0, 3, dtype=1, bytes=3, peer=1)
    else:
        ranks[0].collective("all_reduce", 7, 0, 3)
    run.batch(ranks[0])
    for hours, second in ((0.5, 2.0), (0.4, 4.0), (0.2, 6.0)):
        assert run.simulation.state is None
        ranks[1].write(Kind.SLEEP, value=round(hours * 3_600e9))
        run.batch(ranks[1])
        run.simulation.tick(second)
    assert (run.simulation.state, run.simulation.cause) == ("Failed", "RankMissing")
    what = "transfer 0 from rank 0 to rank 1" if pairwise else "all_reduce, call 0 of communicator unique7"
    assert f"rank 1 is missing in {what}" in run.simulation.reason.replace(" in communicator unique7", "")
    assert "which rank 0 reached 3600 s of virtual time ago" in run.simulation.reason


def test_one_process_with_two_devices_makes_a_communicator_with_itself(run: Run) -> None:
    run.join(1, -1, -1)
    rank = FakeRank(1)
    for device in (0, 1):
        rank.device = device
        rank.comm(7, device, 2)
        if device == 0:
            rank._rows[-1] = (*rank._rows[-1][:2], FOREGROUND, *rank._rows[-1][3:])  # a group: only its end blocks
    run.batch(rank)
    for device in (0, 1):
        rank.device = device
        more = MORE if device == 0 else 0
        rank.collective("all_reduce", 7, 0, 1 << 20, flags=FOREGROUND | more, stream=10 + device)
    seq = rank.sync()
    run.batch(rank)
    assert run.simulation.state is None
    assert run.replies()[1, seq][0] > 200_000_000


# ---- symmetric memory ------------------------------------------------------------------------------------------------


def sharing(run: Run) -> list[FakeRank]:
    """Two ranks whose memory the other has mapped. Their processes are 101 and 102, and the group's id is 9."""
    ranks = [FakeRank(1), FakeRank(2, device=1)]
    for i, rank in enumerate(ranks):
        run.send(joined=pb.RankJoined(session=rank.session, rank=i, world=2, pid=101 + i))
    for rank in ranks:
        rank.signature("symmetric", "101:0:1,102:1:1", id=9)
    return ranks


def test_a_barrier_of_symmetric_memory_waits_for_its_peers_and_nobody_for_the_making_of_the_group(run: Run) -> None:
    first, second = sharing(run)
    first.collective("barrier", 9, 0, 0, shots=1)
    waits = first.sync()
    run.batch(first)
    assert (1, waits) not in run.replies()
    second.write(Kind.SLEEP, value=5_000_000)
    second.collective("barrier", 9, 0, 0, shots=1)
    second.sync()
    run.batch(second)
    assert 5_003_900 <= run.replies()[1, waits][0] < 5_100_000


def test_a_kernel_of_symmetric_memory_brings_sums(run: Run) -> None:
    first, second = sharing(run)
    for number, rank in enumerate((first, second)):
        rank.collective("all_reduce", 9, 0, 1, dtype=1, bytes=1, shots=1, payload=bytes([1 + number]))
        run.batch(rank)
    assert set(run.payloads().values()) == {b"\x03"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("101:0:1,999:1:1", "symmetric memory of process 999, which is no rank of server 0"),
        ("101:0", "symmetric memory of '101:0': PID:DEVICE:NUMBER of each member is needed"),
    ],
)
def test_a_group_that_cannot_be_ends_the_run(run: Run, name: str, message: str) -> None:
    first = FakeRank(1)
    run.send(joined=pb.RankJoined(session=1, rank=0, world=1, pid=101))
    first.signature("symmetric", name, id=9)
    first.sync()
    run.batch(first)
    assert (run.simulation.state, run.simulation.reason) == ("Failed", message)
