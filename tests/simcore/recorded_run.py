"""A small recorded run for tests: two ranks, five steps, each of kernels on one stream and an all-reduce on another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes import AUTOGRAD, FOREGROUND, FakeRank, plan

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.export.summary import Report
from eidolon_simcore.export.timeline.recorder import Recorder
from eidolon_simcore.run.simulation import Simulation
from eidolon_simcore.vocabulary import PROTOCOL, Kind

STEPS = 5
KERNELS = (20, 25)  #: of each rank in a step: the second is the straggler
KERNEL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_"
COUNT = 1 << 22  #: elements of an all-reduce
COMPUTE, COMMUNICATE = 1, 7  #: streams


def record(out: Path, limit_bytes: int = 1 << 28) -> dict[str, Any]:
    """Records the run into ``out``; returns its summary."""
    p = plan()
    engine = NativeEngine()

    def recorder(labels: Any, network: Any) -> Recorder:
        return Recorder(out / "recording", limit_bytes, labels, network, engine.counters)

    simulation = Simulation(p, engine, Report(p, out), version="test", now=0.0, sinks=(recorder,))
    hello = pb.Hello(protocol=PROTOCOL, server=0, devices=2, gpu="h100-sxm", token="secret")
    simulation.hello(hello, lambda _: None, 0.0)
    ranks = [FakeRank(1, 0), FakeRank(2, 1)]

    def send(**message: Any) -> None:
        simulation.message(0, pb.AgentMessage(**message), 0.0)

    def flush() -> None:
        for rank in ranks:
            send(batch=rank.batch())
        simulation.advance(0.0)

    for number, rank in enumerate(ranks):
        send(joined=pb.RankJoined(session=number + 1, rank=number, world=2))
        rank.comm(9, number, 2)
    flush()
    for step in range(STEPS):
        for number, rank in enumerate(ranks):
            rank.write(Kind.MEMORY, value=(step + 1) << 30)
            kernel = rank.signature("kernel", KERNEL, gx=4096, bx=128, n=1 << 22)
            for _ in range(KERNELS[number]):
                rank.write(Kind.KERNEL, call="cudaLaunchKernel", sig=kernel, flags=FOREGROUND | AUTOGRAD)
            event = 100 + step
            rank.write(Kind.EVENT_RECORD, value=event, call="cudaEventRecord", stream=COMPUTE)
            rank.write(Kind.STREAM_WAIT, value=event, call="cudaStreamWaitEvent", stream=COMMUNICATE)
            rank.collective("all_reduce", 9, step, COUNT, stream=COMMUNICATE)
            rank.sync()
            rank.mark()
        flush()
    for number, rank in enumerate(ranks):
        send(left=pb.RankLeft(session=number + 1, records=rank.seq))
    send(goodbye=pb.Goodbye())
    simulation.finish(0.0)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary
