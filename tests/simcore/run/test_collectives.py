"""Matching: calls of several ranks become one collective, or end the run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fakes import FOREGROUND, MORE, FakeRank
from simulated_run import Run, pair

from eidolon_simcore.vocabulary import Kind


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
