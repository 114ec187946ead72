"""Whole manifests, as the API server gets them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from kubernetes_lab import SETTINGS, make_object

from eidolon_operator import spec as specs
from eidolon_operator.kubernetes import builders
from eidolon_operator.kubernetes.builders import Attempt

OWNER = {
    "apiVersion": "eidolon.dev/v1alpha1",
    "kind": "SimulatedCluster",
    "name": "demo",
    "uid": "uid-demo",
    "controller": True,
    "blockOwnerDeletion": True,
}
LABELS = {
    "app.kubernetes.io/name": "eidolon",
    "app.kubernetes.io/managed-by": "eidolon-operator",
    "eidolon.dev/simulatedcluster": "demo",
}
SERVER_LABELS = {
    **LABELS,
    "app.kubernetes.io/component": "server",
    "eidolon.dev/server": "1",
    "eidolon.dev/attempt": "3",
}
OURS = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
THEIRS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "fsGroup": 65532,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}


def attempt(runtime: dict[str, Any] | None = None, **fields: Any) -> Attempt:
    spec = specs.parse(make_object(**fields), source="test")
    return Attempt(spec, "lab", "uid-demo", 3, SETTINGS.runtime() | (runtime or {}))


def workload(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return container


def environment(pod: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in workload(pod)["env"]}


def test_the_pod_of_a_server() -> None:
    assert builders.build_server_pod(attempt(), 1) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "demo-server-1",
            "namespace": "lab",
            "labels": SERVER_LABELS,
            "ownerReferences": [OWNER],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30,
            "securityContext": POD_SECURITY,
            "imagePullSecrets": [{"name": "ours"}],
            "hostname": "demo-server-1",
            "subdomain": "demo",
            "initContainers": [
                {
                    "name": "install",
                    "image": "registry.test/interposer:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-m", "eidolon_interposer.install", "/eidolon"],
                    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
                    "securityContext": OURS,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [{"name": "eidolon-bin", "mountPath": "/eidolon"}],
                },
                {
                    "name": "agent",
                    "image": "registry.test/interposer:1",
                    "imagePullPolicy": "IfNotPresent",
                    "restartPolicy": "Always",
                    "command": ["python3", "-m", "eidolon_interposer.agent"],
                    "args": [
                        *("--plan", "/etc/eidolon/plan.json"),
                        *("--server", "1"),
                        *("--dir", "/run/eidolon"),
                        *("--core", "demo-core.lab.svc:50051"),
                        *("--tls", "/etc/eidolon"),
                        *("--connect-timeout", "600"),
                    ],
                    "resources": {"requests": {"cpu": "100m", "memory": "96Mi"}},
                    "securityContext": OURS,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [
                        {"name": "eidolon-run", "mountPath": "/run/eidolon"},
                        {"name": "eidolon-config", "mountPath": "/etc/eidolon", "readOnly": True},
                    ],
                },
            ],
            "containers": [
                {
                    "name": "workload",
                    "image": "example/train:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": [
                        "/eidolon/bin/launch",
                        *("--dir", "/run/eidolon"),
                        *("--scratch", "/var/tmp/eidolon"),
                        *("--wait", "600"),
                        *("--resolve", "demo-server-0.demo"),
                        "--",
                        "torchrun",
                        "train.py",
                    ],
                    "env": [
                        {"name": "PYTHONUNBUFFERED", "value": "1"},
                        {"name": "PET_NNODES", "value": "2"},
                        {"name": "PET_NODE_RANK", "value": "1"},
                        {"name": "PET_NPROC_PER_NODE", "value": "2"},
                        {"name": "PET_MASTER_ADDR", "value": "demo-server-0.demo"},
                        {"name": "PET_MASTER_PORT", "value": "29500"},
                    ],
                    # 2 rings of 10.16 MiB and 16 MiB beside them; 2 x 256 MiB of /dev/shm
                    "resources": {"requests": {"memory": "549Mi"}},
                    "securityContext": THEIRS,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [
                        {"name": "eidolon-bin", "mountPath": "/eidolon", "readOnly": True},
                        {"name": "eidolon-run", "mountPath": "/run/eidolon"},
                        {"name": "eidolon-scratch", "mountPath": "/var/tmp/eidolon"},
                        {"name": "eidolon-shm", "mountPath": "/dev/shm"},
                    ],
                }
            ],
            "volumes": [
                {"name": "eidolon-bin", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "eidolon-run", "emptyDir": {"medium": "Memory", "sizeLimit": "37Mi"}},
                {"name": "eidolon-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}},
                {"name": "eidolon-scratch", "emptyDir": {}},
                {
                    "name": "eidolon-config",
                    "secret": {
                        "secretName": "demo-ingest-3",
                        "defaultMode": 0o440,
                        # The key of the certificate is the core's alone.
                        "items": [{"key": key, "path": key} for key in ("plan.json", "token", "tls.crt")],
                    },
                },
            ],
        },
    }


def test_the_pod_of_the_core() -> None:
    probe = {"path": "/healthz", "port": "http"}
    assert builders.build_core_pod(attempt()) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "demo-core",
            "namespace": "lab",
            "labels": {**LABELS, "app.kubernetes.io/component": "core", "eidolon.dev/attempt": "3"},
            "ownerReferences": [OWNER],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30,
            "securityContext": POD_SECURITY,
            "imagePullSecrets": [{"name": "ours"}],
            "containers": [
                {
                    "name": "core",
                    "image": "registry.test/core:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-m", "eidolon_simcore"],
                    "args": [
                        *("--plan", "/etc/eidolon/plan.json"),
                        *("--listen", "0.0.0.0:50051"),
                        *("--out", "/var/lib/eidolon"),
                        *("--http", "0.0.0.0:8080"),
                        *("--dcgm", "0.0.0.0:9400"),
                        *("--tls", "/etc/eidolon"),
                        "--linger",
                    ],
                    "env": [{"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
                    "ports": [
                        {"name": "ingest", "containerPort": 50051, "protocol": "TCP"},
                        {"name": "http", "containerPort": 8080, "protocol": "TCP"},
                        {"name": "dcgm", "containerPort": 9400, "protocol": "TCP"},
                    ],
                    "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
                    "startupProbe": {
                        "httpGet": probe,
                        "periodSeconds": 1,
                        "timeoutSeconds": 5,
                        "failureThreshold": 120,
                    },
                    "readinessProbe": {"httpGet": probe, "periodSeconds": 5, "timeoutSeconds": 5},
                    "livenessProbe": {
                        "httpGet": probe,
                        "periodSeconds": 30,
                        "timeoutSeconds": 30,
                        "failureThreshold": 10,
                    },
                    "securityContext": OURS,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [
                        {"name": "eidolon-config", "mountPath": "/etc/eidolon", "readOnly": True},
                        {"name": "eidolon-out", "mountPath": "/var/lib/eidolon"},
                        {"name": "eidolon-tmp", "mountPath": "/tmp"},
                    ],
                }
            ],
            "volumes": [
                {
                    "name": "eidolon-config",
                    "secret": {
                        "secretName": "demo-ingest-3",
                        "defaultMode": 0o440,
                        "items": [{"key": key, "path": key} for key in ("plan.json", "token", "tls.crt", "tls.key")],
                    },
                },
                {"name": "eidolon-out", "emptyDir": {"sizeLimit": "512Mi"}},
                {"name": "eidolon-tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            ],
        },
    }


def test_the_services() -> None:
    assert builders.build_headless_service(attempt()) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "demo",
            "namespace": "lab",
            "labels": {**LABELS, "app.kubernetes.io/component": "server"},
            "ownerReferences": [OWNER],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {
                "app.kubernetes.io/managed-by": "eidolon-operator",
                "app.kubernetes.io/component": "server",
                "eidolon.dev/simulatedcluster": "demo",
            },
            "ports": [{"name": "master", "port": 29500, "targetPort": 29500, "protocol": "TCP"}],
        },
    }
    core = builders.build_core_service(attempt())
    assert core["metadata"]["name"] == "demo-core"
    assert core["metadata"]["labels"]["app.kubernetes.io/component"] == "core"
    assert core["spec"]["type"] == "ClusterIP"
    assert core["spec"]["selector"]["app.kubernetes.io/component"] == "core"
    assert {port["name"]: port["port"] for port in core["spec"]["ports"]} == {
        "ingest": 50051,
        "http": 8080,
        "dcgm": 9400,
    }


def test_the_secret_of_an_attempt_has_the_plan_beside_what_it_was_given() -> None:
    secret = builders.build_secret(attempt(), {"token": "dG9rZW4="})
    assert secret["metadata"]["name"] == "demo-ingest-3"
    assert secret["immutable"] is True
    assert set(secret["data"]) == {"plan.json", "token"}
    document = json.loads(base64.b64decode(secret["data"]["plan.json"]))
    assert document["core"]["attempt"] == 3
    assert "token" not in document["core"]
    assert secret == builders.build_secret(attempt(), {"token": "dG9rZW4="})


def test_what_the_object_says_of_its_pods_reaches_them() -> None:
    pod = builders.build_server_pod(
        attempt(
            workload={
                "image": "example/train:1",
                "imagePullPolicy": "Always",
                "imagePullSecrets": [{"name": "theirs"}, {"name": "ours"}],
                "command": ["python", "train.py"],
                "args": ["--batch", "8"],
                "workingDir": "/src",
                "env": [
                    {"name": "PET_NNODES", "value": "1"},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "c"}}],
                "resources": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
                    {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
                ],
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data", "readOnly": True},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
                "nodeSelector": {"kind": "big"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "affinity": {"podAntiAffinity": {}},
                "priorityClassName": "low",
                "schedulerName": "mine",
                "labels": {"team": "a"},
                "annotations": {"note": "b"},
            }
        ),
        0,
    )
    assert pod["metadata"]["labels"] == {**SERVER_LABELS, "eidolon.dev/server": "0", "team": "a"}
    assert pod["metadata"]["annotations"] == {"note": "b"}
    spec, container = pod["spec"], workload(pod)
    assert spec["imagePullSecrets"] == [{"name": "ours"}, {"name": "theirs"}]
    assert {key: spec[key] for key in ("nodeSelector", "affinity", "priorityClassName", "schedulerName")} == {
        "nodeSelector": {"kind": "big"},
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "low",
        "schedulerName": "mine",
    }
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert container["imagePullPolicy"] == "Always"
    assert container["command"][-4:] == ["python", "train.py", "--batch", "8"]
    assert container["workingDir"] == "/src"
    assert [item for item in container["env"] if item["name"] == "PET_NNODES"] == [{"name": "PET_NNODES", "value": "1"}]
    assert container["env"][-1]["valueFrom"]["secretKeyRef"]["key"] == "k"
    assert container["envFrom"] == [{"configMapRef": {"name": "c", "optional": False}}]
    # Only the rings are added: /dev/shm is the user's.
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": f"{1024 + 37}Mi"},
        "limits": {"memory": f"{2048 + 37}Mi"},
    }
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in container["volumeMounts"]
    assert [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm"] == ["shm"]
    assert [volume["name"] for volume in spec["volumes"]][-2:] == ["data", "shm"]


def test_plain_ranks_are_started_by_the_launcher() -> None:
    pod = builders.build_server_pod(attempt(workload__launcher="plain", workload__ranksPerServer=2), 1)
    words = workload(pod)["command"]
    assert words[words.index("--ranks") : words.index("--scratch")] == ["--ranks", "2", "--first-rank", "2"]
    found = environment(pod)
    assert {key: found[key] for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")} == {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "demo-server-0.demo",
    }


def test_torchrun_is_put_in_front_of_the_command() -> None:
    pod = builders.build_server_pod(attempt(workload__launcher="torchrun", workload__command=["train.py"]), 0)
    assert workload(pod)["command"][-4:] == ["python3", "-m", "torch.distributed.run", "train.py"]


def test_where_the_cluster_chooses_users_none_is_named() -> None:
    runtime = {key: value for key, value in SETTINGS.runtime().items() if key not in ("runAsUser", "runAsGroup")}
    del runtime["fsGroup"]
    spec = specs.parse(make_object(), source="test")
    made = Attempt(spec, "lab", "uid-demo", 1, runtime)
    for pod in (builders.build_core_pod(made), builders.build_server_pod(made, 0)):
        assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        (config,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "eidolon-config"]
        assert config["secret"]["defaultMode"] == 0o444


def test_the_pod_of_a_server_of_a_folded_run() -> None:
    """It is about the ranks that run there: their number, their room in memory, and who they are."""
    mesh = [{"axis": "dp", "size": 32}, {"axis": "tp", "size": 4}]
    made = attempt(servers=16, gpusPerServer=8, fold={"mode": "replica", "parallel": mesh, "keep": [126, 127]})
    whole = builders.build_server_pod(attempt(servers=16, gpusPerServer=8), 15)
    pod = builders.build_server_pod(made, 15)
    assert pod["metadata"] == whole["metadata"], "it has the number of the emulated server"
    found = environment(pod)
    assert {key: found[key] for key in found if key.startswith(("PET_", "EIDOLON_"))} == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "demo-server-0.demo",
        "PET_MASTER_PORT": "29500",
        "EIDOLON_FOLD": "128/8:126+1x2:" + "0+1x4," * 31 + "0+1x2,126+1x2",
    }
    sizes = [
        {
            volume["name"]: volume["emptyDir"].get("sizeLimit")
            for volume in each["spec"]["volumes"]
            if "emptyDir" in volume
        }
        for each in (pod, whole)
    ]
    assert [each["eidolon-shm"] for each in sizes] == ["512Mi", "2048Mi"]
    agent = pod["spec"]["initContainers"][1]
    assert agent["args"][agent["args"].index("--server") + 1] == "15"


def test_a_recording_can_go_to_a_claim() -> None:
    pod = builders.build_core_pod(attempt(recording={"enabled": True, "claimName": "runs"}))
    assert {"name": "eidolon-out", "persistentVolumeClaim": {"claimName": "runs"}} in pod["spec"]["volumes"]
    words = workload(pod)["args"]
    assert words[words.index("--out") + 1] == "/var/lib/eidolon/demo-3", "other runs may lie beside it"
    pod = builders.build_core_pod(attempt(recording={"enabled": True, "limit": "1GiB"}))
    assert {"name": "eidolon-out", "emptyDir": {"sizeLimit": "1536Mi"}} in pod["spec"]["volumes"]


@pytest.mark.parametrize("servers", [1, 2048])
def test_every_container_is_restricted(servers: int) -> None:
    """The Pod Security Standard, by its own words: no privilege, no capability, no root, a seccomp profile."""
    made = attempt(servers=servers)
    for pod in (builders.build_core_pod(made), builders.build_server_pod(made, servers - 1)):
        spec = pod["spec"]
        assert len(pod["metadata"]["name"]) <= 63
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert not spec["automountServiceAccountToken"]
        allowed = {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}
        assert all(set(volume) - {"name"} <= allowed for volume in spec["volumes"])
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("text", "expected"), [("2", 2), ("1.5Gi", 3 * 2**29), ("500M", 500 * 10**6), ("64Ki", 65536), ("1k", 1000)]
)
def test_amounts(text: str, expected: int) -> None:
    assert builders.parse_quantity(text) == expected


def test_an_amount_that_is_none() -> None:
    with pytest.raises(ValueError, match="'5GB' is not an amount such as 500m or 4Gi"):
        builders.parse_quantity("5GB")
