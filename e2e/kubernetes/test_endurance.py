"""What takes minutes: many rounds, an API server that is away, upgrades under a run, and a thousand servers."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import binaries
from e2e.kubernetes.conftest import (
    RELEASE,
    SYSTEM_NAMESPACE,
    Cluster,
    Namespace,
    Operator,
    enough,
    simulated_cluster,
    start,
)
from e2e.kubernetes.kubectl import Object, wait_for

pytestmark = pytest.mark.slow

LABEL = "--selector=app.kubernetes.io/managed-by=eidolon-operator"
ROUNDS = 50
API_AWAY_S = 180
NODES = 16
FAKE = "kwok.x-k8s.io/node"


def test_rounds_of_creation_and_deletion(namespace: Namespace) -> None:
    """None is stuck, whatever it was at when it was deleted: each round ends a little later in the life of a run."""
    slowest = 0.0
    for number in range(ROUNDS):
        began = time.monotonic()
        namespace.apply(simulated_cluster("round", "busy.py", "--seconds", "0.2"))
        time.sleep(number % 10)
        namespace.run("delete", "simc", "round", "--timeout=60s")
        wait_for(
            lambda: not namespace.run("get", "pods,services,configmaps,secrets", LABEL, "-o", "name"),
            90,
            lambda: namespace.describe("round"),
        )
        slowest = max(slowest, time.monotonic() - began - number % 10)
    print(f"{ROUNDS} rounds, the slowest took {slowest:.1f} s to be gone")


def test_the_api_server_is_away_for_three_minutes(namespace: Namespace, operator: Operator) -> None:
    address = operator.pod()["status"]["podIP"]
    rule = ("INPUT", "--source", address, "--protocol", "tcp", "--dport", "6443", "--jump", "DROP")
    iptables = binaries.program("iptables")
    namespace.cluster.inside(iptables, "--wait", "--insert", *rule)
    try:
        namespace.apply(simulated_cluster("late", "busy.py", "--seconds", "1"))
        time.sleep(API_AWAY_S)
        assert namespace.pods() == {}
    finally:
        namespace.cluster.inside(iptables, "--wait", "--delete", *rule)
    back = time.monotonic()
    wait_for(lambda: len(namespace.pods()) == 3, 90, lambda: namespace.describe("late"))
    print(f"work went on {time.monotonic() - back:.1f} s after the API server was back")
    namespace.wait_for_phase("late", "Succeeded", timeout_s=120)


def test_an_upgrade_of_the_chart_touches_no_run(namespace: Namespace, operator: Operator) -> None:
    start(namespace, "through")
    before = uids(namespace)
    old = operator.pod()["metadata"]["uid"]
    operator.install("--reuse-values", "--set-string", "operator.podAnnotations.upgraded=yes")
    assert operator.pod()["metadata"]["uid"] != old
    enough(namespace, "through")
    namespace.wait_for_phase("through", "Succeeded", timeout_s=120)
    assert uids(namespace) == before
    operator.install("--reset-values")


def test_uninstalled_and_installed_again_under_a_run(namespace: Namespace, operator: Operator) -> None:
    start(namespace, "orphan")
    before = uids(namespace)
    operator.cluster.helm("uninstall", RELEASE, f"--namespace={SYSTEM_NAMESPACE}", "--wait")
    try:
        assert namespace.simc("orphan")
        assert uids(namespace) == before
    finally:
        operator.install()
    enough(namespace, "orphan")
    namespace.wait_for_phase("orphan", "Succeeded", timeout_s=180)
    assert uids(namespace) == before


def uids(namespace: Namespace) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in namespace.pods().items()}


# ---- scale: nodes and pods that only say that they run ---------------------------------------------------------------


@pytest.fixture
def fake_nodes(cluster: Cluster) -> Iterator[None]:
    """Nodes of kwok; the real one takes no new pods meanwhile."""
    binaries.build(["kwok"])
    stages = binaries.module_directory("kwok") / "kustomize" / "stage"
    files = sorted([*stages.glob("node/fast/*-*.yaml"), *stages.glob("pod/fast/pod-*.yaml")])
    files += sorted(stages.glob("node/heartbeat-with-lease/node-*.yaml"))
    with tempfile.TemporaryDirectory() as scratch:
        configuration = Path(scratch) / "stages.yaml"
        configuration.write_text(without_cores("\n---\n".join(file.read_text() for file in files)))
        command = [
            binaries.program("kwok"),
            f"--kubeconfig={cluster.kubectl.kubeconfig}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={FAKE}=fake",
            f"--config={configuration}",
        ]
        with (Path(scratch) / "kwok.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as kwok:
            try:
                cluster.kubectl.apply(*(fake_node(number) for number in range(NODES)))
                wait_for(lambda: len(ready(cluster)) == NODES, 60, lambda: Path(log.name).read_text()[-2000:])
                cluster.kubectl("cordon", "node-0")
                yield
            finally:
                cluster.kubectl("uncordon", "node-0")
                cluster.kubectl("delete", "nodes", f"--selector={FAKE}=fake", "--wait=false")
                kwok.terminate()


def without_cores(stages: str) -> str:
    """Kwok's stages, but cores do not become ready: a kubelet says so of one that answers, and none of these does."""
    ready = 'status: "True"\n        type: Ready\n'
    assert stages.count(ready) == 1, "kwok's stage pod-ready is another"
    core = '(eq (index .metadata.labels "app.kubernetes.io/component") "core")'
    return stages.replace(
        ready, ready.replace('"True"', f'{{{{ if {core} }}}}"False"{{{{ else }}}}"True"{{{{ end }}}}')
    )


