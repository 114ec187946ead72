"""DDP's and FSDP's own checks that ranks agree, and that they notice when ranks do not. Knows of no simulator.

torchrun --nproc-per-node N consistency.py
"""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def model(width: int = 4) -> torch.nn.Linear:
    """Every rank starts with numbers of its own."""
    made = torch.nn.Linear(4, width)
    with torch.no_grad():
        made.weight.fill_(rank + 1.0)
        made.bias.fill_(rank + 1.0)
    return made


def ddp_agrees() -> None:
    """_verify_params_across_processes compares shapes by NCCL; then rank 0's numbers are everyone's."""
    wrapped = DistributedDataParallel(model().to(device), device_ids=[device.index])
    assert wrapped.module.weight.tolist() == [[1.0] * 4] * 4, wrapped.module.weight


def error_of(attempt: Callable[[], object]) -> str:
    """What it is refused with, in small letters."""
    try:
        attempt()
    except RuntimeError as error:
        return str(error).lower()
    return "nothing was noticed"


def ddp_notices() -> None:
    """Every rank compares its shapes with rank 0's, which has nothing to compare."""
    odd = [torch.empty(4 if rank == 0 else 8, 4, device=device)]
    error = error_of(lambda: dist._verify_params_across_processes(dist.group.WORLD, odd, None))
    assert rank == 0 or "appears not to match sizes of the same param in process 0" in error, error


def fsdp_agrees() -> None:
    """sync_module_states sends rank 0's numbers before they are sharded; a step then checks the order of execution."""
    wrapped = FullyShardedDataParallel(model(), device_id=device, sync_module_states=True)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        assert wrapped.weight.tolist() == [[1.0] * 4] * 4, wrapped.weight
    wrapped(torch.zeros(2, 4, device=device)).sum().backward()


def detail_notices() -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL compares every collective with the others' before it runs."""
    x = torch.zeros(4 if rank == 0 else 8, device=device)
    error = error_of(lambda: dist.all_reduce(x))
    assert "mismatch" in error, error


def main() -> None:
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    detail = os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL"
    for check in [ddp_agrees, ddp_notices, fsdp_agrees, *([detail_notices] if detail else [])]:
        check()
        print(f"rank {rank}: {check.__name__} is right", flush=True)
    dist.destroy_process_group()


main()
