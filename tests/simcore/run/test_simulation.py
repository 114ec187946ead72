"""A whole run without gRPC: the order of servers' messages changes nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from fakes import AUTOGRAD, BLOCKING, FOREGROUND, FakeRank
from simulated_run import Run

from eidolon_simcore.vocabulary import Kind


def script(rank_number: int, world: int, rng: random.Random) -> list[Any]:
    """Batches of one rank of a data-parallel job over two servers; the same for every run."""
    rank = FakeRank(rank_number % 2 + 1, device=rank_number % 2)
    rank.comm(7, rank_number, world)
    out = [rank.batch()]
    for step in range(4):
        for _ in range(rng.randrange(1, 30)):
            rank.kernel(rng.randrange(1 << 22))
        rank.write(Kind.MEMORY, value=(10 + step) << 30)
        rank.kernel(flags=FOREGROUND | AUTOGRAD)
        small = np.full(4, rank_number, "<f4").tobytes()
        rank.collective("all_reduce", 7, 2 * step, 4, stream=2, payload=small)
        if rng.random() < 0.5:
            out.append(rank.batch())
        rank.collective("all_gather", 7, 2 * step + 1, 1 << 22, stream=2)
        rank.write(Kind.EVENT_RECORD, stream=2, value=step + 1)
        rank.write(Kind.QUERY_EVENT, flags=FOREGROUND | BLOCKING, value=step + 1)
        rank.write(Kind.SYNC_EVENT, flags=FOREGROUND | BLOCKING, value=step + 1)
        rank.mark()
        out.append(rank.batch())
    return out


def play(out: Path, seed: int, time_sync: str) -> tuple[dict[str, Any], list[Any], list[Any]]:
    run = Run(out, servers=2, time_sync=time_sync)
    world = 4
    order = random.Random(seed)
    scripts = {rank: script(rank, world, random.Random(100 + rank)) for rank in range(world)}
    for rank in order.sample(range(world), world):
        run.join(rank % 2 + 1, rank, world, rank // 2)
    for rank in order.sample(range(world), world):  # communicators first: making them blocks
        run.send(rank // 2, batch=scripts[rank].pop(0))
    while any(scripts.values()):
        rank = order.choice([rank for rank in scripts if scripts[rank]])
        run.send(rank // 2, batch=scripts[rank].pop(0))
        if order.random() < 0.6:
            run.simulation.advance(0.0)
    run.simulation.advance(0.0)
    replies = [sorted(run.replies(server).items()) for server in (0, 1)]
    payloads = [sorted(run.payloads(server).items()) for server in (0, 1)]
    summary = run.summary()
    assert summary["state"] == "Succeeded", summary["reason"]
    counters = summary.pop("engine")  # others tell how it went, which is no part of the timeline
    summary["engine"] = {name: counters[name] for name in ("operations", "spans", "collectives", "flows", "idle_jumps")}
    return summary, replies, payloads


def test_the_order_of_messages_of_different_servers_changes_nothing(tmp_path: Path) -> None:
    first = play(tmp_path / "0", 0, "conservative")
    assert [s["index"] for s in first[0]["steps"]] == [1, 2, 3, 4]
    assert len(first[2][0]) == 8
    for seed in range(1, 12):
        assert play(tmp_path / str(seed), seed, "conservative") == first
        summary, _, payloads = play(tmp_path / f"optimistic{seed}", seed, "optimistic")
        assert (summary, payloads) == (first[0], first[2])  # answers are provisional, the timeline is the same
