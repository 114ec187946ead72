"""The reference scripts of `bench/truth`, unchanged, held against what real H100s answered.

`make e2e` runs the fast ones; `make e2e-full` all of them (marker `slow`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

import pytest

from bench.truth_files import titan
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


def collectives(run: Run, script: str, world: int) -> dict[tuple[str, int], float]:
    """What a sweep prints: microseconds a call by operation and bytes."""
    launch = ["torchrun", "--nproc-per-node", str(world), str(TRUTH / script)]
    result = run("--gpus-per-server", str(world), "--", *launch, timeout_s=900)
    assert result.code == 0, result.all_output
    lines = [text.removeprefix("RESULT ") for text in result.out.splitlines() if text.startswith("RESULT ")]
    return by_size(map(json.loads, lines))


def by_size(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, int], float]:
    return {(op, row["bytes"]): us for row in rows for op, us in row.items() if op not in ("bytes", "world")}


def measured(name: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (TRUTH / name).read_text().splitlines()]


def errors(told: dict[tuple[str, int], float], truth: dict[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    return {key: abs(told[key] / us - 1) for key, us in truth.items()}


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_collectives_in_graphs_print_the_times_of_real_ones(
    run: Run, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    """The truth was measured without NVLS."""
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    truth = by_size(row for row in measured("h100_collectives_graph.jsonl") if row["world"] == world)
    off = errors(collectives(run, "coll_graph.py", world), truth)
    assert len(off) == 55
    assert sum(off.values()) / len(off) < 0.06, off
    assert max(off.values()) < 0.15, off


@pytest.mark.slow
def test_collectives_issued_from_the_host_print_the_times_of_real_ones(run: Run) -> None:
    """Two all-reduces of the truth are outliers, as its README says."""
    truth = by_size(measured("h100_x2_collectives.jsonl"))
    outliers = {("all_reduce", 1 << 20), ("all_reduce", 1 << 28)}
    off = errors(collectives(run, "coll.py", 2), {key: us for key, us in truth.items() if key not in outliers})
    assert len(off) == 64
    assert sum(off.values()) / len(off) < 0.10, off


def test_torchtitan_trains_and_its_steps_are_counted(run: Run) -> None:
    steps = 4
    result = run(
        *("--gpus-per-server", "2", "--", "torchrun", "--nproc-per-node", "2", "-m", "torchtitan.train"),
        *("--metrics.log_freq", "1", "--training.steps", str(steps), "--model.name", "llama3"),
        *("--model.flavor", "debugmodel", "--training.local_batch_size", "8", "--training.seq_len", "2048"),
        cwd=titan(),
    )
    assert result.code == 0, result.all_output
    for step in range(1, steps + 1):
        assert f"step: {step:>2}" in result.out + result.err
    assert len(result.summary["steps"]) == steps
