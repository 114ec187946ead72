"""The CRD's rules across fields: each lets something pass and refuses something, with its message.

The rules are those of the CRD itself; e2e/kubernetes holds the same cases against a real API server.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from eidolon_operator import rules, schema, spec

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


def broken(document: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """What the rules say of an object that the schema allows, as the API server sees it: defaults filled in."""
    whole = spec.object_schema()
    given, before = (schema.with_defaults(whole, each) if each else None for each in (document, old))
    assert list(schema.problems(whole, given)) == []
    return [str(problem) for problem in rules.problems(whole, given, old=before)]


class Case(NamedTuple):
    """One rule: a value of a field that it lets pass, one that it refuses, and what is then said."""

    field: str
    accepted: Any
    refused: Any
    complaint: str


def _volume(**source: Any) -> list[dict[str, Any]]:
    return [{"name": "data", **source}]


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.complaint[:60])
def test_a_rule_lets_pass_what_is_right_and_refuses_what_is_wrong(case: Case) -> None:
    assert broken(make(case.field, case.accepted)) == []
    assert broken(make(case.field, case.refused)) == [case.complaint]


@pytest.mark.parametrize(("field", "complaint"), RESERVED.items())
def test_a_reserved_field_is_refused(field: str, complaint: str) -> None:
    assert broken(make()) == []
    assert complaint in broken(make(field, [{}]))


def _walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from node.get("x-kubernetes-validations", ())
    children = [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]
    for child in children:
        if isinstance(child, Mapping):
            yield from _walk(child)


def test_every_rule_of_the_crd_is_tried_here() -> None:
    tried = [case.complaint for case in CASES] + list(RESERVED.values())
    for rule in _walk(spec.object_schema()):
        if "oldSelf" not in rule["rule"]:
            message = " ".join(rule["message"].split())
            assert any(complaint.endswith(message) for complaint in tried), message


# -- changes -----------------------------------------------------------------------------------------------------------

#: For every field that may not change: two different values.
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
    "recording": ({"enabled": True}, {"enabled": False}),
    "onServerLost": ("Fail", "Restart"),
    "backoffLimit": (3, 4),
    "startupTimeout": ("10m", "11m"),
    "timeLimit": ("1h", "2h"),
}


def test_every_field_is_either_immutable_or_meant_to_change() -> None:
    fields = set(spec.object_schema()["properties"]["spec"]["properties"])
    assert fields == set(CHANGES) | MUTABLE | {name.removeprefix("spec.") for name in RESERVED}


@pytest.mark.parametrize("field", CHANGES)
def test_an_immutable_field_may_not_change(field: str) -> None:
    before, after = (make(f"spec.{field}", value) for value in CHANGES[field])
    assert broken(before, old=before) == []
    assert broken(after, old=before) == [f"spec.{field}: {field} is immutable: create a new object"]


@pytest.mark.parametrize("field", ["serverGroups", "steps", "timeLimit"])
def test_a_field_without_default_may_neither_come_nor_go(field: str) -> None:
    without, having = make(), make(f"spec.{field}", CHANGES[field][0])
    complaint = [f"spec.{field}: {field} is immutable: create a new object"]
    assert broken(having, old=without) == complaint
    assert broken(without, old=having) == complaint


@pytest.mark.parametrize(("field", "value"), [("suspend", True), ("ttlSecondsAfterFinished", 5)])
def test_what_steers_a_run_may_change(field: str, value: Any) -> None:
    assert broken(make(f"spec.{field}", value), old=make()) == []


# -- the evaluation ----------------------------------------------------------------------------------------------------


def rule(expression: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "x-kubernetes-validations": [{"rule": expression, "message": "no", **more}]}


def test_a_null_is_as_good_as_absent() -> None:
    assert list(rules.problems(rule("!has(self.a)"), {"a": None})) == []


def test_a_message_may_be_computed() -> None:
    schema_ = rule("self.a < 3", messageExpression="string(self.a) + ' is too much'", fieldPath=".a")
    assert [str(problem) for problem in rules.problems(schema_, {"a": 5}, "spec")] == ["spec.a: 5 is too much"]


def test_rules_inside_maps_and_lists_name_their_place() -> None:
    inner = {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'x'", "message": "no x"}]}
    nested = {"type": "object", "properties": {"m": {"type": "object", "additionalProperties": inner}}}
    listed = {"type": "object", "properties": {"l": {"type": "array", "items": inner}}}
    assert [str(p) for p in rules.problems(nested, {"m": {"k": "x"}})] == ["m[k]: no x"]
    assert [str(p) for p in rules.problems(listed, {"l": ["y", "x"]})] == ["l[1]: no x"]


def test_a_rule_about_changes_needs_something_older() -> None:
    schema_ = rule("self == oldSelf")
    assert list(rules.problems(schema_, {"a": 1})) == []
    assert list(rules.problems(schema_, {"a": 1}, old={"a": 1})) == []
    assert len(list(rules.problems(schema_, {"a": 1}, old={"a": 2}))) == 1


def test_rules_can_be_left_aside() -> None:
    assert list(rules.problems(rule("false"), {}, without=["false"])) == []
