"""Measures what a blocking call takes: shim → ring → agent → gRPC → core and back, without any simulation.

``python -m bench.roundtrip [--ranks N] [--calls N] [--records N] [--payloads N] [--against PYTHON]`` starts an agent
and, as a core, a process that answers at once, and plays ranks that ask again and again. Before each call a rank writes
so many records, and so many collectives whose payloads go out and come back. It prints the latency of the calls, and
the agent's processor time by batch and by record.

The baseline of the latency is that of a bare gRPC stream between two processes; rings, futexes and the agent add the
difference. The baseline of the processor time is another agent: ``--against`` names the Python of an environment with
another version of Eidolon. Both take turns, for ``--rounds`` rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import numpy as np

from bench import plans
from bench.overhead.marked import processor_s
from eidolon_interposer.abi import EVENT_RECORD
from eidolon_interposer.vocabulary import PROTOCOL, Kind, RecordFlag
from eidolon_interposer.writer import RingWriter
from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_proto.v1 import simulation_pb2_grpc as pb_grpc

_SENDS = RecordFlag.FOREGROUND | RecordFlag.PAYLOAD


class Echo(pb_grpc.SimulationServicer):
    """Answers every blocking record at once, with the payloads that came before it."""

    def __init__(self) -> None:
        self.batches = self.records = 0

    def Connect(  # noqa: N802
        self, messages: Iterator[pb.AgentMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.CoreMessage]:
        """Answers the batches of one agent. It says which messages it has taken, since only then they are freed."""
        del context
        protocol = 0
        taken: Counter[int] = Counter()
        delivered: Counter[int] = Counter()
        for message in messages:
            match message.WhichOneof("message"):
                case "hello":
                    protocol = message.hello.protocol
                    self.batches = self.records = 0
                    yield pb.CoreMessage(welcome=pb.Welcome(protocol=protocol))
                case "goodbye":
                    return
                case "batch" | "batches":
                    batches = message.batches.batches or [message.batch]
                    self.batches += len(batches)
                    self.records += sum(batch.count for batch in batches)
                    answers = [answer for batch in batches for answer in _answers(batch, taken, delivered)]
                    if protocol == 1 or len(answers) < 2:
                        yield from answers
                    else:
                        together = pb.CoreMessage()
                        for answer in answers:
                            together.MergeFrom(answer)
                        yield together


def _answers(batch: pb.EventBatch, taken: Counter[int], delivered: Counter[int]) -> Iterator[pb.CoreMessage]:
    session = batch.session
    for payload in batch.payloads:
        delivered[session] += 1
        sent = pb.Payload(session=session, seq=payload.seq, data=payload.data, number=delivered[session])
        yield pb.CoreMessage(payloads=[sent])
    records = np.frombuffer(batch.records, EVENT_RECORD)
    replies = [
        pb.Reply(seq=batch.first_seq + int(i), thread=int(records["thread"][i]), clock_ns=int(i))
        for i in np.flatnonzero(records["flags"] & RecordFlag.BLOCKING)
    ]
    if replies:
        yield pb.CoreMessage(replies=[pb.ReplyBatch(session=session, replies=replies)])
    if session:  # that of :func:`bare` is 0, which keeps nothing
        taken[session] += 1
        yield pb.CoreMessage(taken=pb.Taken(sessions=[session], messages=[taken[session]]))


def serve(pipe: Connection) -> None:
    """Serves :class:`Echo`; the pipe is told the port, then the batches and records of a stream whenever it asks."""
    server, echo = grpc.server(futures.ThreadPoolExecutor(4)), Echo()
    pb_grpc.add_SimulationServicer_to_server(echo, server)
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    while pipe.recv():
        pipe.send((echo.batches, echo.records))
    server.stop(0)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a rank does: so many calls, and what it writes before each."""

    calls: int
    records: int
    payloads: int


