"""The training scripts that `bench.overhead` runs, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import truth_files
from bench.truth_files import TRUTH

WARMUP: Final = 3  #: steps before those that count; the tiny model's script has the same number


@dataclass(frozen=True, slots=True)
class Workload:
    """One training script.

    Attributes:
        command: what Python runs, a script or ``-m MODULE`` with arguments, for (ranks, steps without the warm-up).
        imports: the module whose import is most of its start.
        folder: where it is started.
        broadcasts: whether it compares ranks by what a broadcast brings, as DistributedDataParallel does. Without a
            core nothing comes, so with several ranks there is no null mode.
    """

    command: Callable[[int, int], list[str]]
    imports: str
    folder: Callable[[], Path] = Path.cwd
    broadcasts: bool = False


def _tiny(ranks: int, steps: int) -> list[str]:
    del ranks
    return [str(Path(__file__).with_name("workload.py")), str(steps)]


def _train(arguments: str, parallel: str) -> Callable[[int, int], list[str]]:
    def command(ranks: int, steps: int) -> list[str]:
        chosen = ["--parallel", parallel if ranks > 1 else "none", "--warmup", str(WARMUP), "--steps", str(steps)]
        return [str(TRUTH / "train.py"), *arguments.split(), *chosen]

    return command


def _titan(ranks: int, steps: int) -> list[str]:
    del ranks
    model = "--model.name llama3 --model.flavor debugmodel --training.local_batch_size 8 --training.seq_len 2048"
    return ["-m", "torchtitan.train", "--training.steps", str(WARMUP + steps), *model.split()]


WORKLOADS: Final[Mapping[str, Workload]] = {
    "tiny": Workload(_tiny, "torch"),
    "gpt2": Workload(_train("--model gpt2 --batch 8 --seq 1024 --mode amp", "ddp"), "transformers", broadcasts=True),
    "llama1b": Workload(_train("--model llama1b --batch 2 --seq 2048", "fsdp"), "transformers"),
    "titan": Workload(_titan, "torchtitan.train", truth_files.titan),
}
