"""What is known about the cluster around an object: small facts, never whole bodies.

A :class:`PodState` holds a few facts about a pod. :class:`Pods` keeps those of all our pods, and is fed by watch events
and by lists. Events may be late, doubled or missing, so a version number decides which is newer, and a list shows what
is gone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from eidolon_operator.kubernetes.naming import LABEL_ATTEMPT, LABEL_OBJECT, LABEL_SERVER

#: Reasons why a pod ended through no fault of what runs in it.
_DISRUPTED: Final = frozenset({"Evicted", "NodeLost", "Preempting", "NodeShutdown", "Terminated", "NodeAffinity"})
_IMAGE_TROUBLE: Final = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
_TROUBLE: Final = _IMAGE_TROUBLE | {
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}


class Key(NamedTuple):
    """Namespace and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ApiError(Exception):
    """The API server refused a request, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str, cause: str = "") -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        self.message = message
        self.cause = cause  #: such as NamespaceTerminating


@dataclass(frozen=True, slots=True)
class Ended:
    """A container that ended with an exit code other than 0."""

    container: str
    exit_code: int
    reason: str  #: the kubelet's word, such as Error or OOMKilled
    message: str  #: the termination message, or the end of the log
    at: float  #: seconds since 1970

    @property
    def line(self) -> str:
        """The line that matters: the last one that is not empty."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        return lines[-1][:1024] if lines else ""


@dataclass(frozen=True, slots=True)
class PodState:
    """The facts about a pod that matter."""

    name: str
    uid: str
    owner: str  #: UID of the controlling owner
    attempt: int
    server: int | None  #: None: the simulation core
    phase: str
    ready: bool = False
    terminating: bool = False
    disrupted: bool = False  #: the cluster took it away; it did not end by itself
    reason: str = ""  #: why it makes no progress, as a reason of ours: Unschedulable, ImagePullFailed, ContainerFailed
    message: str = ""
    ended: tuple[Ended, ...] = ()
    address: str = ""
    version: int = field(default=0, compare=False)  #: two versions may say the same

    @property
    def failed(self) -> bool:
        """Whether it has ended, and a container of it with an error."""
        return self.phase == "Failed"

    @property
    def finished(self) -> bool:
        """Whether all of its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")

    def ended_by(self, time: float) -> bool:
        """Whether one of its containers had failed by a time (seconds since 1970)."""
        return any(ended.at <= time for ended in self.ended)


@dataclass(frozen=True, slots=True)
class CoreReading:
    """One answer of the simulation core, or why there was none."""

    document: Mapping[str, Any] | None = None
    error: str = ""


class Refusal(NamedTuple):
    """Why something could not be made."""

    reason: str  #: QuotaExceeded, Forbidden, NameTaken or CreateFailed
    message: str


@dataclass(frozen=True, slots=True)
class World:
    """Everything a decision looks at besides the object itself and the time."""

    pods: Mapping[str, PodState] = field(default_factory=dict)  #: by name
    core: CoreReading | None = None
    refused: Mapping[str, Refusal] = field(default_factory=dict)  #: by name of what could not be made


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """The facts about a pod, from its object in the API."""
    metadata, status = pod["metadata"], pod.get("status", {})
    labels = metadata.get("labels", {})
    owner = next((ref["uid"] for ref in metadata.get("ownerReferences", ()) if ref.get("controller")), "")
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    server = labels.get(LABEL_SERVER)
    reason, message = _trouble(conditions, containers)
    disrupted = status.get("reason") in _DISRUPTED or _holds(conditions, "DisruptionTarget")
    return PodState(
        name=metadata["name"],
        uid=metadata["uid"],
        owner=owner,
        attempt=_number(labels.get(LABEL_ATTEMPT), 0) or 0,
        server=_number(server, None),
        phase=status.get("phase", "Pending"),
        ready=_holds(conditions, "Ready"),
        terminating="deletionTimestamp" in metadata,
        disrupted=disrupted,
        reason=reason or ("Evicted" if disrupted else ""),
        message=message or status.get("message", ""),
        ended=tuple(_ended(containers)),
        address=status.get("podIP", ""),
        version=_number(metadata.get("resourceVersion"), 0) or 0,
    )


class Pods:
    """The facts about all our pods, by object."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[str, PodState]] = {}

    def of(self, key: Key) -> Mapping[str, PodState]:
        """The pods of an object by name, its own and, until they are gone, those of a predecessor of that name."""
        return self._by_key.get(key, {})

    def keys(self) -> Iterable[Key]:
        """The objects that have pods."""
        return self._by_key.keys()

    def put(self, key: Key, state: PodState) -> bool:
        """Takes in a pod, unless something newer is known about it. Returns whether that changed anything."""
        known = self._by_key.setdefault(key, {}).get(state.name)
        if known is not None and known.uid == state.uid and state.version < known.version:
            return False
        self._by_key[key][state.name] = state
        return known != state

    def drop(self, key: Key, name: str, uid: str) -> None:
        """Forgets a pod that is gone, unless another one has taken its name."""
        pods = self._by_key.get(key, {})
        if name in pods and pods[name].uid == uid:
            del pods[name]
            if not pods:
                del self._by_key[key]

    def replace(self, listed: Iterable[tuple[Key, PodState]], *, version: int) -> set[Key]:
        """Takes in a whole list that was made at ``version``. A pod that is not in it and not newer than it is gone.

        Returns the objects whose pods have changed.
        """
        changed: set[Key] = set()
        present: dict[Key, set[str]] = {}
        for key, state in listed:
            present.setdefault(key, set()).add(state.uid)
            if self.put(key, state):
                changed.add(key)
        for key, pods in list(self._by_key.items()):
            for name, state in list(pods.items()):
                if state.uid not in present.get(key, ()) and state.version <= version:
                    self.drop(key, name, state.uid)
                    changed.add(key)
        return changed


def key_of(pod: Mapping[str, Any]) -> Key | None:
    """The object that a pod belongs to, by its label."""
    name = pod["metadata"].get("labels", {}).get(LABEL_OBJECT)
    return Key(pod["metadata"]["namespace"], name) if name else None


def timestamp(now: float) -> str:
    """A time in seconds since 1970 as the API writes it (RFC 3339), without fractions."""
    return dt.datetime.fromtimestamp(int(now), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float | None:
    """The inverse of :func:`timestamp`."""
    return dt.datetime.fromisoformat(text).timestamp() if text else None


def _holds(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def _trouble(conditions: Mapping[str, Any], containers: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return "Unschedulable", scheduled.get("message", "")
    for container in containers:
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _TROUBLE:
            word = "ImagePullFailed" if waiting["reason"] in _IMAGE_TROUBLE else "ContainerFailed"
            return word, f"container {container['name']}: {waiting.get('message') or waiting['reason']}"
    return "", ""


def _ended(containers: Iterable[Mapping[str, Any]]) -> Iterable[Ended]:
    for container in containers:
        terminated = container.get("state", {}).get("terminated")
        if terminated and terminated.get("exitCode", 0) != 0:
            yield Ended(
                container["name"],
                terminated["exitCode"],
                terminated.get("reason", "Error"),
                terminated.get("message", "")[-2048:],
                seconds(terminated.get("finishedAt")) or 0.0,
            )


def _number(text: str | None, default: int | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else default
