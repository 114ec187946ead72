"""torch.distributed under stock PyTorch: small payloads arrive, reduced, in stream order."""

from __future__ import annotations

import pytest

from e2e.runs import Run

SCRIPT = "e2e/local/workloads/distributed.py"
CHECKS = ("all_reduce", "one_number", "movement", "all_to_all", "point_to_point", "objects", "groups")


@pytest.mark.parametrize(
    ("servers", "gpus"),
    [(1, 2), pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(1, 8, marks=pytest.mark.slow)],
)
def test_values_cross_between_ranks(run: Run, servers: int, gpus: int) -> None:
    result = run("--servers", str(servers), "--gpus-per-server", str(gpus), "--", "torchrun", SCRIPT)
    assert result.code == 0, result.all_output
    for rank in range(servers * gpus):
        for check in CHECKS:
            assert f"rank {rank}: {check} is right" in result.out, result.all_output
