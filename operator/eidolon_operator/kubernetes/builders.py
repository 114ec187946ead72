"""Makes the manifests of an attempt: pure functions with deterministic names.

A server's pod runs the user's image unchanged. Eidolon's own part comes from the containers beside it::

    init container  install    copies launcher and libraries to /eidolon
    native sidecar  agent      shares /run/eidolon (memory) with the workload, speaks to the core
    container       workload   the user's image: /eidolon/bin/launch ... -- COMMAND

Every container runs under the *restricted* Pod Security Standard. Only agent and core see the token of the attempt.
Volumes in memory count as the pod's memory, so their limits are computed from the ranks and added to the request.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from eidolon_operator import launching
from eidolon_operator import plan as planning
from eidolon_operator import spec as specs
from eidolon_operator.kubernetes import naming
from eidolon_operator.spec import Spec

Manifest = dict[str, Any]

#: A container that fails without a termination message shows the end of its log instead.
_TERMINATION: Final = "FallbackToLogsOnError"

_MIB: Final = 1 << 20
#: Room in the shared directory beside the rings, for the configuration, the exit state and what the launcher found.
_RUN_SLACK_BYTES: Final = 16 * _MIB
#: Size of /dev/shm per rank. Data loaders and gloo put tensors there, and a pod has only 64 MiB by default.
_SHM_PER_RANK_BYTES: Final = 256 * _MIB
#: Room on the core's disk beside the recording, for logs, summary and progress.
_CORE_DISK_BYTES: Final = 512 * _MIB

_SUFFIX: Final = {"": Fraction(1), "m": Fraction(1, 1000), "k": Fraction(1000)}
_SUFFIX.update({f"{prefix}i": Fraction(1024**power) for power, prefix in enumerate("KMGTPE", 1)})
_SUFFIX.update({prefix: Fraction(1000**power) for power, prefix in enumerate("MGTPE", 2)})


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of an object, and what its pods are made with."""

    spec: Spec
    namespace: str
    uid: str
    number: int
    runtime: Mapping[str, Any]  #: ``status.runtime``

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.spec.name


def build_secret(attempt: Attempt, credentials: Mapping[str, str]) -> Manifest:
    """The Secret of the attempt, with the plan for core and agents and the credentials by which they know each other.

    It is one object and not two, since both are made once, for the same readers, and never change. Even if the operator
    is upgraded in between, all pods of an attempt get the plan that it began with.
    """
    plan = planning.build(attempt.spec, source=attempt.name, token="", attempt=attempt.number)
    del plan.document["core"]["token"]  # the token is a file of its own
    text = json.dumps(plan.document, sort_keys=True)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(attempt, naming.secret_name(attempt.name, attempt.number)),
        "type": "Opaque",
        "immutable": True,
        "data": {naming.PLAN: base64.b64encode(text.encode()).decode(), **credentials},
    }


#: Ports of the core by name.
_CORE_PORTS: Final = {
    naming.INGEST: naming.INGEST_PORT,
    naming.HTTP: naming.HTTP_PORT,
    naming.DCGM: naming.DCGM_PORT,
}


def build_core_service(attempt: Attempt) -> Manifest:
    """The Service at which agents, people and Prometheus reach the core."""
    ports = [{"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in _CORE_PORTS.items()]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(attempt, naming.core_name(attempt.name), component=naming.COMPONENT_CORE, numbered=False),
        "spec": {
            "type": "ClusterIP",
            "selector": _selector(attempt, naming.COMPONENT_CORE),
            "ports": ports,
        },
    }


def build_headless_service(attempt: Attempt) -> Manifest:
    """The Service that gives every server's pod a name in DNS, even before it is ready: ranks find each other by it."""
    port = {
        "name": naming.MASTER,
        "port": naming.MASTER_PORT,
        "targetPort": naming.MASTER_PORT,
        "protocol": "TCP",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(attempt, attempt.name, component=naming.COMPONENT_SERVER, numbered=False),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _selector(attempt, naming.COMPONENT_SERVER),
            "ports": [port],
        },
    }


