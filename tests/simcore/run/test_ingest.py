"""What comes in is limited and checked, and nothing of it is lost when an agent is."""

from __future__ import annotations

import contextlib
import queue
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from fakes import FakeAgent, FakeRank
from serving import Core

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_proto.v1 import simulation_pb2_grpc as pb_grpc
from eidolon_simcore.run import service
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.run.validation import MAX_SIGNATURES
from eidolon_simcore.vocabulary import PROTOCOL, Kind


def too_large(agent: FakeAgent) -> None:
    agent.send(batch=pb.EventBatch(session=1, records=bytes(5 << 20)))


def too_many_signatures(agent: FakeAgent) -> None:
    agent.join(1, 0, 1)
    for begin in range(1_024, 1_024 + MAX_SIGNATURES + 1, 20_000):
        numbers = range(begin, min(begin + 20_000, 1_024 + MAX_SIGNATURES + 1))
        signatures = [pb.Signature(id=number, kind="op", name="f") for number in numbers]
        agent.send(batch=pb.EventBatch(session=1, signatures=signatures))


@pytest.mark.parametrize(
    ("send", "words"),
    [
        (too_large, r"a message of 52428\d\d bytes \(limit 4194304\)"),
        (too_many_signatures, "more than 100000 signatures of one rank"),
        (lambda agent: agent.send(hello=pb.Hello(protocol=PROTOCOL)), "unexpected message hello"),
        (lambda agent: agent.send(left=pb.RankLeft(session=7)), "session 7 has not joined"),
    ],
)
def test_what_is_beyond_a_limit_fails_the_run_and_says_why(
    core: Core, send: Callable[[FakeAgent], None], words: str
) -> None:
    agent = core.agent()
    agent.wait(lambda messages: messages)
    send(agent)
    code, text = agent.status()
    assert (code, re.search(words, text) is not None) == (grpc.StatusCode.INVALID_ARGUMENT, True), text
    assert core.simulation.cause == Cause.INGEST_REJECTED
    assert re.search(words, core.simulation.reason)


