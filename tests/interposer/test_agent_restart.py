"""What is between the agent and the outside of its server: gate and end, TLS, its own death, other PID namespaces."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from certificates import certificate
from playing import LIMIT_S, Core, Server, until

from eidolon_interposer.vocabulary import Kind, RecordFlag
from eidolon_interposer.writer import RingWriter
from eidolon_proto.v1 import simulation_pb2 as pb

# ---- the launcher's files --------------------------------------------------------------------------------------------


def test_go_opens_the_gate(server: Server, core: Core) -> None:
    server.start()
    assert not (server.directory / "go").exists()
    core.send(go=pb.Go())
    until((server.directory / "go").exists, "the gate")


@pytest.mark.parametrize(("failed", "line"), [(False, "0 five steps are done\n"), (True, "1 five steps are done\n")])
def test_stop_tells_the_launcher(server: Server, core: Core, failed: bool, line: str) -> None:
    server.start()
    core.send(stop=pb.Stop(failed=failed, reason="five steps are done"))
    until((server.directory / "stop").exists, "the word to the launcher")
    assert (server.directory / "stop").read_text() == line


def test_a_lost_core_tells_the_launcher(server: Server, core: Core) -> None:
    server.start()
    core.close_stream()
    assert server.wait() == 1
    assert (server.directory / "stop").read_text() == "1 simulation core lost: it closed the stream\n"


@pytest.mark.parametrize(
    ("line", "interrupted"), [("143 interrupted by SIGTERM: killed\n", True), ("143 killed by signal 15\n", False)]
)
def test_goodbye_says_whether_the_server_was_taken_down(
    server: Server, core: Core, line: str, interrupted: bool
) -> None:
    server.start()
    server.write_exit(line)
    assert server.wait() == 0
    assert core.of("goodbye")[0].interrupted == interrupted


# ---- TLS -------------------------------------------------------------------------------------------------------------


def test_tls_with_the_secret_s_token(server: Server, tmp_path: Path) -> None:
    tls = certificate(tmp_path / "tls")
    core = Core(tls)
    server.core = core.address
    server.start("--tls", str(tls))
    assert core.of("hello")[0].token == "5" * 64
    server.write_exit()
    assert server.wait() == 0
    core.stop()


def test_a_core_with_another_certificate_is_not_trusted(server: Server, tmp_path: Path) -> None:
    core = Core(certificate(tmp_path / "theirs"))
    server.core = core.address
    server.start("--tls", str(certificate(tmp_path / "ours")), "--connect-timeout", "2", ready=False)
    assert server.wait() == 1
    assert core.messages == [], "not even the token went out"
    core.stop()


def test_a_missing_secret_is_one_clear_line(server: Server, tmp_path: Path) -> None:
    server.start("--tls", str(tmp_path), ready=False)
    assert server.wait() == 2
    assert "No such file" in server.errors
    assert server.errors.count("\n") == 1


# ---- an agent that dies ----------------------------------------------------------------------------------------------


def kill(server: Server) -> None:
    server.agent.send_signal(signal.SIGKILL)
    server.wait()


def test_what_the_core_has_not_taken_is_sent_again(server: Server, core: Core) -> None:
    server.start()
    core.acknowledges = False
    writer = RingWriter(server.directory, rank=1)
    writer.sign(1024, "op", "early")
    for _ in range(50):
        writer.emit(Kind.HOST, sig=1024)
    writer.ask(Kind.CLOCK)
    kill(server)
    core.messages.clear()  # as if none of it had come through
    core.acknowledges = True
    server.start()
    writer.ask(Kind.CLOCK)
    assert len(core.records(1)) == 52
    assert [s.name for batch in core.of("batch") for s in batch.signatures] == ["early"]
    writer.close()


@pytest.mark.parametrize("code", [grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_an_agent_comes_again_where_the_core_has_no_room_yet(server: Server, core: Core, code: grpc.StatusCode) -> None:
    """It has not noticed yet that the agent before is gone, or is crowded by streams that say nothing."""
    server.start()
    writer = RingWriter(server.directory)
    writer.ask(Kind.CLOCK)
    kill(server)
    core.refusal = code, "not yet"
    server.start(ready=False)
    until(lambda: core.refused >= 2, "another try")
    core.refusal = None
    writer.ask(Kind.CLOCK)  # its rank was left alone
    writer.close()
    server.write_exit()
    assert server.wait() == 0


def test_a_server_that_is_connected_twice_is_given_up(server: Server, core: Core) -> None:
    core.refusal = grpc.StatusCode.ALREADY_EXISTS, "server 1 is connected already"
    server.start("--connect-timeout", "1", ready=False)
    assert server.wait() == 1
    assert server.errors == f"eidolon agent: the core at {core.address} refused: server 1 is connected already\n"


def test_a_rank_that_left_is_kept_until_the_core_knows(server: Server, core: Core) -> None:
    server.start()
    core.acknowledges = False
    writer = RingWriter(server.directory)
    writer.ask(Kind.CLOCK)
    writer.close()
    until(lambda: core.of("left"), "its leaving")
    kill(server)
    core.messages.clear()
    core.acknowledges = True
    server.start()
    left = until(lambda: core.of("left"), "its leaving, told by the next agent")[0]
    assert (left.session, left.orderly, left.records) == (1, True, 2)
    assert len(core.records(1)) == 2
    until(lambda: server.rings() == [], "the end of its ring")


def test_delivered_payloads_are_counted_over_a_restart(server: Server, core: Core) -> None:
    server.start()
    writer = RingWriter(server.directory)
    writer.ask(Kind.CLOCK)
    core.send(payloads=[pb.Payload(session=1, seq=0, data=b"first", number=1)])
    assert writer.wait_for_payload(0) == b"first"
    kill(server)
    server.start()
    until(lambda: len(core.of("joined")) == 2, "its joining again")
    assert [joined.delivered for joined in core.of("joined")] == [0, 1]
    core.send(payloads=[pb.Payload(session=1, seq=5, data=b"second", number=2)])
    assert writer.wait_for_payload(5) == b"second"
    writer.ask(Kind.CLOCK)
    assert core.of("batch")[-1].delivered == 2
    writer.close()


def test_an_agent_killed_at_any_moment_loses_nothing(server: Server, core: Core) -> None:
    """A rank writes all the time, definitions and payloads too, through a small ring; its agent dies six times."""
    server.start()
    writer = RingWriter(server.directory, records=256, defs_bytes=4096)
    rounds, failed = 60, []

    def write() -> None:
        try:
            for number in range(rounds):
                writer.sign(1024 + number, "op", f"name {number}")
                for _ in range(random.Random(number).randint(1, 60)):
                    writer.emit(Kind.HOST, sig=1024 + number)
                writer.send_payload(writer.head, bytes([number]) * 100)
                writer.emit(Kind.COLLECTIVE, flags=RecordFlag.FOREGROUND | RecordFlag.PAYLOAD)
                writer.ask(Kind.CLOCK, timeout_s=120)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    moments = random.Random(5)
    for _ in range(6):
        thread.join(moments.uniform(0.0, 0.3))
        kill(server)
        server.start()
        core.repeat_answers()
    thread.join(120)
    assert not thread.is_alive()
    assert not failed
    records = core.records(1)  # fails where there is a gap
    assert len(records) == writer.head
    assert (records["seq"] == np.arange(writer.head)).all()
    payloads = {p.seq: p.data for batch in core.of("batch") for p in batch.payloads}
    sending = np.flatnonzero(records["kind"] == Kind.COLLECTIVE).tolist()
    assert payloads == {seq: bytes([number]) * 100 for number, seq in enumerate(sending)}
    writer.close()


# ---- containers share no PID namespace -------------------------------------------------------------------------------

RANK = """
import os, pathlib, sys, time
from eidolon_interposer.abi import Kind
from eidolon_interposer.writer import RingWriter
writer = RingWriter(pathlib.Path(sys.argv[1]))
writer.ask(Kind.CLOCK)
print(os.getpid(), flush=True)
sys.stdin.readline()
os._exit(9)
"""


def test_a_rank_of_another_pid_namespace_lives_while_it_holds_its_lock(server: Server, core: Core) -> None:
    server.start()
    line = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", RANK]
    rank = subprocess.Popen([*line, server.directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    assert rank.stdin is not None
    assert rank.stdout.readline() == "1\n", "the first process of its namespace"
    assert core.of("joined")[0].pid == 1  # which is another process here
    time.sleep(0.2)  # several looks at its lock
    assert core.of("left") == []
    assert os.path.exists(f"/proc/{core.of('joined')[0].pid}")  # noqa: PTH110
    rank.communicate("end\n", timeout=LIMIT_S)
    left = until(lambda: core.of("left"), "its leaving")[0]
    assert (left.session, left.orderly) == (1, False)


def test_an_agent_of_another_pid_namespace_sees_ranks_live_and_die(server: Server, core: Core) -> None:
    server.start(prefix=["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"])
    first, second = RingWriter(server.directory), RingWriter(server.directory)
    for writer in (first, second):
        writer.ask(Kind.CLOCK)
    session = first.session
    first.close(orderly=False)
    left = until(lambda: core.of("left"), "its leaving")[0]
    assert left.session == session
    time.sleep(0.2)
    second.ask(Kind.CLOCK)
    assert len(core.of("left")) == 1
    second.close()
