"""Two or more ranks reduce through symmetric memory, and each checks values and times.

Prints ``rank R: CHECK is right`` for each check, as the other workloads here do.
"""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
group = dist.group.WORLD.group_name
total = sum(range(1, size + 1))


def check(name: str, holds: bool) -> None:
    print(f"rank {rank}: {name} is {'right' if holds else 'wrong'}", flush=True)


def buffer(count: int) -> torch.Tensor:
    """Symmetric memory that holds the rank's number, from 1 on."""
    made = symmetric_memory.empty(count, dtype=torch.bfloat16, device=device).fill_(rank + 1)
    symmetric_memory.rendezvous(made, group)
    return made


def microseconds(run: Callable[[], object], times: int = 1) -> float:
    """Of one of so many runs."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / times


free = torch.cuda.mem_get_info()[0]
small = buffer(4096)
handle = symmetric_memory.rendezvous(small, group)
check("memory", 0 < free - torch.cuda.mem_get_info()[0] <= 8 << 20)  # 2 MiB, and the addresses of its peers' memory
check("rank", (handle.rank, handle.world_size) == (rank, size))
check("one_shot", torch.ops.symm_mem.one_shot_all_reduce(small, "sum", group).tolist() == [total] * 4096)
torch.ops.symm_mem.two_shot_all_reduce_(small, "sum", group)
check("two_shot", small.tolist() == [total] * 4096)
handle.barrier()
check("peer", handle.get_buffer((rank + 1) % size, (4096,), torch.bfloat16)[:4].tolist() == [total] * 4)

if rank == 0:  # a barrier waits for the last rank
    torch.cuda._sleep(20_000_000)
check("barrier", rank == 0 or microseconds(handle.barrier) > 5_000)
if rank == 0:
    handle.barrier()

large = buffer(16 << 20)  # 32 MiB
torch.cuda.synchronize()
dist.barrier()
torch.ops.symm_mem.one_shot_all_reduce(large, "sum", group)  # allocates what it then writes
one = microseconds(lambda: torch.ops.symm_mem.one_shot_all_reduce(large, "sum", group), times=10)
two = microseconds(lambda: torch.ops.symm_mem.two_shot_all_reduce_(large, "sum", group), times=10)
print(f"rank {rank}: one shot {one:.0f} us, two {two:.0f} us", flush=True)
check("times", size > 2 or (175 < one < 225 and 100 < two < 140))  # on two H200: 98 for half of it, and 60

gathered, products = torch.ops.symm_mem.fused_all_gather_matmul(
    torch.randn(1024, 1024, device=device, dtype=torch.bfloat16),
    [torch.randn(1024, 512, device=device, dtype=torch.bfloat16)],
    0,
    group,
)
check("fused", (*gathered.shape, *products[0].shape) == (1024 * size, 1024, 1024 * size, 512))
torch.cuda.synchronize()
dist.destroy_process_group()
