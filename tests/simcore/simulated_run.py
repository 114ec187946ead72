"""A simulation without gRPC, for tests: messages go in by hand, its clock stands still, and what it sends is kept."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fakes import FakeRank, plan

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.export.summary import Report
from eidolon_simcore.run.simulation import Simulation
from eidolon_simcore.vocabulary import PROTOCOL


class Run:
    """A simulation whose clock stands still; what it sends is kept by server. Servers that are ``absent`` do not say
    hello by themselves.
    """

    def __init__(self, out: Path, absent: Collection[int] = (), **changes: Any) -> None:
        p = plan(**changes)
        self.out = out
        engine = NativeEngine(optimistic=p.time_sync == "optimistic")
        self.simulation = Simulation(p, engine, Report(p, out), version="test", now=0.0)
        self.sent: dict[int, list[pb.CoreMessage]] = {server: [] for server in p.present}
        for server in self.sent:
            if server not in absent:
                self.hello(server)

    def hello(self, server: int = 0) -> None:
        p = self.simulation.plan
        gpu = p.devices[server].gpu.key
        hello = pb.Hello(protocol=PROTOCOL, server=server, devices=p.gpus_per_server, gpu=gpu, token="secret")
        self.simulation.hello(hello, self.sent[server].append, 0.0)

    def send(self, server: int = 0, **message: Any) -> None:
        self.simulation.message(server, pb.AgentMessage(**message), 0.0)

    def join(self, session: int, rank: int, world: int, server: int = 0) -> None:
        self.send(server, joined=pb.RankJoined(session=session, rank=rank, world=world))

    def batch(self, rank: FakeRank, server: int = 0) -> None:
        self.send(server, batch=rank.batch())
        self.simulation.advance(0.0)

    def replies(self, server: int = 0) -> dict[tuple[int, int], tuple[int, int]]:
        batches = [batch for m in self.sent[server] for batch in m.replies]
        return {(b.session, r.seq): (r.clock_ns, r.value) for b in batches for r in b.replies}

    def payloads(self, server: int = 0) -> dict[tuple[int, int], bytes]:
        return {(p.session, p.seq): p.data for m in self.sent[server] for p in m.payloads}

    def summary(self) -> dict[str, Any]:
        for server in self.simulation.servers:
            if server.exit_code is None:
                self.send(server.index, goodbye=pb.Goodbye())
        self.simulation.finish(0.0)
        return json.loads((self.out / "summary.json").read_text())


def alone(run: Run) -> FakeRank:
    """A rank that joins by itself."""
    run.join(1, -1, -1)
    return FakeRank(1)


def pair(run: Run) -> list[FakeRank]:
    """Two ranks with a communicator, whose id is 7."""
    ranks = [FakeRank(1), FakeRank(2, device=1)]
    for i, rank in enumerate(ranks):
        run.join(rank.session, i, 2)
        rank.comm(7, i, 2)
        run.batch(rank)
    return ranks
