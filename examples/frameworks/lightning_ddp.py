"""PyTorch Lightning's Trainer with DistributedDataParallel; a checkpoint is saved and loaded.

torchrun --nproc-per-node 2 lightning_ddp.py
"""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--output", help="a directory for a checkpoint, from which training goes on for one more step")
arguments = parser.parse_args()


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss, prog_bar=True, sync_dist=True)
        if self.trainer.is_global_zero:
            print(f"step {self.global_step + 1} loss {loss.item():.3f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def trainer(steps: int) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="gpu",
        devices=arguments.devices,
        strategy="ddp",
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        max_steps=steps,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=arguments.output,
    )


data = DataLoader(TensorDataset(torch.randn(4096, 784), torch.randint(0, 10, (4096,))), batch_size=64)
first = trainer(arguments.steps)
first.fit(Classifier(), data)
if arguments.output:
    path = f"{arguments.output}/last.ckpt"
    first.save_checkpoint(path)
    second = trainer(arguments.steps + 1)
    second.fit(Classifier(), data, ckpt_path=path)
    if second.is_global_zero:
        print(f"went on from the checkpoint: step {second.global_step}")
