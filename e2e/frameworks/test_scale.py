"""Runs of many ranks and of published size: TorchTitan's FSDP2 on 8 and more GPUs. `-s` shows wall time and memory."""

from __future__ import annotations

import re

import pytest

from bench.truth_files import titan
from e2e.frameworks.conftest import Train
from e2e.frameworks.test_examples import plain
from e2e.runs import Result
from eidolon_operator.machine import machine_memory

pytestmark = pytest.mark.slow
RANK_BYTES = 380 << 20  #: private memory of a rank of TorchTitan's, 355 MiB, and its share of agent and launcher
LOG = re.compile(r"step: +(\d+) .*memory: +([\d.]+)GiB.* tps: +([\d,]+) .*mfu: +([\d.]+)%")


def torchtitan(train: Train, servers: int, gpus: int, options: str, *cluster: str, limit_s: float = 1200) -> Result:
    shape = ["--servers", str(servers), "--gpus-per-server", str(gpus), "--gpu", "h100-sxm", "--launcher", "torchrun"]
    command = f"-m torchtitan.train --metrics.log_freq=1 --model.name=llama3 {options}"
    return train(*shape, *cluster, "--", *command.split(), limit_s=limit_s, cwd=titan())


@pytest.mark.parametrize("servers", [4, 8, 16])
def test_a_debug_model_on_servers_of_eight(train: Train, servers: int) -> None:
    needed, there = servers * 8 * RANK_BYTES, machine_memory()
    if needed > there:
        pytest.skip(f"{servers * 8} ranks need {needed >> 30} GiB, this machine has {there >> 30}")
    options = "--model.flavor=debugmodel --training.steps=4 --training.seq_len=512 --training.local_batch_size=4"
    result = torchtitan(train, servers, 8, options)
    assert {int(step) for step, *_ in LOG.findall(plain(result))} == {1, 2, 3, 4}, result.all_output


def test_llama_3_8b_as_torchtitan_published_it(train: Train) -> None:
    """5,762 tokens per second and GPU, 82.4 GiB: TorchTitan of December 2024, on 8 H100 of 96 GB and two sequences."""
    options = "--model.flavor=8B --training.steps=6 --training.seq_len=8192 --training.local_batch_size=2"
    result = torchtitan(train, 1, 8, options, "--gpu-memory", "94GiB")
    *_, (step, gib, tps, mfu) = LOG.findall(plain(result))
    print(f"tokens per second and GPU: published 5762, here {tps}; GiB: published 82.4, here {gib}; MFU {mfu} %")
    assert step == "6"
    assert 70 < float(gib) < 94
