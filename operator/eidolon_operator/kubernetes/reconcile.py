"""One look at one object: read, decide, act.

:meth:`Reconciler.reconcile` reads the object anew, gathers the world around it, asks :func:`decide` and does what it
says. It may be interrupted anywhere and run again. Names are deterministic, pods and secrets are only ever created (one
that exists already is fine if it is ours), and everything else is server-side apply. The watches (:mod:`.handlers`,
:mod:`.cores`) find out whether a reconcile is necessary, so an object at which nothing happens costs the API server
nothing.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from eidolon_operator import plan as planning
from eidolon_operator import schema
from eidolon_operator import spec as specs
from eidolon_operator.kubernetes import builders, certificate
from eidolon_operator.kubernetes.builders import Attempt
from eidolon_operator.kubernetes.client import core_path, objects_path
from eidolon_operator.kubernetes.decide import Decision, decide
from eidolon_operator.kubernetes.events import build_event, notes
from eidolon_operator.kubernetes.naming import core_name, secret_name, server_name
from eidolon_operator.kubernetes.settings import Settings
from eidolon_operator.kubernetes.status import FINAL, Phase, Reason
from eidolon_operator.kubernetes.world import ApiError, CoreReading, Key, Pods, PodState, Refusal, World, pod_state
from eidolon_operator.spec import Spec, SpecError

_log = logging.getLogger(__name__)

#: Number of pods of one object that are created or deleted at a time.
PARALLEL: Final = 16
#: Number of missing pods that are looked up one by one, in case only the watch has lost them.
LOOKUPS: Final = 5


class Api(Protocol):
    """The part of :class:`eidolon_operator.kubernetes.client.Api` that is needed here."""

    async def get(self, path: str) -> dict[str, Any] | None:
        """The object, or None if there is none."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the object; an error of status 409 says that its name is taken."""

    async def apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the object, or brings our fields to what they should be."""

    async def delete(self, path: str, *, uid: str = "") -> None:
        """Deletes the object, if it is still the one of this UID."""


class Cores(Protocol):
    """The part of :class:`eidolon_operator.kubernetes.cores.CoreWatch` that is needed here."""

    def follow(self, key: Key, pod: PodState | None) -> CoreReading | None:
        """What the core in this pod said last, if anything. It is asked from now on; None ends that."""


@dataclass(slots=True)
class _Memory:
    """What is remembered about an object between two looks. Losing it costs a few requests."""

    uid: str
    refused: dict[str, Refusal] = field(default_factory=dict)
    prepared: int = 0  #: number of the attempt whose secret and services are known to exist


class Reconciler:
    """Brings objects to what their specs say. The queue makes sure that there is one call per key at a time."""

    def __init__(
        self,
        api: Api,
        cores: Cores,
        pods: Pods,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._cores = cores
        self._pods = pods
        self._runtime = settings.runtime()
        self._clock = clock
        self._memory: dict[Key, _Memory] = {}
        #: The versions in which objects were last looked at, including what was then written.
        self.versions: dict[Key, str] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Looks at an object; returns in how many seconds to look again, or None if only an event can matter."""
        document = await self._api.get(objects_path(*key))
        if document is None or "deletionTimestamp" in document["metadata"]:
            self._memory.pop(key, None)  # the garbage collector removes what it owned
            self.versions.pop(key, None)
            self._cores.follow(key, None)
            return None
        uid = document["metadata"]["uid"]
        memory = self._memory.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memory[key] = _Memory(uid)
        found = _read(document)
        spec = found.spec

        world = await self._world(key, document, spec, memory)
        decision = self._decide(document, found, world)
        document = await self._write(document, decision)
        self.versions[key] = document["metadata"]["resourceVersion"]
        if decision.delete_object:
            _log.info("%s: its time is over: deleted", key)
            await self._api.delete(objects_path(*key), uid=uid)
            return None
        await self._delete(key, decision.delete)
        if spec is None or not decision.make:
            memory.refused.clear()
            return decision.again_s
        attempt = Attempt(spec, key.namespace, uid, int(decision.status["attempt"]), decision.status["runtime"])
        refused = await self._make(key, attempt, decision.make, memory)
        if refused == memory.refused:
            return decision.again_s
        memory.refused = refused  # the conditions show it
        decision = self._decide(document, found, await self._world(key, document, spec, memory))
        document = await self._write(document, decision)
        self.versions[key] = document["metadata"]["resourceVersion"]
        return decision.again_s

    def _decide(self, document: Mapping[str, Any], found: _Found, world: World) -> Decision:
        now, runtime = self._clock(), self._runtime
        return decide(document, found.spec, world, now=now, runtime=runtime, why=found.why, unknown=found.unknown)

    # -- read --------------------------------------------------------------------------------------------------------

    async def _world(self, key: Key, document: Mapping[str, Any], spec: Spec | None, memory: _Memory) -> World:
        status = document.get("status") or {}
        over = status.get("phase") in FINAL
        if spec is not None and status.get("runningTime") and not over and status.get("phase") != Phase.SUSPENDED:
            await self._look_up(key, spec)
        own = {name: pod for name, pod in self._pods.of(key).items() if pod.owner == memory.uid}
        reading = self._cores.follow(key, None if over else own.get(core_name(key.name)))
        return World(pods=own, core=reading, refused=dict(memory.refused))

    async def _look_up(self, key: Key, spec: Spec) -> None:
        """Asks the API server for pods that are missing during a run, since a missing pod ends it."""
        wanted = [core_name(spec.name), *(server_name(spec.name, index) for index in spec.placement.servers)]
        known = self._pods.of(key)
        missing = [name for name in wanted if name not in known]
        for name in missing[:LOOKUPS]:
            pod = await self._api.get(core_path("pods", key.namespace, name))
            if pod is not None:
                self._pods.put(key, pod_state(pod))

    # -- act ---------------------------------------------------------------------------------------------------------

    async def _write(self, document: dict[str, Any], decision: Decision) -> dict[str, Any]:
        """Writes the status if it changed, and makes Events about the change."""
        old = document.get("status") or {}
        if decision.status == old:
            return document
        metadata = document["metadata"]
        body = {
            "apiVersion": specs.API_VERSION,
            "kind": specs.KIND,
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "status": decision.status,
        }
        written = await self._api.apply(objects_path(metadata["namespace"], metadata["name"]) + "/status", body)
        for note in notes(old, decision.status):
            _log.info("%s/%s: %s: %s", metadata["namespace"], metadata["name"], note.reason, note.message)
            try:
                event = build_event(document, note, self._clock())
                await self._api.create(core_path("events", metadata["namespace"]), event)
            except ApiError as error:  # nothing depends on an Event
                _log.debug("event: %s", error)
        return {**document, **written}

    async def _delete(self, key: Key, pods: Iterable[PodState]) -> None:
        gate = asyncio.Semaphore(PARALLEL)

        async def one(pod: PodState) -> None:
            async with gate:
                await self._api.delete(core_path("pods", key.namespace, pod.name), uid=pod.uid)

        await asyncio.gather(*(one(pod) for pod in pods))

    async def _make(self, key: Key, attempt: Attempt, names: tuple[str, ...], memory: _Memory) -> dict[str, Refusal]:
        """Makes pods and what they need, until one is refused. Returns what could not be made, and why."""
        if memory.prepared != attempt.number:
            if unprepared := await self._prepare(key, attempt):
                return unprepared
            memory.prepared = attempt.number
        refused: dict[str, Refusal] = {}

        async def worker(pending: Iterable[str]) -> None:
            for name in pending:
                if refused:
                    return
                if (refusal := await self._create(key, attempt, "pods", _pod(attempt, name))) is not None:
                    refused[name] = refusal

        queue = iter(names)  # shared: each worker takes the next
        if names[0] == core_name(attempt.name):  # first and alone, so that it gets room before the servers do
            await worker([next(queue)])
        await asyncio.gather(*(worker(queue) for _ in range(min(PARALLEL, len(names)))))
        return refused

    async def _prepare(self, key: Key, attempt: Attempt) -> dict[str, Refusal]:
        """Makes the services and the secret, and deletes the secret of the attempt before."""
        now = dt.datetime.fromtimestamp(self._clock(), dt.UTC)
        for kind, manifest in (
            ("services", builders.build_headless_service(attempt)),
            ("services", builders.build_core_service(attempt)),
            ("secrets", builders.build_secret(attempt, certificate.make(now))),
        ):
            if refusal := await self._create(key, attempt, kind, manifest):
                return {core_name(attempt.name): refusal}
        if attempt.number > 1:
            before = secret_name(attempt.name, attempt.number - 1)
            await self._api.delete(core_path("secrets", key.namespace, before))
        return {}

    async def _create(self, key: Key, attempt: Attempt, kind: str, manifest: Mapping[str, Any]) -> Refusal | None:
        """Creates an object. If it exists already and is ours, that is success, and a Service is brought up to date.

        Creating comes first since in most cases there is nothing yet, which saves a request.
        """
        name = manifest["metadata"]["name"]
        try:
            made = await self._api.create(core_path(kind, key.namespace), manifest)
        except ApiError as error:
            if error.status != 409:
                return _refusal(error)
            there = await self._api.get(core_path(kind, key.namespace, name))
            if there is None:
                return Refusal(Reason.CREATE_FAILED, error.message)  # it is gone by now, and the next look makes it
            if (refusal := _not_ours(there, attempt)) is not None:
                return refusal
            made = there
            if kind == "services":  # a newer operator may change them; the others are only ever created
                await self._api.apply(core_path(kind, key.namespace, name), manifest)
        if kind == "pods":
            self._pods.put(key, pod_state(made))
        return None


