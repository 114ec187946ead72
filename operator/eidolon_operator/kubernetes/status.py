"""The status of an object: conditions, figures and failures. Pure functions over plain JSON.

Reasons are words of a fixed list (:class:`Reason`, and the causes that the simulation core names), so that scripts can
rely on them; messages are for people.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

from eidolon_operator.kubernetes.world import Ended, PodState, timestamp
from eidolon_operator.units import format_bytes, format_count, format_ns

Status = dict[str, Any]

MAX_FAILURES: Final = 16
MAX_MESSAGE: Final = 1024
MAX_NOTES: Final = 8
MAX_NOTE: Final = 256

#: Fields that belong to one attempt and are removed when the next begins.
_OF_AN_ATTEMPT: Final = (
    *("runningTime", "completionTime", "readyServers", "step", "stepTimeNs", "stepTime", "throughput", "mfu"),
    *("peakMemoryBytes", "peakMemory", "costCoverage", "notes"),
)


class Phase(enum.StrEnum):
    """The conditions in one word."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


FINAL: Final = (Phase.SUCCEEDED, Phase.FAILED)


class Kind(enum.StrEnum):
    """The types of conditions."""

    CORE_READY = "CoreReady"
    SERVERS_READY = "ServersReady"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


class Reason(enum.StrEnum):
    """Why a condition is what it is. The causes of the simulation core come beside these for Succeeded and Failed."""

    # CoreReady and ServersReady
    READY = "Ready"
    CREATING = "Creating"
    STARTING = "Starting"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_FAILED = "ContainerFailed"
    TERMINATING = "Terminating"
    EVICTED = "Evicted"
    QUOTA_EXCEEDED = "QuotaExceeded"
    FORBIDDEN = "Forbidden"
    NAME_TAKEN = "NameTaken"
    CREATE_FAILED = "CreateFailed"
    UNREACHABLE = "Unreachable"
    # Running
    WAITING_FOR_SERVERS = "WaitingForServers"
    WORKLOAD_RUNNING = "WorkloadRunning"
    RESTARTING = "Restarting"
    FINISHED = "Finished"
    # Succeeded and Failed
    NOT_FINISHED = "NotFinished"
    SIMULATION_CORE_LOST = "SimulationCoreLost"
    SERVERS_NOT_READY = "ServersNotReady"
    SERVER_LOST = "ServerLost"
    AGENT_LOST = "AgentLost"
    WORKLOAD_FAILED = "WorkloadFailed"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN = "Unknown"
    # Suspended
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"