def play(directory: Path, pattern: Pattern, pipe: Connection) -> None:
    """Plays a rank; sends the seconds of each call through the pipe."""
    writer = RingWriter(directory, records=1 << 16, defs_bytes=1 << 20, inbox_bytes=1 << 20)
    times = []
    for _ in range(pattern.calls):
        for _ in range(pattern.records):
            writer.emit(Kind.KERNEL)
        for _ in range(pattern.payloads):
            writer.send_payload(writer.emit(Kind.COLLECTIVE, flags=_SENDS), b"")
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
    out.put(pb.AgentMessage(hello=pb.Hello(protocol=PROTOCOL)))
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


@dataclass(frozen=True, slots=True)
class Measured:
    """What one agent took: seconds of each call, its processor time in seconds, and what went through it."""

    times: list[float]
    processor_s: float
    batches: int
    records: int


def measure(python: str, core: str, echo: Connection, ranks: int, pattern: Pattern) -> Measured:
    """Plays ranks against the agent of an environment."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "server"
        plan = Path(temporary) / "plan.json"
        document = plans.document(gpusPerServer=8)
        document["server"] |= {"ranks": ranks, "world": ranks, "conf": {}}
        plan.write_text(json.dumps(document))
        command = [python, "-m", "eidolon_interposer.agent", "--plan", plan, "--server", "0"]
        command += ["--dir", directory, "--core", core]
        # From another folder: its modules would be taken before those of the environment.
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=temporary) as agent:
            assert agent.stdout is not None
            agent.stdout.readline()
            ends = []
            for _ in range(ranks):
                mine, theirs = context.Pipe()
                context.Process(target=play, args=(directory, pattern, theirs), daemon=True).start()
                ends.append(mine)
            began_s = processor_s(agent.pid)
            times = [t for end in ends for t in end.recv()]
            used_s = processor_s(agent.pid) - began_s
            echo.send(True)
            batches, records = echo.recv()
            (directory / "exit").write_text("0 \n")
    return Measured(times, used_s, batches, records)


def show(label: str, times: list[float]) -> None:
    """Prints how long calls took, as 5th percentile, median and 99th percentile."""
    low, median, high = np.percentile(np.array(times) * 1e6, [5, 50, 99])
    print(f"{label:32} {len(times):6} calls   5 % {low:7.0f} us   median {median:7.0f} us   99 % {high:7.0f} us")


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--records", type=int, default=10, help="before each call")
    parser.add_argument("--payloads", type=int, default=0, help="before each call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", metavar="PYTHON", help="of an environment with another agent")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipe, far = context.Pipe()
    core = context.Process(target=serve, args=(far,), daemon=True)
    core.start()
    address = f"127.0.0.1:{pipe.recv()}"
    show("baseline: gRPC stream alone", bare(address, options.calls))
    pattern = Pattern(options.calls, options.records, options.payloads)
    agents = {"this agent": sys.executable} | ({"the other": options.against} if options.against else {})
    found: dict[str, list[Measured]] = {name: [] for name in agents}
    for _ in range(options.rounds):
        for name, python in agents.items():
            found[name].append(measure(python, address, pipe, options.ranks, pattern))
    for name, rounds in found.items():
        show(f"{name}, {options.ranks} rank(s)", [t for one in rounds for t in one.times])
    for name, rounds in found.items():
        by_call = statistics.median(one.processor_s / len(one.times) for one in rounds) * 1e6
        by_batch = statistics.median(one.processor_s / one.batches for one in rounds) * 1e6
        by_record = statistics.median(one.processor_s / one.records for one in rounds) * 1e6
        print(
            f"{name:32} processor time: {by_call:7.0f} us a call, {by_batch:7.0f} us a batch, {by_record:6.2f} us a "
            f"record ({statistics.median(one.batches for one in rounds):.0f} batches, median of {len(rounds)} rounds)"
        )
    pipe.send(None)
    core.join(5)


if __name__ == "__main__":
    main()
