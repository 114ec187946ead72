"""torch.distributed under stock PyTorch: small payloads arrive, reduced, in stream order."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from e2e.runs import Result, Run

TORCH_214 = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eidolon/torch214/bin/python"
SCRIPT = "e2e/local/workloads/distributed.py"
CHECKS = (
    *("all_reduce", "one_number", "arithmetic", "unknown_on_its_way", "coalesced"),
    *("receive_then_send", "movement", "all_to_all", "point_to_point"),
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
def test_the_other_supported_torch_does_the_same(run: Run) -> None:
    if not TORCH_214.is_file():
        pytest.skip("no second torch (make setup-torch214)")
    launch = [str(TORCH_214), "-m", "torch.distributed.run", "--nproc-per-node", "2", SCRIPT]
    result = run("--gpus-per-server", "2", "--", *launch, timeout_s=900)
    assert result.code == 0, result.all_output
    for check in CHECKS:
        assert result.out.count(f"{check} is right") == 2, result.all_output


def test_two_ranks_on_one_device_get_the_error_of_nccl(run: Run) -> None:
    result = run("--gpus-per-server", "2", "--", "torchrun", "e2e/local/workloads/duplicate_device.py")
    assert result.code == 0, result.all_output
    for rank in range(2):
        line = next(line for line in result.out.splitlines() if f"rank {rank} caught: " in line)
        assert "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9" in line
        assert f"Duplicate GPU detected : rank {rank} and rank {1 - rank} both on CUDA device 10000" in line


@pytest.mark.parametrize("gpus", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_kernels_of_symmetric_memory_wait_for_their_peers_and_reduce(run: Run, gpus: int) -> None:
    script = "e2e/local/workloads/symmetric.py"
    result = run("--gpu", "h200-sxm", "--gpus-per-server", str(gpus), "--", "torchrun", script)
    assert result.code == 0, result.all_output
    checks = ("memory", "rank", "one_shot", "two_shot", "peer", "barrier", "times", "fused")
    for rank in range(gpus):
        for check in checks:
            assert f"rank {rank}: {check} is right" in result.out, result.all_output


STRAGGLER = "e2e/local/workloads/straggler.py"


def test_a_rank_that_comes_before_the_timeout_is_waited_for(run: Run) -> None:
    result = run("--gpus-per-server", "2", "--", "torchrun", STRAGGLER, "reduce", "20")
    assert result.code == 0, result.all_output
    for rank in range(2):
        assert f"rank {rank} is through" in result.out


@pytest.mark.parametrize(
    ("call", "seconds", "ended"),
    [
        ("reduce", "60", 0),
        pytest.param("barrier", "60", 0, marks=pytest.mark.slow),
        pytest.param("leave", "0", 0, marks=pytest.mark.slow),
        pytest.param("group", "0", 1, marks=pytest.mark.slow),
    ],
)
def test_a_rank_whose_peer_stays_away_is_ended_by_torchs_watchdog(
    run: Run, call: str, seconds: str, ended: int
) -> None:
    result = run("--gpus-per-server", "2", "--", "torchrun", STRAGGLER, call, seconds)
    assert_the_watchdog_ended(ended, result)


@pytest.mark.slow
def test_the_other_supported_torch_ends_it_too(run: Run) -> None:
    if not TORCH_214.is_file():
        pytest.skip("no second torch (make setup-torch214)")
    launch = [str(TORCH_214), "-m", "torch.distributed.run", "--nproc-per-node", "2", STRAGGLER]
    assert_the_watchdog_ended(0, run("--gpus-per-server", "2", "--", *launch, "reduce", "60"))


def assert_the_watchdog_ended(ended: int, result: Result) -> None:
    assert result.code != 0
    message = rf"Rank {ended}\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=2, OpType=ALLREDUCE, "
    found = re.search(message + r".*Timeout\(ms\)=30000\) ran for (\d+) milliseconds", result.all_output)
    assert found is not None, result.all_output
    assert 30_000 <= int(found[1]) < 40_000  # and what the rank did in real time while it made the call
    assert f"rank {ended} is through" not in result.out
    assert f"rank {ended} was ended by torch's NCCL watchdog: it waits in all_reduce" in result.all_output


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("other-call", r"call 1: rank (0|1) calls \w+\(count 8.*, rank (1|0) calls \w+\(count 8, float32"),
        ("no-call", r"rank 1 is missing in all_reduce, call 1 of .*, which rank 0 reached 2 s of virtual time ago"),
    ],
)
def test_a_hang_of_real_ranks_ends_with_calls_and_ranks_named(run: Run, tmp_path: Path, what: str, words: str) -> None:
    spec = {
        "apiVersion": "eidolon.dev/v1alpha1",
        "kind": "SimulatedCluster",
        "metadata": {"name": what},
        "spec": {
            "servers": 1,
            "gpusPerServer": 2,
            "gpu": {"model": "h100-sxm"},
            "network": {"nccl": {"missingAfterVirtual": "2s"}},
            "workload": {"launcher": "torchrun", "command": ["e2e/local/workloads/disagreeing.py"], "args": [what]},
        },
    }
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    result = run(str(file))
    assert result.code != 0
    assert re.search(words, result.summary["reason"]), result.all_output
    assert result.summary["reason"] in result.err
