"""A ResNet on images that are made up, with the meters that image training usually has: time, loss, Acc@1, Acc@5.

torchrun --nproc-per-node 2 imagenet.py
"""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES, BATCH, BATCHES = 1000, 32, 6


class Images(Dataset):
    def __len__(self) -> int:
        return BATCH * BATCHES * dist.get_world_size()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3, 224, 224), index % CLASSES


class Meter:
    """The last value and the average, over all ranks once they are reduced."""

    def __init__(self, name: str, shape: str) -> None:
        self.name, self.shape = name, shape
        self.last = self.total = self.count = 0.0

    def update(self, value: float, n: int = 1) -> None:
        self.last = value
        self.total += value * n
        self.count += n

    @property
    def average(self) -> float:
        return self.total / max(self.count, 1)

    def reduce(self) -> None:
        both = torch.tensor([self.total, self.count], dtype=torch.float32, device="cuda")
        dist.all_reduce(both, dist.ReduceOp.SUM)
        self.total, self.count = both.tolist()

    def __str__(self) -> str:
        return f"{self.name} {self.last:{self.shape}} ({self.average:{self.shape}})"


def accuracy(output: Tensor, target: Tensor, top: tuple[int, ...]) -> list[Tensor]:
    """Per cent of the targets that are among the first k of the output, for each k."""
    guesses = output.topk(max(top), dim=1).indices.t()
    right = guesses.eq(target.view(1, -1).expand_as(guesses))
    return [right[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in top]


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    seconds, losses = Meter("Time", "6.3f"), Meter("Loss", ".4e")
    top1, top5 = Meter("Acc@1", "6.2f"), Meter("Acc@5", "6.2f")
    model.train()
    end = time.time()
    for i, batch in enumerate(loader, 1):
        images, target = (part.cuda(non_blocking=True) for part in batch)
        output = model(images)
        loss = F.cross_entropy(output, target)
        acc1, acc5 = accuracy(output, target, (1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        top5.update(acc5[0].item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.update(time.time() - end)
        end = time.time()
        if dist.get_rank() == 0 and i % 2 == 0:
            rate = images.size(0) * dist.get_world_size() / seconds.last
            print(f"Epoch [{epoch}][{i}/{len(loader)}]", seconds, losses, top1, top5, f"{rate:.0f} images/s", sep="\t")


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> float:
    losses, top1, top5 = Meter("Loss", ".4e"), Meter("Acc@1", "6.2f"), Meter("Acc@5", "6.2f")
    model.eval()
    for batch in loader:
        images, target = (part.cuda(non_blocking=True) for part in batch)
        output = model(images)
        acc1, acc5 = accuracy(output, target, (1, 5))
        losses.update(F.cross_entropy(output, target).item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        top5.update(acc5[0].item(), images.size(0))
    for meter in (losses, top1, top5):
        meter.reduce()
    if dist.get_rank() == 0:
        print(f" * Acc@1 {top1.average:.3f} Acc@5 {top5.average:.3f} Loss {losses.average:.4f} of {top1.count:.0f}")
    return top1.average


def main() -> None:
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    model = DistributedDataParallel(torchvision.models.resnet18().cuda(), device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    data = Images()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=1, pin_memory=True)
    best = 0.0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train(model, loader, optimizer, epoch)
        best = max(best, validate(model, loader))
        schedule.step()
    if dist.get_rank() == 0:
        print(f"best Acc@1 {best:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
