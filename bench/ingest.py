"""Measures what the core spends on what ranks send, in processor time of its thread. Run: ``python -m bench.ingest``.

Two ranks train a small model: 700 calls and 350 kernels a step, and an all-reduce for each of 72 parameters, most of
them so small that their bytes would be moved if they were known. An agent sends what it finds, so batches are the
smaller the faster it is. Messages are made beforehand and go into a simulation without gRPC, a round for each batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import plans
from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.core_plan import parse
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.export.summary import Report
from eidolon_simcore.run.event_records import RECORD
from eidolon_simcore.run.simulation import Simulation
from eidolon_simcore.vocabulary import PROTOCOL, Kind, RecordFlag

RANKS = 2
KERNELS, CALLS = 350, 700  # of a step, before the all-reduces
LAYERS = 6
PARAMETERS = (1 << 18, 256, 1 << 16, 256, 1 << 18, 1024, 1 << 18, 256, 256, 256, 256, 256)  # elements, of a layer
SMALL_BYTES = 1 << 16
FOREGROUND, BLOCKING, AUTOGRAD = RecordFlag.FOREGROUND, RecordFlag.BLOCKING, RecordFlag.AUTOGRAD
SIGNATURES: list[tuple[int, str, str, dict[str, int]]] = [
    (1, "call", "cudaLaunchKernel", {}),
    (2, "call", "ncclAllReduce", {}),
    (3, "call", "cudaGetDevice", {}),
    (4, "call", "cudaDeviceSynchronize", {}),
    (1024, "gemm", "cublas", {"m": 1024, "n": 1024, "k": 256, "batch": 1, "atype": 14, "ctype": 14}),
    (1025, "library", "norm", {"bytes": 1 << 20, "flops": 0}),
    (1026, "mark", "step", {}),
]
COMM = 1027
ALL_REDUCES = {count: 1028 + i for i, count in enumerate(sorted(set(PARAMETERS)))}  # signatures, by elements


class Run:
    """A simulation, and the messages of its ranks in batches of so many records."""

    def __init__(self, out: Path, batch: int) -> None:
        document = plans.document(servers=1, gpusPerServer=RANKS, workload={"command": ["train.py"]})
        plan = parse(document["core"], name="bench")
        self.simulation = Simulation(plan, NativeEngine(), Report(plan, out), version="bench", now=0.0)
        self.batch = batch
        self.now = 0.0
        self.seq = [0] * RANKS
        self.position = 0
        self.sent = 0
        hello = pb.Hello(protocol=PROTOCOL, server=0, devices=RANKS, gpu="h100-sxm", token=plans.TOKEN)
        self.simulation.hello(hello, self._count, 0.0)
        for rank in range(RANKS):
            self.simulation.message(
                0, pb.AgentMessage(joined=pb.RankJoined(session=rank + 1, rank=rank, world=RANKS)), 0
            )
        for rank in range(RANKS):
            rows = np.zeros(1, RECORD)
            rows["kind"], rows["flags"], rows["sig"], rows["device"] = Kind.COMM_INIT, FOREGROUND | BLOCKING, COMM, rank
            message = self._messages(rank, rows, {})[0]
            own = (COMM, "comm", "all", {"id": 1, "rank": rank, "size": RANKS, "device": rank})
            reduces = [(number, "collective", "all_reduce", _all_reduce(n)) for n, number in ALL_REDUCES.items()]
            for i, kind, name, attributes in (*SIGNATURES, own, *reduces):
                message.batch.signatures.append(pb.Signature(id=i, kind=kind, name=name, attributes=attributes))
            self.play([message])

    def _count(self, _: Any) -> None:
        self.sent += 1

    def step(self) -> list[pb.AgentMessage]:
        """The messages of one step; the ranks take turns."""
        each = [self._messages(rank, *self._rows(rank)) for rank in range(RANKS)]
        self.position += LAYERS * len(PARAMETERS)
        return [messages[i] for i in range(max(map(len, each))) for messages in each if i < len(messages)]

    def play(self, messages: list[pb.AgentMessage]) -> tuple[float, int]:
        """Lets the core have them, a round each; returns the seconds of processor time and the number of records."""
        simulation, began = self.simulation, time.thread_time()
        for message in messages:
            self.now += 0.0005
            simulation.message(0, message, self.now)
            simulation.advance(self.now)
        took = time.thread_time() - began
        assert simulation.state is None, simulation.reason
        return took, sum(message.batch.count for message in messages)

    def _rows(self, rank: int) -> tuple[Any, dict[int, bytes]]:
        """The records of a step, and the payloads of some."""
        compute = np.zeros(KERNELS + CALLS, RECORD)
        compute["kind"], compute["flags"], compute["call"] = Kind.HOST, FOREGROUND, 3
        kernels = np.arange(KERNELS) * 3
        compute["kind"][kernels], compute["call"][kernels], compute["stream"] = Kind.KERNEL, 1, 1
        compute["flags"][kernels] |= int(AUTOGRAD)
        compute["sig"][kernels] = np.where(np.arange(KERNELS) % 3, 1025, 1024)
        reduces = np.zeros(LAYERS * len(PARAMETERS), RECORD)
        counts = np.tile(PARAMETERS, LAYERS)
        reduces["kind"], reduces["flags"], reduces["call"], reduces["stream"] = Kind.COLLECTIVE, FOREGROUND, 2, 2
        reduces["sig"] = [ALL_REDUCES[count] for count in counts.tolist()]
        reduces["value"] = self.position + np.arange(len(reduces))
        small = 4 * counts <= SMALL_BYTES
        reduces["flags"][small] |= int(RecordFlag.PAYLOAD)
        end = np.zeros(2, RECORD)
        end["kind"], end["flags"] = (Kind.MARK, Kind.SYNC_DEVICE), (FOREGROUND, FOREGROUND | BLOCKING)
        end["sig"], end["call"] = (1026, 0), (0, 4)
        rows = np.concatenate([compute, reduces, end])
        rows["device"] = rank
        first = self.seq[rank] + len(compute)
        return rows, {first + at: b"" for at in np.flatnonzero(small).tolist()}

    def _messages(self, rank: int, rows: Any, payloads: dict[int, bytes]) -> list[pb.AgentMessage]:
        first = self.seq[rank]
        rows["seq"] = np.arange(first, first + len(rows))
        self.seq[rank] += len(rows)
        messages = []
        for at in range(0, len(rows), self.batch):
            part, begin = rows[at : at + self.batch], first + at
            batch = pb.EventBatch(session=rank + 1, first_seq=begin, count=len(part), records=part.tobytes())
            for seq in range(begin, begin + len(part)):
                if seq in payloads:
                    batch.payloads.append(pb.RecordPayload(seq=seq, data=payloads[seq], position=8 * seq + 8))
            messages.append(pb.AgentMessage(batch=batch))
        return messages


def _all_reduce(count: int) -> dict[str, int]:
    return {"comm": 1, "count": count, "dtype": 7, "bytes": 4 * count, "root": 0, "peer": -1, "redop": 4}


def main() -> None:
    """Prints the core's processor time by the size of the batches."""
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 16, 64, 256, 2_048], help="records of a batch")
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    for batch in arguments.batches:
        with tempfile.TemporaryDirectory() as out:
            run = Run(Path(out), batch)
            for _ in range(5):
                run.play(run.step())
            steps = []
            for _ in range(arguments.steps):
                messages = run.step()
                took, records = run.play(messages)
                steps.append((took * 1e6 / records, took * 1e6 / len(messages), took * 1e3))
        record, each, step = (statistics.median(column) for column in zip(*steps, strict=True))
        print(f"batches of {batch:5}: {record:6.2f} us a record, {each:8.1f} us a batch, {step:6.2f} ms a step")


if __name__ == "__main__":
    main()
