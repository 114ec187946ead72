"""torch.distributed's own functions, each checked for its values by every rank. Knows of no simulator.

torchrun --nproc-per-node N distributed.py [NAME ...]
"""

import math
import os
import sys

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def filled(value: float, *, dtype: torch.dtype = torch.float32, n: int = 4) -> torch.Tensor:
    return torch.full((n,), value, dtype=dtype, device=device)


def expect(got: torch.Tensor, *values: float) -> None:
    assert got.flatten().tolist() == list(values), (got.tolist(), values)


def all_reduce() -> None:
    for dtype in (torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16):
        for op, value in (
            (dist.ReduceOp.SUM, world * (world + 1) // 2),
            (dist.ReduceOp.MAX, world),
            (dist.ReduceOp.MIN, 1),
        ):
            x = filled(rank + 1, dtype=dtype)
            dist.all_reduce(x, op)
            expect(x, *[value] * 4)
    x = filled(rank + 1)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    expect(x, *[(world + 1) / 2] * 4)


def one_number() -> None:
    """The host reads it at once, while it is on its way: the sender's, not a default."""
    x = torch.tensor([40.0 + rank], device=device)
    dist.broadcast(x, src=world - 1)
    assert x.item() == 40.0 + world - 1
    y = torch.tensor(1.5 + rank, device=device)
    dist.all_reduce(y)
    assert y.item() == sum(1.5 + r for r in range(world))


def arithmetic() -> None:
    """On what is still on its way, as training loops average their losses; the host reads the result at once."""
    total, mean = sum(range(1, world + 1)), (world + 1) / 2
    for _ in range(5):

        def summed(*values: float) -> torch.Tensor:
            x = torch.tensor(values, device=device)
            dist.all_reduce(x)
            return x

        assert (summed(rank + 1.0) / world).item() == mean
        x = summed(rank + 1.0)
        x /= world
        x += x
        assert x.item() == 2 * mean
        x = summed(rank + 1.0, 2.0)
        assert (x[0] / x[1]).item() == total / (2 * world)
        x[1] = 3.0
        expect(x * 2, 2 * total, 6)
        assert summed(rank + 1.0, 1.0).sum().item() == total + world
        assert summed(rank + 1.0, 1.0).mean().item() == (total + world) / 2
        assert bool((summed(rank + 1.0, 1.0) >= world).all())
        assert round(torch.exp(summed(rank + 1.0) / world).item(), 4) == round(math.exp(mean), 4)
        assert math.isclose(summed(3.0, 4.0).norm().item(), 5 * world, rel_tol=1e-6)
        largest, at = summed(rank + 1.0, 7.0 * total).max(0)
        assert (largest.item(), at.item()) == (7.0 * total * world, 1)
        assert summed(rank + 1.0, 0.0).nonzero().tolist() == [[0]]
        ranks = torch.empty(world, device=device)
        dist.all_gather_into_tensor(ranks, torch.tensor([rank + 1.0], device=device))
        assert ranks.mean().item() == mean
        steps = torch.tensor(float(rank), device=device)
        scale = torch.tensor(0.5)  # the host's
        dist.all_reduce(steps)
        half = steps * scale
        scale.fill_(9.0)  # afterwards
        assert half.item() == (total - world) / 2
        once_more = torch.stack([half, half]).sum()
        dist.all_reduce(once_more)  # what is computed goes on its way again
        assert once_more.item() == (total - world) * world


def unknown_on_its_way() -> None:
    """What nobody computed has a default also where that is known only when the payload has come: half are equal."""
    for _ in range(5):
        x = torch.empty(64, device=device).exp_()
        if rank == 0:
            sum(range(3_000_000))  # the others compute before it has come
        dist.broadcast(x, src=0)
        assert (x == 0).float().sum().item() == 32


def coalesced() -> None:
    parts = [filled(rank + 1.0), filled(10.0), filled(1.0)]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for part in parts:
            dist.all_reduce(part)
    manager.wait()
    total = world * (world + 1) / 2
    assert [(part.sum() / 4).item() for part in parts] == [total, 10 * world, world]


def receive_then_send() -> None:
    """Each even rank computes with what it receives, then sends what the odd one wants before it sends. A host that
    waited for the arithmetic would wait for ever."""
    first, second = dist.new_group(list(range(world))), dist.new_group(list(range(world)))
    peer = rank + 1 if rank % 2 == 0 else rank - 1
    if peer >= world:
        return
    for dtype in (torch.float32, torch.int64):
        got, ready = filled(0, dtype=dtype, n=2), filled(5, dtype=dtype, n=1)
        for group in (first, second):  # makes their communicators
            dist.send(ready, peer, group=group) if rank % 2 == 0 else dist.recv(got[:1], peer, group=group)
        torch.cuda.synchronize()
        if rank % 2 == 0:
            with torch.cuda.stream(torch.cuda.Stream()):
                dist.irecv(got, peer, group=first).wait()  # this stream waits, no host
                result = (got * 2 + 1).cumsum(0)
            dist.send(ready, peer, group=second)
            torch.cuda.synchronize()
            expect(result, 21, 42)
        else:
            dist.recv(ready, peer, group=second)
            assert ready.item() == 5
            dist.send(filled(10, dtype=dtype, n=2), peer, group=first)


def movement() -> None:
    x = filled(7.0 if rank == 1 else 0.0)
    dist.broadcast(x, src=1)
    expect(x, *[7.0] * 4)
    parts = [torch.empty(2, device=device) for _ in range(world)]
    dist.all_gather(parts, filled(rank, n=2))
    for r, part in enumerate(parts):
        expect(part, r, r)
    dist.all_gather(parts, filled(10 + rank, n=2))
    joined = torch.cat(parts)  # at once, with the payloads under way
    expect(joined, *[10 + r for r in range(world) for _ in range(2)])
    out = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(out, torch.arange(2 * world, dtype=torch.float32, device=device))
    expect(out, 2 * rank * world, (2 * rank + 1) * world)
    mine = filled(rank + 1)
    dist.reduce(mine, dst=0)
    if rank == 0:
        expect(mine, *[world * (world + 1) / 2] * 4)


def all_to_all() -> None:
    out = torch.empty(world, device=device)
    dist.all_to_all_single(out, torch.arange(world, dtype=torch.float32, device=device) + 10 * rank)
    expect(out, *[10 * r + rank for r in range(world)])
    # Uneven: rank r sends s + 1 numbers to rank s.
    sent = filled(rank, n=world * (world + 1) // 2)
    got = torch.empty(world * (rank + 1), device=device)
    dist.all_to_all_single(got, sent, [rank + 1] * world, list(range(1, world + 1)))
    expect(got, *[r for r in range(world) for _ in range(rank + 1)])


def point_to_point() -> None:
    right, left = (rank + 1) % world, (rank - 1) % world
    got = torch.empty(3, device=device)
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, filled(rank, n=3), right), dist.P2POp(dist.irecv, got, left)]
    ):
        request.wait()
    expect(got, *[left] * 3)


