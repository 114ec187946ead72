"""What torch.distributed asks of all ranks of a large job, checked for its values. Knows of no simulator.

torchrun --nproc-per-node N everyone.py [bound|unbound]
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, Dataset

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def place() -> str:
    return " ".join(os.environ[name] for name in PLACE)


def summed(value: torch.Tensor, group: dist.ProcessGroup | None = None) -> float:
    dist.all_reduce(value, group=group)
    return value.item()


def ones() -> torch.Tensor:
    return torch.ones((), device=device)


def sums() -> None:
    assert summed(ones()) == world
    mean = torch.full((3,), 2.5, device=device)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.tolist() == [2.5] * 3


def gathers() -> None:
    found = [torch.zeros(2, device=device) for _ in range(world)]
    dist.all_gather(found, torch.tensor([1.0, 2.0], device=device))
    assert len(found) == world
    assert found[-1].tolist() == [1.0, 2.0]


def objects() -> None:
    found: list[object] = [None] * world
    dist.all_gather_object(found, {"width": 64})
    assert found == [{"width": 64}] * world
    said = [{"seed": 3}] if rank == 0 else [None]
    dist.broadcast_object_list(said, src=0)
    assert said == [{"seed": 3}]


def barriers() -> None:
    for _ in range(3):
        dist.barrier()


def subsets() -> None:
    half = dist.new_group(list(range(world // 2)))
    without_rank_0 = dist.new_group(list(range(1, world)))
    alone = dist.new_group([rank for rank in range(world) if rank % 8 == 0])
    if rank < world // 2:
        assert summed(ones(), half) == world // 2
    if rank > 0:
        assert summed(ones(), without_rank_0) == world - 1
    if rank % 8 == 0:
        assert summed(ones(), alone) == world // 8


def meshes() -> None:
    mesh = init_device_mesh("cuda", (world // 8, 8), mesh_dim_names=("replicate", "shard"))
    assert tuple(mesh.get_coordinate() or ()) == (rank // 8, rank % 8)
    assert summed(ones(), mesh.get_group("replicate")) == world // 8
    assert summed(ones(), mesh.get_group("shard")) == 8


def hosts() -> None:
    group = dist.new_group(backend="gloo")
    assert summed(torch.ones(()), group) == world
    least = torch.tensor(float(rank))
    dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
    assert least.item() == 0
    found: list[object] = [None] * world
    dist.all_gather_object(found, "equal", group=group)
    assert found == ["equal"] * world
    gathered: list[object] | None = [None] * world if rank == 0 else None
    dist.gather_object("equal", gathered, dst=0, group=group)
    assert gathered in (None, ["equal"] * world)
    said = torch.tensor([3.0 if rank == 0 else 0.0])
    dist.broadcast(said, src=0, group=group)
    assert said.item() == 3
    dist.barrier(group=group)


class Places(Dataset):
    """Each item is the place of the process that loads it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> str:
        return place()


def children() -> None:
    for method in ("fork", "spawn"):
        for batch in DataLoader(Places(), num_workers=1, multiprocessing_context=method):
            assert batch == [place()], batch
    code = f"import os; print(*(os.environ[name] for name in {PLACE}))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == place()


CHECKS = (sums, gathers, objects, barriers, subsets, meshes, hosts, children)

if __name__ == "__main__":
    torch.cuda.set_device(device)
    bound = {"device_id": device} if "bound" in sys.argv else {}
    dist.init_process_group("nccl", **bound)
    print(f"rank {rank}: place {place()}\n", end="", flush=True)
    kept = torch.empty(2**30 if rank else 2**20, dtype=torch.uint8, device=device)
    for check in CHECKS:
        check()
        print(f"rank {rank}: {check.__name__} is right\n", end="", flush=True)
    del kept
    dist.destroy_process_group()
