"""The wiring, over HTTP: kopf and the client against a server that plays the API (kmock)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest
import pytest_asyncio
from kubernetes.aio import client as aio_client
from kubernetes_lab import KEY, SETTINGS, make_object

from eidolon_operator.kubernetes import handlers
from eidolon_operator.kubernetes.client import Api, core_path, objects_path
from eidolon_operator.kubernetes.queue import Workers
from eidolon_operator.kubernetes.world import ApiError, Key, Pods, pod_state

LIMIT_S = 30
#: As an API server keeps it; this one gives no versions.
METADATA = make_object()["metadata"] | {"resourceVersion": "1"}


def pod(name: str, uid: str, *, of: str = "demo", version: str = "7") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "lab",
            "uid": uid,
            "resourceVersion": version,
            "labels": {"eidolon.dev/simulatedcluster": of, "eidolon.dev/server": "0", "eidolon.dev/attempt": "1"},
            "ownerReferences": [{"uid": "uid-demo", "controller": True}],
        },
        "status": {"phase": "Running"},
    }


@pytest.fixture
def server(kmock: Any) -> Any:
    verbs = {"get", "list", "watch", "create", "delete", "patch"}
    kmock.resources["eidolon.dev/v1alpha1/simulatedclusters"] = {
        "kind": "SimulatedCluster",
        "namespaced": True,
        "verbs": verbs,
    }
    kmock.resources["v1/pods"] = {"kind": "Pod", "namespaced": True, "verbs": verbs}
    for name in ("v1/namespaces", "apiextensions.k8s.io/v1/customresourcedefinitions"):
        kmock.resources[name] = {}
    return kmock


@pytest_asyncio.fixture
async def api(server: Any) -> AsyncIterator[Api]:
    configuration = aio_client.Configuration()
    configuration.host = str(server.url).rstrip("/")
    found = Api(configuration)
    yield found
    await found.close()


@pytest.mark.asyncio
async def test_watches_put_keys_into_the_queue_and_keep_nothing_on_objects(server: Any, api: Api) -> None:
    seen: asyncio.Queue[Key] = asyncio.Queue()

    async def until(key: Key) -> None:
        while await asyncio.wait_for(seen.get(), LIMIT_S) != key:  # an object may be told of more than once
            pass

    async def work(key: Key) -> float | None:
        await seen.put(key)
        return None

    pods, workers = Pods(), Workers(work)

    async def here() -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=str(server.url).rstrip("/"))

    registry = handlers.registry(workers, pods, connect=here)
    stop, ready = asyncio.Event(), asyncio.Event()
    watching = asyncio.create_task(kopf.operator(registry=registry, clusterwide=True, stop_flag=stop, ready_flag=ready))
    working = asyncio.create_task(workers.run())
    await asyncio.wait_for(ready.wait(), LIMIT_S)
    await api.create(objects_path("lab"), make_object())
    await until(KEY)
    # The echo of what the operator itself wrote is no news, nor is a pod that it knows already.
    await api.apply(objects_path("lab", "demo") + "/status", {"status": {"phase": "Pending"}})
    pods.put(KEY, pod_state(pod("demo-server-0", "u0")))
    await api.create(core_path("pods", "lab"), pod("demo-server-0", "u0"))
    await api.create(core_path("pods", "lab"), pod("other-server-0", "u1", of="other"))
    while (key := await asyncio.wait_for(seen.get(), LIMIT_S)) != Key("lab", "other"):
        pytest.fail(f"{key} was looked at for nothing")
    assert pods.of(Key("lab", "other"))["other-server-0"].phase == "Running"
    await api.delete(core_path("pods", "lab", "other-server-0"))
    while pods.of(Key("lab", "other")):
        await until(Key("lab", "other"))
    assert len(server["patch"]) == 1, "no finalizer, no annotation: nothing but the status of above"
    stop.set()
    working.cancel()
    await asyncio.gather(watching, working, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_resync_finds_what_watches_missed(server: Any, api: Api) -> None:
    async def work(key: Key) -> float | None:
        return None

    time = 100.0
    pods, workers = Pods(), Workers(work)
    looked_at: dict[Key, str] = {}
    resync = handlers.Resync(api, workers, pods, looked_at, SETTINGS, clock=lambda: time)
    assert not resync.ready
    await api.create(objects_path("lab"), make_object() | {"metadata": METADATA})
    await api.create(core_path("pods", "lab"), pod("demo-server-0", "u1"))

    async def found() -> list[Key]:
        """What a resync puts into the queue, taken out of it again."""
        await resync.once()
        keys = []
        while (key := workers.schedule.take(float("inf"))) is not None:
            workers.schedule.succeeded(key, 0.0, None)
            keys.append(key)
        return keys

    assert (await found(), resync.ready) == ([KEY], True)
    assert list(pods.of(KEY)) == ["demo-server-0"]
    assert await found() == [KEY], "it was not looked at"
    looked_at[KEY] = METADATA["resourceVersion"]
    assert await found() == [], "nothing has happened since"
    await api.create(core_path("pods", "lab"), pod("demo-server-1", "u2", version="0"))  # as its lists
    assert await found() == [KEY], "a pod that no watch told of"
    await api.delete(core_path("pods", "lab", "demo-server-1"))
    assert await found() == [KEY]
    await api.create(objects_path("lab"), make_object() | {"metadata": METADATA | {"name": "second"}})
    assert await found() == [Key("lab", "second")]
    looked_at[Key("lab", "second")] = METADATA["resourceVersion"]
    await api.delete(objects_path("lab", "second"))
    assert await found() == [Key("lab", "second")], "what is kept of it can go"
    assert resync.healthy() is None
    time = 401.0
    assert resync.healthy() == "no list of objects for 301 s"


@pytest.mark.asyncio
async def test_an_overdue_reconcile_is_not_healthy(server: Any, api: Api) -> None:
    async def work(key: Key) -> float | None:
        return None

    workers = Workers(work)
    time = 0.0
    resync = handlers.Resync(api, workers, Pods(), {}, SETTINGS, clock=lambda: time)
    workers.schedule.add(KEY, 10.0)
    time = 299.0
    assert resync.healthy() is None
    time = resync.last = 311.0
    assert resync.healthy() == "a reconcile is overdue for 301 s"


@pytest.mark.asyncio
async def test_the_client_speaks_as_the_api_server_expects(server: Any, api: Api) -> None:
    assert await api.get(objects_path("lab", "demo")) is None
    await api.create(objects_path("lab"), make_object())
    await api.apply(objects_path("lab", "demo") + "/status", {"status": {"phase": "Pending"}})
    (request,) = server["patch"]
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.params == {"fieldManager": "eidolon-operator", "force": "true"}
    with pytest.raises(ApiError) as caught:
        await api.create(objects_path("lab"), make_object())
    assert caught.value.status == 409
    await api.delete(objects_path("lab", "demo"), uid="uid-demo")
    (request,) = server["delete"]
    assert request.data == {"propagationPolicy": "Background", "preconditions": {"uid": "uid-demo"}}
    await api.delete(objects_path("lab", "demo"))  # it is gone: fine
