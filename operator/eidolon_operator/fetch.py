"""``eidolon fetch simc/NAME``: brings what a run in a cluster has written to this machine.

A simulation core serves its run directory over HTTP (``/files/``) and stays up for a while after the end of the run.
It is reached through the API server's port forwarding, so that whoever may read pods and forward ports in the namespace
needs no Service, no Ingress and no credentials of the core.

Files come in pieces. A piece that does not come whole within the time limit is asked for again, a few times, over a new
connection, so a broken connection costs a piece and not the file. A file gets its own name only once it is whole.

:class:`RunFiles` knows only HTTP, and :class:`Core` only Kubernetes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from eidolon_operator.kubernetes.naming import GROUP, HTTP_PORT, PLURAL, VERSION, core_name

if TYPE_CHECKING:
    from kubernetes import client as kube

#: Names for the kind of object that kubectl takes.
KINDS: Final = ("simc", "simulatedcluster", PLURAL, f"{PLURAL}.{GROUP}")
PIECE_BYTES: Final = 4 << 20
TRIES: Final = 3  #: for each piece
_LIST_LIMIT_BYTES: Final = 16 << 20

#: Opens a connection to the core's HTTP port. Raises OSError.
Connect = Callable[[], socket.socket]


class FetchError(Exception):
    """A file cannot be fetched. The text says why, and what to do."""


class RunFile(NamedTuple):
    """A file in a run directory."""

    name: str  #: path relative to the directory, with ``/``
    size_bytes: int


@dataclass
class RunFiles:
    """The files that a core serves, over connections that ``connect`` opens.

    Every wait for the core is limited to ``timeout_s`` seconds; all methods raise :class:`FetchError`.
    """

    connect: Connect
    timeout_s: float = 30.0

    def list(self) -> list[RunFile]:
        """All files, with their present sizes."""
        with self._answer("/files/", "list its files") as answer:
            try:
                found = json.loads(answer.read(_LIST_LIMIT_BYTES))["files"]
                files = [RunFile(str(item["name"]), int(item["bytes"])) for item in found]
            except (ValueError, KeyError, TypeError) as error:
                raise FetchError(f"the core's list of files cannot be read: {error}") from error
        for file in files:
            if not _is_inside(file.name):
                raise FetchError(f"the core names a file outside its directory: {file.name!r}")
        return files

    def copy(self, file: RunFile, directory: Path) -> Path:
        """Copies one file into ``directory``, up to the size that it had when it was listed. Returns its path."""
        target = directory / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        with part.open("wb") as out:
            for start in range(0, file.size_bytes, PIECE_BYTES):
                out.write(self._piece(file.name, start, min(start + PIECE_BYTES, file.size_bytes)))
        return part.replace(target)

    def _piece(self, name: str, start: int, end: int) -> bytes:
        complaint = ""
        for _ in range(TRIES):
            try:
                path = f"/files/{urllib.parse.quote(name)}"
                with self._answer(path, f"send {name}", {"Range": f"bytes={start}-{end - 1}"}) as answer:
                    piece = answer.read(end - start)
            except _BrokenConnectionError as error:
                complaint = str(error)
                continue
            if len(piece) == end - start:
                return piece
            complaint = f"{name} ends after {start + len(piece)} of the {end} bytes asked for"
        raise FetchError(f"{complaint} ({TRIES} tries)")

    @contextlib.contextmanager
    def _answer(
        self, path: str, doing: str, headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _Connection(self.connect, self.timeout_s)
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            if answer.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                line = answer.read(1000).decode(errors="replace").strip()
                raise FetchError(f"the core does not {doing}: {answer.status} {answer.reason} {line}".rstrip())
            yield answer
        except TimeoutError:
            raise _BrokenConnectionError(f"the core did not {doing}: nothing came for {self.timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenConnectionError(f"the core did not {doing}: {_first_line(error)}") from error
        finally:
            connection.close()


class _BrokenConnectionError(FetchError):
    """A connection broke or was too slow. Another try may work."""


class _Connection(http.client.HTTPConnection):
    """HTTP over a socket that a function opens."""

    def __init__(self, connect: Connect, timeout_s: float) -> None:
        super().__init__("core", HTTP_PORT, timeout=timeout_s)
        self._open = connect

    def connect(self) -> None:
        self.sock = self._open()
        self.sock.settimeout(self.timeout)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


# -- Kubernetes --------------------------------------------------------------------------------------------------------


class Core:
    """The simulation core of one ``SimulatedCluster``, found through the API server.

    ``namespace`` and ``context`` default to those of the kubeconfig. The constructor raises :class:`FetchError` unless
    the core runs.
    """

    def __init__(self, name: str, *, namespace: str | None, context: str | None, timeout_s: float) -> None:
        try:
            import websocket
            from kubernetes import client
        except ImportError as error:
            raise FetchError(f"needs the Kubernetes client: pip install 'eidolon[kubernetes]' ({error})") from None
        websocket.setdefaulttimeout(timeout_s)  # the client sets no limit by itself
        self.name, self._timeout_s = name, timeout_s
        api, default_namespace = _api_client(context)
        self.namespace = namespace or default_namespace
        self._custom, self._pods = client.CustomObjectsApi(api), client.CoreV1Api(api)
        self.object = self._read_object()
        self._check_pod()

    @property
    def started(self) -> str:
        """When the object was made, as YYYYMMDD-HHMMSS, which is part of a run directory's name."""
        stamp: str = self.object["metadata"]["creationTimestamp"]  # 2026-01-31T12:00:00Z
        return stamp.translate({ord("-"): None, ord(":"): None, ord("T"): "-", ord("Z"): None})

    @property
    def phase(self) -> str:
        """Where the run stands; empty before the operator has seen the object."""
        return str(self.object.get("status", {}).get("phase", ""))

    def connect(self) -> socket.socket:
        """A connection to the core's HTTP port, through the API server."""
        from kubernetes.client import ApiException
        from kubernetes.stream import portforward

        try:
            forward = portforward(
                self._pods.connect_get_namespaced_pod_portforward,
                self._pod,
                self.namespace,
                ports=str(HTTP_PORT),
                _request_timeout=self._timeout_s,
            )
        except ApiException as error:
            raise OSError(f"no port forwarding to pod {self._pod}: {_first_line(error)}") from error
        connection: socket.socket = forward.socket(HTTP_PORT)
        return connection

    @property
    def _pod(self) -> str:
        return core_name(self.name)

    def _read_object(self) -> dict[str, Any]:
        with _api_errors(f"simc {self.name} in namespace {self.namespace}"):
            found = self._custom.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, self.name, _request_timeout=self._timeout_s
            )
            return cast("dict[str, Any]", found)

    def _check_pod(self) -> None:
        gone = "it ends with the object or ttlSecondsAfterFinished after the run"
        with _api_errors(f"pod {self._pod}, the core of simc {self.name} (phase {self.phase or 'unknown'}; {gone})"):
            pod = self._pods.read_namespaced_pod(self._pod, self.namespace, _request_timeout=self._timeout_s)
        phase = pod.status.phase if pod.status else "unknown"
        if phase != "Running":
            raise FetchError(f"pod {self._pod} is {phase}; its files can be read while it is Running")


