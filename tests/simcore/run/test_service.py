"""The service over real gRPC, played by agents."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from fakes import AUTOGRAD, BLOCKING, FOREGROUND, FakeAgent, FakeRank
from serving import Core

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.costs import hostcost
from eidolon_simcore.run import ending, membership
from eidolon_simcore.run.cause import Cause
from eidolon_simcore.vocabulary import Kind


def step(rank: FakeRank, comm: int, position: int) -> None:
    """One data-parallel step: forward, backward with its all-reduce, optimizer."""
    rank.kernel()
    rank.kernel(flags=FOREGROUND | AUTOGRAD)
    rank.collective("all_reduce", comm, position, 1 << 20, flags=FOREGROUND | AUTOGRAD, stream=2)
    rank.write(Kind.EVENT_RECORD, stream=2, value=2 * position + 1)
    rank.write(Kind.STREAM_WAIT, stream=1, value=2 * position + 1)
    rank.kernel()
    rank.mark()


def test_a_data_parallel_run_from_hello_to_summary(core: Core) -> None:
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    for i, rank in enumerate(ranks):
        agent.join(rank.session, i, 2)
        rank.write(Kind.MEMORY, value=10 << 30, sig=rank.signature("memory", "malloc"))
        rank.comm(7, i, 2)
    agent.flush(*ranks)
    call_ns = round(hostcost.table().default * hostcost.beside_others(2))
    for rank in ranks:
        assert agent.reply(rank.session, 1).clock_ns == 200_000_000 + call_ns  # to make a communicator, after a call
    seqs = []
    for rank in ranks:
        rank.write(Kind.MEMORY, value=12 << 30)
        for position in range(3):
            step(rank, 7, position)
        seqs.append(rank.sync())
    agent.flush(*ranks)
    clocks = {agent.reply(rank.session, seq).clock_ns for rank, seq in zip(ranks, seqs, strict=True)}
    assert len(clocks) == 1
    for rank in ranks:
        agent.send(left=pb.RankLeft(session=rank.session, orderly=True, records=rank.seq))
    agent.goodbye()
    assert agent.status()[0] == grpc.StatusCode.OK
    summary = core.summary()
    assert (summary["state"], summary["ranks"], summary["gpu"]) == ("Succeeded", 2, "h100-sxm")
    assert [s["index"] for s in summary["steps"]] == [1, 2, 3]
    assert [s["name"] for s in summary["steps"]] == ["startup", "step", "step"]
    assert summary["steps"][1]["time_ns"] == summary["steps"][2]["time_ns"] > 50_000
    assert summary["steps"][1]["tokens_per_s"] == pytest.approx(1e12 / summary["steps"][1]["time_ns"])
    assert summary["steps"][1]["peak_bytes"] == {"0/0": 12 << 30, "0/1": 12 << 30}
    assert [w["site"] for w in summary["host_waits"]] == ["ncclCommInitRank", "cudaDeviceSynchronize"]
    assert set(summary["cost_share"]) == {"interpolated", "roofline"}  # collectives, kernels
    lines = (core.out / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == summary["steps"]


def test_payloads_come_before_the_answer_that_depends_on_them(core: Core) -> None:
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    for i, rank in enumerate(ranks):
        call = rank.collective("all_reduce", 7, 0, 2, payload=b"")
        if i == 0:
            rank._payloads[-1].data = np.array([1.5, 2.0], "<f4").tobytes()
        else:
            rank._payloads.pop()  # its bytes come later
        sync = rank.sync()
    agent.flush(*ranks)
    time.sleep(0.3)
    assert not list(agent.messages("payloads"))
    assert sync not in [r.seq for m in agent.messages("replies") for r in m.replies]
    ranks[1].late_payload(call, np.array([1.0, -2.0], "<f4").tobytes())
    agent.flush(ranks[1])
    for rank in ranks:
        agent.reply(rank.session, sync)
        kinds = []
        for m in agent.received:  # within a message, payloads come before replies
            kinds += ["payload" for p in m.payloads if p.session == rank.session]
            kinds += ["sync" for b in m.replies if b.session == rank.session and sync in [r.seq for r in b.replies]]
        assert kinds == ["payload", "sync"]
    assert {m.data for m in agent.messages("payloads")} == {np.array([2.5, 0.0], "<f4").tobytes()}


def test_a_rank_that_synchronises_for_itself_is_answered_while_the_other_has_yet_to_start(core: Core) -> None:
    agent = core.agent()
    rank = FakeRank(1)
    agent.join(1, 0, 2)  # rank 1 waits for a store key that rank 0 sets after this
    rank.kernel()
    seq = rank.sync()
    agent.flush(rank)
    assert agent.reply(1, seq).clock_ns > hostcost.table().call_ns("cudaLaunchKernel")


def test_a_blocking_request_is_answered_within_milliseconds(core: Core) -> None:
    agent = core.agent()
    rank = FakeRank(1)
    agent.join(1, 0, 1)
    took = []
    for _ in range(200):
        seq = rank.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING, call="clock")
        begin = time.perf_counter()
        agent.flush(rank)
        agent.reply(1, seq)
        took.append(time.perf_counter() - begin)
    # Of the fastest tenth, so that a busy machine does not matter: it is about not waiting for the next tick.
    assert sorted(took)[20] < 0.005
    assert agent.reply(1, seq).clock_ns == 200 * 1_000


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"protocol": 9, "version": "9"}, grpc.StatusCode.FAILED_PRECONDITION, "protocol 9 of eidolon 9 .* protocol 2"),
        ({"token": "guess"}, grpc.StatusCode.UNAUTHENTICATED, "token"),
        ({"server": 3}, grpc.StatusCode.INVALID_ARGUMENT, "server 3 of a run with 1"),
        ({"devices": 4}, grpc.StatusCode.FAILED_PRECONDITION, "4 x h100-sxm, the run has 2 x h100-sxm"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused(core: Core, changes: dict[str, Any], code: Any, words: str) -> None:
    agent = core.agent(**changes)
    status = agent.status()
    assert status[0] == code
    assert __import__("re").search(words, status[1])
    assert core.simulation.state is None  # the run goes on: the right agent may still come


def test_a_second_hello_for_a_live_server_is_refused_and_a_reconnect_is_not(core: Core) -> None:
    first = core.agent()
    first.wait(lambda messages: messages)
    assert core.agent().status()[0] == grpc.StatusCode.ALREADY_EXISTS
    rank = FakeRank(1)
    first.join(1, 0, 1)
    seq = rank.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING)
    batch = rank.batch()
    first.send(batch=batch)
    first.reply(1, seq)
    first.close()
    time.sleep(0.5)
    second = core.agent()
    second.join(1, 0, 1)
    assert second.reply(1, seq).clock_ns == 1_000  # its last answer may have been lost
    second.send(batch=batch)  # and what the core has already is dropped
    seq = rank.write(Kind.CLOCK, flags=FOREGROUND | BLOCKING)
    second.flush(rank)
    assert second.reply(1, seq).clock_ns == 2_000


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: b.__setattr__("count", b.count + 1), "bytes for 2 records"),
        (lambda b: b.__setattr__("first_seq", 5), "record 5 follows record -1"),
        (lambda b: b.__setattr__("session", 9), "session 9 has not joined"),
        (lambda b: b.__setattr__("records", b"\x07" + b.records[1:]), "sequence numbers"),
        (lambda b: b.__setattr__("records", b.records[:4] + b"\xee" + b.records[5:]), "unknown kind 238"),
        (lambda b: b.__setattr__("records", b.records[:20] + b"\xff\xff\x00\x00" + b.records[24:]), "signature 65535"),
    ],
)
def test_a_broken_batch_ends_the_run_with_a_clear_status(core: Core, damage: Any, words: str) -> None:
    agent = core.agent()
    agent.join(1, 0, 1)
    rank = FakeRank(1)
    rank.write(Kind.HOST)
    batch = rank.batch()
    damage(batch)
    agent.send(batch=batch)
    code, details = agent.status()
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    assert words in core.simulation.reason


def test_mismatched_collectives_end_the_run_and_name_both(core: Core) -> None:
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    for i, rank in enumerate(ranks):
        rank.collective("all_reduce" if i else "all_gather", 7, 0, 4)
    agent.flush(*ranks)
    stop = agent.stopped()
    assert stop.failed
    assert (
        "rank 0 calls all_gather(count 4, float32), rank 1 calls all_reduce(count 4, float32, operation 0)"
        in stop.reason
    )


def test_a_run_that_cannot_go_on_fails_and_names_who_waits_for_whom(tmp_path: Path) -> None:
    core = Core(tmp_path, stuck_timeout_s=0.3)
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    agent.communicate(ranks, 8, join=False)
    for i, rank in enumerate(ranks):
        rank.collective("all_reduce", 7 + i, 0, 4, stream=3)
        rank.sync()
    agent.flush(*ranks)
    reason = agent.stopped().reason
    assert "rank 0 waits in all_reduce, call 0 of communicator unique7 for rank 1" in reason
    assert "rank 1 waits in all_reduce, call 0 of communicator unique8 for rank 0" in reason
    agent.goodbye(70, "stopped")
    assert core.summary()["state"] == "Failed"
    core.close()


def test_watching_threads_do_not_hide_that_nobody_can_go_on(tmp_path: Path) -> None:
    core = Core(tmp_path, stuck_timeout_s=0.4, idle_timeout_s=0.8)
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    ranks[0].collective("all_reduce", 7, 0, 4)
    ranks[0].sync()
    ranks[1].write(Kind.IDLE, flags=0)
    agent.flush(*ranks)
    begin = time.monotonic()
    while core.simulation.state is None and time.monotonic() - begin < 10:
        ranks[0].write(Kind.CLOCK, flags=BLOCKING, thread=5)  # a watchdog
        agent.flush(ranks[0])
        time.sleep(0.05)
    assert time.monotonic() - begin > 0.7  # rank 1 sleeps: it might have come back
    assert "rank 0 waits in all_reduce, call 0 of communicator unique7 for rank 1" in core.simulation.reason
    core.close()


def test_a_rank_that_computes_for_ever_is_named_by_those_who_wait_for_it(tmp_path: Path) -> None:
    core = Core(tmp_path, stuck_timeout_s=0.2, busy_timeout_s=0.6)
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    begin = time.monotonic()
    for rank in ranks:
        rank.collective("all_reduce", 7, 0, 1 << 20)
    ranks[0].sync()  # the end is not known before rank 1 is past it: it may yet put more on the wire
    agent.flush(*ranks)
    reason = agent.stopped().reason
    assert time.monotonic() - begin > 0.5
    assert "rank 0 waits for what is under way; rank 1 makes no calls (at 200." in reason
    core.close()


def one_waits_for_the_other(core: Core) -> tuple[FakeAgent, list[FakeRank]]:
    """Two ranks, of which the first waits in a collective that the second does not make."""
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    ranks[0].collective("all_reduce", 7, 0, 4)
    ranks[0].sync()
    agent.flush(*ranks)
    return agent, ranks


def test_a_rank_that_left_is_not_waited_for_in_vain(tmp_path: Path) -> None:
    core = Core(tmp_path, left_timeout_s=0.2)
    agent, ranks = one_waits_for_the_other(core)
    agent.send(left=pb.RankLeft(session=2, orderly=False, records=ranks[1].seq))
    assert "for rank 1 (rank 1 has left)" in agent.stopped().reason
    assert core.simulation.cause == Cause.DEADLOCK
    core.close()


def test_startup_timeouts_name_who_is_missing(tmp_path: Path) -> None:
    core = Core(tmp_path / "a", servers=3, startup_timeout_s=0.3)
    agent = core.agent(1)
    assert agent.stopped().reason == "server 0, 2 did not connect within 0.3 s"
    assert core.simulation.cause == Cause.SERVERS_NOT_READY
    core.close()
    core = Core(tmp_path / "b", ranks_per_server=4, startup_timeout_s=0.3)
    agent = core.agent()
    agent.join(1, 2, 4)
    assert agent.stopped().reason == "rank 0, 1, 3 of 4 did not start within 0.3 s of the first"
    assert core.simulation.cause == Cause.RANK_MISSING
    core.close()


def test_a_time_limit_counts_from_when_all_servers_are_there(tmp_path: Path) -> None:
    core = Core(tmp_path, servers=2, time_limit_s=0.3)
    first = core.agent(0)
    time.sleep(0.5)
    assert core.simulation.state is None
    second = core.agent(1)
    late = "the run took longer than 0.3 s (spec.timeLimit): no rank waits for another"
    assert second.stopped().reason == first.stopped().reason == late
    assert core.simulation.cause == Cause.TIME_LIMIT_EXCEEDED
    core.close()


def test_a_run_over_its_time_limit_says_who_waits_for_whom(tmp_path: Path) -> None:
    core = Core(tmp_path, time_limit_s=1.0)
    agent, _ = one_waits_for_the_other(core)
    reason = agent.stopped().reason
    assert reason.startswith("the run took longer than 1 s (spec.timeLimit): rank 1 makes no calls")
    assert "rank 0 waits in all_reduce, call 0 of communicator unique7 for rank 1" in reason
    core.close()


def test_a_lost_agent_ends_the_run(tmp_path: Path) -> None:
    core = Core(tmp_path, servers=2, reconnect_timeout_s=0.2)
    lost, other = core.agent(0), core.agent(1)
    lost.wait(lambda messages: messages)
    lost.close()
    assert other.stopped().reason == "server 0: its agent went away without saying goodbye"
    assert core.simulation.cause == Cause.AGENT_LOST
    core.close()


def test_a_failed_workload_is_told_with_its_exit_code(core: Core) -> None:
    agent = core.agent()
    agent.goodbye(3, "signal 9")
    summary = core.summary()
    assert (summary["state"], summary["reason"]) == ("Failed", "server 0: exit code 3: signal 9")
    assert summary["cause"] == "WorkloadFailed"


def test_the_others_go_on_for_a_moment_once_a_workload_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "STOP_OTHERS_S", 0.5)
    core = Core(tmp_path, servers=2)
    first, second = core.agent(0), core.agent(1)
    for agent in (first, second):
        agent.wait(lambda _, agent=agent: list(agent.messages("go")))
    begin = time.monotonic()
    first.goodbye(3, "failed")
    assert second.stopped().reason == "server 0: exit code 3: failed"
    assert time.monotonic() - begin >= 0.5
    second.goodbye(1, "ended with the run")
    assert core.summary()["reason"] == "server 0: exit code 3: failed"
    core.close()


def test_the_run_stops_after_the_steps_asked_for(tmp_path: Path) -> None:
    core = Core(tmp_path, steps=2)
    agent = core.agent()
    agent.join(1, 0, 1)
    rank = FakeRank(1)
    for _ in range(5):
        rank.kernel(flags=FOREGROUND | AUTOGRAD)
        rank.mark()
    agent.flush(rank)
    stop = agent.stopped()
    assert (stop.failed, stop.reason) == (False, "2 steps are done")
    agent.goodbye()
    summary = core.summary()
    assert (summary["state"], len(summary["steps"])) == ("Succeeded", 2)
    core.close()


def test_out_of_memory_is_reported_with_its_step(core: Core) -> None:
    agent = core.agent()
    agent.join(1, 0, 1)
    rank = FakeRank(1)
    rank.kernel(flags=FOREGROUND | AUTOGRAD)
    rank.mark()
    rank.kernel(flags=FOREGROUND | AUTOGRAD)
    rank.write(Kind.MEMORY, value=7 << 30)
    rank.write(Kind.OUT_OF_MEMORY, value=2 << 30)
    agent.flush(rank)
    agent.goodbye(1, "workload failed")
    assert core.summary()["oom"] == [
        {
            "server": 0,
            "device": 0,
            "step": 2,
            "requested_bytes": 2 << 30,
            "allocated_bytes": 7 << 30,
            "capacity_bytes": 80 << 30,
            "cured": False,
        }
    ]
    assert core.summary()["peak_bytes"] == {"0/0": 7 << 30}


def status(core: Core, found: Callable[[Mapping[str, Any]], Any]) -> Mapping[str, Any]:
    """The first snapshot for readers that fits."""
    deadline = time.monotonic() + 20
    while not found(now := core.service.status):
        assert time.monotonic() < deadline, now
        time.sleep(0.02)
    return now


def test_the_status_from_waiting_to_the_end(tmp_path: Path) -> None:
    core = Core(tmp_path, servers=2, ranks_per_server=1)
    assert core.service.healthy()
    begin = core.service.status
    assert (begin["state"], begin["reason"], begin["step"], begin["attempt"]) == ("Waiting", "", None, 1)
    assert begin["servers"] == {"expected": 2, "said_hello": [], "missing": [0, 1], "ended": {}}
    first, second = core.agent(0), core.agent(1)
    first.join(1, 0, 2)
    second.join(1, 1, 2)
    ranks = [FakeRank(1), FakeRank(1)]
    for rank, agent in zip(ranks, (first, second), strict=True):
        rank.write(Kind.MEMORY, value=3 << 30)
        rank.write(Kind.UNMODELLED, sig=rank.signature("unmodelled", "torch:no plugin for torch 2.8"), value=1)
        for _ in range(2):
            rank.kernel(flags=FOREGROUND | AUTOGRAD)
            rank.mark()
        for _ in range(10):  # so that its host's clock is beyond the end of the second step
            rank.kernel(flags=FOREGROUND | AUTOGRAD)
        agent.flush(rank)
    now = status(core, lambda s: s["steps_final"] == 2)
    assert (now["state"], now["servers"]["missing"]) == ("Running", [])
    assert now["ranks"] == {"expected": 2, "joined": 2, "left": 0}
    assert now["step"] is not None
    assert now["step"]["index"] == 2
    assert now["step"]["tokens_per_s"] == pytest.approx(1e12 / now["step"]["time_ns"])
    assert (now["peak_bytes"], now["oom"], now["cost_share"]) == (3 << 30, 0, {"roofline": 1.0})
    assert now["notes"] == ["torch:no plugin for torch 2.8"]
    first.goodbye()
    assert status(core, lambda s: s["servers"]["ended"])["servers"]["ended"] == {"0": 0}
    second.goodbye()
    core.summary()
    assert (core.service.status["state"], core.service.status["reason"]) == ("Succeeded", "WorkloadsEnded")
    assert core.service.healthy(), "a run that has ended has nothing left to do"
    core.close()


def test_a_bug_of_the_core_ends_the_run_in_a_stated_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    core = Core(tmp_path)
    agent = core.agent()
    agent.wait(lambda messages: messages)

    def bug(*_: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(core.simulation, "tick", bug)
    assert "internal error: KeyError: 'bug'" in agent.stopped().reason
    assert core.summary()["cause"] == "InternalError"
    assert "Traceback" in capfd.readouterr().err
    core.close()


# ---- who died --------------------------------------------------------------------------------------------------------


def test_a_rank_that_was_killed_is_named_with_its_process_and_signal(tmp_path: Path) -> None:
    """What starts the ranks of a server ends the others, and says no more than that it failed."""
    core = Core(tmp_path, servers=2)
    agent, other = core.agent(0), core.agent(1)
    for number in (0, 1):
        agent.send(joined=pb.RankJoined(session=number + 1, rank=number, world=4, pid=4711 + number))
    agent.send(left=pb.RankLeft(session=2, orderly=False, wait_status=9))
    agent.send(left=pb.RankLeft(session=1, orderly=False, wait_status=15))
    began = time.monotonic()
    agent.goodbye(1, "failed")
    reason = "server 0: exit code 1: rank 1 (process 4712) was killed by signal 9 (SIGKILL) (failed)"
    assert other.stopped().reason == reason
    assert time.monotonic() - began < ending.STOP_OTHERS_S, "the others have nothing to say of it"
    other.goodbye(1, "ended with the run")
    assert core.summary()["reason"] == reason
    core.close()


@pytest.mark.parametrize(
    ("left", "how"),
    [
        ({"orderly": False}, "rank 0 (process 4711) died without closing its ring (failed)"),
        (
            {"orderly": False, "wait_status": 9 << 8},
            "rank 0 (process 4711) ended with exit code 9 without closing its ring (failed)",
        ),
        ({"orderly": False, "wait_status": 64}, "rank 0 (process 4711) was killed by signal 64 (SIGRTMAX) (failed)"),
        ({"orderly": False, "damage": "bad"}, "rank 0 (process 4711) was ended, for its ring is broken: bad (failed)"),
        ({"orderly": True}, "failed"),
    ],
)
def test_how_a_rank_ended(core: Core, left: dict[str, Any], how: str) -> None:
    agent = core.agent()
    agent.send(joined=pb.RankJoined(session=1, rank=0, world=1, pid=4711))
    agent.send(left=pb.RankLeft(session=1, **left))
    agent.goodbye(3, "failed")
    assert core.summary()["reason"] == f"server 0: exit code 3: {how}"


@pytest.mark.parametrize(
    ("pauses_s", "named"),
    [
        ((0.0, 1.5), "rank 0 (process 4711) "),  # what started them took long to end
        ((1.5, 0.0), "rank 1 (process 4712) "),  # the other death was long before
        ((0.0, 0.0), "rank 0 (process 4711) "),
    ],
)
def test_the_first_death_of_the_last_that_happened_is_named(
    core: Core, monkeypatch: pytest.MonkeyPatch, pauses_s: tuple[float, float], named: str
) -> None:
    monkeypatch.setattr(membership, "FALLOUT_S", 1.0)
    agent = core.agent()
    for number in (0, 1):
        agent.send(joined=pb.RankJoined(session=number + 1, rank=number, world=2, pid=4711 + number))
    for number, pause_s in enumerate(pauses_s):
        agent.send(left=pb.RankLeft(session=number + 1, orderly=False, wait_status=9))
        time.sleep(pause_s)
    agent.goodbye(1, "failed")
    reason = f"server 0: exit code 1: {named}was killed by signal 9 (SIGKILL) (failed)"
    assert core.summary()["reason"] == reason


def test_whoever_waits_for_a_rank_that_died_does_not_wait_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where others sleep, who could otherwise still wake and help."""
    core = Core(tmp_path, stuck_timeout_s=60.0, left_timeout_s=60.0, idle_timeout_s=60.0)
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    ranks[0].collective("all_reduce", 7, 0, 4)
    ranks[0].sync()
    agent.flush(ranks[0])
    began = time.monotonic()
    agent.send(left=pb.RankLeft(session=2, orderly=False, records=ranks[1].seq, wait_status=11))
    reason = agent.stopped().reason
    assert time.monotonic() - began < 10
    assert "rank 0 waits in all_reduce, call 0 of communicator unique7 for rank 1 (rank 1 has left)" in reason
    assert reason.endswith("rank 1 (process 0) was killed by signal 11 (SIGSEGV)")
    core.close()


