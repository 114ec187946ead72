"""Host times: what calls cost, and what a thread did before them."""

from __future__ import annotations

from pathlib import Path

from fakes import BLOCKING, FOREGROUND
from simulated_run import Run, alone

from eidolon_simcore.costs import hostcost
from eidolon_simcore.vocabulary import Kind


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
