"""Trains a small model under FSDP2, and under tensor parallelism beside it. Knows of no simulator.

torchrun --nproc-per-node N sharded.py [TP]
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 512

tp = int(sys.argv[1]) if len(sys.argv) > 1 else 1
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
mesh = init_device_mesh("cuda", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)

with device:
    layers = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(3)]
    x = torch.randn(2048, WIDTH)
model = nn.Sequential(*layers)
for layer in layers:
    if tp > 1:
        parallelize_module(layer, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters())

for step in range(1, 7):
    started = time.perf_counter()
    loss = model(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
    if dist.get_rank() == 0:
        print(f"step {step} {1e3 * (time.perf_counter() - started):.3f} ms", flush=True)
dist.destroy_process_group()