def fake_node(number: int) -> Object:
    room = {"cpu": "1000", "memory": "4Ti", "pods": "250", "ephemeral-storage": "4Ti"}
    name = f"fake-{number}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {FAKE: "fake"},
            "labels": {FAKE: "fake", "kubernetes.io/hostname": name},
        },
        "status": {"allocatable": room, "capacity": room},
    }


def ready(cluster: Cluster) -> list[str]:
    template = (
        '-o=jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}'
    )
    lines = cluster.kubectl("get", "nodes", f"--selector={FAKE}=fake", template).splitlines()
    return [line for line in lines if line.endswith("True")]


def test_a_thousand_servers(namespace: Namespace, operator: Operator, fake_nodes: None) -> None:
    """One object of 1,000 servers, then 200 objects of two: created and settled, no more than that.

    The goal of three API calls a pod is held over all of them. An object of two cannot keep it alone: its three pods,
    two Services and Secret, two looks and two words of its status are ten requests (counted one by one in
    tests/operator/kubernetes/test_requests.py), and pods that do not start within 2 s of each other are two more.
    """
    one = simulated_cluster("wide", "busy.py", servers=1000)
    calls = scale(namespace, operator, [one], pods=1001, limit_s=240)
    namespace.run("delete", "simc", "wide", "--wait=false")
    wait_for(lambda: count(namespace) == 0, 240, lambda: count(namespace))
    many = [simulated_cluster(f"pair-{number}", "busy.py") for number in range(200)]
    of_pairs = scale(namespace, operator, many, pods=600, limit_s=240)
    print(f"{(calls + of_pairs) / 1601:.2f} API calls a pod in all")
    assert of_pairs / 600 <= 4.5
    assert (calls + of_pairs) / 1601 <= 3
    namespace.run("delete", "simc", "--all", "--wait=false")
    wait_for(lambda: count(namespace) == 0, 240, lambda: count(namespace))


def scale(namespace: Namespace, operator: Operator, objects: list[Object], *, pods: int, limit_s: float) -> int:
    """Creates objects and says what it took until all their pods are there; returns how many API calls."""
    position = namespace.cluster.audit_position()
    began = time.monotonic()
    namespace.apply(*objects)
    wait_for(lambda: count(namespace) == pods, limit_s, lambda: f"{count(namespace)} of {pods} pods")
    created = time.monotonic() - began
    time.sleep(20)  # it settles
    memory = most_memory(namespace.cluster, operator)
    user = f"system:serviceaccount:{SYSTEM_NAMESPACE}:"
    calls = [entry for entry in namespace.cluster.audit(position) if entry["user"]["username"].startswith(user)]
    print(
        f"{len(objects)} objects, {pods} pods: all created after {created:.1f} s, "
        f"operator {memory / 2**20:.0f} MiB, {len(calls) / pods:.2f} API calls a pod"
    )
    print("  ", dict(Counter(f"{entry['verb']} {resource(entry)}" for entry in calls).most_common()))
    assert memory <= 256 * 2**20
    return len(calls)


def resource(entry: Object) -> str:
    """What a request was about, such as `simulatedclusters/status`."""
    about = entry.get("objectRef", {})
    return "/".join(filter(None, (about.get("resource", "?"), about.get("subresource"))))


def count(namespace: Namespace) -> int:
    """How many pods there are."""
    return namespace.run("get", "pods", "-o", "name").count("\n")


def most_memory(cluster: Cluster, operator: Operator) -> int:
    """The most that the operator has had resident so far, in bytes."""
    [process] = cluster.processes(operator.pod(), "eidolon_operator")
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10
