"""A cluster with Eidolon in it: `KUBECONFIG`'s, else one that `e2e.cluster` brings up.

The images are those of the checkout (`make images`). A cluster that is given by KUBECONFIG must have them already, as
`kind load image-archive` puts them there, and a folder with a stock torch on its nodes: `EIDOLON_E2E_TORCH`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import binaries, lifecycle
from e2e.cluster.layout import REPOSITORY, Layout, cache
from e2e.kubernetes.kubectl import Kubectl, Object, RefusedError, TimedOutError, wait_for

SYSTEM_NAMESPACE = "eidolon-system"
RELEASE = "eidolon"
CHART = REPOSITORY / "charts" / "eidolon"
WORKLOADS = Path(__file__).parent / "workloads"
EXAMPLE_IMAGE_PREFIX = "ghcr.io/eidolon-sim/eidolon-example"


@dataclass(frozen=True)
class Cluster:
    """A cluster and the programs to use it with. `layout` is None if it is not ours."""

    kubectl: Kubectl
    layout: Layout | None
    #: Whether the images were loaded now: what runs already has those of before.
    new_images: bool = False

    def helm(self, *arguments: str, timeout_s: float = 300) -> str:
        """Runs helm.

        Raises:
            RefusedError: it failed.
        """
        command = [binaries.program("helm"), f"--kubeconfig={self.kubectl.kubeconfig}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode:
            raise RefusedError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def inside(self, *command: str) -> str:
        """Runs a command in the namespaces of the cluster: on its node, so to speak."""
        if self.layout is None:
            pytest.fail("this needs the cluster of e2e.cluster: unset KUBECONFIG")
        done = subprocess.run(lifecycle.inside(self.layout, command), capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RefusedError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def audit(self, since: int = 0) -> list[Object]:
        """The requests that the API server has answered, from a position of its log on."""
        if self.layout is None:
            return []
        with self.layout.audit_log.open("rb") as log:
            log.seek(since)
            return [json.loads(line) for line in log if line.endswith(b"}\n")]

    def audit_position(self) -> int:
        """The end of the audit log."""
        return self.layout.audit_log.stat().st_size if self.layout else 0

    def processes(self, pod: Object, word: str) -> list[int]:
        """The processes of a pod that have `word` in their command line. They are seen, and killed, from outside."""
        if self.layout is None:
            pytest.fail("this needs the cluster of e2e.cluster: unset KUBECONFIG")
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdecimal() or pod["metadata"]["uid"] not in (entry / "cgroup").read_text():
                    continue
                if word in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(int(entry.name))
        return found

    def kill(self, pod: Object, word: str) -> None:
        """kill -9 for the processes of a pod that have `word` in their command line; there must be one."""
        found = self.processes(pod, word)
        assert found, f"no process of {pod['metadata']['name']} has {word!r} in its command line"
        for process in found:
            os.kill(process, signal.SIGKILL)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Of the processes that run tests (pytest-xdist) one at a time is in here: what the first prepares others find."""
    file = REPOSITORY / "build" / "e2e-kubernetes.lock"
    file.parent.mkdir(exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """Brought up if need be, and left up: the next run starts at once. `python -m e2e.cluster down` ends it."""
    with alone():
        binaries.build(["kubectl", "helm"])
        if "KUBECONFIG" in os.environ:
            return Cluster(Kubectl(binaries.program("kubectl"), Path(os.environ["KUBECONFIG"])), None)
        layout = Layout.default()
        lifecycle.up(layout)
        loaded = _load_images(layout)
        return Cluster(Kubectl(binaries.program("kubectl"), layout.kubeconfig), layout, new_images=loaded)


def _load_images(layout: Layout) -> bool:
    archives = sorted((REPOSITORY / "build" / "images").glob("eidolon-*.tar"))
    assert archives, "no images: run `make images`"
    loaded = False
    for archive in archives:
        seen = layout.var / f"{archive.name}.loaded"
        stamp = f"{archive.stat().st_ino} {archive.stat().st_mtime_ns}"
        if not seen.exists() or seen.read_text() != stamp:
            lifecycle.load(layout, archive)
            seen.write_text(stamp)
            loaded = True
    return loaded


@dataclass(frozen=True)
class Operator:
    """The installed chart."""

    cluster: Cluster
    values: tuple[str, ...] = field(default=())

    def install(self, *arguments: str) -> None:
        """Installs or upgrades the chart and waits for the operator."""
        command = ("upgrade", "--install", RELEASE, str(CHART), f"--namespace={SYSTEM_NAMESPACE}")
        self.cluster.helm(*command, "--create-namespace", "--wait", "--timeout=180s", *self.values, *arguments)

    def pod(self) -> Object:
        """The operator's one pod."""
        selector = "--selector=app.kubernetes.io/component=operator"
        pods = self.cluster.kubectl.list("pods", f"--namespace={SYSTEM_NAMESPACE}", selector)
        [pod] = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return pod


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> Operator:
    """The chart of the checkout, installed for all namespaces with its default values."""
    installed = Operator(cluster)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE, "labels": RESTRICTED}}
    with alone():
        cluster.kubectl.apply(namespace)
        installed.install()
        if cluster.new_images:
            where = f"--namespace={SYSTEM_NAMESPACE}"
            cluster.kubectl("rollout", "restart", "deployment", where)
            cluster.kubectl("rollout", "status", "deployment", where, "--timeout=120s")
    return installed


RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


@dataclass(frozen=True)
class Namespace:
    """A namespace that enforces the restricted Pod Security Standard, with the workloads of the tests in it."""

    name: str
    cluster: Cluster

    @property
    def kubectl(self) -> Kubectl:
        return self.cluster.kubectl

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl in this namespace."""
        return self.kubectl(f"--namespace={self.name}", *arguments, stdin=stdin)

    def apply(self, *objects: Object) -> str:
        return self.kubectl.apply(*objects, namespace=self.name)

    def simc(self, name: str) -> Object:
        """A SimulatedCluster; one that is gone is an empty object."""
        return self.kubectl.get("simulatedclusters.eidolon.dev", name, self.name) or {}

    def pods(self, selector: str = "") -> dict[str, Object]:
        """The pods that are not being deleted, by name."""
        found = self.kubectl.list("pods", f"--namespace={self.name}", f"--selector={selector}")
        return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def finished_log(self, pod: str) -> str:
        """All that the workload of a pod said. A run is over as soon as its commands are: the kubelet is told later."""

        def ended() -> bool:
            statuses = self.pods()[pod]["status"].get("containerStatuses", [])
            return any(status["name"] == "workload" and "terminated" in status["state"] for status in statuses)

        wait_for(ended, 60, lambda: self.pods()[pod]["status"])
        return self.run("logs", pod, "-c", "workload")

    def said_by_image(self, image: str, *command: str) -> str:
        """What a command prints in an image, in a pod that is made for it."""
        restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        asked = {"name": "asked", "image": image, "command": list(command), "securityContext": restricted}
        context = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {"restartPolicy": "Never", "securityContext": context, "containers": [asked]}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": spec})
        wait_for(lambda: self.pods()["asked"]["status"]["phase"] == "Succeeded", 60, lambda: self.pods()["asked"])
        said = self.run("logs", "asked").strip()
        self.run("delete", "pod", "asked", "--now")
        return said

    def wait_for_phase(self, name: str, *phases: str, timeout_s: float = 90) -> Object:
        """Waits until an object is in one of these phases; returns it.

        Raises:
            TimedOutError: it is not within the limit, or has ended in another.
        """

        def arrived() -> Object | None:
            seen = self.simc(name)
            phase = seen.get("status", {}).get("phase")
            if phase in ("Succeeded", "Failed") and phase not in phases:
                raise TimedOutError(f"{name} is {phase}, not {' or '.join(phases)}: {self.describe(name)}")
            return seen if phase in phases else None

        return wait_for(arrived, timeout_s, lambda: self.describe(name))

    def describe(self, name: str) -> str:
        """Everything there is to know of an object, for messages of failed assertions."""
        parts = [yaml.safe_dump(self.simc(name).get("status", {}))]
        for arguments in (
            ("get", "pods", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            (
                "logs",
                "--selector=app.kubernetes.io/managed-by=eidolon-operator",
                "--all-containers",
                "--prefix",
                "--tail=15",
            ),
        ):
            with contextlib.suppress(RefusedError):
                parts.append(self.run(*arguments))
        with contextlib.suppress(RefusedError):
            where = f"--namespace={SYSTEM_NAMESPACE}"
            parts.append(self.kubectl("logs", where, "--selector=app.kubernetes.io/component=operator", "--tail=40"))
        return "\n".join(parts)


@pytest.fixture(scope="session")
def deleted(cluster: Cluster) -> Iterator[list[str]]:
    """The namespaces that tests have deleted. Nobody waits for their end but the last: by then all must be gone."""
    names: list[str] = []
    yield names

    def left() -> set[str]:
        return {f"namespace/{name}" for name in names} & set(cluster.kubectl("get", "namespaces", "-o", "name").split())

    wait_for(lambda: not left(), 120, left)


@pytest.fixture
def namespace(
    cluster: Cluster, operator: Operator, deleted: list[str], request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    """A namespace of the test's own, deleted behind it; that it can be deleted is part of every test."""
    words, _, case = request.node.name.removeprefix("test_").partition("[")
    # Each case has its own: the next one need not wait until the last one's is gone.
    suffix = f"-{zlib.crc32(case.encode()):08x}" if case else ""
    name = words.replace("_", "-")[: 50 - len(suffix)].strip("-") + suffix
    kubectl = cluster.kubectl
    with contextlib.suppress(RefusedError):
        kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=60s")
    deleted[:] = [other for other in deleted if other != name]
    made = Namespace(name, cluster)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
    scripts = {file.name: file.read_text() for file in WORKLOADS.glob("*.py")}
    made.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "workloads"}, "data": scripts})
    position = cluster.audit_position()
    yield made
    if "may_be_refused" not in request.keywords:
        assert denied(cluster.audit(position), name) == []
    kubectl("delete", "namespace", name, "--wait=false")
    deleted.append(name)


