"""From an object and its attempt to manifests: pure functions, deterministic names.

A server's pod runs the user's image unchanged. What is Eidolon's comes from beside it::

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

from eidolon_operator import plan as planning
from eidolon_operator import spec as specs
from eidolon_operator.kubernetes.decide import core_name, server_name
from eidolon_operator.kubernetes.world import LABEL_ATTEMPT, LABEL_OBJECT, LABEL_SERVER, WORKLOAD
from eidolon_operator.spec import Spec

Manifest = dict[str, Any]

MANAGER: Final = "eidolon-operator"
INGEST_PORT: Final = 50051
HTTP_PORT: Final = 8080
DCGM_PORT: Final = 9400
MASTER_PORT: Final = 29500  # of torch.distributed, on server 0
TERMINATION: Final = "FallbackToLogsOnError"
CONFIG: Final = "/etc/eidolon"  # where core and agents find the Secret of the attempt
PLAN: Final = "plan.json"

_MIB: Final = 1 << 20
#: In the shared directory beside the rings: configuration, exit state, what the launcher found.
_RUN_SLACK_BYTES: Final = 16 * _MIB
#: /dev/shm of the workload, per rank: data loaders and gloo put tensors there. A pod's own has 64 MiB in all.
_SHM_PER_RANK_BYTES: Final = 256 * _MIB
#: Beside the recording: logs, summary, progress.
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
        return self.spec.name


def secret_name(attempt: Attempt) -> str:
    return f"{attempt.name}-ingest-{attempt.number}"


def build_secret(attempt: Attempt, credentials: Mapping[str, str]) -> Manifest:
    """The Secret of the attempt: what core and agents are told (the plan), and how they know each other.

    One object and not two, since both are made once, for the same readers, and never change: whoever is operator when
    the attempt's pods are made, they get the plan that it began with.
    """
    plan = planning.build(attempt.spec, source=attempt.name, token="", attempt=attempt.number)
    del plan.document["core"]["token"]  # it is a file of its own
    text = json.dumps(plan.document, sort_keys=True)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(attempt, secret_name(attempt)),
        "type": "Opaque",
        "immutable": True,
        "data": {PLAN: base64.b64encode(text.encode()).decode(), **credentials},
    }


def build_core_service(attempt: Attempt) -> Manifest:
    """Service of the core: agents, people and Prometheus reach it there."""
    ports = (("ingest", INGEST_PORT), ("http", HTTP_PORT), ("dcgm", DCGM_PORT))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(attempt, core_name(attempt.name), component="core", numbered=False),
        "spec": {
            "type": "ClusterIP",
            "selector": _selector(attempt, "core"),
            "ports": [{"name": n, "port": port, "targetPort": n, "protocol": "TCP"} for n, port in ports],
        },
    }


def build_headless_service(attempt: Attempt) -> Manifest:
    """Gives every server's pod a name in DNS, before it is ready: ranks look each other up."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(attempt, attempt.name, component="server", numbered=False),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _selector(attempt, "server"),
            "ports": [{"name": "master", "port": MASTER_PORT, "targetPort": MASTER_PORT, "protocol": "TCP"}],
        },
    }


