"""Scripts in the shape that public ones have: they end well, and what they print is what a user would believe.

A loss is the stated default (2) wherever it comes from: in training and in evaluation, compiled or not, averaged over
batches, tokens or ranks. An accuracy is one, and a rate is positive. Plain DistributedDataParallel is
``examples/ddp.py`` (``e2e/local``); Hugging Face's Trainer, Lightning and DeepSpeed's engine are in
``examples/frameworks``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.runs import REPOSITORY
from e2e.scripts.conftest import Output

PROGRAMS = Path("e2e/scripts/programs")
LOSS = 2.0


def program(name: str) -> str:
    return str(PROGRAMS / f"{name}.py")


def numbers(pattern: str, text: str) -> list[float]:
    """The number that a group of the pattern finds, wherever it is found; there is at least one."""
    found = [float(number) for number in re.findall(pattern, text)]
    assert found, f"{pattern} is not in\n{text}"
    return found


def losses(pattern: str, text: str) -> None:
    for loss in numbers(pattern, text):
        assert loss == pytest.approx(LOSS, abs=1e-3), text


def rates(pattern: str, text: str) -> None:
    assert min(numbers(pattern, text)) > 0, text


def accuracies(text: str) -> None:
    """Of the first guess and of the first five, in per cent."""
    top1, top5 = (numbers(rf"Acc@{k}:? +(\d+\.\d+)", text) for k in (1, 5))
    for one, five in zip(top1, top5, strict=False):
        assert 0 < one < five <= 100, text


def test_imagenet_with_meters(output: Output) -> None:
    printed = output(2, program("imagenet"), launcher="torchrun")
    losses(r"Loss (\d\.\d{4}(?:e\+00)?)", printed)
    rates(r"(\d+) images/s", printed)
    accuracies(printed)
    assert " of 384" in printed, printed  # the meters of both ranks together


@pytest.mark.parametrize("options", [(), ("--dtype", "float16"), ("--compile",), ("--compile", "--dtype", "float16")])
def test_nano_gpt(output: Output, options: tuple[str, ...]) -> None:
    printed = output(1, "python", program("nano_gpt"), *options)
    assert len(numbers(r"iter \d: loss (\d+\.\d+)", printed)) == 4, printed
    losses(r"iter \d: loss (\d+\.\d+)", printed)
    losses(r"train loss (\d+\.\d+)", printed)
    losses(r"val loss (\d+\.\d+)", printed)
    for share in numbers(r"mfu (\d+\.\d+)%", printed):
        assert 0 < share < 100, printed


@pytest.mark.parametrize("options", [(), ("--compile",)])
def test_nano_gpt_on_two_ranks(output: Output, options: tuple[str, ...]) -> None:
    printed = output(2, program("nano_gpt"), *options, launcher="torchrun")
    losses(r"iter \d: loss (\d+\.\d+)", printed)
    losses(r"mean over ranks (\d+\.\d+)", printed)


def test_fully_sharded(output: Output) -> None:
    printed = output(2, program("fsdp2"), launcher="torchrun")
    losses(r"step \d loss (\d+\.\d+)", printed)
    rates(r"(\d+) tokens/s", printed)
    assert "the whole model has 20998144 parameters" in printed, printed


def test_tensor_and_sequence_parallel(output: Output) -> None:
    printed = output(2, program("tensor_parallel"), launcher="torchrun")
    losses(r"tensor parallel step \d loss (\d+\.\d+)", printed)
    losses(r"sequence parallel step \d loss (\d+\.\d+)", printed)
    rates(r"(\d+) rows/s", printed)


def test_trl_with_a_lora_adapter(output: Output) -> None:
    printed = output(1, "python", program("trl_sft"))
    assert len(numbers(r"'loss': '?(\d[\d.]*)", printed)) == 4, printed
    losses(r"'loss': '?(\d[\d.]*)", printed)
    losses(r"'eval_loss': '?(\d[\d.]*)", printed)
    losses(r"'train_loss': '?(\d[\d.]*)", printed)
    losses(r"'(?:eval_)?entropy': '?(\d[\d.]*)", printed)
    for share in numbers(r"mean_token_accuracy': '?(\d[\d.]*)", printed):
        assert 0 < share <= 1, printed
    rates(r"'(?:eval_|train_)samples_per_second': '?(\d[\d.]*)", printed)
    # 4 steps of 2 batches of 16 rows, and each row has 200 to 1,000 tokens.
    assert 4 * 2 * 16 * 200 < numbers(r"'num_tokens': '?(\d[\d.e+]*)", printed)[-1] < 4 * 2 * 16 * 1001, printed


@pytest.mark.parametrize("options", [(), ("--mixup",)])
def test_timm(output: Output, options: tuple[str, ...]) -> None:
    printed = output(1, "python", program("timm_train"), *options)
    losses(r"Loss: (\d+\.\d+)", printed)
    losses(r"Loss: \d+\.\d+ \((\d+\.\d+)\)", printed)
    rates(r"(\d+\.\d)/s", printed)
    accuracies(printed)


def test_accelerate_launch(output: Output) -> None:
    launch = (
        "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision bf16 --dynamo_backend no"
    )
    printed = output(2, *launch.split(), program("accelerate_train"))
    losses(r"loss (\d+\.\d+)", printed)
    losses(r"eval_loss (\d+\.\d+)", printed)
    rates(r"(\d+) samples/s", printed)
    for share in numbers(r"accuracy (\d+\.\d+) of 250", printed):
        assert 0 < share < 1, printed


def test_deepspeeds_launcher(output: Output) -> None:
    script = str(REPOSITORY / "examples/frameworks/deepspeed_zero.py")
    printed = output(2, "deepspeed", "--num_gpus", "2", "--no_local_rank", script, "--stage", "2")
    losses(r"step \d loss (\d+\.\d+)", printed)
    assert len(numbers(r"step \d loss (\d+\.\d+)", printed)) == 4, printed
