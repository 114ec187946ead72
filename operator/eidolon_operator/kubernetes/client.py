"""The API server, as the operator uses it.

Requests are plain JSON over the official asynchronous client (``kubernetes.aio``), which brings credentials, TLS and
their renewal. Its generated models are not used: only a few facts of each pod are kept, and the builders make JSON
already. Every request has a time limit, so that nothing here can hang.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config

from eidolon_operator.kubernetes.naming import GROUP, MANAGER, PLURAL, VERSION
from eidolon_operator.kubernetes.world import ApiError

TIMEOUT_S: Final = 30.0
PAGE: Final = 500

_config: Any = aio_config  # the module has no type annotations
_APPLY: Final = "application/apply-patch+yaml"


def objects_path(namespace: str | None = None, name: str = "") -> str:
    """Path of all our objects, of those in a namespace, or of one."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{where}/{PLURAL}" + (f"/{name}" if name else "")


def core_path(kind: str, namespace: str | None = None, name: str = "") -> str:
    """Path in the core API, such as that of ``core_path("pods", "default", "a")``."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/api/v1{where}/{kind}" + (f"/{name}" if name else "")


async def credentials() -> Any:
    """The credentials of the pod's service account inside a cluster, or those that kubectl would use."""
    configuration: Any = aio_client.Configuration()
    try:
        _config.load_incluster_config(client_configuration=configuration)
    except aio_config.ConfigException:
        await _config.load_kube_config(client_configuration=configuration)
    return configuration


class Api:
    """Requests for JSON objects. All methods raise :class:`ApiError`."""

    def __init__(self, configuration: Any) -> None:
        self._client: Any = aio_client.ApiClient(configuration)

    @classmethod
    async def connect(cls) -> Api:
        """A client with the :func:`credentials` of the surroundings."""
        return cls(await credentials())

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def get(self, path: str) -> dict[str, Any] | None:
        """The object, or None if there is none."""
        try:
            return await self._request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, path: str, *, selector: str = "") -> tuple[list[dict[str, Any]], int]:
        """All objects of a collection, and the version of the list."""
        items: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        while True:
            query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {}), **more}
            page = await self._request("GET", path, query=query)
            items += page["items"]
            metadata = page["metadata"]
            if not metadata.get("continue"):
                version = metadata.get("resourceVersion", "")
                return items, int(version) if version.isdecimal() else 0
            more = {"continue": metadata["continue"]}

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the object in the collection at a path; returns it as the server keeps it. An :class:`ApiError` of
        status 409 says that its name is taken."""
        return await self._request("POST", path, body=body, query={"fieldManager": MANAGER})

    async def apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply: makes the object, or brings our fields to what they should be."""
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._request("PATCH", path, body=body, query=query, content_type=_APPLY)

    async def delete(self, path: str, *, uid: str = "", propagation: str = "Background") -> None:
        """Deletes the object, if it is still the one with this UID. That it is gone is no error."""
        body: dict[str, Any] = {"propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", path, body=body)
        except ApiError as error:
            if error.status not in (404, 409):  # it is gone, or another object has its name
                raise

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers: dict[str, str] = {"Accept": "application/json", "Content-Type": content_type}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            response = await self._client.call_api(
                method, url, header_params=headers, body=body, _request_timeout=timeout
            )
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"{method} {path}: {str(error) or type(error).__name__}") from error
        if response.status >= 400:
            raise _error(response.status, data)
        found: dict[str, Any] = json.loads(data)
        return found


def _error(status: int, data: bytes) -> ApiError:
    try:
        told = json.loads(data)
        causes = (told.get("details") or {}).get("causes") or [{}]
        return ApiError(status, told.get("message") or told.get("reason", ""), causes[0].get("reason", ""))
    except (ValueError, AttributeError):
        return ApiError(status, data[:200].decode(errors="replace"))