@contextlib.contextmanager
def _api_errors(what: str) -> Iterator[None]:
    """Turns errors of the API server into one line about ``what``."""
    import urllib3.exceptions
    from kubernetes.client import ApiException

    try:
        yield
    except ApiException as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise FetchError(f"there is no {what}") from None
        raise FetchError(f"the API server does not show {what}: {error.status} {error.reason}") from error
    except urllib3.exceptions.HTTPError as error:
        raise FetchError(f"the API server does not answer: {_first_line(error)}") from error


def _api_client(context: str | None) -> tuple[kube.ApiClient, str]:
    """A client and its default namespace, from the kubeconfig or else from the pod that this runs in."""
    from kubernetes import client, config

    file = os.environ.get("KUBECONFIG")
    try:
        contexts, active = config.list_kube_config_contexts(file)
        chosen = next((item for item in contexts if item["name"] == context), active if context is None else None)
        if chosen is None:
            known = ", ".join(item["name"] for item in contexts)
            raise FetchError(f"the kubeconfig has no context {context!r}; it has: {known}")
        api = config.new_client_from_config(file, context=chosen["name"])
        api.configuration.retries = 0  # an error names a missing server at once
        return client.ApiClient(api.configuration), chosen["context"].get("namespace") or "default"
    except config.ConfigException as error:
        try:
            config.load_incluster_config()
        except config.ConfigException:
            raise FetchError(f"no cluster is configured: {_first_line(error)}") from None
        inside = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
        return client.ApiClient(), inside.read_text("utf-8").strip()


def object_name(target: str) -> str:
    """The name in ``simc/NAME`` or ``NAME``. Raises :class:`FetchError`."""
    kind, slash, name = target.rpartition("/")
    if (slash and kind.lower() not in KINDS) or not name:
        raise FetchError(f"{target!r} is not the name of a SimulatedCluster; write simc/NAME")
    return name


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
