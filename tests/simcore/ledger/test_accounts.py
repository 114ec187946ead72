"""Where the time of a step goes: the ledger against hand-made spans, then through a whole simulation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import AUTOGRAD, FOREGROUND, FakeRank
from simulated_run import Run

from eidolon_simcore.catalogue import gpu
from eidolon_simcore.costs.model import Signature
from eidolon_simcore.costs.work import Work, per_byte, per_launch
from eidolon_simcore.engine.interface import SPAN, Flow, Op
from eidolon_simcore.fabric.network import Link, Pattern, Port
from eidolon_simcore.ledger.accounts import SPLIT, Accounts, KindTotal, mfu
from eidolon_simcore.ledger.sinks import NO_DEVICE, CollectiveCall
from eidolon_simcore.ledger.steps import Cut, Step
from eidolon_simcore.vocabulary import Kind

LABELS = ["", "kernel a", "copy h2d", "collective all_reduce", "sync", "idle"]


class Wires:
    """A network of two links."""

    def links(self) -> list[Link]:
        return [Link(0, "nvlink out 0/0", "nvlink", 100), Link(1, "nvlink in 0/1", "nvlink", 200)]


def accounts() -> Accounts:
    made = Accounts(LABELS, LABELS.index("idle"), Wires())  # type: ignore[arg-type]
    for rank in (0, 1):
        for lane in (1, 2):
            made.lane(rank, lane, 0, rank)
    return made


def spans(*rows: tuple[int, int, str, int, int, int]) -> np.ndarray:
    """(seq, lane, label, start, end, issue) each; a label that names a collective is one."""
    out = np.zeros(len(rows), SPAN)
    for row, (seq, lane, label, start, end, issue) in zip(out, rows, strict=True):
        ops = {"collective all_reduce": Op.COLLECTIVE, "sync": Op.SYNC_LANE, "idle": Op.RESUME}
        row["seq"], row["lane"], row["label"], row["op"] = seq, lane, LABELS.index(label), ops.get(label, Op.WORK)
        row["start_ns"], row["end_ns"], row["issue_ns"] = start, end, issue
    return out


def step(index: int, end_ns: int, time_ns: int, **cuts: tuple[int, int]) -> Step:
    name = "startup" if index == 1 else "step"
    return Step(index, name, end_ns, time_ns, {}, {}, {int(rank[1:]): Cut(*cut) for rank, cut in cuts.items()})


def last(made: Accounts, row: int = 0) -> dict[str, int]:
    return {name: int(made.last.column(name)[row]) for name in (*SPLIT, "overlap", "wait", "window")}


def test_a_step_is_divided_without_rest() -> None:
    made = accounts()
    made.spans(
        0,
        spans(
            (1, 1, "kernel a", 10, 40, 10),  # the host was late: 10 ns
            (2, 2, "collective all_reduce", 30, 70, 15),  # 10 under the kernel, 30 alone
            (3, 1, "copy h2d", 60, 80, 20),  # 10 under the collective, 10 alone
            (4, 1, "kernel a", 90, 100, 85),  # 5 late, 5 it waited for something
        ),
    )
    made.mark(0, 5, Work())
    made.step(step(2, 100, 100, r0=(5, 100)))
    assert last(made) == {
        "window": 100,
        "compute": 40,
        "communication": 30,
        "copy": 10,
        "host": 15,
        "idle": 5,
        "overlap": 10,
        "wait": 0,
    }
    assert made.last.ports == (Port(0, 0),)


def test_spans_belong_to_the_step_in_which_they_were_issued_and_pieces_may_come_in_any_order() -> None:
    made = accounts()
    made.spans(0, spans((1, 1, "kernel a", 0, 30, 0)))
    made.mark(0, 4, Work())
    made.spans(0, spans((6, 1, "kernel a", 80, 90, 70)))  # of the next step, but known before the first is cut
    made.spans(0, spans((2, 2, "copy h2d", 10, 50, 0), (3, 1, "kernel a", 30, 40, 0)))
    made.spans(0, spans((5, 2, "copy h2d", 50, 65, 45)))
    made.mark(0, 7, Work())
    made.step(step(2, 60, 60, r0=(4, 60)))
    assert (last(made)["compute"], last(made)["copy"], last(made)["window"]) == (40, 10, 60)
    made.step(step(3, 90, 30, r0=(7, 90)))
    # the part of the copy that lies before this step is not counted
    assert (last(made)["compute"], last(made)["copy"], last(made)["host"], last(made)["idle"]) == (10, 5, 5, 10)
    assert int(made.total.column("window")[0]) == 90


def test_the_straggler_of_a_collective_has_no_wait_and_its_time_is_from_the_last_to_come() -> None:
    made = accounts()
    pattern = Pattern(0, (Flow((0, 1), 64),), 1)
    made.collective(CollectiveCall(9, "all_reduce", 100, "c", 0, (0, 1), (1, 1), pattern))
    made.spans(0, spans((1, 2, "collective all_reduce", 10, 60, 10)))
    made.spans(1, spans((1, 2, "collective all_reduce", 40, 60, 40)))
    for rank in (0, 1):
        made.mark(rank, 2, Work(flops=5.0))
    made.step(step(2, 60, 60, r0=(2, 60), r1=(2, 60)))
    assert [last(made, row)["wait"] for row in (0, 1)] == [30, 0]
    assert dict(made.last.kinds) == {"all_reduce": KindTotal(count=1, bytes=100, bus_bytes=100, ns=20)}
    assert made.last.link_bytes.tolist() == [64, 64]
    assert made.last.working("flops").tolist() == [5.0, 5.0]


def four_ranks() -> Accounts:
    """Two servers of two devices each; a rank has the number of its device only on the first."""
    made = Accounts(LABELS, LABELS.index("idle"), Wires())  # type: ignore[arg-type]
    for rank in range(4):
        for lane in (1, 2):
            made.lane(rank, lane, rank // 2, rank % 2)
    return made


def all_together(made: Accounts, index: int, end_ns: int, *ranks: int) -> None:
    """A step in which each of these ranks computes for 10 ns and one unit of work."""
    for rank in ranks:
        made.spans(rank, spans((2 * index, 1, "kernel a", end_ns - 10, end_ns, end_ns - 10)))
        made.mark(rank, 2 * index + 1, Work(flops=1.0))
    made.step(step(index, end_ns, 20, **{f"r{rank}": (2 * index + 1, end_ns) for rank in ranks}))


@pytest.mark.parametrize(
    ("op", "bus_bytes"),
    [("all_reduce", 150), ("all_gather", 75), ("reduce_scatter", 75), ("all_to_all", 75), ("broadcast", 100)],
)
def test_bus_bytes_of_four_ranks_are_those_of_nccl_tests(op: str, bus_bytes: int) -> None:
    made = four_ranks()
    made.collective(CollectiveCall(9, op, 100, "c", 0, (0, 1, 2, 3), (4,) * 4, Pattern(0, (), 1)))
    for rank in range(4):
        made.spans(rank, spans((4, 2, "collective all_reduce", 30, 40, 30)))
        made.mark(rank, 5, Work())
    made.step(step(2, 40, 20, **{f"r{rank}": (5, 40) for rank in range(4)}))
    assert dict(made.last.kinds) == {op: KindTotal(count=1, bytes=100, bus_bytes=bus_bytes, ns=10)}


def test_the_summary_has_collectives_links_and_ranks() -> None:
    """Two flows of one collective cross each link, and one of the other collective crosses the second. The hosts were
    late by 20 ns.
    """
    made = four_ranks()
    calls = {"all_reduce": (Flow((0, 1), 5), Flow((1,), 7), Flow((0,), 7)), "all_gather": (Flow((1,), 11),)}
    for number, (op, flows) in enumerate(calls.items()):
        seqs = (4 + number,) * 4
        made.collective(CollectiveCall(9 + number, op, 100, "c", 0, (0, 1, 2, 3), seqs, Pattern(number, flows, 1)))
    for rank in range(4):
        made.spans(
            rank, spans((4, 2, "collective all_reduce", 20, 30, 20), (5, 2, "collective all_reduce", 30, 40, 20))
        )
        made.mark(rank, 6, Work())
    made.step(step(2, 40, 20, **{f"r{rank}": (6, 40) for rank in range(4)}))
    found = made.summary()
    assert found["collectives"] == [
        {"op": "all_gather", "count": 1, "bytes": 100, "bus_bytes": 75, "ns": 10},
        {"op": "all_reduce", "count": 1, "bytes": 100, "bus_bytes": 150, "ns": 10},
    ]
    assert found["links"] == [  # the fullest first
        {"name": "nvlink out 0/0", "tier": "nvlink", "bytes_per_s": 100, "bytes": 12},
        {"name": "nvlink in 0/1", "tier": "nvlink", "bytes_per_s": 200, "bytes": 23},
    ]
    nothing = dict.fromkeys(("compute_ns", "copy_ns", "idle_ns", "overlap_ns", "wait_ns"), 0)
    assert found["ranks_split"] == [
        {"rank": rank, "server": rank // 2, "device": rank % 2, "communication_ns": 20, "host_ns": 20, **nothing}
        for rank in range(4)
    ]


def test_totals_are_by_rank_also_where_not_all_take_part_in_a_step() -> None:
    made = four_ranks()
    for index, ranks in ((2, (0, 1)), (3, (1, 2, 3)), (4, (0, 3)), (5, (0, 3))):
        all_together(made, index, 20 * index, *ranks)
    total = made.total
    computed = dict(zip(total.ranks, total.column("compute").tolist(), strict=True))
    worked = dict(zip(total.ranks, total.working("flops").tolist(), strict=True))
    assert computed == {0: 30, 1: 20, 2: 10, 3: 30}
    assert worked == {0: 3.0, 1: 2.0, 2: 1.0, 3: 3.0}
    assert dict(zip(total.ranks, total.ports, strict=True)) == {rank: Port(rank // 2, rank % 2) for rank in range(4)}


def test_totals_of_steps_in_which_the_same_take_part() -> None:
    made = four_ranks()
    pattern = Pattern(0, (Flow((0, 1), 64),), 1)
    for index in (2, 3, 4):
        seqs = (2 * index,) * 2
        made.collective(CollectiveCall(index, "all_reduce", 100, "c", 0, (0, 1), seqs, pattern))
        for rank in (0, 1):
            start = 20 * index - 15
            made.spans(rank, spans((2 * index, 2, "collective all_reduce", start, start + 5, start)))
            made.mark(rank, 2 * index + 1, Work(flops=1.0))
        made.step(step(index, 20 * index, 20, r0=(2 * index + 1, 20 * index), r1=(2 * index + 1, 20 * index)))
    assert made.total.column("communication").tolist() == [15, 15]
    assert made.total.working("flops").tolist() == [3.0, 3.0]
    assert made.total.link_bytes.tolist() == [3 * 64, 3 * 64]
    assert dict(made.total.kinds) == {"all_reduce": KindTotal(count=3, bytes=300, bus_bytes=300, ns=15)}


def test_the_share_of_the_peak_is_that_of_all_devices_together() -> None:
    h100 = gpu("h100-sxm")
    one_ms = h100.peak_flops("bf16") / 1e3
    assert mfu(one_ms, 1_000_000, [(h100, 1)]) == pytest.approx(1.0, rel=1e-12)
    assert mfu(one_ms, 2_000_000, [(h100, 2)]) == pytest.approx(0.25, rel=1e-12)
    assert mfu(one_ms, 1, [(h100, 1)]) == pytest.approx(1e6, rel=1e-12)
    assert mfu(one_ms, 0, [(h100, 1)]) is None


def test_startup_counts_as_a_step_but_not_into_totals() -> None:
    made = accounts()
    for index, end in ((1, 50), (2, 70)):
        made.spans(0, spans((2 * index, 1, "kernel a", end - 10, end, end - 10)))
        made.mark(0, 2 * index + 1, Work(flops=1.0))
        made.step(step(index, end, 20, r0=(2 * index + 1, end)))
    assert int(made.total.column("compute").sum()) == 10
    assert float(made.total.working("flops").sum()) == 1.0


def test_host_waits_are_counted_by_label_and_communicators_are_no_device() -> None:
    made = accounts()
    made.lane(0, 7, 0, NO_DEVICE)
    made.spans(0, spans((1, 0, "sync", 0, 30, 0), (2, 0, "idle", 30, 35, 30), (3, 0, "sync", 35, 36, 35)))
    made.spans(0, spans((4, 7, "collective all_reduce", 0, 30, 0)))
    assert made.waits() == {LABELS.index("sync"): (2, 31), LABELS.index("idle"): (1, 5)}
    made.mark(0, 5, Work())
    made.step(step(2, 40, 40, r0=(5, 40)))
    assert last(made)["communication"] == 0


def test_a_rank_that_never_marks_keeps_a_bounded_number_of_intervals() -> None:
    made = accounts()
    n = 200_000
    rows = np.zeros(n, SPAN)
    rows["seq"], rows["lane"], rows["label"], rows["op"] = np.arange(n), 1, 1, Op.WORK
    rows["start_ns"] = rows["issue_ns"] = np.arange(n) * 10
    rows["end_ns"] = rows["start_ns"] + 4
    made.spans(0, rows)
    assert made._ledger.live_intervals() <= 1 << 16
    made.mark(0, n, Work())
    made.step(step(2, 10 * n, 10 * n, r0=(n, 10 * n)))
    assert (last(made)["compute"], last(made)["window"]) == (4 * n, 10 * n)
    assert last(made)["host"] + last(made)["idle"] == 6 * n


def test_touching_kernels_cost_one_interval() -> None:
    made = accounts()
    made.spans(0, spans(*((seq, 1, "kernel a", 10 * seq, 10 * seq + 10, 0) for seq in range(1000))))
    assert made._ledger.live_intervals() == 1


# ---- through a simulation --------------------------------------------------------------------------------------------


def training(run: Run, ranks: list[FakeRank], steps: int, slow: int | None = None) -> None:
    """Steps of a kernel and an all-reduce; ``slow``: this rank computes four times as much."""
    for i, rank in enumerate(ranks):
        run.join(rank.session, i, len(ranks))
        rank.comm(1, i, len(ranks))
        run.batch(rank)
    for number in range(steps):
        for i, rank in enumerate(ranks):
            rank.kernel(64 << 20 if i != slow else 256 << 20, flags=FOREGROUND | AUTOGRAD)
            rank.collective("all_reduce", 1, number, 1 << 20, stream=2)
            rank.sync()
            rank.mark()
            run.batch(rank)


def test_shares_of_a_run_add_up_and_stand_in_the_summary(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ranks = [FakeRank(1, 0), FakeRank(2, 1)]
    training(run, ranks, 4, slow=1)
    summary = run.summary()
    assert len(summary["steps"]) == 4
    for entry in summary["steps"][1:]:
        split = {name: ns for name, ns in entry["split"].items() if name != "overlap_ns"}
        assert sum(split.values()) == pytest.approx(entry["time_ns"], abs=2)
        assert entry["flops"] == 0
        assert entry["mfu"] == 0
    assert [entry["op"] for entry in summary["collectives"]] == ["all_reduce"]
    assert summary["collectives"][0]["count"] == 3
    assert summary["collectives"][0]["bytes"] == 3 * 4 << 20
    both = {row["rank"]: row for row in summary["ranks_split"]}
    assert both[0]["communication_ns"] >= 0
    assert both[1]["compute_ns"] > 3 * both[0]["compute_ns"]
    assert {link["tier"] for link in summary["links"]} == {"nvlink"}
    snapshot = run.simulation.snapshot(1.0)
    assert snapshot.progress.totals.steps == 3
    assert snapshot.progress.totals.time_ns == sum(entry["time_ns"] for entry in summary["steps"][1:])
    assert snapshot.progress.totals.tokens == 3_000
    assert sum(snapshot.progress.totals.buckets) == 3


def test_work_is_booked_on_the_step_in_which_it_was_issued(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.join(1, -1, -1)
    rank = FakeRank(1)
    gemm = rank.signature("gemm", "cublas", m=1024, n=512, k=256, batch=1, atype=14, ctype=14, computetype=68)
    copy = rank.signature("copy", "h2d", pinned=1)
    for count in (1, 2, 3):
        for _ in range(count):
            rank.write(Kind.KERNEL, call="cudaLaunchKernel", sig=gemm, flags=FOREGROUND | AUTOGRAD)
        rank.write(Kind.COPY, call="cudaMemcpyAsync", sig=copy, value=1000)
        rank.sync()
        rank.mark()
        if count == 2:
            run.batch(rank)  # a batch that ends with a mark, one that begins behind it
    run.batch(rank)
    flops = 2.0 * 1024 * 512 * 256
    steps = run.summary()["steps"]
    assert [entry["flops"] for entry in steps] == [flops, 2 * flops, 3 * flops]
    assert steps[2]["mfu"] == pytest.approx(3 * flops / (989.4e12 * steps[2]["time_ns"] / 1e9))
    assert run.simulation.accounts.last.working("to_device_bytes").tolist() == [1000.0]


@pytest.mark.parametrize(
    ("kind", "attributes", "expected"),
    [
        ("gemm", {"m": 10, "n": 20, "k": 30, "batch": 2, "atype": 14, "ctype": 14}, 2.0 * 2 * 10 * 20 * 30),
        ("attention", {"b": 1, "h": 2, "sq": 8, "skv": 8, "d": 4, "dtype": 9}, 2.0 * 2 * 8 * 8 * 8),
        ("attention", {"b": 1, "h": 2, "sq": 8, "skv": 8, "d": 4, "dtype": 9, "causal": 1}, 2.0 * 2 * 8 * 8 * 4),
        (
            "conv",
            {"n": 1, "c": 4, "h": 8, "w": 8, "k": 2, "r": 3, "s": 3, "oh": 8, "ow": 8, "dtype": 2},
            2.0 * 64 * 2 * 36,
        ),
        ("library", {"bytes": 100}, 0.0),
    ],
)
def test_arithmetic_of_signatures(kind: str, attributes: dict[str, int], expected: float) -> None:
    assert per_launch(Signature(kind, "forward", attributes), gpu("h100-sxm")).flops == expected


@pytest.mark.parametrize(
    ("name", "ways"), [("h2d", (1, 1, 0)), ("d2h", (1, 0, 1)), ("d2d", (2, 0, 0)), ("h2h", (0, 0, 0))]
)
def test_copies_say_which_way_they_go(name: str, ways: tuple[int, ...]) -> None:
    work: Any = per_byte(Signature("copy", name, {}))
    assert (work.memory_bytes, work.to_device_bytes, work.from_device_bytes) == ways


def test_energy_never_falls_where_later_steps_draw_less(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.join(1, -1, -1)
    rank = FakeRank(1)
    gemm = rank.signature("gemm", "cublas", m=8192, n=8192, k=8192, batch=1, atype=14, ctype=14, computetype=68)
    port, drawn, powers = Port(0, 0), [0.0], []
    for count in (20, 20, 20, 2, 0, 0):  # GEMMs; the rest of a step is bound by memory
        for _ in range(count):
            rank.write(Kind.KERNEL, call="cudaLaunchKernel", sig=gemm, flags=FOREGROUND | AUTOGRAD)
        for _ in range(5):
            rank.kernel(256 << 20, flags=FOREGROUND | AUTOGRAD)
        rank.sync()
        rank.mark()
        run.batch(rank)
        snapshot = run.simulation.snapshot(1.0)
        powers.append(snapshot.paces[port].power)
        drawn.append(snapshot.progress.energy_j.get(port, 0.0))
    assert powers[-1] < powers[2]  # a joule counter of the present power would have fallen
    assert all(before <= after for before, after in itertools.pairwise(drawn))
    watts = (drawn[-1] - drawn[-2]) / (run.simulation.steps[-2]["time_ns"] / 1e9)
    assert 0.12 * 700 < watts < 700
