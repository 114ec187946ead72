"""What to do about an object: an ordered list of policies, each a pure function of the object, the world and the time.

:func:`decide` looks at how things are, never at what just happened, and may be asked any number of times. It asks the
:data:`POLICIES` in turn; the first that has an answer decides. An attempt is the core, all server pods and a token; the
states that it goes through::

    Pending/Starting   pods are made; one that is lost is made again
      └─ Running       from here on a lost server ends the attempt: Fail, or Restart as the next attempt
           ├─ Succeeded   the core says so
           └─ Failed      the core says so; or it is lost, or the time is up
    Suspended          no pods; resumption is a new attempt

What is final stays: the object is only cleaned up (workloads that still run, then the object when its time is over).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from eidolon_operator import spec as specs
from eidolon_operator.kubernetes.conditions import blank, describe
from eidolon_operator.kubernetes.naming import WORKLOAD
from eidolon_operator.kubernetes.situation import Situation
from eidolon_operator.kubernetes.status import FINAL, Draft, Kind, Phase, Reason, Status, failures_of, names
from eidolon_operator.kubernetes.world import PodState, World, seconds, timestamp
from eidolon_operator.spec import Spec

#: What could not be made is tried again after so long.
RETRY_S: Final = 15.0
#: How long the core has to say what a failed workload means, before the pod's own words count.
VERDICT_S: Final = 20.0
#: How long workloads have to end by themselves after the run has ended: the core tells them.
CLEAN_UP_S: Final = 60.0
#: Time beyond startupTimeout. The core keeps the same limit from its own, later start, and says more: it goes first.
STARTUP_MARGIN_S: Final = 30.0
#: Time beyond timeLimit. The core keeps the same limit; the operator only ends a run if the core does not.
TIME_LIMIT_MARGIN_S: Final = 30.0
#: An attempt that was given up is looked at again after so long: its pods are mostly gone by then.
RESTART_S: Final = 1.0

#: Causes of the core that mean that a server went away.
_LOST: Final = (Reason.SERVER_LOST, Reason.AGENT_LOST)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, in this order: write the status, delete, make. All of it may be done twice."""

    status: Status
    delete: tuple[PodState, ...] = ()
    #: Names of pods to make; what they need (services, secret) is made before the first.
    make: tuple[str, ...] = ()
    delete_object: bool = False
    again_s: float | None = None  #: look again after so long, if nothing happens before; None: only then


Policy = Callable[[Situation], Decision | None]


def decide(
    document: Mapping[str, Any],
    spec: Spec | None,
    world: World,
    *,
    now: float,
    runtime: Mapping[str, Any],
    why: str = "",
    unknown: Sequence[str] = (),
) -> Decision:
    """The decision on an object.

    ``spec`` is None where the object cannot be run, with ``why``; ``unknown`` are its fields that were left aside;
    ``runtime`` is what a new attempt would be made with; ``world`` holds the pods that the object owns.
    """
    old = document.get("status") or {}
    metadata = document["metadata"]
    operator = f"operator {runtime['version']}"
    if spec is None:
        return _cannot_run(document, f"{why} ({operator})", now)
    aside = [f"{field} is not known to {operator} and left aside: the definition is newer" for field in unknown]
    situation = Situation(spec, metadata["namespace"], metadata["generation"], old, world, now, runtime, aside)
    return next(decision for policy in POLICIES if (decision := policy(situation)) is not None)


def _cannot_run(document: Mapping[str, Any], why: str, now: float) -> Decision:
    """The decision on an object whose spec this version does not understand: it fails, and is deleted in its time.

    But an attempt that has begun is left alone. A spec cannot change, so an operator that knew more has begun it.
    """
    old = document.get("status") or {}
    draft = Draft(old, generation=document["metadata"]["generation"], now=now)
    ttl_s = float(document["spec"].get("ttlSecondsAfterFinished", specs.default("ttlSecondsAfterFinished")))
    if old.get("phase") in FINAL:
        left_s = (seconds(old.get("completionTime")) or now) + ttl_s - now
        return Decision(dict(old), delete_object=left_s <= 0, again_s=max(left_s, 0))
    if old.get("attempt"):
        draft.note([f"left alone: {why}"])
        return Decision(draft.done())
    _finish(draft, Phase.FAILED, Reason.INVALID_SPEC, why)
    return Decision(draft.done(), again_s=ttl_s)


