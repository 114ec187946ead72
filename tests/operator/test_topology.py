"""``spec.network.topology`` on its way into the plan, and ``eidolon topology show``."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from eidolon_operator import cli, topology
from eidolon_operator import plan as planning
from eidolon_operator import spec as specs
from eidolon_simcore.fabric.settings import Settings


def make(**fields: Any) -> specs.Spec:
    document = {
        "apiVersion": specs.API_VERSION,
        "kind": specs.KIND,
        "metadata": {"name": "demo"},
        "spec": {"servers": 4, "gpusPerServer": 8, "network": fields, "workload": {"command": ["train"]}},
    }
    return specs.parse(document, source="test")


def test_quantities_become_numbers_under_the_plans_names() -> None:
    cable = {"a": "server0/nic0", "b": "sw", "bandwidth": "400Gb/s", "latency": "1us"}
    read, problems = topology.read({"nicBandwidth": "50GB/s", "linkLatency": "600ns", "cables": [cable], "pxn": False})
    assert problems == []
    assert read == {
        "nic_bytes_per_s": 50 * 10**9,
        "link_latency_ns": 600,
        "cables": [{"a": "server0/nic0", "b": "sw", "bytes_per_s": 50 * 10**9, "latency_ns": 1000}],
        "pxn": False,
    }
    assert [topology.spec_name(name) for name in read] == ["nicBandwidth", "linkLatency", "cables", "pxn"]


def test_the_plan_carries_the_topology_and_what_the_spec_says_goes_before_a_preset() -> None:
    spec = make(interServer={"bandwidth": "200Gb/s"}, topology={"preset": "dgx-h100", "spines": 4})
    network = planning.build(spec, source="test").document["core"]["network"]
    assert network["topology"] == {"preset": "dgx-h100", "spines": 4, "nic_bytes_per_s": 25 * 10**9}
    settings, fabric = planning.fabric(spec, "test")
    assert (settings.type, settings.nic_bytes_per_s) == ("rail", 25 * 10**9)
    assert fabric.vertex("spine3") is not None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"type": "torus", "dimensions": [3]}, "spec.network.topology.dimensions: 3 is not one to three numbers"),
        ({"failed": ["spine7"]}, "spec.network.topology.failed: 'spine7' is neither a vertex nor a link"),
        ({"type": "ring"}, "spec.network.topology.type"),
        ({"nicBandwidth": "fast"}, "spec.network.topology.nicBandwidth"),
    ],
)
def test_what_is_wrong_is_named_as_the_spec_names_it(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(specs.SpecError) as caught:
        planning.build(make(topology=fields), source="test")
    assert words in str(caught.value)


def test_the_defaults_that_the_definition_tells_are_those_of_the_fabric() -> None:
    """A preset goes before them, so they cannot be defaults of the schema; its descriptions repeat them."""
    spec = specs.object_schema()["properties"]["spec"]
    shape = spec["properties"]["network"]["properties"]["topology"]["properties"]
    told = {
        topology.plan_name(name): match[1]
        for name, field in shape.items()
        if (match := re.search(r"The default is (\d+(?:ns)?|true|ecmp)\.", field["description"]))
    }
    assert len(told) == 12
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    own = {name: str(defaults[name]).lower().removesuffix(".0") for name in told}
    own["link_latency_ns"] += "ns"
    assert told == own


def test_topology_show_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "rails.svg"
    assert cli.main(["topology", "show", "examples/rails.yaml", "--svg", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "4 x 2 GPUs, rail, routing ecmp, PXN" in out
    assert "50 GB/s (400 Gb/s)" in out
    assert "failed: 4 cables: pod0/leaf0>spine1" in out
    assert "450 GB/s" in picture.read_text("utf-8")
