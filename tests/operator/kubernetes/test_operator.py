"""The whole operator over HTTP, as its process runs it: against a server that plays the API (kmock)."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from kubernetes_lab import SETTINGS, make_object
from test_handlers import LIMIT_S, server

from eidolon_operator.kubernetes.__main__ import operate
from eidolon_operator.kubernetes.client import Api, objects_path
from eidolon_operator.machine import free_port

__all__ = ["server"]


def kubeconfig(url: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": url}}],
            "users": [{"name": "it", "user": {}}],
        }
    )


@pytest.mark.asyncio
async def test_from_its_start_to_its_end(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that it finds gets what it needs in as few requests as there can be; it is well, and ends when told."""
    (tmp_path / "config").write_text(kubeconfig(str(server.url).rstrip("/")))
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    for kind in ("Service", "Secret", "Event"):
        server.resources[f"v1/{kind.lower()}s"] = {"kind": kind, "namespaced": True, "verbs": {"create", "get"}}
    api, stop = await Api.connect(), asyncio.Event()
    document = make_object()
    document["metadata"]["resourceVersion"] = "1"
    await api.create(objects_path("lab"), document)
    settings = dataclasses.replace(SETTINGS, port=free_port())
    running = asyncio.create_task(operate(settings, stop))

    def made() -> Counter[str]:
        posts = [request.url.path.rpartition("/")[2] for request in server["post"]]
        return Counter(posts) - Counter(["simulatedclusters"])

    deadline = time.monotonic() + LIMIT_S
    while made()["pods"] < 3 and not running.done():
        assert time.monotonic() < deadline, made()
        await asyncio.sleep(0.05)
    assert made() == {"services": 2, "secrets": 1, "pods": 3}
    assert len(server["patch"]) == 1
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{settings.port}/healthz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")
    stop.set()
    assert await asyncio.wait_for(running, LIMIT_S) is True
    await api.close()
