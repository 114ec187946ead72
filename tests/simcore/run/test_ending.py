"""The judgement at the end: what fails a strict run."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_run import Run, alone

from eidolon_simcore.ledger.unknown_reads import BULK_BYTES, Origin
from eidolon_simcore.vocabulary import Kind


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


def test_the_start_up_does_not_fail_a_strict_run_and_all_shares_are_of_the_steps(tmp_path: Path) -> None:
    run = Run(tmp_path, strict=True, unknown_limit=0.1)
    rank = alone(run)
    unknown = rank.signature("library", "who:knows", bytes=0, flops=0)
    known = rank.signature("kernel", "void at::native::vectorized_elementwise_kernel<4>", gx=1, bx=1)
    rank.write(Kind.KERNEL, sig=unknown)
    for _ in range(3):
        rank.mark()
        rank.write(Kind.KERNEL, sig=known)
    run.batch(rank)
    snapshot = run.simulation.views.snapshot(0.0)
    summary = run.summary()
    assert summary["state"] == "Succeeded", summary["reason"]
    assert summary["startup_cost_share"] == {"unknown": 1.0}
    assert "unknown" not in summary["cost_share"]
    (family,) = summary["coverage"]["families"].values()
    assert set(family) == set(summary["cost_share"]) == {source for source, ns in snapshot.source_ns.items() if ns}
    assert sum(family.values()) == sum(snapshot.source_ns.values())
    assert snapshot.startup_source_ns["unknown"] > 0


def test_work_that_takes_no_time_is_counted_and_fails_a_strict_run(tmp_path: Path) -> None:
    """Every kind of device work has a cost; one that the core does not know would be free, so it is said."""
    run = Run(tmp_path, strict=True, unknown_limit=1.0)
    rank = alone(run)
    rank.write(Kind.KERNEL, sig=rank.signature("kernel", "known", gx=1, bx=1))
    rank.write(Kind.KERNEL, sig=rank.signature("memory", "free"))
    rank.write(Kind.KERNEL, sig=rank.signature("memory", "free"))
    run.batch(rank)
    summary = run.summary()
    assert summary["coverage"]["free"] == {"memory free": 2}
    assert (summary["state"], summary["cause"]) == ("Failed", "StrictCost")
    assert summary["reason"] == "2 operations took no time: memory free"
