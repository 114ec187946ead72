"""A small GPT in one file, as people write it to learn: gradient accumulation, a scaler, evaluation now and then.

python nano_gpt.py [--compile] [--dtype float16]
torchrun --nproc-per-node 2 nano_gpt.py
"""

import argparse
import contextlib
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--compile", action="store_true")
parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
parser.add_argument("--iterations", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=4)
options = parser.parse_args()

VOCABULARY, BATCH, LENGTH, WIDTH, HEADS, LAYERS, EVALUATIONS = 50304, 4, 256, 256, 4, 2, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in self.qkv(self.before(x)).split(c, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(b, t, c))
        return x + self.narrow(F.gelu(self.widen(self.between(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), ignore_index=-1)

    def utilisation(self, sequences: int, seconds: float) -> float:
        """Share of the 989 TFLOP/s of an H100 in bf16, by 6 N + 12 L C T operations a token."""
        operations = 6 * sum(p.numel() for p in self.parameters()) + 12 * LAYERS * WIDTH * LENGTH
        return operations * LENGTH * sequences / seconds / 989e12


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1)).pin_memory()
    both = tokens.cuda(non_blocking=True)
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def learning_rate(iteration: int) -> float:
    return 6e-4 * 0.5 * (1 + math.cos(math.pi * iteration / options.iterations))


parallel = "RANK" in os.environ
device = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(device)
if parallel:
    dist.init_process_group("nccl", device_id=torch.device("cuda", device))
master = not parallel or dist.get_rank() == 0
model = raw = GPT().cuda()
if options.compile:
    model = torch.compile(model)
if parallel:
    model = DistributedDataParallel(model, device_ids=[device])
precision = torch.autocast("cuda", getattr(torch, options.dtype))
scaler = torch.amp.GradScaler("cuda", enabled=options.dtype == "float16")
optimizer = torch.optim.AdamW(raw.parameters(), lr=6e-4, fused=True)


@torch.no_grad()
def estimate_loss() -> dict[str, Tensor]:
    estimates = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(EVALUATIONS)
        for k in range(EVALUATIONS):
            with precision:
                _, loss = model(*batch())
            losses[k] = loss.item()
        estimates[split] = losses.mean()
    model.train()
    return estimates


x, y = batch()
began = time.time()
for iteration in range(options.iterations):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(iteration)
    if iteration % 2 == 0 and master:
        found = estimate_loss()
        print(f"step {iteration}: train loss {found['train']:.4f}, val loss {found['val']:.4f}", flush=True)
    for micro in range(options.accumulate):
        last = micro == options.accumulate - 1
        with contextlib.nullcontext() if last or not parallel else model.no_sync():
            with precision:
                _, loss = model(x, y)
                loss = loss / options.accumulate
            x, y = batch()
            scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    seconds, began = time.time() - began, time.time()
    if master:
        mfu = raw.utilisation(BATCH * options.accumulate, seconds)
        print(
            f"iter {iteration}: loss {loss.item() * options.accumulate:.4f}, time {seconds * 1e3:.2f}ms, mfu {mfu:.2%}",
            flush=True,
        )
if parallel:
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if master:
        print(f"mean over ranks {(mean / dist.get_world_size()).item() * options.accumulate:.4f}")
    dist.destroy_process_group()
