"""What is said of an attempt that goes on: its phase, its conditions and where its core is. Pure functions.

:func:`describe` says what holds, whatever is decided; a decision that ends the attempt writes over it.
"""

from __future__ import annotations

from eidolon_operator import folding
from eidolon_operator.kubernetes.naming import DCGM_PORT, HTTP_PORT, server_name
from eidolon_operator.kubernetes.situation import Situation
from eidolon_operator.kubernetes.status import MAX_MESSAGE, Draft, Kind, Phase, Reason, cut, figures, names
from eidolon_operator.kubernetes.world import timestamp


def describe(s: Situation) -> Draft:
    """The status of an attempt, as a draft: everything but what is decided about it."""
    draft = blank(s)
    draft.condition(Kind.SUSPENDED, False, Reason.NOT_SUSPENDED)
    draft.condition(Kind.SUCCEEDED, False, Reason.NOT_FINISHED)
    draft.condition(Kind.FAILED, False, Reason.NOT_FINISHED)
    if s.begins:
        draft.begin_attempt(s.attempt, s.runtime)
    told = s.core.get("notes", ()) if s.core is not None else draft.get("notes", ())
    draft.note([*s.aside, *(line for line in told if line not in s.aside)])
    if s.core is not None:
        figures(draft, s.core)
    if s.running_since is not None:
        draft["runningTime"] = timestamp(s.running_since)
    base = f"http://{s.core_name}.{s.namespace}.svc"
    http, dcgm = f"{base}:{HTTP_PORT}", f"{base}:{DCGM_PORT}"
    draft["core"] = {"http": http, "metrics": f"{http}/metrics", "dcgm": f"{dcgm}/metrics"}
    _describe_core(draft, s)
    _describe_servers(draft, s)
    _describe_run(draft, s)
    return draft


def blank(s: Situation) -> Draft:
    """A draft of the status in which nothing has changed but what the spec alone says."""
    draft = Draft(s.old, generation=s.generation, now=s.now)
    draft["gpus"] = s.spec.servers * s.spec.gpus_per_server
    if s.spec.fold is not None:
        classes = s.spec.placement.classes
        draft["folded"] = cut(f"{folding.counted(classes)} run: {folding.listed(classes)}", MAX_MESSAGE)
    return draft


def _describe_core(draft: Draft, s: Situation) -> None:
    ready = s.is_ready(s.core_name)
    if ready and s.core is None and s.world.core is not None and s.world.core.error:
        draft.condition(Kind.CORE_READY, None, Reason.UNREACHABLE, s.world.core.error)
    elif ready:
        draft.condition(Kind.CORE_READY, True, Reason.READY)
    else:
        draft.condition(Kind.CORE_READY, False, *_not_ready(s, [s.core_name]))


def _describe_servers(draft: Draft, s: Situation) -> None:
    missing = [name for name in s.server_names if not s.is_ready(name)]
    wanted = len(s.server_names)
    ready = wanted - len(missing)
    draft["readyServers"] = ready
    if not missing:
        draft.condition(Kind.SERVERS_READY, True, Reason.READY, f"{ready} of {wanted}")
    else:
        reason, message = _not_ready(s, missing)
        told = f"{ready} of {wanted} are ready; {message}"
        draft.condition(Kind.SERVERS_READY, False, reason, told)


def _describe_run(draft: Draft, s: Situation) -> None:
    if s.running:
        draft["phase"] = str(Phase.RUNNING)
        draft.condition(Kind.RUNNING, True, Reason.WORKLOAD_RUNNING)
    else:
        starting = any(pod.phase == "Running" for pod in s.own)
        draft["phase"] = str(Phase.STARTING if starting else Phase.PENDING)
        draft.condition(Kind.RUNNING, False, Reason.WAITING_FOR_SERVERS, _waiting(s))


def _not_ready(s: Situation, missing: list[str]) -> tuple[str, str]:
    """Reason and message for pods that are not ready. The most telling of them is named."""
    for name in missing:
        if name in s.world.refused:
            refusal = s.world.refused[name]
            return refusal.reason, f"{name}: {refusal.message}"
    pods = {name: s.world.pods.get(name) for name in missing}
    for pod in pods.values():
        if pod is not None and pod.reason:
            return pod.reason, f"{pod.name}: {pod.message}"
    if ending := [name for name, pod in pods.items() if pod is not None and pod.terminating]:
        return Reason.TERMINATING, f"waiting for the end of {names(ending)}"
    if unseen := [name for name, pod in pods.items() if pod is None]:
        return Reason.CREATING, f"being made and started: {names(unseen)}"
    return Reason.STARTING, f"starting: {names(missing)}"


def _waiting(s: Situation) -> str:
    """What the workload waits for."""
    if s.core is None:
        return "waiting for the simulation core"
    servers = [server_name(s.spec.name, index) for index in s.core.get("servers", {}).get("missing", ())]
    return f"waiting for the agents of {names(servers)}" if servers else "waiting for the servers"
