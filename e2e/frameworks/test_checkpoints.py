"""Checkpoints of each framework are saved and loaded, in its own way (torch.save, DCP, Megatron's, Lightning's)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.truth_files import titan
from e2e.frameworks.conftest import Train
from e2e.frameworks.test_examples import EXAMPLES, plain
from e2e.runs import Result

pytestmark = pytest.mark.slow


def run(train: Train, script: str, *arguments: str) -> Result:
    command = [str(EXAMPLES / script), *arguments]
    return train("--gpus-per-server", "2", "--launcher", "torchrun", "--", *command, limit_s=420)


def bulk(result: Result) -> list[dict[str, object]]:
    return [read for read in result.summary["unknown_reads"] if read["bulk"]]


#: The plans of a distributed checkpoint are objects that NCCL gathers, of more than what it moves by default.
TORCHTITAN = """
apiVersion: eidolon.dev/v1alpha1
kind: SimulatedCluster
metadata: {{name: checkpoint}}
spec:
  gpusPerServer: 2
  network: {{nccl: {{payloadLimitBytes: 1048576}}}}
  workload:
    launcher: torchrun
    workingDir: {directory}
    command: [-m, torchtitan.train]
    args: [{arguments}]
"""


def test_torchtitan_goes_on_from_a_distributed_checkpoint(train: Train, tmp_path: Path) -> None:
    def steps(last: int) -> Result:
        small = "--training.seq_len=512 --training.local_batch_size=4 --model.name=llama3 --model.flavor=debugmodel"
        # Its last checkpoint holds only the model by default, and one cannot go on from that.
        keep = f"--checkpoint.enable --checkpoint.no_last_save_model_only --job.dump_folder={tmp_path}/titan"
        options = f"--metrics.log_freq=1 --training.steps={last} {small} {keep}".split()
        spec = tmp_path / "checkpoint.yaml"
        spec.write_text(TORCHTITAN.format(directory=titan(), arguments=", ".join(options)))
        return train(str(spec), limit_s=420)

    first = steps(2)
    assert bulk(first), first.all_output  # parameters that nobody computed: zeros
    assert (tmp_path / "titan" / "checkpoint" / "step-2" / ".metadata").is_file()
    second = plain(steps(4))
    assert "Loading the checkpoint" in second, second
    assert "step:  3" in second, second
    assert "step:  2" not in second, second


def test_deepspeed(train: Train, tmp_path: Path) -> None:
    result = run(train, "deepspeed_zero.py", "--stage", "3", "--checkpoint", str(tmp_path / "deepspeed"))
    assert "went on from the checkpoint: step 5" in result.out, result.all_output


def test_megatron(train: Train, tmp_path: Path) -> None:
    result = run(train, "megatron_gpt.py", "--tensor", "2", "--checkpoint", str(tmp_path / "megatron"))
    assert "loaded the checkpoint" in result.out, result.all_output


def test_hugging_face_trainer(train: Train, tmp_path: Path) -> None:
    result = run(train, "hf_trainer.py", "--output", str(tmp_path / "trainer"))
    assert "trained to step 2" in result.out, result.all_output
    assert "trained to step 4" in result.out, result.all_output


def test_lightning(train: Train, tmp_path: Path) -> None:
    result = run(train, "lightning_ddp.py", "--output", str(tmp_path))
    assert "went on from the checkpoint: step 5" in result.out, result.all_output