class Draft:
    """A status in the making. It starts as the old one and changes only where something changed."""

    def __init__(self, old: Mapping[str, Any], *, generation: int, now: float) -> None:
        self.now = now
        self._generation = generation
        # A newer operator may have written others. They are removed, since nobody keeps them true.
        self._conditions: dict[str, dict[str, Any]] = {
            c["type"]: dict(c) for c in old.get("conditions", ()) if c["type"] in set(Kind)
        }
        self._fields: Status = {key: value for key, value in old.items() if key != "conditions"}
        self._fields["observedGeneration"] = generation

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets a field; None removes it."""
        if value is None:
            self._fields.pop(name, None)
        else:
            self._fields[name] = value

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field (not of a condition), or ``default`` if there is none."""
        return self._fields.get(name, default)

    def begin_attempt(self, number: int, runtime: Mapping[str, Any], *, since: str | None = None) -> None:
        """Removes what belongs to the attempt before. ``since`` is when the new one began, if not now."""
        for name in _OF_AN_ATTEMPT:
            self._fields.pop(name, None)
        self["attempt"] = number
        self["runtime"] = dict(runtime)
        self["startTime"] = since or timestamp(self.now)

    def condition(self, kind: Kind, holds: bool | None, reason: str, message: str = "") -> None:
        """Sets a condition. The time of its last transition changes only when its status does."""
        status = {True: "True", False: "False", None: "Unknown"}[holds]
        old = self._conditions.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == status else timestamp(self.now)
        self._conditions[kind] = {
            "type": str(kind),
            "status": status,
            "reason": str(reason),
            "message": cut(message),
            "observedGeneration": self._generation,
            "lastTransitionTime": since,
        }

    def note(self, lines: Iterable[str]) -> None:
        """Sets the notes on what makes the run less exact and on what this version does not understand."""
        self["notes"] = [cut(line, MAX_NOTE) for line in lines][:MAX_NOTES] or None

    def fail(self, attempt: int, pod: PodState | None, reason: str, message: str, ended: Ended | None = None) -> None:
        """Adds to the list of failures, once per pod, container and attempt."""
        entry: dict[str, Any] = {"attempt": attempt}
        if pod is not None:
            entry["pod"] = pod.name
        if ended is not None:
            entry |= {"container": ended.container, "exitCode": ended.exit_code}
        known = self._fields.get("failures", [])
        identity = ("attempt", "pod", "container")
        if any(all(other.get(key) == entry.get(key) for key in identity) for other in known):
            return
        entry |= {"reason": str(reason), "message": cut(message, MAX_MESSAGE), "time": timestamp(self.now)}
        self._fields["failures"] = [*known, entry][-MAX_FAILURES:]

    def done(self) -> Status:
        """The status as it is to be written."""
        order = [str(kind) for kind in Kind]
        conditions = sorted(self._conditions.values(), key=lambda condition: order.index(condition["type"]))
        return {**self._fields, "conditions": conditions}


def figures(draft: Draft, core: Mapping[str, Any]) -> None:
    """Copies what the simulation core says about the run's speed and memory."""
    step = core.get("step")
    if step:
        draft["step"] = int(step["index"])
        draft["stepTimeNs"] = int(step["time_ns"])
        draft["stepTime"] = format_ns(step["time_ns"])
        draft["throughput"] = _throughput(step)
        mfu = step.get("mfu")
        draft["mfu"] = round(float(mfu), 4) if mfu is not None else None
    if peak := core.get("peak_bytes"):
        draft["peakMemoryBytes"] = int(peak)
        draft["peakMemory"] = format_bytes(peak)
    if shares := core.get("cost_share"):
        draft["costCoverage"] = {name: round(float(share), 4) for name, share in shares.items()}


def _throughput(step: Mapping[str, Any]) -> dict[str, Any] | None:
    """Throughput of a step in tokens, samples or steps, whichever of them is known first."""
    rates = {"tokens/s": step.get("tokens_per_s"), "samples/s": step.get("samples_per_s")}
    rates["steps/s"] = 1e9 / step["time_ns"] if step["time_ns"] else None
    for unit, rate in rates.items():
        if rate is not None:
            rounded = float(f"{float(rate):.6g}")
            return {"perSecond": rounded, "unit": unit, "text": f"{format_count(rounded)} {unit}"}
    return None


def failures_of(draft: Draft, attempt: int, pods: Iterable[PodState]) -> None:
    """Adds the containers that failed, with the line of their log that matters."""
    for pod in sorted(pods, key=lambda pod: (pod.server is not None, pod.server or 0)):
        if not pod.failed:
            continue
        if pod.disrupted or not pod.ended:
            draft.fail(attempt, pod, pod.reason or Reason.CONTAINER_FAILED, pod.message)
        for ended in () if pod.disrupted else pod.ended:
            draft.fail(attempt, pod, ended.reason, ended.line or f"exit code {ended.exit_code}", ended)


def cut(text: str, length: int = 4096) -> str:
    """The text, shortened to at most ``length`` characters."""
    return text if len(text) <= length else text[: length - 3] + "..."


def names(items: Iterable[str], most: int = 5) -> str:
    """The items in one phrase, such as ``a, b, c and 7 more``."""
    words = list(items)
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"
