"""A cluster in memory: an API server's rules as far as the operator meets them, a kubelet by hand, a clock by hand."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eidolon_operator import schema, spec
from eidolon_operator.kubernetes.client import core_path, objects_path
from eidolon_operator.kubernetes.reconcile import Reconciler
from eidolon_operator.kubernetes.settings import Settings
from eidolon_operator.kubernetes.world import (
    ApiError,
    CoreReading,
    Key,
    Pods,
    PodState,
    key_of,
    pod_state,
    timestamp,
)

SETTINGS = Settings(
    core_image="registry.test/core:1",
    interposer_image="registry.test/interposer:1",
    run_as=65532,
    image_pull_secrets=("ours",),
)
KEY = Key("lab", "demo")
MASTER = "demo-server-0.demo"
KINDS = ("simulatedclusters", "pods", "services", "secrets", "events")


def make_object(**fields: Any) -> dict[str, Any]:
    """An object as the API server keeps it: defaults filled in."""
    document: dict[str, Any] = {
        "apiVersion": spec.API_VERSION,
        "kind": spec.KIND,
        "metadata": {"name": "demo", "namespace": "lab", "uid": "uid-demo", "generation": 1},
        "spec": {
            "servers": 2,
            "gpusPerServer": 2,
            "workload": {"image": "example/train:1", "command": ["torchrun", "train.py"]},
        },
    }
    for path, value in fields.items():
        node = document["spec"]
        *parents, last = path.split("__")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    filled: dict[str, Any] = schema.with_defaults(spec.object_schema(), document)
    assert list(schema.problems(spec.object_schema(), filled)) == []
    return filled


class FakeApi:
    """Objects by path. Creation, conflicts, apply and deletion are as the API server has them."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.refuse: dict[str, ApiError] = {}  #: name -> what its creation fails with
        self._versions = itertools.count(1)

    def put(self, path: str, document: dict[str, Any]) -> None:
        document["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[path] = document

    async def get(self, path: str) -> dict[str, Any] | None:
        self.calls.append(f"get {path}")
        return copy.deepcopy(self.objects.get(path))

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        document = copy.deepcopy(dict(body))
        name = document["metadata"]["name"]
        self.calls.append(f"create {path}/{name}")
        if name in self.refuse:
            raise self.refuse[name]
        if f"{path}/{name}" in self.objects:
            raise ApiError(409, f'"{name}" already exists', "AlreadyExists")
        number = next(self._versions)
        document["metadata"]["uid"] = f"uid-{number}"
        if document["kind"] == "Pod":
            document["status"] = {"phase": "Pending"}
        self.put(f"{path}/{name}", document)
        return copy.deepcopy(document)

    async def apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append(f"apply {path}")
        if path.endswith("/status"):
            document = self.objects[path.removesuffix("/status")]
            assert body["metadata"]["uid"] == document["metadata"]["uid"]
            status = copy.deepcopy(body["status"])
            shape = spec.object_schema()["properties"]["status"]
            assert list(schema.problems(shape, status, "status")) == []
            document["status"] = status
            self.put(path.removesuffix("/status"), document)
            return copy.deepcopy(document)
        document = copy.deepcopy(dict(body))
        document["metadata"]["uid"] = self.objects.get(path, {"metadata": {"uid": f"uid-{path}"}})["metadata"]["uid"]
        self.put(path, document)
        return copy.deepcopy(document)

    async def delete(self, path: str, *, uid: str = "") -> None:
        self.calls.append(f"delete {path}")
        found = self.objects.get(path)
        if found is None or (uid and found["metadata"]["uid"] != uid):
            return
        if found["kind"] == "Pod":  # the kubelet ends it first
            found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.put(path, found)
        else:
            del self.objects[path]

    def requests(self) -> Counter[str]:
        """All requests since the last time, by verb and kind."""
        found = Counter(_kind(call) for call in self.calls)
        self.calls.clear()
        return found

    def writes(self) -> list[str]:
        """What was written since the last time, without Events."""
        found = [call for call in self.calls if not call.startswith("get ") and "/events/" not in call]
        self.calls.clear()
        return found


def _kind(call: str) -> str:
    verb, _, path = call.partition(" ")
    [kind] = [word for word in KINDS if f"/{word}/" in path]
    return f"{verb} {kind}{'/status' if path.endswith('/status') else ''}"


class FakeCores:
    """The simulation core's word, known as soon as its pod is ready."""

    def __init__(self) -> None:
        self.says: dict[str, Any] | None = None

    def follow(self, key: Key, pod: PodState | None) -> CoreReading | None:
        if pod is None or not pod.ready:
            return None
        error = "" if self.says else f"http://{pod.address}:8080/status: refused"
        return CoreReading(copy.deepcopy(self.says), error)


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Lab:
    """An object, the operator, and everything around them."""

    api: FakeApi = field(default_factory=FakeApi)
    clock: Clock = field(default_factory=Clock)
    pods: Pods = field(default_factory=Pods)
    settings: Settings = SETTINGS

    def __post_init__(self) -> None:
        self.cores = FakeCores()
        self.restart_operator()

    def restart_operator(self, settings: Settings | None = None) -> None:
        """A new process: it has forgotten everything, and lists pods first."""
        self.settings = settings or self.settings
        self.pods = Pods()
        self._watch()
        self.reconciler = Reconciler(self.api, self.cores, self.pods, self.settings, clock=self.clock)

    def apply(self, **fields: Any) -> None:
        self.api.put(objects_path(*KEY), make_object(**fields))

    def patch(self, **fields: Any) -> None:
        document = self.api.objects[objects_path(*KEY)]
        document["spec"].update(fields)
        document["metadata"]["generation"] += 1

    def look(self, *, after_s: float = 0.0) -> float | None:
        """One reconcile, after some time and after what happened to pods is known."""
        self.clock.now += after_s
        self._watch()
        return asyncio.run(self.reconciler.reconcile(KEY))

    def heard(self, name: str) -> bool:
        """The watch tells of a pod; whether that is a reason to look at the object."""
        return self.pods.put(KEY, pod_state(self.pod(name)))

    def _watch(self) -> None:
        seen = [pod for path, pod in self.api.objects.items() if "/pods/" in path]
        states = [(key, pod_state(pod)) for pod in seen if (key := key_of(pod)) is not None]
        self.pods.replace(states, version=max((state.version for _, state in states), default=0) + 10**6)

    @property
    def document(self) -> dict[str, Any]:
        return self.api.objects[objects_path(*KEY)]

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["status"]
        return found

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(item for item in self.status["conditions"] if item["type"] == kind)
        return found["status"], found["reason"], found["message"]

    def events(self) -> list[tuple[str, str]]:
        found = [item for path, item in self.api.objects.items() if "/events/" in path]
        return [(item["reason"], item["message"]) for item in found]

    # -- the kubelet ---------------------------------------------------------------------------------------------

    def pod(self, name: str) -> dict[str, Any]:
        return self.api.objects[core_path("pods", "lab", name)]

    def pod_names(self) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.api.objects if "/pods/" in path)

    def set_pod(self, name: str, **status: Any) -> None:
        self.pod(name)["status"] = status
        self.api.put(core_path("pods", "lab", name), self.pod(name))

    def run_pod(self, *names: str) -> None:
        for name in names:
            ready = [{"type": "Ready", "status": "True"}]
            self.set_pod(name, phase="Running", podIP="10.0.0.1", conditions=ready)

    def complete_pod(self, *names: str) -> None:
        for name in names:
            self.set_pod(name, phase="Succeeded")

    def fail_pod(self, name: str, container: str = "workload", code: int = 1, message: str = "") -> None:
        terminated = {"exitCode": code, "reason": "Error", "message": message, "finishedAt": timestamp(self.clock.now)}
        containers = [{"name": container, "state": {"terminated": terminated}}]
        self.set_pod(name, phase="Failed", containerStatuses=containers)

    def remove_pod(self, *names: str) -> None:
        for name in names:
            del self.api.objects[core_path("pods", "lab", name)]

    def remove_terminating(self) -> None:
        gone = [name for name in self.pod_names() if "deletionTimestamp" in self.pod(name)["metadata"]]
        self.remove_pod(*gone)

    # -- the core ------------------------------------------------------------------------------------------------

    def core_says(self, state: str, **more: Any) -> None:
        self.cores.says = {
            "state": state,
            "reason": "",
            "message": "",
            "attempt": self.status["attempt"],
            "servers": {"expected": 2, "said_hello": [0, 1], "missing": [], "ended": {}},
            "step": None,
            "peak_bytes": 0,
            "cost_share": {},
            **more,
        }

    def start(self, **fields: Any) -> None:
        """An object whose workload runs."""
        self.apply(**fields)
        self.look()
        self.run_pod(*self.pod_names())
        self.core_says("Running")
        self.look(after_s=5)
        assert self.status["phase"] == "Running"
        self.api.writes()