def test_a_stream_that_says_nothing_is_ended_and_nobody_minds(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HELLO_LIMIT_S", 0.2)
    channel = grpc.insecure_channel(core.address)
    call = pb_grpc.SimulationStub(channel).Connect(iter(queue.SimpleQueue[Any]().get, None))
    with pytest.raises(grpc.RpcError):
        next(call)
    assert (call.code(), call.details()) == (grpc.StatusCode.DEADLINE_EXCEEDED, "no hello within 0.2 s")
    channel.close()
    agent = core.agent()
    agent.wait(lambda messages: messages)
    time.sleep(0.4)
    assert core.simulation.state is None
    assert not agent.over, "one that said hello may be silent for long"


def test_silent_streams_do_not_keep_an_agent_waiting(core: Core) -> None:
    """Each holds a thread of the core, and there are more of them than threads."""
    alone = [("grpc.use_local_subchannel_pool", 1)]  # a connection each
    channels = [grpc.insecure_channel(core.address, alone) for _ in range(100)]
    ends = [(channel, queue.SimpleQueue[Any]()) for channel in channels for _ in range(10)]
    calls = [pb_grpc.SimulationStub(channel).Connect(iter(end.get, None)) for channel, end in ends]
    time.sleep(0.5)
    began = time.monotonic()
    agent = core.agent()
    agent.wait(lambda messages: messages)
    assert time.monotonic() - began < service.HELLO_LIMIT_S / 2
    assert core.simulation.state is None
    for call, (_, end) in zip(calls, ends, strict=True):
        call.cancel()
        end.put(None)
    for channel in channels:
        channel.close()


def test_connections_without_a_stream_are_closed_and_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HELLO_LIMIT_S", 1.0)
    core = Core(tmp_path)
    host, port = core.address.split(":")
    with contextlib.ExitStack() as held:
        silent = [held.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(300)]
        agent = core.agent()
        agent.wait(lambda messages: messages)
        for connection in silent:
            while connection.recv(1 << 16):  # what the core says first
                pass
        agent.goodbye()
    core.close()


# ---- nothing is lost -------------------------------------------------------------------------------------------------


def test_workloads_may_start_once_all_servers_are_there(tmp_path: Path) -> None:
    core = Core(tmp_path, servers=2)
    first = core.agent(0)
    first.wait(lambda messages: messages)
    assert not list(first.messages("go"))
    second = core.agent(1)
    for agent in (first, second):
        agent.wait(lambda _, agent=agent: list(agent.messages("go")))
    first.close()
    again = reconnect(core, 0)
    again.wait(lambda _: list(again.messages("go")))
    core.close()


def reconnect(core: Core, server: int = 0) -> FakeAgent:
    """The next agent of a server: refused as long as the core has not noticed the end of the one before."""
    deadline = time.monotonic() + 20
    while True:
        agent = core.agent(server)
        agent.wait(lambda messages, agent=agent: messages or agent.over)
        if not agent.over or time.monotonic() > deadline:
            return agent


def test_what_was_taken_is_acknowledged_by_the_number_of_messages(core: Core) -> None:
    agent = core.agent()
    agent.join(1, 0, 1)
    rank = FakeRank(1)
    for _ in range(3):
        rank.write(Kind.HOST)
        agent.flush(rank)

    def taken(messages: list[pb.CoreMessage]) -> int:
        return max((count for m in messages for count in m.taken.messages), default=0)

    agent.wait(lambda messages: taken(messages) == 3)
    agent.send(left=pb.RankLeft(session=1, orderly=True, records=3))
    agent.wait(lambda messages: taken(messages) == 4)
    agent.close()
    again = reconnect(core)
    again.join(1, 0, 1)
    again.send(left=pb.RankLeft(session=1, orderly=True, records=3))
    again.wait(lambda messages: taken(messages) == 1)  # counted anew on each stream


def test_batches_of_several_ranks_come_in_one_message(core: Core) -> None:
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    syncs = [rank.sync() for rank in ranks]
    agent.send(batches=pb.Batches(batches=[rank.batch() for rank in ranks]))
    for rank, sync in zip(ranks, syncs, strict=True):
        agent.reply(rank.session, sync)


def test_payloads_that_did_not_arrive_are_sent_again_and_not_those_that_did(core: Core) -> None:
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    for position in range(2):
        for rank in ranks:
            rank.collective("all_reduce", 7, position, 1, payload=np.float32(position + 1).tobytes())
    syncs = [rank.sync() for rank in ranks]
    agent.flush(*ranks)
    for rank, sync in zip(ranks, syncs, strict=True):
        agent.reply(rank.session, sync)
    sent = [(p.session, p.number) for p in agent.messages("payloads")]
    assert sorted(sent) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    agent.close()
    again = reconnect(core)
    for i, rank in enumerate(ranks):
        again.send(joined=pb.RankJoined(session=rank.session, rank=i, world=2, delivered=1 - i))
    for rank, sync in zip(ranks, syncs, strict=True):
        again.reply(rank.session, sync)
    assert [(p.session, p.number) for p in again.messages("payloads")] == [(1, 2), (2, 1), (2, 2)]
    order = [kind for m in again.received for kind in ("payloads", "replies") if len(getattr(m, kind))]
    assert order.index("payloads") < order.index("replies"), "an answer never overtakes what it depends on"


def test_records_that_went_with_their_agent_fail_the_run(core: Core) -> None:
    agent = core.agent()
    agent.join(1, 0, 1)
    rank = FakeRank(1)
    rank.write(Kind.HOST)
    rank.batch()  # lost
    rank.write(Kind.HOST)
    agent.flush(rank)
    assert "record 1 follows record -1" in agent.status()[1]
    assert core.simulation.cause == Cause.AGENT_LOST


def test_a_server_that_is_taken_down_is_lost_whatever_its_exit_code(core: Core) -> None:
    agent = core.agent()
    agent.send(goodbye=pb.Goodbye(exit_code=0, reason="interrupted by SIGTERM: completed", interrupted=True))
    summary = core.summary()
    assert (summary["state"], summary["cause"]) == ("Failed", "ServerLost")
    assert summary["reason"] == "server 0 was taken down: interrupted by SIGTERM: completed"
