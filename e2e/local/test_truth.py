"""The reference scripts of `bench/truth`, unchanged, held against what real H100s answered.

`make e2e` runs the fast ones; `make e2e-full` all of them (marker `slow`).
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from e2e.runs import REPOSITORY, Result, Run

TRUTH = REPOSITORY / "bench" / "truth"
LINES = [json.loads(text) for text in (TRUTH / "h100.jsonl").read_text().splitlines()]
#: These build 10.4 GiB of weights on each rank's host, more than a small machine holds for several ranks.
TOO_LARGE = [line for line in LINES if "llama8b8l" in line["args"] and line["world"] > 1]


def train(run: Run, arguments: str, world: int, *options: str, limit_s: float = 900) -> Result:
    script = [str(TRUTH / "train.py"), *shlex.split(arguments)]
    launch = ["torchrun", "--nproc-per-node", str(world), *script] if world > 1 else ["python", *script]
    return run("--gpus-per-server", str(world), *options, "--", *launch, timeout_s=limit_s)


def printed(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.all_output
    (line,) = (text for text in result.out.splitlines() if text.startswith("RESULT "))
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


FAST = ("--model gpt2", "--model resnet50")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=f"{line['args']} x{line['world']}", marks=() if fast else pytest.mark.slow)
        for line in LINES
        if line not in TOO_LARGE
        for fast in [line["world"] <= 2 and line["args"].startswith(FAST)]
    ],
)
def test_the_allocators_peaks_are_those_of_the_real_gpu(run: Run, line: dict[str, Any]) -> None:
    got = printed(train(run, line["args"], line["world"]))
    assert got["peak_alloc_mib"] == pytest.approx(line["peak_alloc_mib"], rel=0.005)
    assert got["peak_reserved_mib"] == pytest.approx(line["peak_reserved_mib"], rel=0.03)
    assert got["step_ms_median"] > 0


def test_out_of_memory_inside_a_training_script(run: Run) -> None:
    result = train(run, "--model llama1b --batch 2 --seq 2048", 1, "--gpu-memory", "8GiB")
    assert result.code == 1, result.all_output
    assert "torch.OutOfMemoryError" in result.err
    oom = result.summary["oom"][-1]
    assert oom["step"] >= 1
    assert (oom["server"], oom["device"], oom["capacity_bytes"]) == (0, 0, 8 << 30)
    assert 0 < oom["allocated_bytes"] <= 8 << 30


@pytest.mark.slow
def test_the_same_command_twice_gives_the_same_milliseconds(run: Run) -> None:
    first, second = (
        printed(train(run, "--model gpt2 --batch 8 --seq 1024 --mode amp --parallel ddp", 2)) for _ in "ab"
    )
    assert first["step_ms_median"] == pytest.approx(second["step_ms_median"], rel=0.001)


def test_torchtitan_trains_and_its_steps_are_counted(run: Run) -> None:
    steps = 4
    result = run(
        *("--gpus-per-server", "2", "--", "torchrun", "--nproc-per-node", "2", "-m", "torchtitan.train"),
        *("--metrics.log_freq", "1", "--training.steps", str(steps), "--model.name", "llama3"),
        *("--model.flavor", "debugmodel", "--training.local_batch_size", "8", "--training.seq_len", "2048"),
        cwd=TRUTH / "frameworks" / "titan",
    )
    assert result.code == 0, result.all_output
    for step in range(1, steps + 1):
        assert f"step: {step:>2}" in result.out + result.err
    assert len(result.summary["steps"]) == steps