def objects() -> None:
    everyone: list[object] = [None] * world
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * 10 * rank})  # of different sizes
    assert everyone == [{"rank": r, "text": "x" * 10 * r} for r in range(world)], everyone
    shared = ["from zero", 3, [1, 2]] if rank == 0 else [None] * 3
    dist.broadcast_object_list(shared, src=0)
    assert shared == ["from zero", 3, [1, 2]], shared


def groups() -> None:
    pairs = [dist.new_group([r, r + 1]) for r in range(0, world, 2)]
    x = filled(rank)
    dist.all_reduce(x, group=pairs[rank // 2])
    expect(x, *[2 * (rank // 2) * 2 + 1] * 4)
    host = dist.new_group(backend="gloo")
    dist.monitored_barrier(host)
    dist.barrier()


def registered_memory() -> None:
    """Pools of NCCL's own memory, registered as buffers and, where all ranks have the same, as windows."""
    nccl = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]
    for symmetric in (False, True):
        pool = torch.cuda.MemPool(nccl.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            x = filled(rank + 1)
        nccl.register_mem_pool(pool, symmetric)
        dist.all_reduce(x)
        expect(x, *[world * (world + 1) / 2] * 4)
        nccl.deregister_mem_pool(pool)
        del x, pool


def main() -> None:
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    checks = [all_reduce, one_number, arithmetic, unknown_on_its_way, coalesced, receive_then_send, movement]
    checks += [all_to_all, point_to_point, objects, groups, registered_memory]
    for check in checks:
        if len(sys.argv) == 1 or check.__name__ in sys.argv[1:]:
            check()
            print(f"rank {rank}: {check.__name__} is right", flush=True)
    dist.destroy_process_group()


main()
