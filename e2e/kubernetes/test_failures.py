"""What happens to a run when one of its parts is lost. Every end is stated, none takes long, none is a hang."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.kubernetes.conftest import Namespace, Operator, enough, servers, simulated_cluster, start, working
from e2e.kubernetes.kubectl import condition, wait_for
from eidolon_operator.plan import RING_RECORDS


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
    start(namespace, "again", onServerLost="Restart")
    before = namespace.pods()
    namespace.run("delete", "pod", "again-server-0", "--wait=false")
    wait_for(lambda: namespace.simc("again")["status"]["attempt"] == 2, 60, lambda: namespace.describe("again"))
    working(namespace, "again")
    after = namespace.pods()
    assert set(after) == set(before)
    assert all(after[name]["metadata"]["uid"] != before[name]["metadata"]["uid"] for name in before)
    enough(namespace, "again")
    namespace.wait_for_phase("again", "Succeeded")


@pytest.mark.own_node
def test_a_killed_agent_comes_back_and_changes_nothing(namespace: Namespace) -> None:
    start(namespace, "agent")
    namespace.cluster.kill(namespace.pods()["agent-server-0"], "eidolon_interposer.agent")
    wait_for(lambda: restarts(namespace.pods()["agent-server-0"], "agent") == 1, 60)
    enough(namespace, "agent")
    namespace.wait_for_phase("agent", "Succeeded")
    assert operations(namespace, "agent") == asked_for(namespace, "agent")


@pytest.mark.own_node
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
    failure = failure_of(namespace, "rank", "rank-server-0")
    assert failure["exitCode"] == 128 + signal.SIGKILL


@pytest.mark.own_node
def test_a_killed_operator_changes_nothing(namespace: Namespace, operator: Operator) -> None:
    start(namespace, "steady")
    before, count = namespace.pods(), restarts(operator.pod(), "operator")
    namespace.cluster.kill(operator.pod(), "eidolon_operator")
    wait_for(lambda: restarts(operator.pod(), "operator") == count + 1, 60)
    enough(namespace, "steady")
    namespace.wait_for_phase("steady", "Succeeded", timeout_s=120)
    after = namespace.pods()
    assert {name: pod["metadata"]["uid"] for name, pod in after.items()} == {
        name: pod["metadata"]["uid"] for name, pod in before.items()
    }
    assert namespace.simc("steady")["status"]["attempt"] == 1


@pytest.mark.own_node
def test_a_killed_core_is_told_within_a_minute(namespace: Namespace) -> None:
    start(namespace, "core")
    killed = time.monotonic()
    namespace.cluster.kill(namespace.pods()["core-core"], "eidolon_simcore")
    seen = namespace.wait_for_phase("core", "Failed", timeout_s=60)
    assert time.monotonic() - killed < 60
    assert condition(seen, "Failed")["reason"] == "SimulationCoreLost"


@pytest.mark.own_node
def test_a_full_ring_at_the_end_loses_nothing(namespace: Namespace) -> None:
    """While the agents stand still nobody reads the rings: the ranks fill them, wait for room, and then end."""
    burst = RING_RECORDS + 1000
    start(namespace, "full", "--burst", str(burst))
    pods = [namespace.pods()[pod] for pod in servers("full")]
    agents = [agent for pod in pods for agent in namespace.cluster.processes(pod, "eidolon_interposer.agent")]
    enough(namespace, "full")
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)
    time.sleep(12)  # the bursts come after ten; an agent that is away for long is lost
    for agent in agents:
        os.kill(agent, signal.SIGCONT)
    namespace.wait_for_phase("full", "Succeeded", timeout_s=180)
    assert operations(namespace, "full") == asked_for(namespace, "full") == 2 * burst


def test_a_workload_that_fails_is_told_with_its_last_line(namespace: Namespace) -> None:
    namespace.apply(simulated_cluster("sad", "busy.py", "--seconds", "1", "--exit", "3"))
    seen = namespace.wait_for_phase("sad", "Failed", timeout_s=90)
    assert condition(seen, "Failed")["reason"] == "WorkloadFailed"
    failure = failure_of(namespace, "sad", "sad-server-")
    assert failure["exitCode"] == 3
    assert "operations" in failure["message"]


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
    namespace.wait_for_phase("cramped", "Succeeded", timeout_s=240)  # other tests may hold the node's processors


def failure_of(namespace: Namespace, name: str, pod: str) -> Mapping[str, Any]:
    """What the status says of a pod's failure, once the kubelet has reported it."""

    def told() -> list[Mapping[str, Any]]:
        failures = namespace.simc(name)["status"].get("failures", [])
        return [failure for failure in failures if failure.get("pod", "").startswith(pod)]

    return wait_for(told, 20, lambda: namespace.describe(name))[0]


def operations(namespace: Namespace, name: str) -> int:
    """How many operations of the workload the simulation has seen, from its summary."""
    path = f"/api/v1/namespaces/{namespace.name}/services/http:{name}-core:http/proxy/summary"
    summary = json.loads(namespace.kubectl("get", "--raw", path))
    return sum(entry["count"] for entry in summary["coverage"]["operations"] if entry["family"] == "set")


def asked_for(namespace: Namespace, name: str) -> int:
    """How many operations the workloads say that they asked for."""
    lines = [namespace.finished_log(pod).splitlines()[-1] for pod in servers(name)]
    return sum(int(line.removesuffix(" operations")) for line in lines)


def restarts(pod: Mapping[str, Any], container: str) -> int:
    """How often a container was started again and is up."""
    states = [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]
    [state] = [state for state in states if state["name"] == container]
    return int(state["restartCount"]) if state.get("ready") or state.get("started") else -1


def command_line(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()
