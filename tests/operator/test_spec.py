"""The object: defaults, bounds and messages, as a person meets them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from eidolon_operator import folding, schema, spec
from eidolon_operator.spec import SpecError

MINIMAL: dict[str, Any] = {
    "apiVersion": "eidolon.dev/v1alpha1",
    "kind": "SimulatedCluster",
    "metadata": {"name": "demo"},
    "spec": {"workload": {"command": ["torchrun", "train.py"]}},
}


def make(**fields: Any) -> dict[str, Any]:
    """The minimal object with fields of its spec set: ``workload__launcher="plain"`` sets spec.workload.launcher."""
    document = copy.deepcopy(MINIMAL)
    for path, value in fields.items():
        node = document["spec"]
        *parents, last = path.split("__")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return document


#: Defaults of the CRD as they are meant to be, of the fields that few tests set.
NCCL = spec.Nccl(
    kernel_bytes=352 << 20,
    communicator_bytes=488 << 20,
    peer_bytes=446 << 20,
    payload_bytes=64 << 10,
    missing_after_s=60.0,
    missing_after_virtual_s=3600.0,
)
UNCHANGED: dict[str, Any] = {
    "recording": spec.Recording(enabled=False, limit_bytes=4 << 30),
    "on_server_lost": "Fail",
    "backoff_limit": 3,
    "suspend": False,
    "ttl_s": 3600,
}


def parse(**fields: Any) -> spec.Spec:
    return spec.parse(make(**fields), source="test")


def complaints(document: Any, *, cluster: bool = False) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec.parse(document, source="test", cluster=cluster)
    return [str(problem) for problem in caught.value.problems]


def test_the_minimal_object_has_the_defaults_of_the_crd() -> None:
    assert parse() == spec.Spec(
        name="demo",
        servers=1,
        gpus_per_server=1,
        gpu="h100-sxm",
        gpu_memory_bytes=None,
        context_bytes=None,
        network=spec.Network(inter_bytes_per_s=None, inter_latency_ns=2000, intra_bytes_per_s=None, nccl=NCCL),
        workload=spec.Workload(command=("torchrun", "train.py"), env=(), launcher="none", ranks_per_server=1),
        steps=None,
        time_sync="conservative",
        host_cost="table",
        strict=False,
        unknown_limit=0.05,
        values=spec.Values(loss="2", routing="balanced"),
        startup_timeout_s=600,
        **UNCHANGED,
    )


def test_every_field_reaches_the_spec() -> None:
    found = parse(
        servers=2,
        gpusPerServer=8,
        gpu={"model": "b200-sxm", "memory": "8GiB", "contextMemory": "0B"},
        network={"interServer": {"bandwidth": "400Gb/s", "latency": "2us"}, "intraServer": {"bandwidth": "900GB/s"}},
        workload={
            "image": "example/train:1",
            "command": ["train.py"],
            "args": ["--batch", "8"],
            "env": [{"name": "A", "value": "1"}, {"name": "B"}],
            "workingDir": "/work",
            "launcher": "torchrun",
            "ranksPerServer": 4,
            "tokensPerStep": 1024,
            "samplesPerStep": 8,
        },
        steps=5,
        timeSync="optimistic",
        cost={"host": "measured", "strict": True, "unknownLimit": 0.2},
        startupTimeout="90s",
    )
    assert found == spec.Spec(
        name="demo",
        servers=2,
        gpus_per_server=8,
        gpu="b200-sxm",
        gpu_memory_bytes=8 * 2**30,
        context_bytes=0,
        network=spec.Network(50 * 10**9, inter_latency_ns=2000, intra_bytes_per_s=900 * 10**9, nccl=NCCL),
        workload=spec.Workload(
            command=("train.py", "--batch", "8"),
            env=(("A", "1"), ("B", "")),
            launcher="torchrun",
            ranks_per_server=4,
            image="example/train:1",
            working_dir="/work",
            tokens_per_step=1024,
            samples_per_step=8,
        ),
        steps=5,
        time_sync="optimistic",
        host_cost="measured",
        strict=True,
        unknown_limit=0.2,
        values=spec.Values(loss="2", routing="balanced"),
        startup_timeout_s=90,
        **UNCHANGED,
    )
    assert found.world == 8


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"servers": 0}, "spec.servers: 0 is out of bounds; allowed: 1 to 2048"),
        ({"servers": "two"}, "spec.servers: 'two' is not an integer"),
        ({"servers": True}, "spec.servers: True is not an integer"),
        ({"servres": 2}, "spec.servres: there is no such field; did you mean servers?"),
        ({"gpu__colour": "green"}, "spec.gpu.colour: there is no such field; allowed: model, memory, contextMemory"),
        (
            {"gpu__memory": "80 gigs"},
            "spec.gpu.memory: '80 gigs' does not match ^[0-9]+(\\.[0-9]+)? ?([KMGT](i?B?)?|B)?$; "
            "write for example 80GiB",
        ),
        ({"gpu__memory": 80}, "spec.gpu.memory: 80 is not a string; write for example 80GiB"),
        (
            {"gpu__memory": "0GiB"},
            "spec.gpu.memory: '0GiB' is not a size such as 80GiB: it must be at least 1 byte",
        ),
        ({"timeSync": "eager"}, "spec.timeSync: 'eager' is not one of conservative, optimistic"),
        ({"cost__host": "guess"}, "spec.cost.host: 'guess' is not one of table, measured"),
        ({"cost__unknownLimit": 1.5}, "spec.cost.unknownLimit: 1.5 is out of bounds; allowed: 0 to 1"),
        ({"cost__unknownLimit": float("nan")}, "spec.cost.unknownLimit: nan is out of bounds; allowed: 0 to 1"),
        ({"steps": 0}, "spec.steps: 0 is out of bounds; allowed: 1 to 2147483647"),
        ({"steps": None}, "spec.steps: has no value; remove the field or give it one"),
        ({"workload__command": []}, "spec.workload.command: has 0 items; allowed: 1 to 64"),
        ({"workload__command": "torchrun train.py"}, "spec.workload.command: 'torchrun train.py' is not an array"),
        ({"workload__launcher": "mpirun"}, "spec.workload.launcher: 'mpirun' is not one of none, plain, torchrun"),
        ({"workload__env": [{"value": "1"}]}, "spec.workload.env[0].name: is required"),
        (
            {"workload__env": [{"name": "A"}, {"name": "A", "value": "2"}]},
            "spec.workload.env[1]: 'A' is given twice",
        ),
        (
            {"gpusPerServer": 2, "workload__ranksPerServer": 4},
            "spec.workload.ranksPerServer: workload.ranksPerServer must not exceed gpusPerServer: "
            "each rank needs a device",
        ),
    ],
)
def test_a_wrong_field_is_named_with_what_is_allowed(fields: dict[str, Any], expected: str) -> None:
    assert complaints(make(**fields)) == [expected]


def test_only_a_cluster_needs_an_image() -> None:
    (complaint,) = complaints(make(), cluster=True)
    assert complaint == "spec.workload: image is required in a cluster (only `eidolon run` does without)"
    assert parse().workload.image is None


def test_all_problems_are_reported_at_once() -> None:
    assert len(complaints(make(servers=0, gpusPerServer=99, timeSync="?"))) == 3


def test_a_workload_is_required() -> None:
    document = copy.deepcopy(MINIMAL)
    document["spec"] = {"servers": 2}
    assert complaints(document) == ["spec.workload: is required"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "Pod"}, "kind: 'Pod' is not SimulatedCluster"),
        ({"apiVersion": "eidolon.dev/v2"}, "apiVersion: 'eidolon.dev/v2' is not eidolon.dev/v1alpha1"),
        ({"metadata": {}}, "metadata.name: is required"),
        ({"metadata": {"name": "a" * 52}}, "must match ^[a-z]([-a-z0-9]*[a-z0-9])?$ and have at most 51 characters"),
        ({"metadata": {"name": "Demo"}}, "must match ^[a-z]([-a-z0-9]*[a-z0-9])?$ and have at most 51 characters"),
    ],
)
def test_the_identity_of_the_object(changes: dict[str, Any], expected: str) -> None:
    (complaint,) = complaints(MINIMAL | changes)
    assert expected in complaint


def test_a_name_of_51_characters_is_fine() -> None:
    assert spec.parse(MINIMAL | {"metadata": {"name": "a" * 51}}, source="test").name == "a" * 51


@pytest.mark.parametrize(
    ("command", "launcher", "expected"),
    [
        (["torchrun", "--nproc-per-node", "2", "t.py"], "none", 2),
        (["torchrun", "--nproc_per_node=3", "t.py"], "none", 3),
        (["/opt/venv/bin/torchrun", "--nproc-per-node=2", "-m", "titan.train"], "none", 2),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "t.py"], "none", 2),
        (["torchrun", "--nproc-per-node", "gpu", "t.py"], "none", 4),
        (["torchrun", "t.py", "--nproc-per-node", "2"], "none", 4),
        (["torchrun", "-m", "mine", "--nproc-per-node", "2"], "none", 4),
        (["python", "t.py"], "none", 4),
        (["torchrun", "--nproc-per-node", "2", "t.py"], "plain", 4),
    ],
)
def test_ranks_are_those_that_torchrun_will_start(command: list[str], launcher: str, expected: int) -> None:
    found = parse(gpusPerServer=4, workload={"command": command, "launcher": launcher})
    assert found.workload.ranks_per_server == expected


DP_TP = [{"axis": "dp", "size": 4}, {"axis": "tp", "size": 2}]
SQUARE = {"servers": 2, "gpusPerServer": 4}


def test_a_fold_reaches_the_spec() -> None:
    found = parse(**SQUARE, fold={"mode": "replica", "parallel": DP_TP, "keep": [7]})
    assert found.fold == folding.Fold("replica", (("dp", 4), ("tp", 2)), (7,))
    assert found.placement.ranks == {0: (0, 1), 1: (7,)}
    assert found.world == 8
    assert found.hardware == "2 servers x 4 h100-sxm"
    assert parse(**SQUARE).fold is None


def test_groups_of_servers_with_other_gpus_are_other_classes() -> None:
    """Also where only their memory differs. Groups that differ in name alone are equal."""
    groups = [
        {"name": "a", "servers": 1},
        {"name": "b", "servers": 1},
        {"name": "c", "servers": 1, "gpu": {"memory": "40GiB"}},
        {"name": "d", "servers": 1, "gpu": {"model": "a100-80gb-sxm"}},
    ]
    found = parse(servers=4, gpusPerServer=2, serverGroups=groups, fold={"mode": "replica"})
    assert found.placement.of == (0, 0, 0, 0, 4, 4, 6, 6)


@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        (
            {"mode": "replica", "parallel": [{"axis": "dp", "size": 8}, {"axis": "tp", "size": 2}]},
            "spec.fold.parallel: dp 8 x tp 2 is 16 ranks; the run has 8 (2 servers x 4)",
        ),
        ({"mode": "replica", "parallel": [*DP_TP, DP_TP[0]]}, "spec.fold.parallel[2]: 'dp' is given twice"),
        (
            {"mode": "replica", "parallel": [{"axis": "pd", "size": 8}]},
            "spec.fold.parallel[0].axis: 'pd' is not one of pp, dp, dp_replicate, dp_shard, ddp, fsdp, hsdp, "
            "replicate, shard, data, cp, tp, sp, ep, etp",
        ),
        (
            {"mode": "replica", "parallel": [{"axis": "dp", "size": 0}]},
            "spec.fold.parallel[0].size: 0 is out of bounds; allowed: 1 to 32768",
        ),
        ({"mode": "replica", "parallel": []}, "spec.fold.parallel: has 0 items; allowed: 1 to 8"),
        (
            {"mode": "replica", "keep": [8]},
            "spec.fold.keep: keep must name ranks of the run: they are numbered from 0 to servers * ranksPerServer - 1",
        ),
        ({"mode": "stage", "keep": [3, 7, 3]}, "spec.fold.keep[2]: 3 is given twice"),
        ({"mode": "stage", "keep": [-1]}, "spec.fold.keep[0]: -1 is out of bounds; allowed: 0 to 32767"),
        ({"keep": [7]}, "spec.fold.mode: parallel and keep go with mode replica or stage"),
        ({"mode": "none", "parallel": DP_TP}, "spec.fold.mode: parallel and keep go with mode replica or stage"),
        ({"mode": "auto"}, "spec.fold.mode: 'auto' is not one of none, replica, stage"),
    ],
)
def test_a_fold_that_cannot_be(fold: dict[str, Any], expected: str) -> None:
    assert complaints(make(**SQUARE, fold=fold)) == [expected]


def test_the_axes_are_those_that_folding_knows() -> None:
    item = spec.object_schema()["properties"]["spec"]["properties"]["fold"]["properties"]["parallel"]["items"]
    assert set(item["properties"]["axis"]["enum"]) > folding.DATA_AXES | folding.UNEQUAL_AXES


def test_ranks_of_torchrun_must_fit_too() -> None:
    (complaint,) = complaints(make(gpusPerServer=2, workload__command=["torchrun", "--nproc-per-node", "4", "t.py"]))
    assert complaint.startswith("spec.workload.ranksPerServer: 4 ranks do not fit the 2 GPUs")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "file: is not YAML: "),
        ("", "file: holds 0 objects; allowed: one SimulatedCluster"),
        ("a: 1\n---\nb: 2\n", "file: holds 2 objects; allowed: one SimulatedCluster"),
        ("- 1\n", "file: holds a list, not an object of kind SimulatedCluster"),
    ],
)
def test_a_file_that_is_no_object(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        spec.load(file)
    assert str(caught.value).startswith(f"{file}: {expected}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file or directory"):
        spec.load(tmp_path / "none.yaml")


def test_parsing_leaves_the_object_alone() -> None:
    document = make(gpu={"memory": "8GiB"})
    before = copy.deepcopy(document)
    spec.parse(document, source="test")
    assert document == before


# -- the CRD itself ----------------------------------------------------------------------------------------------------


def _walk(node: Any, path: str) -> list[tuple[str, Any]]:
    found = [(path, node)]
    for name, child in node.get("properties", {}).items():
        found += _walk(child, f"{path}.{name}")
    if "items" in node:
        found += _walk(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        found += _walk(node["additionalProperties"], f"{path}[*]")
    return found


def test_every_field_of_the_crd_is_typed_and_described() -> None:
    for path, node in _walk(spec.object_schema(), ""):
        assert ("type" in node) != ("x-kubernetes-int-or-string" in node), path
        # `kubectl explain` shows it. The API server admits no description on metadata.
        assert path == ".metadata" or node.get("description"), path


def test_strings_and_lists_of_the_crd_are_bounded() -> None:
    """Rules of the API server cost by size; an unbounded field makes any rule too expensive."""
    for path, node in _walk(spec.object_schema(), ""):
        match node.get("type", "string"):
            case "string":
                identity = path in (".apiVersion", ".kind")
                assert "maxLength" in node or "enum" in node or identity, path
            case "array":
                assert "maxItems" in node, path
            case "object" if "additionalProperties" in node:
                assert "maxProperties" in node, path


def test_all_of_spec_is_immutable_but_what_may_change_during_a_run() -> None:
    body = spec.object_schema()["properties"]["spec"]
    guarded = {
        rule["fieldPath"].removeprefix("."): rule
        for rule in body["x-kubernetes-validations"]
        if "oldSelf" in rule["rule"]
    }
    free = {"suspend", "ttlSecondsAfterFinished", "faults"}  # the last is refused altogether
    assert set(guarded) == set(body["properties"]) - free
    for name, rule in guarded.items():
        assert rule["message"] == f"{name} is immutable: create a new object"
        # Adding and removing a field is a change, too.
        assert rule["rule"] == (
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
        )


def test_defaults_and_examples_of_the_crd_are_valid() -> None:
    for path, node in _walk(spec.object_schema(), ""):
        for keyword in ("default", "example"):
            if keyword in node:
                value = schema.with_defaults(node, node[keyword])
                assert list(schema.problems(node, value, path)) == []


def test_the_packaged_crd_is_the_one_of_the_repository() -> None:
    source = Path(__file__).parents[2] / "crds" / "simulatedcluster.yaml"
    assert spec.crd() == yaml.safe_load(source.read_text())


def test_a_keyword_that_is_not_checked_is_refused() -> None:
    with pytest.raises(ValueError, match="multipleOf"):
        list(schema.problems({"type": "integer", "multipleOf": 2}, 3, "x"))


def test_what_stands_for_values_becomes_the_settings_of_the_shim() -> None:
    values = {
        "loss": {"start": 11.5, "end": 3, "endAfterSteps": 200},
        "routing": {"distribution": "zipf", "exponent": 1.2, "seed": 7},
    }
    assert parse(values=values).values == spec.Values(loss="11.5:3:200", routing="zipf:1.2:7")


def test_what_a_newer_definition_has_is_pruned_and_named() -> None:
    text = {"type": "string"}
    known = {
        "type": "object",
        "properties": {
            "a": text,
            "list": {"type": "array", "items": {"type": "object", "properties": {"b": text}}},
            "map": {"type": "object", "additionalProperties": text},
        },
    }
    value = {"a": "1", "new": {"a": 1}, "list": [{"b": "2"}, {"b": "3", "c": "4"}], "map": {"their": "own"}}
    kept, unknown = schema.pruned(known, value)
    assert kept == {"a": "1", "list": [{"b": "2"}, {"b": "3"}], "map": {"their": "own"}}
    assert unknown == ["new", "list[1].c"]


def test_a_group_of_servers_has_the_memory_of_all_unless_its_gpu_is_another() -> None:
    own = {"memory": "4GiB", "contextMemory": "200MiB"}
    groups = [
        {"name": "as-all", "servers": 1},
        {"name": "own", "servers": 1, "gpu": own},
        {"name": "half", "servers": 1, "gpu": {"memory": "4GiB"}},
        {"name": "other", "servers": 1, "gpu": {"model": "a100-40gb-sxm"}},
        {"name": "other-own", "servers": 1, "gpu": {"model": "a100-40gb-sxm", **own}},
    ]
    found = parse(servers=5, gpu={"memory": "8GiB", "contextMemory": "100MiB"}, serverGroups=groups)
    assert [(group.gpu_memory_bytes, group.context_bytes) for group in found.server_groups] == [
        (8 << 30, 100 << 20),
        (4 << 30, 200 << 20),
        (4 << 30, 100 << 20),
        (None, None),
        (4 << 30, 200 << 20),
    ]
