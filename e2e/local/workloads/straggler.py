"""One of two ranks stays away from a call for some seconds of virtual time, or for good.

``straggler.py CALL SECONDS``: the timeout of the process group is 30 s.
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

call, seconds = sys.argv[1], float(sys.argv[2])
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", timeout=timedelta(seconds=30))
x = torch.ones(1024, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
print(f"rank {rank} begins", flush=True)
if rank == 1:
    time.sleep(seconds)
if call == "barrier":
    dist.barrier()
elif call == "group" and rank == 0:  # a group that the other rank does not make
    dist.all_reduce(x, group=dist.new_group([0, 1]))
elif call != "leave" or rank == 0:
    dist.all_reduce(x)
torch.cuda.synchronize()
print(f"rank {rank} is through", flush=True)
if call != "leave":
    dist.destroy_process_group()