def build_core_pod(attempt: Attempt) -> Manifest:
    """The simulation core."""
    spec, runtime, work = attempt.spec, attempt.runtime, attempt.spec.workload.document
    out, claim = "/var/lib/eidolon", spec.recording.claim
    probe = {"path": "/healthz", "port": "http"}
    container = {
        "name": "core",
        "image": runtime["coreImage"],
        "imagePullPolicy": runtime["imagePullPolicy"],
        "command": ["python3", "-m", "eidolon_simcore"],
        "args": [
            *("--plan", f"{CONFIG}/{PLAN}"),
            *("--listen", f"0.0.0.0:{INGEST_PORT}"),
            # A claim is the user's, and may hold other runs.
            *("--out", f"{out}/{attempt.name}-{attempt.number}" if claim else out),
            *("--http", f"0.0.0.0:{HTTP_PORT}"),
            *("--dcgm", f"0.0.0.0:{DCGM_PORT}"),
            *("--tls", CONFIG),
            "--linger",
        ],
        # The page of DCGM-shaped metrics names pods as dcgm-exporter does.
        "env": [{"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [
            {"name": "ingest", "containerPort": INGEST_PORT, "protocol": "TCP"},
            {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
            {"name": "dcgm", "containerPort": DCGM_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(runtime["coreResources"]),
        "startupProbe": {"httpGet": probe, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 120},
        "readinessProbe": {"httpGet": probe, "periodSeconds": 5, "timeoutSeconds": 5},
        # A core that is killed is the end of the run, and on a busy machine an answer may take its time.
        "livenessProbe": {"httpGet": probe, "periodSeconds": 30, "timeoutSeconds": 30, "failureThreshold": 10},
        "securityContext": _container_security(),
        "terminationMessagePolicy": TERMINATION,
        "volumeMounts": [
            {"name": "eidolon-config", "mountPath": CONFIG, "readOnly": True},
            {"name": "eidolon-out", "mountPath": out},
            {"name": "eidolon-tmp", "mountPath": "/tmp"},
        ],
    }
    limit = _CORE_DISK_BYTES + (spec.recording.limit_bytes if spec.recording.enabled else 0)
    kept = {"persistentVolumeClaim": {"claimName": claim}}
    volume = kept if claim else {"emptyDir": {"sizeLimit": _mebibytes(limit)}}
    # Where a pod may run is said of servers; a core needs leave to run on tainted nodes too, but none of their labels.
    scheduling = {key: work[key] for key in ("tolerations", "priorityClassName", "schedulerName") if work.get(key)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(attempt, core_name(attempt.name), component="core"),
        "spec": {
            **_pod_common(attempt, secrets=()),
            **scheduling,
            "containers": [container],
            "volumes": [
                _config_volume(attempt, (PLAN, "token", "tls.crt", "tls.key")),
                {"name": "eidolon-out", **volume},
                {"name": "eidolon-tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            ],
        },
    }


def build_server_pod(attempt: Attempt, server: int) -> Manifest:
    """One emulated server."""
    spec, runtime, work = attempt.spec, attempt.runtime, attempt.spec.workload.document
    ranks = spec.workload.ranks_per_server
    run_bytes = planning.ring_bytes() * ranks + _RUN_SLACK_BYTES
    own_shm = any(mount["mountPath"].rstrip("/") == "/dev/shm" for mount in work.get("volumeMounts", ()))
    shm_bytes = 0 if own_shm else _SHM_PER_RANK_BYTES * ranks
    ours = {"image": runtime["interposerImage"], "imagePullPolicy": runtime["imagePullPolicy"]}
    core = f"{core_name(attempt.name)}.{attempt.namespace}.svc:{INGEST_PORT}"

    install = {
        "name": "install",
        **ours,
        "command": ["python3", "-m", "eidolon_interposer.install", "/eidolon"],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": _container_security(),
        "terminationMessagePolicy": TERMINATION,
        "volumeMounts": [{"name": "eidolon-bin", "mountPath": "/eidolon"}],
    }
    agent = {
        "name": "agent",
        **ours,
        "restartPolicy": "Always",
        "command": ["python3", "-m", "eidolon_interposer.agent"],
        "args": [
            *("--plan", f"{CONFIG}/{PLAN}"),
            *("--server", str(server)),
            *("--dir", "/run/eidolon"),
            *("--core", core),
            *("--tls", CONFIG),
            *("--connect-timeout", str(spec.startup_timeout_s)),
        ],
        "resources": _resources(runtime["agentResources"]),
        "securityContext": _container_security(),
        "terminationMessagePolicy": TERMINATION,
        "volumeMounts": [
            {"name": "eidolon-run", "mountPath": "/run/eidolon"},
            {"name": "eidolon-config", "mountPath": CONFIG, "readOnly": True},
        ],
    }
    workload: Manifest = {
        "name": WORKLOAD,
        "image": work["image"],
        "imagePullPolicy": work["imagePullPolicy"],
        "command": _launch(attempt, server),
        "env": _environment(attempt, server),
        "resources": _workload_resources(work["resources"], run_bytes + shm_bytes),
        "securityContext": _container_security(read_only=False),
        "terminationMessagePolicy": TERMINATION,
        "volumeMounts": [
            {"name": "eidolon-bin", "mountPath": "/eidolon", "readOnly": True},
            {"name": "eidolon-run", "mountPath": "/run/eidolon"},
            {"name": "eidolon-scratch", "mountPath": SCRATCH},
            *([] if own_shm else [{"name": "eidolon-shm", "mountPath": "/dev/shm"}]),
            *(_without_defaults(mount, readOnly=False) for mount in work["volumeMounts"]),
        ],
    }
    if work["envFrom"]:
        workload["envFrom"] = work["envFrom"]
    if spec.workload.working_dir:
        workload["workingDir"] = spec.workload.working_dir
    memory = [("eidolon-run", run_bytes)] + ([] if own_shm else [("eidolon-shm", shm_bytes)])
    scheduling = {
        key: work[key]
        for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "schedulerName")
        if work.get(key)
    }
    metadata = _metadata(attempt, server_name(attempt.name, server), component="server", server=server)
    metadata["labels"] = {**work["labels"], **metadata["labels"]}
    if work["annotations"]:
        metadata["annotations"] = dict(work["annotations"])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            **_pod_common(attempt, secrets=tuple(secret["name"] for secret in work["imagePullSecrets"])),
            **scheduling,
            "hostname": server_name(attempt.name, server),
            "subdomain": attempt.name,
            "initContainers": [install, agent],
            "containers": [workload],
            "volumes": [
                {"name": "eidolon-bin", "emptyDir": {"sizeLimit": "1Gi"}},
                *({"name": n, "emptyDir": {"medium": "Memory", "sizeLimit": _mebibytes(size)}} for n, size in memory),
                {"name": "eidolon-scratch", "emptyDir": {}},
                _config_volume(attempt, (PLAN, "token", "tls.crt")),
                *work["volumes"],
            ],
        },
    }


#: Home and temporary files of the workload, unless its image or the object says otherwise.
SCRATCH: Final = "/var/tmp/eidolon"


def _launch(attempt: Attempt, server: int) -> list[str]:
    work = attempt.spec.workload
    command = list(work.command)
    if work.launcher == "torchrun":
        command = ["python3", "-m", "torch.distributed.run", *command]
    ranks: list[str] = []
    if work.launcher == "plain":
        per_server = work.ranks_per_server
        ranks = ["--ranks", str(per_server), "--first-rank", str(server * per_server)]
    return [
        "/eidolon/bin/launch",
        *("--dir", "/run/eidolon"),
        *ranks,
        *("--scratch", SCRATCH),
        *("--wait", str(attempt.spec.startup_timeout_s)),
        *("--resolve", _master(attempt)),
        "--",
        *command,
    ]


def _environment(attempt: Attempt, server: int) -> list[Manifest]:
    """Ours, then the user's; a name that the user gives is the user's."""
    spec = attempt.spec
    ranks = spec.workload.ranks_per_server
    ours = {
        "PYTHONUNBUFFERED": "1",  # `kubectl logs -f` shows lines as they come
        "PET_NNODES": str(spec.servers),
        "PET_NODE_RANK": str(server),
        "PET_NPROC_PER_NODE": str(ranks),
        "PET_MASTER_ADDR": _master(attempt),
        "PET_MASTER_PORT": str(MASTER_PORT),
    }
    if spec.workload.launcher == "plain":  # the launcher adds LOCAL_RANK and RANK
        ours |= {
            "WORLD_SIZE": str(spec.world),
            "LOCAL_WORLD_SIZE": str(ranks),
            "GROUP_RANK": str(server),
            "MASTER_ADDR": _master(attempt),
            "MASTER_PORT": str(MASTER_PORT),
        }
    theirs = list(spec.workload.document["env"])
    given = {item["name"] for item in theirs}
    return [{"name": name, "value": value} for name, value in ours.items() if name not in given] + theirs


def _master(attempt: Attempt) -> str:
    return f"{server_name(attempt.name, 0)}.{attempt.name}"


def _workload_resources(given: Mapping[str, Mapping[str, Any]], extra_bytes: int) -> Manifest:
    """What the user asks for, and the memory of our volumes on top."""
    requests = {name: str(amount) for name, amount in given["requests"].items()}
    limits = {name: str(amount) for name, amount in given["limits"].items()}
    if "memory" in limits and "memory" not in requests:
        requests["memory"] = limits["memory"]  # as Kubernetes has it
    requests["memory"] = _mebibytes(parse_quantity(requests.get("memory", "0")) + extra_bytes)
    if "memory" in limits:
        limits["memory"] = _mebibytes(parse_quantity(limits["memory"]) + extra_bytes)
    return {"requests": requests, **({"limits": limits} if limits else {})}


def parse_quantity(text: str) -> Fraction:
    """An amount as Kubernetes writes it: ``500m``, ``4Gi``, ``1.5``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", text)
    if match is None or match[2] not in _SUFFIX:
        raise ValueError(f"{text!r} is not an amount such as 500m or 4Gi")
    return Fraction(match[1]) * _SUFFIX[match[2]]


def _mebibytes(size_bytes: Fraction | int) -> str:
    return f"{-(-size_bytes // _MIB)}Mi"


def _metadata(
    attempt: Attempt, name: str, *, component: str = "", server: int | None = None, numbered: bool = True
) -> Manifest:
    labels = {
        "app.kubernetes.io/name": "eidolon",
        "app.kubernetes.io/managed-by": MANAGER,
        LABEL_OBJECT: attempt.name,
    }
    if component:
        labels["app.kubernetes.io/component"] = component
    if server is not None:
        labels[LABEL_SERVER] = str(server)
    if numbered:
        labels[LABEL_ATTEMPT] = str(attempt.number)
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
        "app.kubernetes.io/managed-by": MANAGER,
        "app.kubernetes.io/component": component,
        LABEL_OBJECT: attempt.name,
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
    # The group of the volumes can read it; where the cluster chooses users, it is mounted for whoever runs.
    mode = 0o440 if "fsGroup" in attempt.runtime else 0o444
    items = [{"key": key, "path": key} for key in keys]
    secret = {"secretName": secret_name(attempt), "defaultMode": mode, "items": items}
    return {"name": "eidolon-config", "secret": secret}


def _resources(given: Mapping[str, Mapping[str, str]]) -> Manifest:
    return {kind: dict(amounts) for kind, amounts in given.items()}


def _without_defaults(value: Mapping[str, Any], **defaults: Any) -> Manifest:
    return {key: item for key, item in value.items() if defaults.get(key, ...) != item}
