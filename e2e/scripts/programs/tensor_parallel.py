"""A feed-forward network that two ranks share: tensor and sequence parallelism by parallelize_module.

torchrun --nproc-per-node 2 tensor_parallel.py
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, HIDDEN, BATCH = 1024, 4096, 512

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))
for sequence in (False, True):
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH)).to(device)
    shards = {"input_layouts": Shard(0)} if sequence else {}
    outputs = {"output_layouts": Shard(0)} if sequence else {}
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(**shards), "2": RowwiseParallel(**outputs)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
    for step in range(1, 4):
        began = time.perf_counter()
        torch.manual_seed(step + (mesh.get_rank() if sequence else 0))
        x = torch.rand(BATCH, WIDTH, device=device)
        loss = (model(x) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        seconds = time.perf_counter() - began
        if mesh.get_rank() == 0:
            name = "sequence" if sequence else "tensor"
            mean = total.item() / mesh.size()
            print(f"{name} parallel step {step} loss {mean:.4f} {BATCH / seconds:.0f} rows/s", flush=True)
dist.destroy_process_group()
