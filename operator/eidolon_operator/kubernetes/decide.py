"""What to do about an object: a pure function of the object, the world and the time.

:func:`decide` looks at how things are, never at what just happened, and may be asked any number of times. An attempt is
the core, all server pods and a token; the states that it goes through::

    Pending/Starting   pods are made; one that is lost is made again
      └─ Running       from here on a lost server ends the attempt: Fail, or Restart as the next attempt
           ├─ Succeeded   the core says so
           └─ Failed      the core says so; or it is lost, or the time is up
    Suspended          no pods; resumption is a new attempt

What is final stays: the object is only cleaned up (workloads that still run, then the object when its time is over).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from eidolon_operator.kubernetes.status import FINAL, Draft, Kind, Phase, Reason, Status, failures_of, figures, names
from eidolon_operator.kubernetes.world import WORKLOAD, PodState, World, seconds, timestamp
from eidolon_operator.spec import Spec

#: What could not be made is tried again after so long.
RETRY_S: Final = 15.0
#: How long the core has to say what a failed workload means, before the pod's own words count.
VERDICT_S: Final = 20.0
#: How long workloads have to end by themselves after the run has ended: the core tells them.
CLEAN_UP_S: Final = 60.0
#: The core's own startup timeout runs from its own start and says more, so it goes first.
STARTUP_MARGIN_S: Final = 30.0
#: The core ends a run at its time limit; the operator only if the core does not.
TIME_LIMIT_MARGIN_S: Final = 30.0

#: Of an object whose spec cannot be read; the API server fills it in for all others.
DEFAULT_TTL_S: Final = 3600.0

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


def core_name(name: str) -> str:
    return f"{name}-core"


def server_name(name: str, server: int) -> str:
    return f"{name}-server-{server}"


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
    draft = Draft(old, generation=document["metadata"]["generation"], now=now)
    operator = f"operator {runtime['version']}"
    if spec is None:
        return _invalid(document, draft, old, f"{why} ({operator})")
    aside = [f"{field} is not known to {operator} and left aside: the definition is newer" for field in unknown]
    step = _Step(spec, document["metadata"]["namespace"], world, draft, old, now, runtime, aside)
    if old.get("phase") in FINAL:
        return step.clean_up()
    if spec.suspend:
        return step.suspend()
    return step.run()


def _invalid(document: Mapping[str, Any], draft: Draft, old: Mapping[str, Any], why: str) -> Decision:
    """It fails, and stays as long as any other that is over.

    But not in the middle of an attempt: a spec cannot change, so it was begun by an operator that knew more.
    """
    if old.get("attempt") and old.get("phase") not in FINAL:
        draft.note([f"left alone: {why}"])
        return Decision(draft.done())
    ttl_s = float(document["spec"].get("ttlSecondsAfterFinished", DEFAULT_TTL_S))
    if old.get("phase") in FINAL:
        left_s = (seconds(old.get("completionTime")) or draft.now) + ttl_s - draft.now
        return Decision(dict(old), delete_object=left_s <= 0, again_s=max(left_s, 0))
    _finish(draft, Phase.FAILED, Reason.INVALID_SPEC, why)
    return Decision(draft.done(), again_s=ttl_s)


def _finish(draft: Draft, phase: Phase, reason: str, message: str) -> None:
    succeeded = phase == Phase.SUCCEEDED
    draft["phase"] = str(phase)
    draft["completionTime"] = draft.get("completionTime") or timestamp(draft.now)
    draft.condition(Kind.RUNNING, False, Reason.FINISHED)
    draft.condition(Kind.SUCCEEDED, succeeded, reason, message)
    draft.condition(Kind.FAILED, not succeeded, reason, message)
    draft.condition(Kind.SUSPENDED, False, Reason.NOT_SUSPENDED)


def _begun(core: Mapping[str, Any]) -> bool:
    """Whether the workload was let go: all servers had said hello."""
    return core["state"] != "Waiting" and not (core["state"] == "Failed" and core.get("servers", {}).get("missing"))


class _Step:
    """One decision in the making."""

    def __init__(
        self,
        spec: Spec,
        namespace: str,
        world: World,
        draft: Draft,
        old: Mapping[str, Any],
        now: float,
        runtime: Mapping[str, Any],
        aside: Sequence[str],
    ) -> None:
        self.spec = spec
        self.namespace = namespace
        self.world = world
        self.draft = draft
        self.old = old
        self.now = now
        self.runtime = runtime
        self.aside = aside  # notes on what is not understood
        self.attempt = int(old.get("attempt", 0))
        self.delete: list[PodState] = []
        self.waits: list[float] = []  # in how many seconds time itself may change the decision
        self.core_name = core_name(spec.name)
        self.server_names = [server_name(spec.name, index) for index in range(spec.servers)]
        draft["gpus"] = spec.servers * spec.gpus_per_server

    # -- the end -----------------------------------------------------------------------------------------------------

    def clean_up(self) -> Decision:
        """The run is over: its status stands, but for what the world still does to it."""
        ended = seconds(self.old.get("completionTime")) or self.now
        age = self.now - ended
        if self.old.get("phase") == Phase.FAILED:
            # The core often knows of a failure before the kubelet has reported it. What ended later ended by it.
            failures_of(self.draft, self.attempt, (pod for pod in self._own() if pod.ended_by(ended)))
        told = {name: self.draft.get(name) for name in ("observedGeneration", "failures") if self.draft.get(name)}
        status = {**self.old, **told}
        if age >= self.spec.ttl_s:
            return Decision(status, delete_object=True)
        waits = [self.spec.ttl_s - age]
        active = [pod for pod in self._servers() if not pod.finished and not pod.terminating]
        if active and age < CLEAN_UP_S:
            waits.append(CLEAN_UP_S - age)
        elif active:
            self.delete += active
        return Decision(status, delete=tuple(self.delete), again_s=min(waits))

    def suspend(self) -> Decision:
        draft = self.draft
        self.delete += [pod for pod in self.world.pods.values() if not pod.terminating]
        draft["phase"] = str(Phase.SUSPENDED)
        draft["readyServers"] = 0
        message = "spec.suspend is true; a new attempt begins when it is false"
        draft.condition(Kind.CORE_READY, False, Reason.SUSPENDED)
        draft.condition(Kind.SERVERS_READY, False, Reason.SUSPENDED)
        draft.condition(Kind.RUNNING, False, Reason.SUSPENDED)
        draft.condition(Kind.SUCCEEDED, False, Reason.NOT_FINISHED)
        draft.condition(Kind.FAILED, False, Reason.NOT_FINISHED)
        draft.condition(Kind.SUSPENDED, True, Reason.SUSPENDED, message)
        return Decision(draft.done(), delete=tuple(self.delete))

    # -- an attempt --------------------------------------------------------------------------------------------------

    def run(self) -> Decision:
        draft = self.draft
        draft.condition(Kind.SUSPENDED, False, Reason.NOT_SUSPENDED)
        draft.condition(Kind.SUCCEEDED, False, Reason.NOT_FINISHED)
        draft.condition(Kind.FAILED, False, Reason.NOT_FINISHED)
        if self.attempt == 0 or self.old.get("phase") == Phase.SUSPENDED:
            self.attempt += 1
            draft.begin_attempt(self.attempt, self.runtime)
        # Pods of an attempt before hold the names that this one needs.
        self.delete += [pod for pod in self.world.pods.values() if pod.attempt != self.attempt and not pod.terminating]

        core = self._answer()
        told = core.get("notes", ()) if core is not None else draft.get("notes", ())
        draft.note([*self.aside, *(line for line in told if line not in self.aside)])
        if core is not None:
            figures(draft, core)
            if _begun(core) and not draft.get("runningTime"):
                draft["runningTime"] = timestamp(self.now)
        running = draft.get("runningTime") is not None
        self._conditions(core, running)

        if core is not None and core["state"] == "Succeeded":
            return self._end(Phase.SUCCEEDED, core.get("reason") or Reason.FINISHED, core.get("message", ""))
        if core is not None and core["state"] == "Failed":
            return self._core_failed(core, running)
        verdict = self._lost_core(running) or self._lost_server(core, running) or self._failed(running) or self._late()
        if verdict is not None:
            return verdict
        return self._go_on()

    def _answer(self) -> Mapping[str, Any] | None:
        """What the core of this attempt said, if it said anything."""
        reading = self.world.core
        if reading is None or reading.document is None:
            return None
        return reading.document if reading.document.get("attempt", self.attempt) == self.attempt else None

    def _core_failed(self, core: Mapping[str, Any], running: bool) -> Decision:
        reason, message = core.get("reason") or Reason.UNKNOWN, core.get("message", "")
        if reason in _LOST and not running:
            # Nothing has begun: all is made again, in the time that startupTimeout gives.
            return self._late() or self._give_up_attempt(message, since=self.draft.get("startTime"))
        if reason in _LOST:
            lost = self._missing(core)
            if lost or reason == Reason.SERVER_LOST:
                return self._server_lost(lost, message)
        return self._end(Phase.FAILED, reason, message)

    def _lost_core(self, running: bool) -> Decision | None:
        pod = self._pod(self.core_name)
        if pod is None:
            if not running:
                return None  # it is made, again if need be: no server has begun
            message = f"pod {self.core_name} is gone"
        elif pod.finished or (running and pod.terminating):
            if pod.disrupted and not running:
                self.delete.append(pod)
                return None
            ended = pod.ended[0] if pod.ended else None
            told = f": {ended.reason}, exit code {ended.exit_code}; {ended.line}".rstrip("; ") if ended else ""
            message = f"pod {pod.name} {'is being deleted' if pod.terminating else 'has ended'}{told}"
        else:
            return None
        return self._end(Phase.FAILED, Reason.SIMULATION_CORE_LOST, message)

    def _lost_server(self, core: Mapping[str, Any] | None, running: bool) -> Decision | None:
        if not running:
            # Nothing has begun: what the cluster took away is made again.
            self.delete += [pod for pod in self._servers() if pod.failed and pod.disrupted and not pod.terminating]
            return None
        lost = self._missing(core)
        return self._server_lost(lost, "") if lost else None

    def _server_lost(self, lost: list[str], told: str) -> Decision:
        """``told``: the core's word for it, where it was the first to notice."""
        message = "; ".join(filter(None, (f"lost after the run had begun: {names(lost)}" if lost else "", told)))
        pods = {pod.name: pod for pod in self._servers()}
        for name in lost:
            told = pods[name].message if name in pods and pods[name].message else "the pod is gone"
            self.draft.fail(self.attempt, pods.get(name), Reason.SERVER_LOST, f"{name}: {told}")
        if self.spec.on_server_lost == "Fail":
            return self._end(Phase.FAILED, Reason.SERVER_LOST, message)
        restarts = int(self.old.get("restarts", 0)) + 1
        if restarts > self.spec.backoff_limit:
            limit = f"backoffLimit is {self.spec.backoff_limit}"
            return self._end(Phase.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, f"{message}; {limit}")
        self.draft["restarts"] = restarts
        return self._give_up_attempt(message)

    def _give_up_attempt(self, message: str, *, since: str | None = None) -> Decision:
        """The next attempt begins once all pods of this one are gone."""
        self.draft.begin_attempt(self.attempt + 1, self.runtime, since=since)
        self.draft["phase"] = str(Phase.PENDING)
        told = f"attempt {self.attempt} is given up: {message}"
        self.draft.condition(Kind.CORE_READY, False, Reason.RESTARTING, told)
        self.draft.condition(Kind.SERVERS_READY, False, Reason.RESTARTING, told)
        self.draft.condition(Kind.RUNNING, False, Reason.RESTARTING, told)
        self.delete += [pod for pod in self.world.pods.values() if not pod.terminating and pod not in self.delete]
        return Decision(self.draft.done(), delete=tuple(self.delete), again_s=1.0)

    def _failed(self, running: bool) -> Decision | None:
        """A container that ended with an error. The core hears of it too, and knows more: it goes first.

        Or it is the cause: without a core all workloads fail, and their pods may show it earlier than the core's does.
        """
        failed = [pod for pod in self._servers() if pod.failed and not pod.disrupted]
        if not failed:
            return None
        ended = [ended for pod in failed for ended in pod.ended]
        age = self.now - min((item.at for item in ended), default=self.now - VERDICT_S)
        if age < VERDICT_S:
            self.waits.append(VERDICT_S - age)
            return None
        pod = failed[0]
        words = [f"container {e.container} ended with exit code {e.exit_code}: {e.line or e.reason}" for e in pod.ended]
        own = running or any(item.container == WORKLOAD for item in pod.ended)
        reason = Reason.WORKLOAD_FAILED if own else Reason.SERVERS_NOT_READY
        return self._end(Phase.FAILED, reason, f"{pod.name}: {'; '.join(words) or pod.message or 'the pod failed'}")

    def _late(self) -> Decision | None:
        began, running = seconds(self.draft.get("startTime")), seconds(self.draft.get("runningTime"))
        if running is not None:
            limit = self.spec.time_limit_s
            if limit is None or self._before(running + limit + TIME_LIMIT_MARGIN_S):
                return None
            self.delete += [pod for pod in self._servers() if not pod.finished and not pod.terminating]
            return self._end(Phase.FAILED, Reason.TIME_LIMIT_EXCEEDED, f"the run took longer than {limit:g} s")
        if began is None or self._before(began + self.spec.startup_timeout_s + STARTUP_MARGIN_S):
            return None
        missing = [name for name in (self.core_name, *self.server_names) if not self._is_ready(name)]
        told = [f"{name}: {text}" for name in missing[:5] if (text := self._why(name))]
        message = f"not ready within {self.spec.startup_timeout_s} s: {names(missing)}" + "".join(
            f"; {t}" for t in told
        )
        return self._end(Phase.FAILED, Reason.SERVERS_NOT_READY, message)

    def _before(self, deadline: float) -> bool:
        """Whether a time is still to come; if so it is waited for."""
        if self.now < deadline:
            self.waits.append(deadline - self.now)
        return self.now < deadline

    def _end(self, phase: Phase, reason: str, message: str) -> Decision:
        if phase == Phase.FAILED:
            failures_of(self.draft, self.attempt, self._own())
            if not self.draft.get("failures"):
                self.draft.fail(self.attempt, None, reason, message)
        _finish(self.draft, phase, reason, message)
        return Decision(self.draft.done(), delete=tuple(self.delete), again_s=min(CLEAN_UP_S, self.spec.ttl_s))

    def _go_on(self) -> Decision:
        taken = {pod.name for pod in self.world.pods.values()}
        wanted = [self.core_name, *self.server_names]
        # While anything of another attempt is there, its core would hear the new agents.
        free = all(pod.attempt == self.attempt for pod in self.world.pods.values())
        make = [name for name in wanted if name not in taken] if free else []
        if self.world.refused:
            self.waits.append(RETRY_S)
        again = min(self.waits, default=None)
        return Decision(self.draft.done(), delete=tuple(self.delete), make=tuple(make), again_s=again)

    # -- what is -----------------------------------------------------------------------------------------------------

    def _own(self) -> list[PodState]:
        """Pods of this attempt."""
        return [pod for pod in self.world.pods.values() if pod.attempt == self.attempt]

    def _servers(self) -> list[PodState]:
        return [pod for pod in self._own() if pod.server is not None]

    def _pod(self, name: str) -> PodState | None:
        pod = self.world.pods.get(name)
        return pod if pod is not None and pod.attempt == self.attempt else None

    def _missing(self, core: Mapping[str, Any] | None) -> list[str]:
        """Servers that the cluster took away before their workload had ended."""
        ended = set((core or {}).get("servers", {}).get("ended", {}))
        found = []
        for index, name in enumerate(self.server_names):
            pod = self._pod(name)
            gone = pod is None or (not pod.finished and pod.terminating) or (pod.failed and pod.disrupted)
            if gone and str(index) not in ended:
                found.append(name)
        return found

    def _is_ready(self, name: str) -> bool:
        pod = self._pod(name)
        return pod is not None and not pod.terminating and (pod.ready or pod.phase == "Succeeded")

    def _why(self, name: str) -> str:
        """Why a pod is not ready, as far as anybody says."""
        if name in self.world.refused:
            return self.world.refused[name].message
        pod = self.world.pods.get(name)
        return pod.message if pod is not None else ""

    # -- what it is called -------------------------------------------------------------------------------------------

    def _conditions(self, core: Mapping[str, Any] | None, running: bool) -> None:
        draft, base = self.draft, f"http://{self.core_name}.{self.namespace}.svc"
        draft["core"] = {"http": f"{base}:8080", "metrics": f"{base}:8080/metrics", "dcgm": f"{base}:9400/metrics"}
        ready = [name for name in self.server_names if self._is_ready(name)]
        draft["readyServers"] = len(ready)

        core_ready = self._is_ready(self.core_name)
        answers = core is not None
        if core_ready and not answers and self.world.core is not None and self.world.core.error:
            draft.condition(Kind.CORE_READY, None, Reason.UNREACHABLE, self.world.core.error)
        elif core_ready:
            draft.condition(Kind.CORE_READY, True, Reason.READY)
        else:
            draft.condition(Kind.CORE_READY, False, *self._not_ready([self.core_name]))

        missing = [name for name in self.server_names if name not in set(ready)]
        if not missing:
            draft.condition(Kind.SERVERS_READY, True, Reason.READY, f"{len(ready)} of {self.spec.servers}")
        else:
            reason, message = self._not_ready(missing)
            told = f"{len(ready)} of {self.spec.servers} are ready; {message}"
            draft.condition(Kind.SERVERS_READY, False, reason, told)

        if running:
            draft["phase"] = str(Phase.RUNNING)
            draft.condition(Kind.RUNNING, True, Reason.WORKLOAD_RUNNING)
        else:
            starting = any(pod.phase == "Running" for pod in self._own())
            draft["phase"] = str(Phase.STARTING if starting else Phase.PENDING)
            draft.condition(Kind.RUNNING, False, Reason.WAITING_FOR_SERVERS, self._waiting(core))

    def _not_ready(self, missing: list[str]) -> tuple[str, str]:
        """Reason and message for pods that are not ready: the most telling first."""
        for name in missing:
            if name in self.world.refused:
                refusal = self.world.refused[name]
                return refusal.reason, f"{name}: {refusal.message}"
        troubled: Iterable[PodState] = (
            pod for name in missing if (pod := self.world.pods.get(name)) is not None and pod.reason
        )
        for pod in troubled:
            return pod.reason, f"{pod.name}: {pod.message}"
        states = {name: self.world.pods.get(name) for name in missing}
        if any(pod is not None and pod.terminating for pod in states.values()):
            waited = [name for name, pod in states.items() if pod is not None and pod.terminating]
            return Reason.TERMINATING, f"waiting for the end of {names(waited)}"
        if unseen := [name for name, pod in states.items() if pod is None]:
            return Reason.CREATING, f"being made and started: {names(unseen)}"
        return Reason.STARTING, f"starting: {names(missing)}"

    def _waiting(self, core: Mapping[str, Any] | None) -> str:
        if core is None:
            return "waiting for the simulation core"
        servers = [server_name(self.spec.name, index) for index in core.get("servers", {}).get("missing", ())]
        return f"waiting for the agents of {names(servers)}" if servers else "waiting for the servers"
