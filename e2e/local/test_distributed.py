"""torch.distributed under stock PyTorch: small payloads arrive, reduced, in stream order."""

from __future__ import annotations

import pytest

from e2e.runs import Run

SCRIPT = "e2e/local/workloads/distributed.py"
CHECKS = (
    *("all_reduce", "one_number", "movement", "all_to_all", "point_to_point"),
    *("objects", "groups", "registered_memory"),
)


@pytest.mark.parametrize(
    ("servers", "gpus"),
    [(1, 2), pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(1, 8, marks=pytest.mark.slow)],
)
def test_values_cross_between_ranks(run: Run, servers: int, gpus: int) -> None:
    shape = ("--servers", str(servers), "--gpus-per-server", str(gpus))
    result = run(*shape, "--", "torchrun", SCRIPT, timeout_s=900)
    assert result.code == 0, result.all_output
    for rank in range(servers * gpus):
        for check in CHECKS:
            assert f"rank {rank}: {check} is right" in result.out, result.all_output


@pytest.mark.slow
@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_what_torch_checks_across_ranks_holds_and_a_difference_is_noticed(
    run: Run, monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", debug)
    script = "e2e/local/workloads/consistency.py"
    result = run("--gpus-per-server", "2", "--", "torchrun", script, timeout_s=900)
    assert result.code == 0, result.all_output
    checks = ["ddp_agrees", "ddp_notices", "fsdp_agrees", *(["detail_notices"] if debug == "DETAIL" else [])]
    for rank in range(2):
        for check in checks:
            assert f"rank {rank}: {check} is right" in result.out, result.all_output