class _Found(NamedTuple):
    """What an object asks for, as far as this version understands it."""

    spec: Spec | None
    why: str = ""  #: if there is no spec: why the object cannot be run
    unknown: tuple[str, ...] = ()  #: fields that are ignored, since the definition in the cluster may be newer


def _read(document: Mapping[str, Any]) -> _Found:
    plain = {key: document[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in document}
    name = document["metadata"]["name"]
    plain, unknown = schema.pruned(specs.object_schema(), plain)
    try:
        spec = specs.parse(plain, source=name)
        planning.build(spec, source=name, token="")
    except SpecError as error:
        return _Found(None, "; ".join(str(problem) for problem in error.problems))
    if spec.workload.image is None:
        return _Found(None, "spec.workload.image: is required in a cluster")
    return _Found(spec, unknown=tuple(unknown))


def _pod(attempt: Attempt, name: str) -> dict[str, Any]:
    if name == core_name(attempt.name):
        return builders.build_core_pod(attempt)
    return builders.build_server_pod(attempt, int(name.rpartition("-")[2]))


def _not_ours(there: Mapping[str, Any], attempt: Attempt) -> Refusal | None:
    metadata = there["metadata"]
    kind, name = there.get("kind", "object"), metadata["name"]
    owner = next((ref for ref in metadata.get("ownerReferences", ()) if ref.get("controller")), None)
    if owner is None or owner.get("uid") != attempt.uid:
        whose = f"{owner['kind']} {owner['name']} (uid {owner['uid']})" if owner else "nobody"
        return Refusal(Reason.NAME_TAKEN, f"{kind} {name} exists and belongs to {whose}: waiting until it is gone")
    if "deletionTimestamp" in metadata:
        return Refusal(Reason.TERMINATING, f"{kind} {name} is being deleted: waiting until it is gone")
    return None


def _refusal(error: ApiError) -> Refusal:
    """Why something was not made. Raises the error again if it was no decision of the API server."""
    if error.status in (0, 429) or error.status >= 500:
        raise error
    if error.cause == "NamespaceTerminating":
        return Refusal(Reason.TERMINATING, error.message)
    if error.status == 403:
        quota = "exceeded quota" in error.message or "failed quota" in error.message
        return Refusal(Reason.QUOTA_EXCEEDED if quota else Reason.FORBIDDEN, error.message)
    return Refusal(Reason.CREATE_FAILED, error.message)
