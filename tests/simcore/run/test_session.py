"""What the records of one rank become: streams, costs, events, sleep, counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import BLOCKING, FOREGROUND, IN_GRAPH, FakeRank, plan
from simulated_run import Run, alone, pair

from eidolon_simcore.catalogue import gpu
from eidolon_simcore.core_plan import PlanError
from eidolon_simcore.costs.model import LAUNCH_GAP_NS
from eidolon_simcore.run.server import RejectedError
from eidolon_simcore.vocabulary import Kind


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
    for _ in range(3):  # the shim sends one record for each call
        rank.write(Kind.UNMODELLED, sig=name, value=1)
    op = rank.signature("op", "aten::item")
    rank.write(Kind.UNKNOWN_READ, sig=rank.signature("read", "copy", op=op), value=4)
    rank.write(Kind.HOST, sig=rank.signature("mark", "tokens", value=64))
    rank.mark()
    run.batch(rank)
    summary = run.summary()
    assert summary["unmodelled"] == [{"name": "cusparse:cusparseSpMM", "count": 3}]
    assert summary["unknown_reads"] == [
        {"site": "copy (aten::item)", "default": None, "bulk": False, "count": 1, "bytes": 4}
    ]
    assert summary["step_counts"] == {"0": 1}


def test_too_many_signatures_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eidolon_simcore.run.validation.MAX_SIGNATURES", 10)
    rank = alone(run)
    for i in range(11):
        rank.signature("op", f"op{i}")
    with pytest.raises(RejectedError, match="more than 10 signatures"):
        run.batch(rank)