def test_ranks_that_all_sleep_are_stuck_if_one_has_called_what_the_others_have_not(tmp_path: Path) -> None:
    """Nobody asks the core: rank 0 has launched its part and sleeps, as the others do."""
    core = Core(tmp_path, stuck_timeout_s=0.2, idle_timeout_s=0.4)
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    ranks[0].collective("all_reduce", 7, 0, 4)
    for rank in ranks:
        rank.write(Kind.IDLE, flags=0)
    agent.flush(*ranks)
    reason = agent.stopped().reason
    assert reason.startswith("no rank can go on: rank 0 sleeps; rank 0 waits in all_reduce, call 0")
    assert "for rank 1" in reason
    assert core.simulation.cause == Cause.DEADLOCK
    core.close()


def test_ranks_that_all_sleep_for_their_own_sake_are_left_alone(tmp_path: Path) -> None:
    core = Core(tmp_path, stuck_timeout_s=0.1, idle_timeout_s=0.2)
    agent = core.agent()
    ranks = [FakeRank(1, device=0), FakeRank(2, device=1)]
    agent.communicate(ranks, 7)
    for rank in ranks:
        rank.write(Kind.IDLE, flags=0)
    agent.flush(*ranks)
    time.sleep(1.0)
    assert core.simulation.state is None
    core.close()
