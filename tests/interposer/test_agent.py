"""The agent between rings and a core: the agent is a process of its own, the core and the ranks are played here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest
from playing import LIMIT_S, Core, Server, until, until_ended

from eidolon_interposer.abi import DEVICE_GAUGES, EVENT_RECORD, FIXED_BYTES
from eidolon_interposer.vocabulary import ABI_VERSION, PROTOCOL, Kind, RecordFlag, ReplyStatus
from eidolon_interposer.writer import EndedError, RingWriter
from eidolon_proto.v1 import simulation_pb2 as pb

# ---- the beginning ---------------------------------------------------------------------------------------------------


def test_hello_and_server_directory(server: Server, core: Core) -> None:
    server.start()
    hello = core.of("hello")[0]
    assert (hello.protocol, hello.server, hello.devices, hello.gpu) == (PROTOCOL, 1, 2, "h100-sxm")
    assert hello.token == "secret"
    conf = (server.directory / "server.conf").read_text()
    assert conf == "mode=core\ngpu.name=NVIDIA H100\nserver=1\n"


def test_no_core_is_one_clear_line(server: Server, core: Core) -> None:
    core.stop()
    server.start("--connect-timeout", "0.5", ready=False)
    assert server.wait() == 1
    assert server.errors == (f"eidolon agent: no core reachable: nothing answered at {core.address} within 0.5 s\n")


def test_a_silent_core_is_given_up(server: Server, core: Core) -> None:
    core.silent = True
    server.start("--connect-timeout", "0.5", ready=False)
    assert server.wait() == 1
    assert "no core reachable" in server.errors


def test_a_refusal_is_shown(server: Server, core: Core) -> None:
    core.refusal = grpc.StatusCode.FAILED_PRECONDITION, "protocol 1 of agent 0.1, this core speaks 2"
    server.start(ready=False)
    assert server.wait() == 1
    expected = f"the core at {core.address} refused: protocol 1 of agent 0.1, this core speaks 2"
    assert server.errors == f"eidolon agent: {expected}\n"


def test_a_core_of_another_protocol_is_refused(server: Server, core: Core) -> None:
    core.protocol = 7
    server.start(ready=False)
    assert server.wait() == 1
    assert f"speaks protocol 7 (version test), this agent {PROTOCOL}" in server.errors


@pytest.mark.parametrize("content", ["", "{}", '{"core": {"token": ""}, "server": {"devices": "two"}}'])
def test_a_bad_plan_is_one_clear_line(server: Server, content: str) -> None:
    server.plan.write_text(content)
    server.start(ready=False)
    assert server.wait() == 2
    assert server.errors.startswith("eidolon agent: ")
    assert server.errors.count("\n") == 1
    assert str(server.plan) in server.errors


def test_what_the_core_says_of_a_device_stands_in_the_page(server: Server, core: Core) -> None:
    server.start()
    core.send(gauges=[pb.Gauges(device=1, at_ns=5, energy_mj=7, nvlink_in_bytes_per_s=11)])
    page = server.directory / "gauges.page"

    def shown() -> tuple[int, ...]:
        gauges = np.frombuffer(page.read_bytes(), DEVICE_GAUGES)[1]
        return tuple(int(gauges[name]) for name in ("at_ns", "energy_mj", "power_mw", "nvlink_in_bytes_per_s"))

    until(lambda: shown() == (5, 7, 0, 11), "the gauges")


# ---- records and answers ---------------------------------------------------------------------------------------------


def test_a_rank_from_joining_to_goodbye(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory, rank=2, local_rank=0, world=4)
    call = writer.sign(1, "call", "cudaStreamSynchronize")
    gemm = writer.sign(1024, "gemm", "cublasGemmEx", m=64, ta=-1)
    for _ in range(10):
        writer.emit(Kind.KERNEL, sig=gemm, stream=3)
    assert writer.ask(Kind.SYNC_STREAM, call=call, thread=4) == (11_000, 10)
    assert writer.session == 1
    writer.close()
    server.write_exit("7 torchrun failed\n")
    assert server.wait() == 0
    joined = core.of("joined")[0]
    assert (joined.session, joined.rank, joined.world) == (1, 2, 4)
    assert joined.pid == os.getpid()
    records = core.records(1)
    assert records["kind"].tolist() == [Kind.KERNEL] * 10 + [Kind.SYNC_STREAM, Kind.EXIT]
    assert records["stream"].tolist() == [3] * 10 + [0, 0]
    signatures = [s for batch in core.of("batch") for s in batch.signatures]
    assert [(s.id, s.kind, s.name, dict(s.attributes)) for s in signatures] == [
        (1, "call", "cudaStreamSynchronize", {}),
        (1024, "gemm", "cublasGemmEx", {"m": 64, "ta": -1}),
    ]
    left = core.of("left")[0]
    assert (left.session, left.orderly, left.records) == (1, True, 12)
    goodbye = core.of("goodbye")[0]
    assert (goodbye.exit_code, goodbye.reason) == (7, "torchrun failed")
    assert [m.WhichOneof("message") for m in core.messages][-2:] == ["left", "goodbye"]
    assert server.rings() == []


def test_ranks_have_sessions_of_their_own(server: Server, core: Core) -> None:
    server.start()
    core.clock = lambda session, seq: session * 1_000_000 + seq
    writers = [RingWriter(server.directory, rank=rank, world=3) for rank in range(3)]
    for _ in range(20):
        clocks = [writer.ask(Kind.CLOCK)[0] for writer in writers]
        assert [clock // 1_000_000 for clock in clocks] == [writer.session for writer in writers]
    assert sorted(writer.session for writer in writers) == [1, 2, 3]
    assert {joined.session: joined.rank for joined in core.of("joined")} == {
        writer.session: rank for rank, writer in enumerate(writers)
    }
    for writer in writers:
        writer.close()


def test_more_records_than_the_ring_holds(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory, records=64, defs_bytes=1024)
    for number in range(3000):
        if number % 7 == 0:
            writer.sign(1024 + number, "op", f"name{number}")
        writer.emit(Kind.HOST, sig=1024 + number - number % 7, value=number)
    writer.ask(Kind.CLOCK)
    defined: set[int] = {0}
    for batch in core.of("batch"):
        defined |= {s.id for s in batch.signatures}
        assert set(np.frombuffer(batch.records, EVENT_RECORD)["sig"].tolist()) <= defined
    assert core.records(1)["value"].tolist()[:3000] == list(range(3000))
    writer.close()


def test_what_several_ranks_have_goes_out_together(server: Server, core: Core) -> None:
    server.start()
    writers = [RingWriter(server.directory) for _ in range(3)]
    for writer in writers:
        writer.ask(Kind.CLOCK)
    server.hold()
    asked = [writer.emit(Kind.CLOCK, flags=RecordFlag.FOREGROUND | RecordFlag.BLOCKING) for writer in writers]
    server.agent.send_signal(signal.SIGCONT)
    for writer, seq in zip(writers, asked, strict=True):
        assert writer.wait(seq) == (1000 * (seq + 1), seq)
    assert core.together == 3
    for writer in writers:
        writer.close()


def test_messages_are_limited_in_size(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory, records=1 << 16)
    writer.ask(Kind.CLOCK)
    server.hold()
    for _ in range(60_000):
        writer.emit(Kind.HOST)
    server.agent.send_signal(signal.SIGCONT)
    writer.ask(Kind.CLOCK)
    assert max(m.ByteSize() for m in core.messages) <= 1 << 20
    assert len(core.records(1)) == 60_002
    writer.close()


def test_unasked_records_arrive_soon(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory)
    writer.ask(Kind.CLOCK)
    writer.emit(Kind.HOST)
    until(lambda: len(core.records(1)) == 2, "a record that nobody waits for")
    writer.close()


def test_a_round_trip_is_short(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory)
    times = []
    for _ in range(300):
        begin = time.perf_counter()
        writer.ask(Kind.CLOCK)
        times.append(time.perf_counter() - begin)
    assert sorted(times)[len(times) // 20] < 0.003, "a sleep, not a wake-up, ends the wait"
    writer.close()


def test_payloads_go_both_ways(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory, inbox_bytes=1024)
    writer.emit(Kind.HOST)
    writer.send_payload(1, b"mine")
    writer.emit(Kind.COLLECTIVE, flags=RecordFlag.FOREGROUND | RecordFlag.PAYLOAD)
    until(lambda: len(core.records(1)) == 2, "the collective")
    assert [(p.seq, p.data) for batch in core.of("batch") for p in batch.payloads] == [(1, b"mine")]
    core.send(payloads=[pb.Payload(session=1, seq=1, data=b"theirs")])
    assert writer.wait_for_payload(1) == b"theirs"
    writer.close()


def test_answers_never_overtake_payloads(server: Server, core: Core) -> None:
    """The inbox is far too small for what comes before the answer; the waiting thread empties it."""
    server.start()
    writer = RingWriter(server.directory, inbox_bytes=1024)
    core.clock = lambda session, seq: None
    seq = writer.emit(Kind.SYNC_STREAM, flags=RecordFlag.FOREGROUND | RecordFlag.BLOCKING)
    until(lambda: len(core.records(1)) == 1, "the question")
    for number in range(50):
        core.send(payloads=[pb.Payload(session=1, seq=number, data=bytes([number]) * 400)])
    core.send(replies=[pb.ReplyBatch(session=1, replies=[pb.Reply(seq=seq, clock_ns=5)])])
    assert writer.wait(seq) == (5, 0)
    assert writer.payloads == {number: bytes([number]) * 400 for number in range(50)}
    writer.close()


def test_a_payload_larger_than_the_inbox_ends_its_rank_only(server: Server, core: Core) -> None:
    server.start()
    writer, other = RingWriter(server.directory, inbox_bytes=1024), RingWriter(server.directory)
    for each in (writer, other):
        each.ask(Kind.CLOCK)
    core.send(payloads=[pb.Payload(session=writer.session, seq=0, data=bytes(2000))])
    with pytest.raises(EndedError, match="a message of 2008 bytes does not fit 1024 bytes"):
        writer.wait_for_payload(0)
    other.ask(Kind.CLOCK)
    for each in (writer, other):
        each.close(orderly=False)


def test_clocks_are_published(server: Server, core: Core) -> None:
    server.start()
    writers = [RingWriter(server.directory), RingWriter(server.directory)]
    until(lambda: all(writer.session for writer in writers), "sessions")
    sessions = [writer.session for writer in writers]
    core.send(clocks=pb.Clocks(sessions=[*sessions, 99], clock_ns=[70, 80, 90]))
    until(lambda: [writer.clock_ns for writer in writers] == [70, 80], "clocks")
    for writer in writers:
        writer.close()


def test_heartbeat(server: Server) -> None:
    server.start()
    from eidolon_interposer.serverdir import ServerPage

    page = ServerPage(server.directory / "server.page")
    first = page.heartbeat_ns
    assert 0 <= time.monotonic_ns() - first < 1.5e9
    until(lambda: page.heartbeat_ns > first, "another heartbeat")
    page.close()


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failed", "status"), [(True, ReplyStatus.FAILED), (False, ReplyStatus.STOP)])
def test_stop_ends_every_rank_those_to_come_too(server: Server, core: Core, failed: bool, status: ReplyStatus) -> None:
    server.start()
    core.clock = lambda session, seq: None
    writer = RingWriter(server.directory)
    seq = writer.emit(Kind.SYNC_DEVICE, flags=RecordFlag.FOREGROUND | RecordFlag.BLOCKING)
    until(lambda: len(core.records(1)) == 1, "the question")
    core.send(stop=pb.Stop(failed=failed, reason="ten steps are done"))
    with pytest.raises(EndedError, match="ten steps are done") as caught:
        writer.wait(seq)
    assert caught.value.status == status
    late = RingWriter(server.directory)
    with pytest.raises(EndedError, match="ten steps are done"):
        late.ask(Kind.CLOCK)
    writer.close()
    late.close(orderly=False)
    server.write_exit()
    assert server.wait() == 0
    assert [(left.session, left.orderly) for left in core.of("left")] in (
        [(1, True), (2, False)],
        [(2, False), (1, True)],
    )


def test_stop_of_one_session(server: Server, core: Core) -> None:
    server.start()
    writers = [RingWriter(server.directory), RingWriter(server.directory)]
    for writer in writers:
        writer.ask(Kind.CLOCK)
    core.send(stop=pb.Stop(session=writers[0].session, failed=True, reason="out of order"))
    with pytest.raises(EndedError, match="out of order"):
        until_ended(writers[0])
    writers[1].ask(Kind.CLOCK)
    for writer in writers:
        writer.close(orderly=False)


@pytest.mark.parametrize("how", ["stopped", "closed"])
def test_a_lost_core_ends_every_rank(server: Server, core: Core, how: str) -> None:
    server.start()
    core.clock = lambda session, seq: None
    writer = RingWriter(server.directory)
    seq = writer.emit(Kind.SYNC_DEVICE, flags=RecordFlag.FOREGROUND | RecordFlag.BLOCKING)
    until(lambda: len(core.records(1)) == 1, "the question")
    if how == "stopped":
        core.stop()
    else:
        core.close_stream()
    with pytest.raises(EndedError, match="simulation core lost: ") as caught:
        writer.wait(seq)
    assert caught.value.status == ReplyStatus.FAILED
    assert server.wait() == 1
    # gRPC may have logged the connection's end before.
    assert server.errors.splitlines()[-1].startswith("eidolon agent: simulation core lost: ")
    writer.close(orderly=False)


def test_a_rank_that_dies_is_drained_and_its_memory_returned(server: Server, core: Core) -> None:
    server.start()
    script = (
        "import os, pathlib, signal, sys\n"
        "from eidolon_interposer.abi import Kind\n"
        "from eidolon_interposer.writer import RingWriter\n"
        "writer = RingWriter(pathlib.Path(sys.argv[1]), rank=1)\n"
        "writer.ask(Kind.CLOCK)\n"
        "writer.hold_memory(1, 600)\n"
        "for _ in range(100): writer.emit(Kind.HOST)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with (server.directory / "server.page").open("r+b") as file:
        file.seek(64 + 8)
        file.write((1000).to_bytes(8, "little"))
    subprocess.run([sys.executable, "-c", script, server.directory], timeout=LIMIT_S)
    left = until(lambda: core.of("left"), "its leaving")[0]
    assert (left.session, left.orderly, left.records) == (1, False, 101)
    assert len(core.records(1)) == 101
    until(lambda: server.rings() == [], "its ring is removed")
    assert (server.directory / "server.page").read_bytes()[72:80] == (400).to_bytes(8, "little")


def test_a_broken_ring_ends_its_rank_only(server: Server, core: Core) -> None:
    server.start()
    writer, other = RingWriter(server.directory), RingWriter(server.directory)
    for each in (writer, other):
        each.ask(Kind.CLOCK)
    writer.emit(Kind.HOST, seq=12345)
    with pytest.raises(EndedError, match="broken ring: record 1 has sequence number 12345"):
        until_ended(writer)
    other.ask(Kind.CLOCK)
    left = until(lambda: core.of("left"), "its leaving")[0]
    assert (left.session, left.orderly) == (writer.session, False)
    for each in (writer, other):
        each.close(orderly=False)
    server.write_exit("1 x\n")
    assert server.wait() == 0
    assert "broken ring" in server.errors


def test_an_unreadable_ring_ends_its_process(server: Server, core: Core) -> None:
    server.start()
    server.hold()
    writer = RingWriter(server.directory)
    with writer.path.open("r+b") as file:  # a shim of another release
        file.seek(8)
        file.write((9).to_bytes(4, "little"))
    (server.directory / "ranks" / "junk.ring").write_bytes(b"junk")
    server.agent.send_signal(signal.SIGCONT)
    with pytest.raises(EndedError, match=f"the shim's ABI version is 9, the agent's is {ABI_VERSION}"):
        writer.ask(Kind.CLOCK)
    writer.close(orderly=False)
    server.write_exit()
    assert server.wait() == 0
    assert core.of("joined") == []
    assert f"junk.ring: 4 bytes are less than the fixed part of {FIXED_BYTES}" in server.errors


def test_exit_waits_for_ranks_that_are_still_running(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory)
    writer.ask(Kind.CLOCK)
    server.write_exit()
    time.sleep(0.1)
    assert server.agent.poll() is None
    writer.ask(Kind.CLOCK)
    writer.close()
    assert server.wait() == 0
    assert core.of("left")[0].orderly


def test_a_server_without_ranks_says_goodbye(server: Server, core: Core) -> None:
    server.start()
    server.write_exit("127 not found\n")
    assert server.wait() == 0
    assert core.of("goodbye")[0].exit_code == 127


def test_sigterm_ends_what_still_runs(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory)
    writer.ask(Kind.CLOCK)
    writer.emit(Kind.HOST)
    begin = time.monotonic()
    server.agent.send_signal(signal.SIGTERM)
    with pytest.raises(EndedError, match="the agent was terminated"):
        until_ended(writer)
    assert server.wait() == 0
    assert time.monotonic() - begin < 5
    assert len(core.records(1)) == 2
    assert not core.of("left")[0].orderly
    assert (core.of("goodbye")[0].exit_code, core.of("goodbye")[0].reason) == (143, "the agent was terminated")
    writer.close(orderly=False)


def test_sigterm_after_the_end_gives_the_exit_state(server: Server, core: Core) -> None:
    server.start()
    server.write_exit("3 why\n")
    server.agent.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert (core.of("goodbye")[0].exit_code, core.of("goodbye")[0].reason) == (3, "why")


def test_sigterm_with_a_stuck_core_ends_too(server: Server, core: Core) -> None:
    core.close_after_goodbye = False
    server.start()
    begin = time.monotonic()
    server.agent.send_signal(signal.SIGTERM)
    server.wait()
    assert time.monotonic() - begin < 5


def test_a_restarted_agent_goes_on_where_the_other_stopped(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory, rank=1)
    writer.sign(1024, "op", "early")
    for _ in range(50):
        writer.emit(Kind.HOST, sig=1024)
    writer.ask(Kind.CLOCK)
    server.agent.kill()
    server.wait()
    for _ in range(50):
        writer.emit(Kind.HOST, sig=1024)
    server.start()
    late = RingWriter(server.directory, rank=0)
    late.ask(Kind.CLOCK)
    writer.ask(Kind.CLOCK)
    assert [(joined.session, joined.rank) for joined in core.of("joined")] == [(1, 1), (1, 1), (2, 0)]
    assert len(core.records(1)) == 102
    assert (core.records(1)["seq"] == np.arange(102)).all()
    for each in (writer, late):
        each.close()
