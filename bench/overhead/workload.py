"""The measured script: trains a small transformer and prints the median wall time of a step, in real milliseconds.

Gradients are averaged by one all-reduce for each parameter, which is plain data parallelism. (DistributedDataParallel
checks its ranks' parameters by what a broadcast brings, and the baseline without a core brings nothing.)

The clock is `clock_gettime(CLOCK_MONOTONIC)`: the simulation virtualises Python's other clocks.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS, WARMUP = int(sys.argv[1]), 3
LAYERS, WIDTH, BATCH, SEQUENCE = 6, 256, 8, 128


def main() -> None:
    """Trains for the steps that the command line names and prints the median."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("nccl")
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
    model: nn.Module = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(BATCH, SEQUENCE, WIDTH, device="cuda")
    wall_ms = []
    for step in range(WARMUP + STEPS):
        start = time.clock_gettime(time.CLOCK_MONOTONIC)
        model(x).square().mean().backward()
        for parameter in model.parameters() if world > 1 else ():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if step >= WARMUP:
            wall_ms.append((time.clock_gettime(time.CLOCK_MONOTONIC) - start) * 1e3)
    if rank == 0:
        print(f"WALL_MS {sorted(wall_ms)[len(wall_ms) // 2]:.3f}", flush=True)
    if world > 1:
        dist.destroy_process_group()


main()