def build_core_pod(attempt: Attempt) -> Manifest:
    """The pod of the simulation core."""
    spec, work = attempt.spec, attempt.spec.workload.document
    limit = _CORE_DISK_BYTES + (spec.recording.limit_bytes if spec.recording.enabled else 0)
    kept = {"persistentVolumeClaim": {"claimName": spec.recording.claim}}
    volume = kept if spec.recording.claim else {"emptyDir": {"sizeLimit": _mebibytes(limit)}}
    files = (naming.PLAN, naming.TOKEN, naming.CERTIFICATE, naming.PRIVATE_KEY)
    # The scheduling fields are about servers. The core must be allowed on tainted nodes too, but needs no node labels.
    scheduling = {key: work[key] for key in ("tolerations", "priorityClassName", "schedulerName") if work.get(key)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(attempt, naming.core_name(attempt.name), component=naming.COMPONENT_CORE),
        "spec": {
            **_pod_common(attempt, secrets=()),
            **scheduling,
            "containers": [_core_container(attempt)],
            "volumes": [
                _config_volume(attempt, files),
                {"name": naming.VOLUME_OUT, **volume},
                {"name": naming.VOLUME_TMP, "emptyDir": {"sizeLimit": "64Mi"}},
            ],
        },
    }


def _core_container(attempt: Attempt) -> Manifest:
    runtime = attempt.runtime
    # A claim is the user's and may hold other runs, so this run gets a directory of its own.
    own = f"{naming.OUT}/{attempt.name}-{attempt.number}" if attempt.spec.recording.claim else naming.OUT
    probe = {"path": "/healthz", "port": naming.HTTP}
    return {
        "name": naming.CORE,
        "image": runtime["coreImage"],
        "imagePullPolicy": runtime["imagePullPolicy"],
        "command": ["python3", "-m", launching.CORE_MODULE],
        "args": [
            *("--plan", f"{naming.CONFIG}/{naming.PLAN}"),
            *("--listen", f"0.0.0.0:{naming.INGEST_PORT}"),
            *("--out", own),
            *("--http", f"0.0.0.0:{naming.HTTP_PORT}"),
            *("--dcgm", f"0.0.0.0:{naming.DCGM_PORT}"),
            *("--tls", naming.CONFIG),
            "--linger",
        ],
        # The page of DCGM-shaped metrics names pods as dcgm-exporter does.
        "env": [{"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in _CORE_PORTS.items()],
        "resources": _resources(runtime["coreResources"]),
        "startupProbe": {"httpGet": probe, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 120},
        "readinessProbe": {"httpGet": probe, "periodSeconds": 5, "timeoutSeconds": 5},
        # Killing the core ends the run, and on a busy machine an answer may be slow, so the probe is patient.
        "livenessProbe": {"httpGet": probe, "periodSeconds": 30, "timeoutSeconds": 30, "failureThreshold": 10},
        "securityContext": _container_security(),
        "terminationMessagePolicy": _TERMINATION,
        "volumeMounts": [
            {"name": naming.VOLUME_CONFIG, "mountPath": naming.CONFIG, "readOnly": True},
            {"name": naming.VOLUME_OUT, "mountPath": naming.OUT},
            {"name": naming.VOLUME_TMP, "mountPath": naming.TMP},
        ],
    }


def build_server_pod(attempt: Attempt, server: int) -> Manifest:
    """The pod of one emulated server, counted from 0, which has ranks to run."""
    work = attempt.spec.workload.document
    memory_bytes = _volumes_in_memory(attempt.spec, server)
    scheduling = {
        key: work[key]
        for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "schedulerName")
        if work.get(key)
    }
    name = naming.server_name(attempt.name, server)
    metadata = _metadata(attempt, name, component=naming.COMPONENT_SERVER, server=server)
    metadata["labels"] = {**work["labels"], **metadata["labels"]}
    if work["annotations"]:
        metadata["annotations"] = dict(work["annotations"])
    in_memory = [
        {"name": volume, "emptyDir": {"medium": "Memory", "sizeLimit": _mebibytes(size_bytes)}}
        for volume, size_bytes in memory_bytes.items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            **_pod_common(attempt, secrets=tuple(secret["name"] for secret in work["imagePullSecrets"])),
            **scheduling,
            "hostname": name,
            "subdomain": attempt.name,
            "initContainers": [_install_container(attempt), _agent_container(attempt, server)],
            "containers": [_workload_container(attempt, server, memory_bytes)],
            "volumes": [
                {"name": naming.VOLUME_BIN, "emptyDir": {"sizeLimit": "1Gi"}},
                *in_memory,
                {"name": naming.VOLUME_SCRATCH, "emptyDir": {}},
                _config_volume(attempt, (naming.PLAN, naming.TOKEN, naming.CERTIFICATE)),
                *work["volumes"],
            ],
        },
    }


