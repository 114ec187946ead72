"""What happens to a run when one of its parts is lost. Every end is stated, none takes long, none is a hang.

Those marked slow run with `make e2e-full` until they have been seen to hold on a busy machine.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from e2e.kubernetes.conftest import Namespace, Operator, simulated_cluster
from e2e.kubernetes.kubectl import condition, wait_for

#: Of a run that something happens to: long enough on a busy machine.
BUSY_S = "25"


def start(namespace: Namespace, name: str, *arguments: str, seconds: str = BUSY_S, **spec: object) -> None:
    """Starts a run and waits until its workload runs."""
    namespace.apply(simulated_cluster(name, "busy.py", "--seconds", seconds, *arguments, **spec))
    namespace.wait_for_phase(name, "Running")
    pods = [f"{name}-server-{number}" for number in range(2)]
    wait_for(lambda: all("at work" in namespace.run("logs", pod, "-c", "workload") for pod in pods), 60)


def test_a_deleted_server_pod_ends_the_run(namespace: Namespace) -> None:
    start(namespace, "lost")
    pods = namespace.pods()
    namespace.run("delete", "pod", "lost-server-1", "--wait=false")
    seen = namespace.wait_for_phase("lost", "Failed", timeout_s=60)
    assert condition(seen, "Failed")["reason"] == "ServerLost"
    assert "lost-server-1" in condition(seen, "Failed")["message"]
    # Nothing is made again; what is left is there to be read.
    assert set(namespace.pods()) <= set(pods)
    assert "lost-server-1" not in namespace.pods()


def test_a_deleted_server_pod_starts_the_run_again(namespace: Namespace) -> None:
    start(namespace, "again", seconds="12", onServerLost="Restart")
    before = namespace.pods()
    namespace.run("delete", "pod", "again-server-0", "--wait=false")
    seen = namespace.wait_for_phase("again", "Succeeded", timeout_s=120)
    after = namespace.pods()
    assert seen["status"]["attempt"] == 2
    assert set(after) == set(before)
    assert all(after[name]["metadata"]["uid"] != before[name]["metadata"]["uid"] for name in before)


@pytest.mark.slow
def test_a_killed_agent_comes_back_and_changes_nothing(namespace: Namespace) -> None:
    start(namespace, "agent", seconds="15")
    namespace.cluster.kill(namespace.pods()["agent-server-0"], "eidolon_interposer.agent")
    namespace.wait_for_phase("agent", "Succeeded", timeout_s=90)
    assert operations(namespace, "agent") == asked_for(namespace, "agent")


def test_a_killed_rank_ends_the_run(namespace: Namespace) -> None:
    start(namespace, "rank")
    # The launcher has the same words in its command line: only the rank begins with them.
    [rank] = [
        process
        for process in namespace.cluster.processes(namespace.pods()["rank-server-0"], "busy.py")
        if b"launch" not in command_line(process)
    ]
    os.kill(rank, signal.SIGKILL)
    seen = namespace.wait_for_phase("rank", "Failed", timeout_s=60)
    assert condition(seen, "Failed")["reason"] == "WorkloadFailed"
    failure = seen["status"]["failures"][-1]
    assert failure["pod"] == "rank-server-0"
    assert failure["exitCode"] == 128 + signal.SIGKILL


def test_a_killed_operator_changes_nothing(namespace: Namespace, operator: Operator) -> None:
    start(namespace, "steady", seconds="15")
    before = namespace.pods()
    namespace.cluster.kill(operator.pod(), "eidolon_operator")
    namespace.wait_for_phase("steady", "Succeeded", timeout_s=120)
    after = namespace.pods()
    assert {name: pod["metadata"]["uid"] for name, pod in after.items()} == {
        name: pod["metadata"]["uid"] for name, pod in before.items()
    }
    assert namespace.simc("steady")["status"]["attempt"] == 1


def test_a_killed_core_is_told_within_a_minute(namespace: Namespace) -> None:
    start(namespace, "core", seconds="60")
    killed = time.monotonic()
    namespace.cluster.kill(namespace.pods()["core-core"], "eidolon_simcore")
    seen = namespace.wait_for_phase("core", "Failed", timeout_s=60)
    assert time.monotonic() - killed < 60
    assert condition(seen, "Failed")["reason"] == "SimulationCoreLost"


@pytest.mark.slow
def test_a_full_ring_at_the_end_loses_nothing(namespace: Namespace) -> None:
    start(namespace, "full", "--burst", "20000", seconds="3", servers=2)
    # While the agents stand still nobody reads the rings; the ranks fill them and end, or wait for room.
    pods = [namespace.pods()[f"full-server-{number}"] for number in range(2)]
    agents = [agent for pod in pods for agent in namespace.cluster.processes(pod, "eidolon_interposer.agent")]
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)
    time.sleep(5)
    for agent in agents:
        os.kill(agent, signal.SIGCONT)
    namespace.wait_for_phase("full", "Succeeded", timeout_s=90)
    assert operations(namespace, "full") == asked_for(namespace, "full")


@pytest.mark.slow
def test_a_workload_that_fails_is_told_with_its_last_line(namespace: Namespace) -> None:
    namespace.apply(simulated_cluster("sad", "busy.py", "--seconds", "1", "--exit", "3"))
    seen = namespace.wait_for_phase("sad", "Failed", timeout_s=90)
    assert condition(seen, "Failed")["reason"] == "WorkloadFailed"
    assert any(
        failure.get("exitCode") == 3 and "operations" in failure["message"] for failure in seen["status"]["failures"]
    ), seen["status"]["failures"]


@pytest.mark.may_be_refused
def test_a_quota_that_forbids_a_pod_is_told(namespace: Namespace) -> None:
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "two-pods"},
            "spec": {"hard": {"pods": "2"}},
        }
    )
    namespace.apply(simulated_cluster("cramped", "busy.py", "--seconds", "1"))

    def told() -> bool:
        return "quota" in condition(namespace.simc("cramped"), "ServersReady").get("message", "")

    wait_for(told, 60, lambda: namespace.describe("cramped"))
    # It is no end: with room, the run goes on.
    namespace.run("delete", "resourcequota", "two-pods")
    namespace.wait_for_phase("cramped", "Succeeded", timeout_s=120)


def operations(namespace: Namespace, name: str) -> int:
    """How many operations of the workload the simulation has seen, from its summary."""
    path = f"/api/v1/namespaces/{namespace.name}/services/http:{name}-core:http/proxy/summary"
    summary = json.loads(namespace.kubectl("get", "--raw", path))
    return sum(entry["count"] for entry in summary["coverage"]["operations"] if entry["family"] == "set")


def asked_for(namespace: Namespace, name: str) -> int:
    """How many operations the workloads say that they asked for."""
    lines = [namespace.run("logs", f"{name}-server-{number}", "-c", "workload").splitlines()[-1] for number in range(2)]
    return sum(int(line.removesuffix(" operations")) for line in lines)


def command_line(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()
