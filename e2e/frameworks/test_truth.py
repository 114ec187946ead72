"""The frameworks' runs on four real H100, with the same arguments: memory of every rank is equal, times stand beside.

The lines are those of `bench/truth/h100_x4_frameworks.jsonl`. Minutes each, and up to 40 GiB of the host: the models
of `ds.py` are built whole on each rank.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from e2e.frameworks.conftest import Train
from e2e.frameworks.test_examples import plain
from e2e.runs import REPOSITORY

pytestmark = pytest.mark.slow
TRUTH = REPOSITORY / "bench" / "truth"
LINES: list[dict[str, Any]] = [
    json.loads(line) for line in (TRUTH / "h100_x4_frameworks.jsonl").read_text().splitlines()
]
ALLOCATED, RESERVED = 0.001, 0.01  #: relative
LOG = re.compile(r"step: +(\d+) .*memory: +([\d.]+)GiB.* tps: +([\d,]+) ")


def named(line: dict[str, Any]) -> str:
    return f"{line.get('name') or line['script']} {line['args'] if 'name' not in line else ''}".strip()


def same(real: Any, here: Any, relative: float, what: str) -> None:
    real, here = (value if isinstance(value, list) else [value] for value in (real, here))
    worst = max(abs(one / other - 1) for one, other in zip(here, real, strict=True))
    print(f"{what}: real {real}, here {here}, at most {worst:.3%} off")
    assert worst <= relative, what


@pytest.mark.parametrize("line", [line for line in LINES if "name" in line], ids=named)
def test_torchtitan(train: Train, monkeypatch: pytest.MonkeyPatch, line: dict[str, Any]) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")  # as there
    # As TorchTitan's own run_train.sh starts it: the log is that of rank 0.
    command = f"torchrun --nproc-per-node {line['world']} --rdzv-backend c10d --rdzv-endpoint localhost:0"
    command += " --local-ranks-filter 0 --role rank --tee 3"
    command += f" -m torchtitan.train --metrics.log_freq 1 --training.steps 10 {line['args']}"
    cluster = ["--gpus-per-server", str(line["world"]), "--gpu", "h100-sxm"]
    result = train(*cluster, "--", *command.split(), limit_s=1200, cwd=TRUTH / "frameworks" / "titan")
    steps = {int(step): (float(gib), int(tps.replace(",", ""))) for step, gib, tps in LOG.findall(plain(result))}
    assert sorted(steps) == list(range(1, 11)), result.all_output
    speeds = sorted(steps[step][1] for step in range(3, 11))
    speed, real = speeds[len(speeds) // 2], line["tps_median_from_step_3"]
    print(f"tokens per second and GPU from step 3: real {real}, here {speed}, {speed / real - 1:+.1%}")
    same(line["memory_gib"], [steps[step][0] for step in range(1, 11)], RESERVED, "reserved GiB by step")


@pytest.mark.parametrize("line", [line for line in LINES if "name" not in line], ids=named)
def test_script(train: Train, monkeypatch: pytest.MonkeyPatch, line: dict[str, Any]) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")  # as there
    command = [str(TRUTH / "frameworks" / line["script"]), *line["args"].split()]
    cluster = ["--gpus-per-server", str(line["world"]), "--gpu", "h100-sxm", "--launcher", "torchrun"]
    result = train(*cluster, "--", *command, limit_s=1200)
    printed = re.search(r"RESULT (\{.*\})", result.out)
    assert printed, result.all_output
    here = json.loads(printed[1])
    ms, real_ms = here["step_ms_median"], line["step_ms_median"]
    between = f"{line['step_ms_min']} to {line['step_ms_max']}"
    print(f"step: real {real_ms} ms ({between}), here {ms} ms, {ms / real_ms - 1:+.1%}")
    same(line["peak_alloc_mib"], here["peak_alloc_mib"], ALLOCATED, "allocated MiB")
    same(line["peak_reserved_mib"], here["peak_reserved_mib"], RESERVED, "reserved MiB")
