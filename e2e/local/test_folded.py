"""`eidolon run --fold`: one process for each class of equal ranks, under stock PyTorch.

A folded run takes what the whole run takes, the job of 1,024 GPUs gets the values that it would get there, and what
does not fold is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.runs import Result, Run

DDP = ("torchrun", "examples/ddp.py", "--layers", "2", "--width", "128", "--batch", "2", "--sequence", "128")
SHARDED = ("torchrun", "e2e/local/workloads/sharded.py")
EVERYONE = "e2e/local/workloads/everyone.py"
CHECKS = ("sums", "gathers", "objects", "barriers", "subsets", "meshes", "hosts", "children")
FOUR = ("--servers", "2", "--gpus-per-server", "2")
LARGE = ("--servers", "128", "--gpus-per-server", "8", "--fold", "replica")
WARM = 2  # the first steps allocate


def settled_ns(result: Result) -> list[int]:
    """The times of the steps after the warm-up."""
    assert result.code == 0, result.all_output
    return [step["time_ns"] for step in result.summary["steps"][WARM:]]


def peaks(result: Result) -> dict[str, int]:
    """Peak memory by device."""
    found: dict[str, int] = result.summary["peak_bytes"]
    return found


def test_data_parallel_steps_take_what_they_take_unfolded_to_the_nanosecond(run: Run) -> None:
    folded, whole = run(*FOUR, "--fold", "replica", "--", *DDP, "--steps", "6"), run(*FOUR, "--", *DDP, "--steps", "6")
    assert settled_ns(folded) == settled_ns(whole)
    assert len(settled_ns(folded)) == 4
    assert peaks(folded) == {"0/0": peaks(whole)["0/0"]}
    assert len(set(peaks(whole).values())) == 1


@pytest.mark.parametrize(("parallel", "tp"), [("dp=4", "1"), pytest.param("dp=2,tp=2", "2", marks=pytest.mark.slow)])
def test_steps_of_a_sharded_model_take_what_they_take_unfolded(run: Run, parallel: str, tp: str) -> None:
    folded = run(*FOUR, "--fold", "replica", "--parallel", parallel, "--", *SHARDED, tp)
    whole = run(*FOUR, "--", *SHARDED, tp)
    assert settled_ns(folded) == pytest.approx(settled_ns(whole), rel=1e-3)
    assert whole.summary["ranks"] == 4
    assert folded.summary["ranks"] == int(tp)
    assert peaks(folded) == {device: peaks(whole)[device] for device in peaks(folded)}


def test_a_thousand_gpus_take_one_process(run: Run) -> None:
    small = ("--layers", "1", "--width", "64", "--batch", "1", "--sequence", "64", "--steps", "3")
    result = run(*LARGE, "--launcher", "plain", "--", "python", "examples/ddp.py", *small)
    assert result.code == 0, result.all_output
    assert "M parameters on 1024 x NVIDIA H100 80GB HBM3" in result.out
    assert "1 of 1,024 ranks ran on h100-sxm" in result.out
    assert "Folded: rank 0 stands for 1,024 ranks" in result.out
    assert result.summary["fold"] == {"world": 1024, "classes": [{"rank": 0, "ranks": 1024}]}


@pytest.mark.parametrize("bound", ["bound", "unbound"])
def test_values_of_a_thousand_ranks(run: Run, bound: str) -> None:
    """With bound devices torch splits communicators, without them it makes each anew."""
    result = run(*LARGE, "--keep", "7", "--", "torchrun", EVERYONE, bound)
    assert result.code == 0, result.all_output
    for rank in (0, 7):
        assert f"rank {rank}: place {rank} 1024 {rank} 8 0" in result.out
        for check in CHECKS:
            assert f"rank {rank}: {check} is right" in result.out, result.all_output
    # The rank that is kept allocates a GiB more; what the other allocates fits in a segment that it has anyway.
    assert set(peaks(result)) == {"0/0", "0/7"}
    assert peaks(result)["0/7"] - peaks(result)["0/0"] == 2**30
    assert "rank 0 stands for 1,023 ranks, rank 7 for itself" in result.out


def test_a_script_without_process_groups_runs(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import os, torch\n"
        "x = torch.ones(4, device=f\"cuda:{os.environ['LOCAL_RANK']}\")\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], (x + x).sum().item())\n"
    )
    result = run(*LARGE, "--keep", "1023", "--", "torchrun", str(script))
    assert result.code == 0, result.all_output
    assert "rank 0 of 1024 8.0" in result.out
    assert "rank 1023 of 1024 8.0" in result.out


def test_a_representative_that_dies_is_named(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal, torch, torch.distributed as dist\n"
        "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\n"
        "torch.cuda.set_device(device)\n"
        "dist.init_process_group('nccl', device_id=device)\n"
        "dist.all_reduce(torch.ones(4, device=device))\n"
        "torch.cuda.synchronize()\n"
        "if dist.get_rank() == 7:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.all_reduce(torch.ones(4, device=device))\n"
        "torch.cuda.synchronize()\n"
    )
    result = run(*LARGE, "--keep", "7", "--", "torchrun", str(script))
    assert result.code != 0
    assert "rank 7" in result.err.splitlines()[-1], result.all_output
    assert "SIGKILL" in result.err.splitlines()[-1], result.all_output


@pytest.mark.parametrize("bound", ["device_id=device", ""], ids=["bound", "unbound"])
def test_a_send_to_a_phantom_is_refused(run: Run, tmp_path: Path, bound: str) -> None:
    script = tmp_path / "sends.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\n"
        "torch.cuda.set_device(device)\n"
        f"dist.init_process_group('nccl', {bound})\n"
        "dist.send(torch.ones(4, device=device), 3)\n"
        "torch.cuda.synchronize()\n"
    )
    result = run(*FOUR, "--fold", "replica", "--", "torchrun", str(script))
    assert result.code != 0
    said = "rank 0 sends to rank 3, which is no process of this folded run; name the axis of this group in spec.fold"
    assert said in result.all_output


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        (
            ("--parallel", "dp=64,tp=8"),
            DDP,
            "spec.fold.parallel: dp 64 x tp 8 is 512 ranks; the run has 1,024 (128 servers x 8)",
        ),
        (("--keep", "1024"), DDP, "spec.fold.keep"),
        ((), ("torchrun", "--nproc-per-node", "8", *DDP[1:]), "--nproc-per-node of torchrun outdoes the fold"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    run: Run, options: tuple[str, ...], command: tuple[str, ...], said: str
) -> None:
    result = run(*LARGE, *options, "--", *command)
    assert result.code == 2, result.all_output
    assert said in result.err
    assert result.out == ""
    assert len(result.err.strip().splitlines()) == 1, result.err