def denied(requests: list[Object], namespace: str) -> list[str]:
    """The requests of our service accounts that the API server answered with 403, but those in namespaces of others."""
    return [
        f"{request['user']['username']} {request['verb']} {request['requestURI']}"
        for request in requests
        if request["user"]["username"].startswith(f"system:serviceaccount:{SYSTEM_NAMESPACE}:")
        and request.get("responseStatus", {}).get("code") == 403
        and request.get("objectRef", {}).get("namespace") in (None, namespace, SYSTEM_NAMESPACE)
    ]


@pytest.fixture
def torch(namespace: Namespace) -> str:
    """A claim, read-only, on a stock torch: `pip install --target FOLDER torch`, which no image has to hold."""
    folder = Path(os.environ.get("EIDOLON_E2E_TORCH") or cache().parent / "torch-site")
    assert "KUBECONFIG" in os.environ or (folder / "torch").is_dir(), f"no torch in {folder}: run `make torch-site`"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"torch-{namespace.name}"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": namespace.name, "name": "torch"},
            "hostPath": {"path": str(folder), "type": "Directory"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "torch"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": f"torch-{namespace.name}",
            "resources": {"requests": {"storage": "10Gi"}},
        },
    }
    namespace.kubectl("delete", "persistentvolume", f"torch-{namespace.name}", "--ignore-not-found", "--wait=false")
    namespace.kubectl.apply(volume)
    namespace.apply(claim)
    return "torch"


def example_image() -> str:
    """The image that the examples run in: Debian with its Python."""
    import tomllib

    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    return f"{EXAMPLE_IMAGE_PREFIX}:{version}"


def simulated_cluster(name: str, *command: str, servers: int = 2, **spec: Any) -> Object:
    """An object that runs one of the tests' own workloads, with one emulated GPU a server."""
    workload = {
        "image": example_image(),
        "command": ["python3", "-u", *command],
        "workingDir": "/workloads",
        "volumes": [{"name": "workloads", "configMap": {"name": "workloads"}}],
        "volumeMounts": [{"name": "workloads", "mountPath": "/workloads", "readOnly": True}],
        # With no request of its own it would get what agents and core leave it of a busy processor: next to nothing.
        "resources": {"requests": {"cpu": "100m"}},
        **spec.pop("workload", {}),
    }
    return {
        "apiVersion": "eidolon.dev/v1alpha1",
        "kind": "SimulatedCluster",
        "metadata": {"name": name},
        "spec": {"servers": servers, "gpusPerServer": 1, "gpu": {"model": "h100-sxm"}, "workload": workload, **spec},
    }


#: Of a run that something happens to: for ever, were it not for `enough`. A rank's sleep takes no real time.
BUSY_S = "100000"


def start(namespace: Namespace, name: str, *arguments: str, **spec: object) -> None:
    """Starts a run of two servers and waits until its workload runs."""
    namespace.apply(simulated_cluster(name, "busy.py", "--seconds", BUSY_S, *arguments, **spec))
    working(namespace, name)


def working(namespace: Namespace, name: str) -> None:
    """Waits until the workload of a run works on both servers."""
    namespace.wait_for_phase(name, "Running")
    wait_for(
        lambda: all("at work" in namespace.run("logs", pod, "-c", "workload") for pod in servers(name)),
        60,
        lambda: namespace.describe(name),
    )


def enough(namespace: Namespace, name: str) -> None:
    """Lets the workload of a run come to its end."""
    for pod in servers(name):
        namespace.run("exec", pod, "-c", "workload", "--", "touch", "/tmp/enough")


def servers(name: str) -> tuple[str, str]:
    return f"{name}-server-0", f"{name}-server-1"
