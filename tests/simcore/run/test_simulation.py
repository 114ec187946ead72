"""Sessions and matching without gRPC: what records become, and that the order of servers' messages changes nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import AUTOGRAD, BLOCKING, FOREGROUND, IN_GRAPH, MORE, FakeRank, plan
from simulated_run import Run

from eidolon_simcore.catalogue import gpu
from eidolon_simcore.core_plan import PlanError
from eidolon_simcore.costs import hostcost
from eidolon_simcore.costs.model import LAUNCH_GAP_NS
from eidolon_simcore.ledger.unknown_reads import BULK_BYTES, Origin
from eidolon_simcore.run.event_records import Kind
from eidolon_simcore.run.server import RejectedError


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def lone(tmp_path: Path) -> Run:
    """A server of one rank, whose host has nothing else to do."""
    return Run(tmp_path, ranks_per_server=1)


def alone(run: Run) -> FakeRank:
    run.join(1, -1, -1)
    return FakeRank(1)


def test_host_time_adds_up_and_polls_cost_a_microsecond(lone: Run) -> None:
    rank = alone(lone)
    rank.write(Kind.HOST, call="cudaGetDevice")  # 100 ns
    rank.write(Kind.HOST, call="never_heard_of")  # 100 ns
    rank.write(Kind.SLEEP, value=1_000_000)
    seq = rank.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING)
    background = rank.write(Kind.CLOCK, flags=BLOCKING, thread=3)
    later = rank.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING)
    lone.batch(rank)
    replies = lone.replies()
    assert replies[1, seq] == (1_001_200, 0)
    assert replies[1, background] == (1_001_200, 0)
    assert replies[1, later] == (1_002_200, 0)


def test_a_new_stream_is_not_told_what_the_one_before_brought(lone: Run) -> None:
    """Its agent counts what it sent itself: more than that is a broken ring to it."""
    rank = alone(lone)
    rank.write(Kind.HOST, call="cudaGetDevice")
    lone.send(batch=rank.batch())  # taken, and not said yet
    lone.simulation.closed(0, 0.0)
    lone.hello()
    lone.simulation.tick(1.0)
    assert not [message for message in lone.sent[0] if message.HasField("taken")]
    alone(lone)
    rank.write(Kind.HOST, call="cudaGetDevice")
    lone.send(batch=rank.batch())
    lone.simulation.tick(2.0)
    assert [list(m.taken.messages) for m in lone.sent[0] if m.HasField("taken")] == [[1]]


def test_what_a_thread_did_before_a_call_comes_on_top_of_the_call(lone: Run) -> None:
    rank = alone(lone)
    sig = rank.signature("kernel", "k", gx=1, bx=32)
    rank.write(Kind.KERNEL, sig=sig, call="cudaLaunchKernel", host_ns=7_000)
    seq = rank.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING, host_ns=1_300)
    lone.batch(rank)
    assert lone.replies()[1, seq][0] == hostcost.table().call_ns("cudaLaunchKernel") + 7_000 + 1_300


def test_a_host_of_several_ranks_takes_longer_for_each(tmp_path: Path) -> None:
    clocks = []
    for ranks in (1, 2, 4):
        run = Run(tmp_path / str(ranks), ranks_per_server=ranks)
        rank = alone(run)
        rank.write(Kind.HOST, call="cudaGetDevice", host_ns=1_000_000)
        seq = rank.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING, host_ns=1_000_000)
        run.batch(rank)
        clocks.append(run.replies()[1, seq][0])
    two, four = (1 + hostcost.SHARED_HOST * share for share in (1 / 2, 3 / 4))
    assert clocks == [2_000_100, *(round(1_000_100 * times) + round(1_000_000 * times) for times in (two, four))]


def test_the_first_compiled_kernel_of_a_step_pays_for_entering_the_graph(run: Run) -> None:
    rank = alone(run)
    sig = rank.signature("kernel", "triton_poi_fused_add_0", gx=1, bx=32)
    seqs = []
    for _ in range(2):
        rank.write(Kind.KERNEL, call="cuLaunchKernel", sig=sig)
        rank.write(Kind.KERNEL, call="cuLaunchKernel", sig=sig)
        seqs.append(rank.sync())
        rank.mark()
    run.batch(rank)
    clocks = [run.replies()[1, seq][0] for seq in seqs]
    launches, entry = 2 * hostcost.table().call_ns("cuLaunchKernel"), hostcost.table().compiled_entry
    assert clocks[0] > launches + entry
    step = clocks[1] - clocks[0]
    assert launches + entry < step < launches + 2 * entry


def test_measured_host_cost_comes_from_the_record(tmp_path: Path) -> None:
    run = Run(tmp_path, host_cost="measured")
    rank = alone(run)
    rank.write(Kind.HOST, host_ns=7_000, call="cudaGetDevice")
    seq = rank.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING, host_ns=3_000)
    run.batch(rank)
    assert run.replies()[1, seq] == (10_000, 0)
    assert run.summary()["host_cost"] == "measured"


def test_folding_keeps_the_time_at_which_graph_nodes_and_background_work_are_issued(lone: Run) -> None:
    rank = alone(lone)
    rank.write(Kind.HOST, call="cudaGetDevice")
    rank.write(Kind.GRAPH_LAUNCH, call="cudaGraphLaunch")  # 10 us
    rank.kernel(3_352_000, flags=FOREGROUND | IN_GRAPH)
    rank.kernel(3_352_000, flags=FOREGROUND | IN_GRAPH)
    seq = rank.write(Kind.SYNC_STREAM, flags=FOREGROUND | BLOCKING)
    lone.batch(rank)
    one = LAUNCH_GAP_NS + 3_000 + round(1_000_000 / 0.6 / 1_000)  # floor and bytes of the library family
    assert lone.replies()[1, seq] == (100 + 10_000 + 2 * one, 0)


def test_copies_cost_by_their_bytes(run: Run) -> None:
    rank = alone(run)
    sig = rank.signature("copy", "d2d", pinned=0)
    for size in (0, 33_554_432):
        rank.write(Kind.COPY, sig=sig, value=size, stream=5)
        seq = rank.write(Kind.SYNC_STREAM, flags=FOREGROUND | BLOCKING, stream=5)
        run.batch(rank)
    first, second = run.replies()[1, seq - 2][0], run.replies()[1, seq][0]
    assert first == pytest.approx(1_159 + LAUNCH_GAP_NS, abs=1)  # the least size that was measured
    assert second - first == pytest.approx(24_600 + 1_200 + LAUNCH_GAP_NS, rel=0.1)


def test_servers_of_other_gpus_go_at_their_own_speed(tmp_path: Path) -> None:
    groups = [
        {"servers": 1, "gpu": "h100-sxm", "gpu_memory_bytes": 80 << 30},
        {"servers": 1, "gpu": "a100-40gb-sxm", "gpu_memory_bytes": 40 << 30},
    ]
    run = Run(tmp_path, servers=2, ranks_per_server=1, server_groups=groups)
    ranks = [FakeRank(1), FakeRank(1)]
    seqs = []
    for number, rank in enumerate(ranks):
        run.join(1, number, 2, number)
        rank.kernel(1 << 30)
        seqs.append(rank.write(Kind.SYNC_STREAM, flags=FOREGROUND | BLOCKING))
    for number, rank in enumerate(ranks):
        run.batch(rank, number)
    took = [run.replies(number)[1, seq][0] for number, seq in enumerate(seqs)]
    ratio = gpu("h100-sxm").bandwidth_bytes_per_s / gpu("a100-40gb-sxm").bandwidth_bytes_per_s
    assert took[1] / took[0] == pytest.approx(ratio, rel=0.05)  # launches have a floor
    shown = run.simulation.snapshot(0.0)
    assert [device.memory_bytes >> 30 for device in shown.devices] == [80, 40]


def test_groups_make_up_all_servers() -> None:
    with pytest.raises(PlanError, match=r"core.server_groups: their servers are not 3"):
        plan(servers=3, server_groups=[{"servers": 2, "gpu": "h100-sxm"}])


def test_events_are_queried_and_timed_in_virtual_time(run: Run) -> None:
    rank = alone(run)
    rank.kernel(1 << 30)
    rank.write(Kind.EVENT_RECORD, value=1)
    query = rank.write(Kind.QUERY_EVENT, flags=FOREGROUND | BLOCKING, value=1)
    sync = rank.write(Kind.SYNC_EVENT, flags=FOREGROUND | BLOCKING, value=1)
    again = rank.write(Kind.QUERY_EVENT, flags=FOREGROUND | BLOCKING, value=1)
    time = rank.write(Kind.EVENT_TIME, flags=FOREGROUND | BLOCKING, value=1)
    run.batch(rank)
    replies = run.replies()
    assert (replies[1, query][1], replies[1, again][1]) == (0, 1)
    assert replies[1, time][1] == replies[1, sync][0]


def test_a_rank_that_sleeps_while_another_one_runs_goes_on_where_it_was(run: Run) -> None:
    """The other one may be what it sleeps for: when exactly it did is then no matter."""
    for session in (1, 2):
        run.join(session, session - 1, 2)
    busy, idle = FakeRank(1), FakeRank(2, device=1)
    idle.write(Kind.IDLE, flags=0)
    run.batch(idle)
    busy.write(Kind.SLEEP, value=5_000_000)
    busy.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING)
    run.batch(busy)
    idle.write(Kind.RESUME, flags=0)
    seq = idle.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING)
    run.batch(idle)
    assert run.replies()[2, seq] == (1_000, 0)
    assert run.summary()["engine"]["idle_jumps"] == 0


@pytest.mark.parametrize("optimistic", [False, True])
def test_watching_threads_do_not_wake_an_idle_rank_and_a_call_does(tmp_path: Path, optimistic: bool) -> None:
    run = Run(tmp_path, time_sync="optimistic" if optimistic else "conservative")
    ranks = pair(run)
    for rank in ranks:
        rank.collective("all_reduce", 7, 0, 1 << 20)
    ranks[1].write(Kind.IDLE, flags=0)
    ranks[1].write(Kind.HOST, flags=0, thread=3)
    watch = ranks[1].write(Kind.CLOCK, flags=BLOCKING, thread=3)
    run.batch(ranks[1])
    sync = ranks[0].sync()
    run.batch(ranks[0])
    begin, end = run.replies()[2, watch][0], run.replies()[1, sync][0]
    assert end > begin
    seq = ranks[1].write(Kind.CLOCK, flags=FOREGROUND | BLOCKING)  # its RESUME was overtaken by the IDLE
    run.batch(ranks[1])
    assert run.replies()[2, seq][0] == end + 1_000
    assert run.summary()["engine"]["idle_jump_ns"] == end - begin


def test_counts_of_what_is_not_modelled_or_known_reach_the_summary(run: Run) -> None:
    rank = alone(run)
    name = rank.signature("unmodelled", "cusparse:cusparseSpMM")
    rank.write(Kind.UNMODELLED, sig=name, value=1)
    rank.write(Kind.UNMODELLED, sig=name, value=5)
    op = rank.signature("op", "aten::item")
    rank.write(Kind.UNKNOWN_READ, sig=rank.signature("read", "copy", op=op), value=4)
    rank.write(Kind.HOST, sig=rank.signature("mark", "tokens", value=64))
    rank.mark()
    run.batch(rank)
    summary = run.summary()
    assert summary["unmodelled"] == [{"name": "cusparse:cusparseSpMM", "count": 5}]
    assert summary["unknown_reads"] == [
        {"site": "copy (aten::item)", "default": None, "bulk": False, "count": 1, "bytes": 4}
    ]
    assert summary["step_counts"] == {"0": 1}


@pytest.mark.parametrize(
    ("default", "size_bytes", "state"),
    [
        (Origin.NOTHING, 8, "Failed"),  # a size or a count, perhaps
        (Origin.LOSS, 4, "Succeeded"),
        (Origin.NOTHING, BULK_BYTES + 1, "Succeeded"),  # a checkpoint
    ],
)
def test_a_strict_run_fails_on_reads_that_have_no_default(
    tmp_path: Path, default: Origin, size_bytes: int, state: str
) -> None:
    run = Run(tmp_path, strict=True)
    rank = alone(run)
    rank.write(Kind.UNKNOWN_READ, sig=rank.signature("read", "copy", default=int(default)), value=size_bytes)
    rank.mark()
    run.batch(rank)
    summary = run.summary()
    assert summary["state"] == state
    if state == "Failed":
        assert summary["reason"] == "1 reads of values that were never computed and have no default, most by copy"


def test_an_unknown_share_over_the_limit_fails_a_strict_run(tmp_path: Path) -> None:
    run = Run(tmp_path, strict=True, unknown_limit=0.1)
    rank = alone(run)
    rank.write(Kind.KERNEL, sig=rank.signature("library", "who:knows", bytes=0, flops=0))
    run.batch(rank)
    summary = run.summary()
    assert (summary["state"], summary["cost_share"]) == ("Failed", {"unknown": 1.0})
    assert "100% of the device time has no known cost (limit 10%)" in summary["reason"]


def test_work_that_takes_no_time_is_counted_and_fails_a_strict_run(tmp_path: Path) -> None:
    """Every kind of device work has a cost; one that the core does not know would be free, so it is said."""
    run = Run(tmp_path, strict=True, unknown_limit=1.0)
    rank = alone(run)
    rank.write(Kind.KERNEL, sig=rank.signature("kernel", "known", gx=1, bx=1))
    rank.write(Kind.KERNEL, sig=rank.signature("mystery", "free"))
    rank.write(Kind.KERNEL, sig=rank.signature("mystery", "free"))
    run.batch(rank)
    summary = run.summary()
    assert summary["coverage"]["free"] == {"mystery free": 2}
    assert (summary["state"], summary["cause"]) == ("Failed", "StrictCost")
    assert summary["reason"] == "2 operations took no time: mystery free"


def test_too_many_signatures_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eidolon_simcore.run.validation.MAX_SIGNATURES", 10)
    rank = alone(run)
    for i in range(11):
        rank.signature("op", f"op{i}")
    with pytest.raises(RejectedError, match="more than 10 signatures"):
        run.batch(rank)


# ---- collectives ---------------------------------------------------------------------------------------------------


def pair(run: Run) -> list[FakeRank]:
    ranks = [FakeRank(1), FakeRank(2, device=1)]
    for i, rank in enumerate(ranks):
        run.join(rank.session, i, 2)
        rank.comm(7, i, 2)
        run.batch(rank)
    return ranks


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


# ---- determinism ---------------------------------------------------------------------------------------------------


def script(rank_number: int, world: int, rng: random.Random) -> list[Any]:
    """Batches of one rank of a data-parallel job over two servers; the same for every run."""
    rank = FakeRank(rank_number % 2 + 1, device=rank_number % 2)
    rank.comm(7, rank_number, world)
    out = [rank.batch()]
    for step in range(4):
        for _ in range(rng.randrange(1, 30)):
            rank.kernel(rng.randrange(1 << 22))
        rank.write(Kind.MEMORY, value=(10 + step) << 30)
        rank.kernel(flags=FOREGROUND | AUTOGRAD)
        small = np.full(4, rank_number, "<f4").tobytes()
        rank.collective("all_reduce", 7, 2 * step, 4, stream=2, payload=small)
        if rng.random() < 0.5:
            out.append(rank.batch())
        rank.collective("all_gather", 7, 2 * step + 1, 1 << 22, stream=2)
        rank.write(Kind.EVENT_RECORD, stream=2, value=step + 1)
        rank.write(Kind.QUERY_EVENT, flags=FOREGROUND | BLOCKING, value=step + 1)
        rank.write(Kind.SYNC_EVENT, flags=FOREGROUND | BLOCKING, value=step + 1)
        rank.mark()
        out.append(rank.batch())
    return out


def play(out: Path, seed: int, time_sync: str) -> tuple[dict[str, Any], list[Any], list[Any]]:
    run = Run(out, servers=2, time_sync=time_sync)
    world = 4
    order = random.Random(seed)
    scripts = {rank: script(rank, world, random.Random(100 + rank)) for rank in range(world)}
    for rank in order.sample(range(world), world):
        run.join(rank % 2 + 1, rank, world, rank // 2)
    for rank in order.sample(range(world), world):  # communicators first: making them blocks
        run.send(rank // 2, batch=scripts[rank].pop(0))
    while any(scripts.values()):
        rank = order.choice([rank for rank in scripts if scripts[rank]])
        run.send(rank // 2, batch=scripts[rank].pop(0))
        if order.random() < 0.6:
            run.simulation.advance(0.0)
    run.simulation.advance(0.0)
    replies = [sorted(run.replies(server).items()) for server in (0, 1)]
    payloads = [sorted(run.payloads(server).items()) for server in (0, 1)]
    summary = run.summary()
    assert summary["state"] == "Succeeded", summary["reason"]
    counters = summary.pop("engine")  # others tell how it went, which is no part of the timeline
    summary["engine"] = {name: counters[name] for name in ("operations", "spans", "collectives", "flows", "idle_jumps")}
    return summary, replies, payloads


def test_the_order_of_messages_of_different_servers_changes_nothing(tmp_path: Path) -> None:
    first = play(tmp_path / "0", 0, "conservative")
    assert [s["index"] for s in first[0]["steps"]] == [1, 2, 3, 4]
    assert len(first[2][0]) == 8
    for seed in range(1, 12):
        assert play(tmp_path / str(seed), seed, "conservative") == first
        summary, _, payloads = play(tmp_path / f"optimistic{seed}", seed, "optimistic")
        assert (summary, payloads) == (first[0], first[2])  # answers are provisional, the timeline is the same
