"""The examples of `examples/frameworks`: each framework, unmodified, to its last step.

`make e2e-frameworks` runs them all, `make e2e-frameworks-fast` one or two of each framework.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.frameworks.conftest import FRAMEWORKS, TORCHTITAN03, Train
from e2e.runs import REPOSITORY, Result

EXAMPLES = Path("examples/frameworks")
STEPS = 4
#: What TorchTitan logs of a step: the loss is the stated default, the rest follows from virtual time.
TITAN = r"step: +4 .*loss: +\d+\.\d+ .*memory: +\d+\.\d+GiB\(.*tps: +[1-9][\d,]* .*tflops: +\d.*mfu: +\d"


def run(train: Train, name: str, limit_s: float = 420, flags: int = 0, site: Path = FRAMEWORKS) -> Result:
    """Runs an example; `flags` booleans that have no default may be read."""
    result = train(str(EXAMPLES / f"{name}.yaml"), limit_s=limit_s, site=site)
    reads = [read for read in result.summary["unknown_reads"] if read["default"] is None and not read["bulk"]]
    print(*(f"{read['count']} reads without a default: {read['site']}, {read['bytes']} B" for read in reads), sep="\n")
    items = [read for read in reads if "_local_scalar_dense" in read["site"]]  # `.item()`; not pieces of weights
    steering = [read for read in items if read["bytes"] > flags]
    assert steering == [], f"{name} steers by values that nobody computed: {steering}"
    return result


def plain(result: Result) -> str:
    """All lines without the colours that TorchTitan puts into its own."""
    return re.sub(r"\x1b\[[\d;]*m", "", result.out + result.err)


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "name",
    [
        "torchtitan-fsdp2",
        slow("torchtitan-fsdp2-ac-full"),
        slow("torchtitan-fsdp2-compile"),
        slow("torchtitan-fsdp2-float8"),
        slow("torchtitan-fsdp2-tp2"),
        "torchtitan-pp2",
        slow("torchtitan-pp2-interleaved"),
        slow("torchtitan-cp2"),
        slow("torchtitan-deepseek-ep2"),
    ],
)
def test_torchtitan(train: Train, name: str) -> None:
    result = run(train, name)
    assert re.search(TITAN, plain(result)), result.all_output
    assert len(result.summary["steps"]) == STEPS


@pytest.mark.slow
def test_torchtitan_03(train: Train) -> None:
    """The first time it compiles its attention for minutes, by Triton and for real."""
    result = run(train, "torchtitan03-fsdp2", limit_s=1500, site=TORCHTITAN03)
    assert re.search(TITAN, plain(result)), result.all_output
    assert len(result.summary["steps"]) == STEPS


@pytest.mark.parametrize("stage", [slow(1), slow(2), 3])
def test_deepspeed_zero(train: Train, stage: int) -> None:
    result = run(train, f"deepspeed-zero{stage}")
    assert re.search(rf"step {STEPS} loss \d+\.\d+ norm \d+\.\d+", plain(result)), result.all_output


@pytest.mark.slow
def test_deepspeed_pipeline(train: Train) -> None:
    # Each rank asks in each step whether to clip, by a norm that NCCL brings: no.
    result = run(train, "deepspeed-pipeline", flags=2 * STEPS)
    assert re.search(rf"step {STEPS} loss \d+\.\d+", plain(result)), result.all_output


@pytest.mark.parametrize("name", [slow("megatron-tp2-dp2"), slow("megatron-tp2-pp2"), slow("megatron-tp2-pp2-dp2")])
def test_megatron(train: Train, name: str) -> None:
    result = run(train, name)
    assert re.search(rf"step {STEPS} loss \d+\.\d+ norm \d+\.\d+ \d+\.\d ms", plain(result)), result.all_output


def test_hugging_face_trainer(train: Train) -> None:
    result = run(train, "hf-trainer-fsdp")
    assert f"trained to step {STEPS}" in result.out, result.all_output


def test_lightning(train: Train) -> None:
    result = run(train, "lightning-ddp")
    assert re.search(rf"step {STEPS} loss \d+\.\d+", result.out), result.all_output


def test_every_example_is_tested_here() -> None:
    here = Path(__file__).read_text()
    for file in (REPOSITORY / EXAMPLES).glob("*.yaml"):
        assert file.stem in here or file.stem.startswith("deepspeed-zero"), file
