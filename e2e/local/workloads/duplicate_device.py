"""Every rank forgets torch.cuda.set_device and uses the first device, then catches the error. Knows of no simulator.

torchrun --nproc-per-node N duplicate_device.py
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
try:
    dist.all_reduce(torch.ones(1, device="cuda"))
    print("no error")
except dist.DistBackendError as error:
    print(f"rank {os.environ['RANK']} caught: {' '.join(str(error).split())}", flush=True)
