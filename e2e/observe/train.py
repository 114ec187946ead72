"""A small DDP loop of stock PyTorch. ``--burn N``: work for the real processor after each step that is no GPU's (it
takes real time, and no virtual time where host cost comes from the table)."""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--tokens", type=int, default=8192)
parser.add_argument("--burn", type=int, default=0)
options = parser.parse_args()

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = nn.Sequential(*(nn.Linear(options.width, options.width) for _ in range(options.layers)))
model = nn.parallel.DistributedDataParallel(model.to("cuda", torch.bfloat16))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.empty(options.tokens, options.width, dtype=torch.bfloat16)
for step in range(options.steps):
    loss = model(batch.to("cuda")).float().pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    if options.burn:
        hashlib.pbkdf2_hmac("sha256", b"nothing", b"in particular", options.burn)
    if dist.get_rank() == 0:
        print(f"step {step + 1}", flush=True)
dist.destroy_process_group()