# -- policies for an object that is over or at rest --------------------------------------------------------------------


def clean_up(s: Situation) -> Decision | None:
    """A run that is over keeps its status. Workloads that do not end are deleted, then the object itself.

    Failures of pods that show only now still count, if they are older than the end: the core often knows of one before
    the kubelet has reported it. What ended later ended with the run.
    """
    if s.old.get("phase") not in FINAL:
        return None
    ended = seconds(s.old.get("completionTime")) or s.now
    age_s = s.now - ended
    draft = blank(s)
    if s.old.get("phase") == Phase.FAILED:
        failures_of(draft, s.attempt, (pod for pod in s.own if pod.ended_by(ended)))
    told = {name: draft.get(name) for name in ("observedGeneration", "failures") if draft.get(name)}
    status = {**s.old, **told}
    if age_s >= s.spec.ttl_s:
        return Decision(status, delete_object=True)
    left_s = s.spec.ttl_s - age_s
    if s.at_work and age_s < CLEAN_UP_S:
        return Decision(status, again_s=min(left_s, CLEAN_UP_S - age_s))
    return Decision(status, delete=tuple(s.at_work), again_s=left_s)


def suspend(s: Situation) -> Decision | None:
    """An object with ``spec.suspend`` has no pods. What its attempt has reached is lost."""
    if not s.spec.suspend:
        return None
    draft = blank(s)
    draft["phase"] = str(Phase.SUSPENDED)
    draft["readyServers"] = 0
    message = "spec.suspend is true; a new attempt begins when it is false"
    draft.condition(Kind.CORE_READY, False, Reason.SUSPENDED)
    draft.condition(Kind.SERVERS_READY, False, Reason.SUSPENDED)
    draft.condition(Kind.RUNNING, False, Reason.SUSPENDED)
    draft.condition(Kind.SUCCEEDED, False, Reason.NOT_FINISHED)
    draft.condition(Kind.FAILED, False, Reason.NOT_FINISHED)
    draft.condition(Kind.SUSPENDED, True, Reason.SUSPENDED, message)
    return Decision(draft.done(), delete=tuple(pod for pod in s.world.pods.values() if not pod.terminating))


# -- policies for what the core has said -------------------------------------------------------------------------------


def core_succeeded(s: Situation) -> Decision | None:
    """The run has succeeded when the core says so."""
    if s.core_state != "Succeeded":
        return None
    return _end(s, describe(s), Phase.SUCCEEDED, s.core_reason or Reason.FINISHED, s.core_message)


def core_missed_a_server_at_the_start(s: Situation) -> Decision | None:
    """A core that lost a server before the run had begun is made again with all pods, while startupTimeout lasts."""
    if s.core_state != "Failed" or s.core_reason not in _LOST or s.running:
        return None
    if _startup_left_s(s) <= 0:
        return _end_unready(s, delete=())
    draft = describe(s)
    return _next_attempt(s, draft, s.core_message, since=draft.get("startTime"))


def core_lost_a_server(s: Situation) -> Decision | None:
    """A core that lost a server during the run: Fail or Restart, with the core's word for it.

    If an agent is gone while the pod of its server is there, no server is lost, and that is a failure like any other.
    """
    if s.core_state != "Failed" or s.core_reason not in _LOST or not s.running:
        return None
    if not s.lost and s.core_reason != Reason.SERVER_LOST:
        return None
    return _lose(s, s.core_message)


def core_failed(s: Situation) -> Decision | None:
    """The run has failed when the core says so."""
    if s.core_state != "Failed":
        return None
    return _end(s, describe(s), Phase.FAILED, s.core_reason or Reason.UNKNOWN, s.core_message)


# -- policies for what pods show ---------------------------------------------------------------------------------------


