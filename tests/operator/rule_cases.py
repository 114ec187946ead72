"""What the CRD's rules across fields let pass and refuse: held against our own evaluation and against an API server."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

MINIMAL: dict[str, Any] = {
    "apiVersion": "eidolon.dev/v1alpha1",
    "kind": "SimulatedCluster",
    "metadata": {"name": "demo"},
    "spec": {"workload": {"image": "example/train:1", "command": ["torchrun", "train.py"]}},
}


def make(path: str = "", value: Any = None) -> dict[str, Any]:
    """The minimal object with one field set: ``make("spec.servers", 2)``; None takes the field away."""
    document = copy.deepcopy(MINIMAL)
    *parents, last = path.split(".")
    node: Any = document
    for part in parents:
        node = node.setdefault(part, {})
    if value is not None:
        node[last] = value
    elif last:
        node.pop(last, None)
    return document


class Case(NamedTuple):
    """One rule: a value of a field that it lets pass, one that it refuses, and what is then said."""

    field: str
    accepted: Any
    refused: Any
    complaint: str


def _one_of(words: tuple[str, ...]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _volume(**source: Any) -> list[dict[str, Any]]:
    return [{"name": "data", **source}]


#: What goes with some kinds of fabric only.
TOPOLOGY_FIELDS: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("serversPerPod", 2, ("rail",)),
    ("serversPerLeaf", 2, ("leaf-spine", "fat-tree")),
    ("leavesPerPod", 2, ("fat-tree",)),
    ("oversubscription", 2, ("rail", "leaf-spine", "fat-tree")),
    ("spines", 2, ("rail", "leaf-spine", "fat-tree")),
    ("dimensions", [1], ("torus",)),
    ("routersPerGroup", 2, ("dragonfly",)),
    ("serversPerRouter", 2, ("dragonfly",)),
    ("cablesBetweenGroups", 2, ("dragonfly",)),
    ("switches", ["s"], ("graph",)),
    ("cables", [{"a": "server0/nic0", "b": "s", "bandwidth": "100Gb/s"}], ("graph",)),
)


CASES = (
    Case(
        "metadata.name",
        "a" * 51,
        "a" * 52,
        "object: metadata.name must match ^[a-z]([-a-z0-9]*[a-z0-9])?$ and have at most 51 characters",
    ),
    Case(
        "spec",
        {"gpusPerServer": 4, "workload": MINIMAL["spec"]["workload"] | {"ranksPerServer": 4}},
        {"gpusPerServer": 2, "workload": MINIMAL["spec"]["workload"] | {"ranksPerServer": 4}},
        "spec.workload.ranksPerServer: workload.ranksPerServer must not exceed gpusPerServer: each rank needs a device",
    ),
    Case(
        "spec.serverGroups",
        [{"name": "a", "servers": 1}],
        [{"name": "a", "servers": 1}, {"name": "b", "servers": 1}],
        "spec.serverGroups: the servers of all serverGroups must add up to servers",
    ),
    Case(
        "spec.fold",
        {"mode": "replica", "keep": [0]},
        {"mode": "replica", "keep": [1]},
        "spec.fold.keep: keep must name ranks of the run: they are numbered from 0 to servers * ranksPerServer - 1",
    ),
    Case(
        "spec",
        {"servers": 3, "gpusPerServer": 4, "fold": {"mode": "stage", "keep": [5]}}
        | {"workload": MINIMAL["spec"]["workload"] | {"ranksPerServer": 2}},
        {"servers": 3, "gpusPerServer": 4, "fold": {"mode": "stage", "keep": [6]}}
        | {"workload": MINIMAL["spec"]["workload"] | {"ranksPerServer": 2}},
        "spec.fold.keep: keep must name ranks of the run: they are numbered from 0 to servers * ranksPerServer - 1",
    ),
    Case(
        "spec.fold",
        {"mode": "replica", "parallel": [{"axis": "dp", "size": 1}]},
        {"parallel": [{"axis": "dp", "size": 1}]},
        "spec.fold.mode: parallel and keep go with mode replica or stage",
    ),
    *(
        Case(
            "spec.network.topology",
            {"type": types[-1], field: value},
            {"type": "crossbar", field: value},
            f"spec.network.topology.{field}: {field} goes with type {_one_of(types)}",
        )
        for field, value, types in TOPOLOGY_FIELDS
    ),
    Case(
        "spec.network.topology",
        {"preset": "dgx-h100", "spines": 2},
        {"preset": "dgx-h100", "dimensions": [1]},
        "spec.network.topology.dimensions: dimensions goes with type torus",
    ),
    Case(
        "spec.workload.image",
        "example/train:1",
        None,
        "spec.workload: image is required in a cluster (only `eidolon run` does without)",
    ),
    Case(
        "spec.workload",
        MINIMAL["spec"]["workload"]
        | {"volumes": _volume(emptyDir={}), "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        MINIMAL["spec"]["workload"]
        | {"volumes": _volume(emptyDir={}), "volumeMounts": [{"name": "date", "mountPath": "/data"}]},
        "spec.workload.volumeMounts: each of volumeMounts must name one of volumes",
    ),
    Case(
        "spec.workload",
        MINIMAL["spec"]["workload"] | {"env": [{"name": "RANK", "value": "0"}]},
        MINIMAL["spec"]["workload"] | {"env": [{"name": "RANK", "value": "0"}], "launcher": "plain"},
        "spec.workload.env: RANK and LOCAL_RANK are set for each process by launcher plain",
    ),
    Case(
        "spec.workload.env",
        [{"name": "EIDOLON_STEP_RANGE", "value": "my step"}],
        [{"name": "EIDOLON_DIR", "value": "/tmp"}],
        "spec.workload.env[0].name: EIDOLON_DIR and EIDOLON_FOLD are Eidolon's own",
    ),
    Case(
        "spec.workload.labels",
        {"example.com/team": "ml"},
        {"eidolon.dev/server": "7"},
        "spec.workload.labels: labels under eidolon.dev/ and app.kubernetes.io/ are the operator's",
    ),
    Case(
        "spec.workload.annotations",
        {"example.com/team": "ml"},
        {"eidolon.dev/attempt": "7"},
        "spec.workload.annotations: annotations under eidolon.dev/ are the operator's",
    ),
    Case(
        "spec.workload.env",
        [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "spec.workload.env[0]: value and valueFrom exclude each other",
    ),
    Case(
        "spec.workload.env",
        [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        [{"name": "A"}, {"name": "B", "valueFrom": {}}],
        "spec.workload.env[1].valueFrom: exactly one of configMapKeyRef, secretKeyRef and fieldRef is allowed",
    ),
    Case(
        "spec.workload.envFrom",
        [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}],
        [{"configMapRef": {"name": "c"}, "secretRef": {"name": "s"}}],
        "spec.workload.envFrom[0]: exactly one of configMapRef and secretRef is allowed",
    ),
    *(
        Case(
            f"spec.workload.resources.{kind}",
            {"cpu": 2, "memory": "4Gi"},
            {"nvidia.com/gpu": 1},
            f"spec.workload.resources.{kind}: nvidia.com/gpu is not allowed: emulated GPUs need no device; "
            "see gpusPerServer",
        )
        for kind in ("requests", "limits")
    ),
    Case(
        "spec.workload.volumes",
        _volume(emptyDir={}),
        [{"name": "eidolon-run", "emptyDir": {}}],
        "spec.workload.volumes[0]: names of volumes that begin with eidolon- are the operator's",
    ),
    Case(
        "spec.workload.volumes",
        _volume(persistentVolumeClaim={"claimName": "c"}),
        _volume(emptyDir={}, configMap={"name": "c"}),
        "spec.workload.volumes[0]: exactly one of configMap, secret, emptyDir and persistentVolumeClaim is allowed",
    ),
    Case(
        "spec.workload",
        MINIMAL["spec"]["workload"]
        | {"volumes": _volume(emptyDir={}), "volumeMounts": [{"name": "data", "mountPath": "/eidolonian"}]},
        MINIMAL["spec"]["workload"]
        | {"volumes": _volume(emptyDir={}), "volumeMounts": [{"name": "data", "mountPath": "/run/eidolon/x"}]},
        "spec.workload.volumeMounts[0].mountPath: mountPath must begin with / and not be in /eidolon, /run/eidolon or "
        "/etc/eidolon",
    ),
)

#: Rules that nothing can satisfy by giving the field another value: the field is refused altogether.
RESERVED = {"spec.faults": "spec.faults: faults are reserved: this version injects none; remove the field"}

#: What may be changed on an object that is there.
MUTABLE = {"suspend", "ttlSecondsAfterFinished"}

#: For fields that may not change: two different values.
CHANGES: dict[str, tuple[Any, Any]] = {
    "servers": (1, 2),
    "gpusPerServer": (1, 2),
    "gpu": ({"model": "h100-sxm"}, {"model": "a100-sxm"}),
    "serverGroups": ([{"name": "a", "servers": 1}], [{"name": "b", "servers": 1}]),
    "network": ({"interServer": {"latency": "5us"}}, {"interServer": {"latency": "6us"}}),
    "workload": (MINIMAL["spec"]["workload"], MINIMAL["spec"]["workload"] | {"image": "example/train:2"}),
    "steps": (5, 6),
    "timeSync": ("conservative", "optimistic"),
    "cost": ({"host": "table"}, {"host": "measured"}),
    "values": ({"loss": {"start": 2}}, {"loss": {"start": 3}}),
    "recording": ({"enabled": True}, {"enabled": False}),
    "onServerLost": ("Fail", "Restart"),
    "backoffLimit": (3, 4),
    "startupTimeout": ("10m", "11m"),
    "timeLimit": ("1h", "2h"),
    "fold": ({"mode": "replica"}, {"mode": "stage"}),
}
