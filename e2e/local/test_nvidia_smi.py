"""``nvidia-smi`` in a workload is Eidolon's own: it shows the emulated GPUs, and the memory that is in use on them."""

from __future__ import annotations

from e2e.runs import Run

QUERY = "nvidia-smi --query-gpu=name,memory.used --format=csv,noheader,nounits"
BESIDE = f"""
import subprocess, torch
block = torch.empty(3 << 30, dtype=torch.uint8, device="cuda:1")
print(subprocess.run({QUERY.split()!r}, capture_output=True, text=True, check=True).stdout)
"""


def test_a_workload_without_cuda_sees_idle_gpus(run: Run) -> None:
    result = run("--gpus-per-server", "2", "--", "bash", "-c", f"nvidia-smi && {QUERY}")
    assert "| NVIDIA-SMI" in result.out, result.all_output
    assert "nothing was simulated" in result.err  # so the run counts as failed
    assert result.out.splitlines()[-2:] == ["NVIDIA H100 80GB HBM3, 0", "NVIDIA H100 80GB HBM3, 0"]


def test_beside_a_process_that_uses_them_it_shows_their_memory(run: Run) -> None:
    result = run("--gpus-per-server", "2", "--", "python", "-c", BESIDE)
    assert result.code == 0, result.all_output
    used = [int(line.rpartition(", ")[2]) for line in result.out.splitlines() if line.startswith("NVIDIA H100")]
    assert len(used) == 2
    assert used[0] < 1024
    assert 3072 < used[1] < 4096  # the block and the context