def _volumes_in_memory(spec: Spec, server: int) -> dict[str, int]:
    """Size in bytes of each volume in memory. There is none for /dev/shm where the user mounts one of their own."""
    ranks = len(spec.placement.ranks[server])
    sizes_bytes = {naming.VOLUME_RUN: planning.ring_bytes() * ranks + _RUN_SLACK_BYTES}
    mounts = spec.workload.document.get("volumeMounts", ())
    if not any(mount["mountPath"].rstrip("/") == naming.SHM for mount in mounts):
        sizes_bytes[naming.VOLUME_SHM] = _SHM_PER_RANK_BYTES * ranks
    return sizes_bytes


def _install_container(attempt: Attempt) -> Manifest:
    return {
        "name": naming.INSTALL,
        "image": attempt.runtime["interposerImage"],
        "imagePullPolicy": attempt.runtime["imagePullPolicy"],
        "command": ["python3", "-m", launching.INSTALL_MODULE, naming.BIN],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": _container_security(),
        "terminationMessagePolicy": _TERMINATION,
        "volumeMounts": [{"name": naming.VOLUME_BIN, "mountPath": naming.BIN}],
    }


def _agent_container(attempt: Attempt, server: int) -> Manifest:
    core = f"{naming.core_name(attempt.name)}.{attempt.namespace}.svc:{naming.INGEST_PORT}"
    return {
        "name": naming.AGENT,
        "image": attempt.runtime["interposerImage"],
        "imagePullPolicy": attempt.runtime["imagePullPolicy"],
        "restartPolicy": "Always",
        "command": ["python3", "-m", launching.AGENT_MODULE],
        "args": [
            *("--plan", f"{naming.CONFIG}/{naming.PLAN}"),
            *("--server", str(server)),
            *("--dir", naming.RUN),
            *("--core", core),
            *("--tls", naming.CONFIG),
            *("--connect-timeout", str(attempt.spec.startup_timeout_s)),
        ],
        "resources": _resources(attempt.runtime["agentResources"]),
        "securityContext": _container_security(),
        "terminationMessagePolicy": _TERMINATION,
        "volumeMounts": [
            {"name": naming.VOLUME_RUN, "mountPath": naming.RUN},
            {"name": naming.VOLUME_CONFIG, "mountPath": naming.CONFIG, "readOnly": True},
        ],
    }


def _workload_container(attempt: Attempt, server: int, memory_bytes: Mapping[str, int]) -> Manifest:
    spec, work = attempt.spec, attempt.spec.workload.document
    container: Manifest = {
        "name": naming.WORKLOAD,
        "image": work["image"],
        "imagePullPolicy": work["imagePullPolicy"],
        "command": _launch(attempt, server),
        "env": _environment(attempt, server),
        "resources": _workload_resources(work["resources"], sum(memory_bytes.values())),
        "securityContext": _container_security(read_only=False),
        "terminationMessagePolicy": _TERMINATION,
        "volumeMounts": [
            {"name": naming.VOLUME_BIN, "mountPath": naming.BIN, "readOnly": True},
            {"name": naming.VOLUME_RUN, "mountPath": naming.RUN},
            {"name": naming.VOLUME_SCRATCH, "mountPath": naming.SCRATCH},
            *({"name": name, "mountPath": naming.SHM} for name in memory_bytes if name == naming.VOLUME_SHM),
            *(_without_defaults(mount, readOnly=False) for mount in work["volumeMounts"]),
        ],
    }
    if work["envFrom"]:
        container["envFrom"] = work["envFrom"]
    if spec.workload.working_dir:
        container["workingDir"] = spec.workload.working_dir
    return container


def _launch(attempt: Attempt, server: int) -> list[str]:
    spec = attempt.spec
    return [
        f"{naming.BIN}/{launching.LAUNCH}",
        *("--dir", naming.RUN),
        *launching.rank_options(spec, server),
        *("--scratch", naming.SCRATCH),
        *("--wait", str(spec.startup_timeout_s)),
        *("--resolve", _master(attempt)),
        "--",
        *launching.workload_command(spec.workload, "python3"),
    ]


