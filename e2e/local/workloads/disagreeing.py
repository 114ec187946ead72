"""Two ranks that do not do the same: real NCCL would hang. Knows of no simulator.

torchrun --nproc-per-node 2 disagreeing.py other-call | no-call
"""

import os
import sys

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
x = torch.ones(8, device=device)
dist.all_reduce(x)
if dist.get_rank() == 0:
    dist.all_reduce(x)
elif sys.argv[1] == "other-call":
    dist.broadcast(x, 0)
else:
    work = torch.ones(8192, 8192, device=device)
    for _ in range(2_000):  # some seconds of the GPU
        work = work @ work
        torch.cuda.synchronize()
torch.cuda.synchronize()