def core_pod_lost(s: Situation) -> Decision | None:
    """Without its core a run has failed: nobody else knows the virtual time.

    Before the run has begun a core that is missing, or that the cluster took away, is made again.
    """
    pod = s.pod(s.core_name)
    if pod is None:
        if not s.running:
            return None
        message = f"pod {s.core_name} is gone"
    elif pod.finished or (s.running and pod.terminating):
        if pod.disrupted and not s.running:
            return None
        ended = pod.ended[0] if pod.ended else None
        told = f": {ended.reason}, exit code {ended.exit_code}; {ended.line}".rstrip("; ") if ended else ""
        message = f"pod {pod.name} {'is being deleted' if pod.terminating else 'has ended'}{told}"
    else:
        return None
    return _end(s, describe(s), Phase.FAILED, Reason.SIMULATION_CORE_LOST, message)


def server_pod_lost(s: Situation) -> Decision | None:
    """A server that the cluster took away during the run: Fail or Restart. Before the run it is made again."""
    return _lose(s, "") if s.running and s.lost else None


def workload_failed(s: Situation) -> Decision | None:
    """A container that ended with an error fails the run, once the core has had :data:`VERDICT_S` to say more.

    The core hears of it too and knows what it means. Or the loss of the core is the cause, because without a core all
    workloads fail, and their pods may show it earlier than the core's own pod does.
    """
    if not s.failed or _verdict_left_s(s) > 0:
        return None
    pod = s.failed[0]
    words = [f"container {e.container} ended with exit code {e.exit_code}: {e.line or e.reason}" for e in pod.ended]
    own = s.running or any(ended.container == WORKLOAD for ended in pod.ended)
    reason = Reason.WORKLOAD_FAILED if own else Reason.SERVERS_NOT_READY
    message = f"{pod.name}: {'; '.join(words) or pod.message or 'the pod failed'}"
    return _end(s, describe(s), Phase.FAILED, reason, message, delete=s.disrupted)


# -- policies for time ------------------------------------------------------------------------------------------------


def time_limit_exceeded(s: Situation) -> Decision | None:
    """A run that goes on beyond timeLimit fails, and its workloads are deleted: a core would have ended them."""
    left_s = _time_limit_left_s(s)
    if left_s is None or left_s > 0:
        return None
    message = f"the run took longer than {s.spec.time_limit_s:g} s"
    return _end(s, describe(s), Phase.FAILED, Reason.TIME_LIMIT_EXCEEDED, message, delete=s.at_work)


def not_ready_in_time(s: Situation) -> Decision | None:
    """Servers and core have startupTimeout to be ready. Those that are not ready are named."""
    if s.running or _startup_left_s(s) > 0:
        return None
    return _end_unready(s, delete=s.disrupted)


def go_on(s: Situation) -> Decision:
    """Nothing has ended: what is missing is made. It has an answer to everything, so it comes last.

    Nothing is made while a pod of another attempt is there, whose core would hear the new agents.
    """
    wanted = [s.core_name, *s.server_names]
    free = all(pod.attempt == s.attempt for pod in s.world.pods.values())
    make = [name for name in wanted if name not in s.world.pods] if free else []
    waits = [_time_limit_left_s(s) if s.running else _startup_left_s(s), RETRY_S if s.world.refused else None]
    waits.append(_verdict_left_s(s) if s.failed else None)
    again_s = min((wait_s for wait_s in waits if wait_s is not None), default=None)
    return Decision(describe(s).done(), delete=(*s.stale, *s.disrupted), make=tuple(make), again_s=again_s)


#: The first policy with an answer decides. The order is one of knowledge: what is final or asked for goes before what
#: is seen; the core's word goes before the pods', since it knows what a failure means; the loss of the core goes before
#: failures of workloads, since it causes them; and time counts only where nobody has said anything.
POLICIES: Final[tuple[Policy, ...]] = (
    clean_up,
    suspend,
    core_succeeded,
    core_missed_a_server_at_the_start,
    core_lost_a_server,
    core_failed,
    core_pod_lost,
    server_pod_lost,
    workload_failed,
    time_limit_exceeded,
    not_ready_in_time,
    go_on,
)


# -- what is left of a time --------------------------------------------------------------------------------------------


def _verdict_left_s(s: Situation) -> float:
    """How long the core still has to say what the failure of a workload means. If this is not positive, its time is
    over.
    """
    ended = [ended.at for pod in s.failed for ended in pod.ended]
    return VERDICT_S - (s.now - min(ended)) if ended else 0.0