def _environment(attempt: Attempt, server: int) -> list[Manifest]:
    """Our variables, then the user's. Where both give a name, the user's counts."""
    ours = {
        "PYTHONUNBUFFERED": "1",  # `kubectl logs -f` shows lines as they come
        **launching.rendezvous(attempt.spec, server, _master(attempt), naming.MASTER_PORT),
    }
    theirs = list(attempt.spec.workload.document["env"])
    given = {item["name"] for item in theirs}
    return [{"name": name, "value": value} for name, value in ours.items() if name not in given] + theirs


def _master(attempt: Attempt) -> str:
    return f"{naming.server_name(attempt.name, 0)}.{attempt.name}"


def _workload_resources(given: Mapping[str, Mapping[str, Any]], extra_bytes: int) -> Manifest:
    """The resources that the user asks for, plus the memory of our volumes."""
    requests = {name: str(amount) for name, amount in given["requests"].items()}
    limits = {name: str(amount) for name, amount in given["limits"].items()}
    if "memory" in limits and "memory" not in requests:
        requests["memory"] = limits["memory"]  # Kubernetes does the same
    requests["memory"] = _mebibytes(parse_quantity(requests.get("memory", "0")) + extra_bytes)
    if "memory" in limits:
        limits["memory"] = _mebibytes(parse_quantity(limits["memory"]) + extra_bytes)
    return {"requests": requests, **({"limits": limits} if limits else {})}


def parse_quantity(text: str) -> Fraction:
    """The number in an amount as Kubernetes writes it, such as ``500m``, ``4Gi`` or ``1.5``. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", text)
    if match is None or match[2] not in _SUFFIX:
        raise ValueError(f"{text!r} is not an amount such as 500m or 4Gi")
    return Fraction(match[1]) * _SUFFIX[match[2]]


def _mebibytes(size_bytes: Fraction | int) -> str:
    return f"{-(-size_bytes // _MIB)}Mi"


def _metadata(
    attempt: Attempt, name: str, *, component: str = "", server: int | None = None, numbered: bool = True
) -> Manifest:
    labels = {naming.LABEL_APP: naming.APP, naming.LABEL_MANAGER: naming.MANAGER, naming.LABEL_OBJECT: attempt.name}
    if component:
        labels[naming.LABEL_COMPONENT] = component
    if server is not None:
        labels[naming.LABEL_SERVER] = str(server)
    if numbered:
        labels[naming.LABEL_ATTEMPT] = str(attempt.number)
    owner = {
        "apiVersion": specs.API_VERSION,
        "kind": specs.KIND,
        "name": attempt.name,
        "uid": attempt.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"name": name, "namespace": attempt.namespace, "labels": labels, "ownerReferences": [owner]}


def _selector(attempt: Attempt, component: str) -> Manifest:
    return {
        naming.LABEL_MANAGER: naming.MANAGER,
        naming.LABEL_COMPONENT: component,
        naming.LABEL_OBJECT: attempt.name,
    }


def _pod_common(attempt: Attempt, *, secrets: tuple[str, ...]) -> Manifest:
    runtime = attempt.runtime
    ids = {key: runtime[key] for key in ("runAsUser", "runAsGroup", "fsGroup") if key in runtime}
    if "fsGroup" in ids:
        ids["fsGroupChangePolicy"] = "OnRootMismatch"
    pull = list(dict.fromkeys([*runtime["imagePullSecrets"], *secrets]))
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {"runAsNonRoot": True, **ids, "seccompProfile": {"type": "RuntimeDefault"}},
        **({"imagePullSecrets": [{"name": name} for name in pull]} if pull else {}),
    }


def _container_security(*, read_only: bool = True) -> Manifest:
    rest = {"readOnlyRootFilesystem": True} if read_only else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **rest}


def _config_volume(attempt: Attempt, keys: tuple[str, ...]) -> Manifest:
    # The group of the volumes can read it. Where the cluster chooses the users, everyone in the pod can.
    mode = 0o440 if "fsGroup" in attempt.runtime else 0o444
    items = [{"key": key, "path": key} for key in keys]
    secret = {"secretName": naming.secret_name(attempt.name, attempt.number), "defaultMode": mode, "items": items}
    return {"name": naming.VOLUME_CONFIG, "secret": secret}


def _resources(given: Mapping[str, Mapping[str, str]]) -> Manifest:
    return {kind: dict(amounts) for kind, amounts in given.items()}


def _without_defaults(value: Mapping[str, Any], **defaults: Any) -> Manifest:
    return {key: item for key, item in value.items() if defaults.get(key, ...) != item}
