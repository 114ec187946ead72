"""Measures what a blocking request costs: a clock read through gRPC and the core (``python -m bench.core_latency``).

The baseline is the same round trip over an echo service that does nothing, in the same kind of process. The
difference is the core's own turn-around: records checked, converted, ingested and answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "simcore"))

ECHO = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from eidolon_proto.v1 import simulation_pb2 as pb, simulation_pb2_grpc as pb_grpc
class Echo(pb_grpc.SimulationServicer):
    def Connect(self, messages, context):
        for m in messages:
            seqs = [] if not m.HasField("batch") else [pb.Reply(seq=m.batch.first_seq + m.batch.count - 1)]
            yield pb.CoreMessage(replies=[pb.ReplyBatch(session=1, replies=seqs)])
server = grpc.server(ThreadPoolExecutor(4))
pb_grpc.add_SimulationServicer_to_server(Echo(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print("listening", f"127.0.0.1:{port}", flush=True)
server.wait_for_termination()
"""
ROUNDS = 2_000


def measure(command: list[str], records: int) -> list[float]:
    """Sorted round trips in microseconds. Every request comes with a number of other records before it."""
    from fakes import BLOCKING, FOREGROUND, FakeAgent, FakeRank

    import conftest  # noqa: F401 (the protocol's code)
    from eidolon_simcore.vocabulary import Kind

    environment = {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        agent = FakeAgent(process.stdout.readline().split()[1])
        agent.join(1, 0, 1)
        rank = FakeRank(1)
        took = []
        for _ in range(ROUNDS):
            for _ in range(records):
                rank.kernel()
            seq = rank.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING, call="clock")
            batch = rank.batch()
            agent.received.clear()
            begin = time.perf_counter()
            agent.send(batch=batch)
            agent.reply(1, seq)
            took.append((time.perf_counter() - begin) * 1e6)
        agent.close()
        process.kill()
    return sorted(took)


def main() -> None:
    """Prints the round trips of a call through the core."""
    from fakes import CORE

    with tempfile.TemporaryDirectory() as out:
        plan = Path(out) / "plan.json"
        plan.write_text(json.dumps({"core": CORE}))
        core = ["-m", "eidolon_simcore", "--plan", str(plan), "--out", out]
        for records in (0, 100):
            echo, real = measure(["-c", ECHO], records), measure(core, records)
            print(f"{records} records before the request, microseconds (median, 90th percentile), {ROUNDS} requests:")
            for name, took in (("echo service (baseline)", echo), ("simulation core", real)):
                print(f"  {name:24} {took[ROUNDS // 2]:7.0f} {took[ROUNDS * 9 // 10]:7.0f}")
            print(f"  core's own part          {real[ROUNDS // 2] - echo[ROUNDS // 2]:7.0f}")


if __name__ == "__main__":
    main()