def _startup_left_s(s: Situation) -> float:
    """How long the attempt still has until all must be ready. If this is not positive, its time is over."""
    return s.started + s.spec.startup_timeout_s + STARTUP_MARGIN_S - s.now


def _time_limit_left_s(s: Situation) -> float | None:
    """How long the run may still take. If this is not positive, its time is over. None if it does not run, or has no
    limit.
    """
    if s.running_since is None or s.spec.time_limit_s is None:
        return None
    return s.running_since + s.spec.time_limit_s + TIME_LIMIT_MARGIN_S - s.now


# -- ends --------------------------------------------------------------------------------------------------------------


def _end(
    s: Situation, draft: Draft, phase: Phase, reason: str, message: str, *, delete: Iterable[PodState] = ()
) -> Decision:
    """The run is over. Pods of other attempts are deleted, and those given; the rest stay, for their logs."""
    if phase == Phase.FAILED:
        failures_of(draft, s.attempt, s.own)
        if not draft.get("failures"):
            draft.fail(s.attempt, None, reason, message)
    _finish(draft, phase, reason, message)
    return Decision(draft.done(), delete=(*s.stale, *delete), again_s=min(CLEAN_UP_S, s.spec.ttl_s))


def _end_unready(s: Situation, *, delete: Iterable[PodState]) -> Decision:
    """The run is over before it has begun. Pods that are not ready are named, with the reasons of the first five."""
    missing = [name for name in (s.core_name, *s.server_names) if not s.is_ready(name)]
    told = [f"{name}: {text}" for name in missing[:5] if (text := s.trouble(name))]
    message = "; ".join([f"not ready within {s.spec.startup_timeout_s} s: {names(missing)}", *told])
    return _end(s, describe(s), Phase.FAILED, Reason.SERVERS_NOT_READY, message, delete=delete)


def _lose(s: Situation, told: str) -> Decision:
    """Servers were lost after the run had begun. It fails or starts again, as ``onServerLost`` and ``backoffLimit``
    say. ``told`` is the core's word for it, if the core was the first to notice.
    """
    message = "; ".join(filter(None, (f"lost after the run had begun: {names(s.lost)}" if s.lost else "", told)))
    draft = describe(s)
    for name in s.lost:
        pod = s.pod(name)
        text = pod.message if pod is not None and pod.message else "the pod is gone"
        draft.fail(s.attempt, pod, Reason.SERVER_LOST, f"{name}: {text}")
    if s.spec.on_server_lost == "Fail":
        return _end(s, draft, Phase.FAILED, Reason.SERVER_LOST, message)
    restarts = int(s.old.get("restarts", 0)) + 1
    if restarts > s.spec.backoff_limit:
        limit = f"backoffLimit is {s.spec.backoff_limit}"
        return _end(s, draft, Phase.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, f"{message}; {limit}")
    draft["restarts"] = restarts
    return _next_attempt(s, draft, message)


def _next_attempt(s: Situation, draft: Draft, message: str, *, since: str | None = None) -> Decision:
    """The attempt is given up; the next begins once all pods of this one are gone. ``since``: when it counts as begun,
    if not now."""
    draft.begin_attempt(s.attempt + 1, s.runtime, since=since)
    draft["phase"] = str(Phase.PENDING)
    told = f"attempt {s.attempt} is given up: {message}"
    draft.condition(Kind.CORE_READY, False, Reason.RESTARTING, told)
    draft.condition(Kind.SERVERS_READY, False, Reason.RESTARTING, told)
    draft.condition(Kind.RUNNING, False, Reason.RESTARTING, told)
    delete = (*s.stale, *(pod for pod in s.own if not pod.terminating))
    return Decision(draft.done(), delete=delete, again_s=RESTART_S)


def _finish(draft: Draft, phase: Phase, reason: str, message: str) -> None:
    """Marks a status as final."""
    succeeded = phase == Phase.SUCCEEDED
    draft["phase"] = str(phase)
    draft["completionTime"] = draft.get("completionTime") or timestamp(draft.now)
    draft.condition(Kind.RUNNING, False, Reason.FINISHED)
    draft.condition(Kind.SUCCEEDED, succeeded, reason, message)
    draft.condition(Kind.FAILED, not succeeded, reason, message)
    draft.condition(Kind.SUSPENDED, False, Reason.NOT_SUSPENDED)
