"""Measures how long a blocking call takes: shim → ring → agent → gRPC → core and back, without any simulation.

``python -m bench.roundtrip [--ranks N] [--calls N]`` starts an agent and, as a core, a process that answers at once,
and plays ranks that ask again and again. It prints their latency. The baseline is the latency of a bare gRPC stream
between two processes; rings, futexes and the agent add the difference.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import numpy as np

from bench import plans
from eidolon_interposer.abi import EVENT_RECORD
from eidolon_interposer.vocabulary import Kind, RecordFlag
from eidolon_interposer.writer import RingWriter
from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_proto.v1 import simulation_pb2_grpc as pb_grpc


class Echo(pb_grpc.SimulationServicer):
    """Answers every blocking record at once."""

    def Connect(  # noqa: N802
        self, messages: Iterator[pb.AgentMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.CoreMessage]:
        """Answers the batches of one agent. It says which messages it has taken, since only then they are freed."""
        del context
        taken: Counter[int] = Counter()
        for message in messages:
            match message.WhichOneof("message"):
                case "hello":
                    yield pb.CoreMessage(welcome=pb.Welcome(protocol=1))
                case "goodbye":
                    return
                case "batch":
                    batch = message.batch
                    records = np.frombuffer(batch.records, EVENT_RECORD)
                    replies = [
                        pb.Reply(seq=batch.first_seq + int(i), thread=int(records["thread"][i]), clock_ns=int(i))
                        for i in np.flatnonzero(records["flags"] & RecordFlag.BLOCKING)
                    ]
                    if replies:
                        yield pb.CoreMessage(replies=pb.ReplyBatch(session=batch.session, replies=replies))
                    if not batch.session:  # that of :func:`bare`, which keeps nothing
                        continue
                    taken[batch.session] += 1
                    yield pb.CoreMessage(taken=pb.Taken(sessions=[batch.session], messages=[taken[batch.session]]))


def serve(pipe: Connection) -> None:
    """Sends the port through the pipe, and then serves :class:`Echo` until something comes back through it."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    pb_grpc.add_SimulationServicer_to_server(Echo(), server)
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    pipe.recv()
    server.stop(0)


def play(directory: Path, calls: int, pipe: Connection) -> None:
    """Plays a rank that asks a number of times, and sends the seconds of each call through the pipe."""
    writer = RingWriter(directory)
    times = []
    for _ in range(calls):
        for _ in range(10):
            writer.emit(Kind.KERNEL)
        begin = time.perf_counter()
        writer.ask(Kind.SYNC_STREAM)
        times.append(time.perf_counter() - begin)
    writer.close()
    pipe.send(times)


def bare(core: str, calls: int) -> list[float]:
    """The round trips of one record over a bare gRPC stream."""
    out: queue.SimpleQueue[pb.AgentMessage] = queue.SimpleQueue()
    record = np.zeros(1, EVENT_RECORD)
    record["flags"] = RecordFlag.BLOCKING
    channel = grpc.insecure_channel(core)
    answers = pb_grpc.SimulationStub(channel).Connect(iter(out.get, None))
    out.put(pb.AgentMessage(hello=pb.Hello(protocol=1)))
    next(answers)
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        out.put(pb.AgentMessage(batch=pb.EventBatch(count=1, records=record.tobytes())))
        next(answers)
        times.append(time.perf_counter() - begin)
    answers.cancel()
    channel.close()
    return times


def show(label: str, times: list[float]) -> None:
    """Prints how long calls took, as 5th percentile, median and 99th percentile."""
    low, median, high = np.percentile(np.array(times) * 1e6, [5, 50, 99])
    print(f"{label:32} {len(times):6} calls   5 % {low:7.0f} us   median {median:7.0f} us   99 % {high:7.0f} us")


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--calls", type=int, default=1000)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipe, far = context.Pipe()
    core = context.Process(target=serve, args=(far,), daemon=True)
    core.start()
    address = f"127.0.0.1:{pipe.recv()}"
    show("baseline: gRPC stream alone", bare(address, options.calls))
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "server"
        plan = Path(temporary) / "plan.json"
        document = plans.document(gpusPerServer=8)
        document["server"] |= {"ranks": options.ranks, "world": options.ranks, "conf": {}}
        plan.write_text(json.dumps(document))
        command = [sys.executable, "-m", "eidolon_interposer.agent", "--plan", plan, "--server", "0"]
        with subprocess.Popen([*command, "--dir", directory, "--core", address], stdout=subprocess.PIPE) as agent:
            assert agent.stdout is not None
            agent.stdout.readline()
            ends = []
            for _ in range(options.ranks):
                mine, theirs = context.Pipe()
                context.Process(target=play, args=(directory, options.calls, theirs), daemon=True).start()
                ends.append(mine)
            times = [t for end in ends for t in end.recv()]
            (directory / "exit").write_text("0 \n")
        show(f"through ring and agent, {options.ranks} rank(s)", times)
    pipe.send(None)
    core.join(5)


if __name__ == "__main__":
    main()
