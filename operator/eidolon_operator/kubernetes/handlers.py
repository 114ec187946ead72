"""The wiring to kopf: watches that put keys into the queue, a resync, and the health of both.

kopf only watches. Its handlers here are of the plain ``on.event`` kind, which keep nothing on the objects: no
finalizer, no annotation, no patch. An event is only a hint, and a reconcile reads the object anew (:mod:`.reconcile`).
Hints without news are dropped, such as the echo of a status that the operator has written.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import kopf
from aiohttp import web

from eidolon_operator.kubernetes.client import Api, core_path, credentials, objects_path
from eidolon_operator.kubernetes.naming import GROUP, LABEL_OBJECT, MANAGED_BY, PLURAL, VERSION
from eidolon_operator.kubernetes.queue import Workers
from eidolon_operator.kubernetes.settings import Settings
from eidolon_operator.kubernetes.world import Key, Pods, key_of, pod_state

_log = logging.getLogger(__name__)

#: Number of intervals without a successful resync after which the operator is unhealthy.
STALE_RESYNCS: Final = 3
TOKEN_AGE: Final = dt.timedelta(minutes=5)
#: Delay before an object is looked at whose pod comes up, since its other pods mostly come up at the same time. The end
#: of a pod is looked at at once.
PODS_S: Final = 2.0


def registry(
    workers: Workers, pods: Pods, *, connect: Callable[[], Awaitable[kopf.ConnectionInfo]] | None = None
) -> kopf.OperatorRegistry:
    """The handlers, which fill a queue and keep facts about pods. ``connect`` is :func:`connection` by default."""
    found = kopf.OperatorRegistry()

    @kopf.on.startup(registry=found)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.peering.standalone = True
        settings.scanning.disabled = True  # nothing needs the right to list namespaces or definitions
        settings.posting.enabled = False
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 330
        settings.watching.connect_timeout = 30
        settings.networking.request_timeout = 60

    @kopf.on.login(registry=found)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await (connect or connection)()

    seen: dict[Key, tuple[str, int, bool]] = {}

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=found)
    async def on_object(event: Mapping[str, Any], **_: Any) -> None:
        metadata = event["object"]["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        # The generation counts changes of the spec. Only the operator writes the status; a resync finds other writers.
        now = metadata["uid"], metadata.get("generation", 0), "deletionTimestamp" in metadata
        if event.get("type") == "DELETED":
            seen.pop(key, None)
        elif seen.get(key) == now:
            return
        else:
            seen[key] = now
        workers.add(key)

    @kopf.on.event("", "v1", "pods", labels={LABEL_OBJECT: kopf.PRESENT}, registry=found)
    async def on_pod(event: Mapping[str, Any], **_: Any) -> None:
        pod = event["object"]
        key = key_of(pod)
        if key is None:
            return
        state = pod_state(pod)
        if event.get("type") == "DELETED":
            pods.drop(key, state.name, state.uid)
            workers.add(key)
        elif pods.put(key, state):
            workers.add(key, 0.0 if state.terminating or state.finished else PODS_S)

    return found


async def connection() -> kopf.ConnectionInfo:
    """The operator's credentials in the form that kopf takes. It asks again when they have expired."""
    configuration = await credentials()
    token = await configuration.get_api_key_with_prefix("BearerToken")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme="Bearer" if token else None,
        token=token.split()[-1] if token else None,
        insecure=not configuration.verify_ssl,
        # The kubelet renews a service account's token well before it expires.
        expiration=dt.datetime.now(dt.UTC) + TOKEN_AGE if token else None,
    )


class Resync:
    """Lists everything once at the start, before anything is decided, and then at every interval.

    It puts objects into the queue whose present version was not looked at, or whose pods have changed. ``looked_at``
    is the version in which each object was looked at last.
    """

    def __init__(
        self,
        api: Api,
        workers: Workers,
        pods: Pods,
        looked_at: Mapping[Key, str],
        settings: Settings,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._workers = workers
        self._pods = pods
        self._looked_at = looked_at
        self._settings = settings
        self._clock = clock
        self.ready = False
        self.last = clock()  #: when it last succeeded; at first, when the operator began

    async def once(self) -> None:
        """Lists pods and objects, and puts into the queue what is new, changed or gone."""
        found: dict[Key, str] = {}
        for namespace in self._settings.namespaces or (None,):
            objects, _ = await self._api.list(objects_path(namespace))
            for metadata in (item["metadata"] for item in objects):
                found[Key(metadata["namespace"], metadata["name"])] = metadata["resourceVersion"]
        listed, versions = [], []
        for namespace in self._settings.namespaces or (None,):
            items, version = await self._api.list(core_path("pods", namespace), selector=MANAGED_BY)
            versions.append(version)
            listed += [(key, pod_state(pod)) for pod in items if (key := key_of(pod)) is not None]
        changed = self._pods.replace(listed, version=min(versions))
        changed |= {key for key, version in found.items() if self._looked_at.get(key) != version}
        changed |= self._looked_at.keys() - found.keys()
        for key in changed:
            self._workers.add(key)
        self.ready, self.last = True, self._clock()

    async def run(self) -> None:
        """Runs until cancelled. Failures are logged, and show in :meth:`healthy` if they last."""
        while True:
            try:
                await self.once()
                pause = self._settings.resync_s
            except Exception as error:
                _log.warning("resync: %s", str(error) or type(error).__name__)
                pause = 5.0
            await asyncio.sleep(pause)

    def healthy(self) -> str | None:
        """What is wrong, in one line; None if nothing is."""
        now, limit = self._clock(), STALE_RESYNCS * self._settings.resync_s
        limit = max(limit, 300.0)  # restarting does not help while the API server is away for minutes
        if (age := now - self.last) > limit:
            return f"no list of objects for {age:.0f} s"
        if (age := self._workers.schedule.oldest(now)) > limit:
            return f"a reconcile is overdue for {age:.0f} s"
        return None


async def serve_health(resync: Resync, port: int) -> web.AppRunner:
    """Serves ``/healthz`` and ``/readyz``. kopf has an endpoint too, but a probe's finding cannot make it fail."""

    async def healthz(_: web.Request) -> web.Response:
        wrong = resync.healthy()
        return web.Response(status=503 if wrong else 200, text=(wrong or "ok") + "\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(status=200 if resync.ready else 503, text="ok\n" if resync.ready else "no list yet\n")

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


def settings_of_kopf(settings: Settings) -> dict[str, Any]:
    """The arguments that tell kopf which namespaces to watch."""
    return {"namespaces": list(settings.namespaces)} if settings.namespaces else {"clusterwide": True}
