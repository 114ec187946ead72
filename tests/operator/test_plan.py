"""From a spec to the plan: whole documents compared."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from eidolon_operator import plan as planning
from eidolon_operator import spec as specs
from eidolon_operator.spec import SpecError
from eidolon_simcore import catalogue
from eidolon_simcore.costs import hostcost


def make(**fields: Any) -> specs.Spec:
    document = {
        "apiVersion": "eidolon.dev/v1alpha1",
        "kind": "SimulatedCluster",
        "metadata": {"name": "demo"},
        "spec": {"workload": {"command": ["torchrun", "train.py"]}, **fields},
    }
    return specs.parse(document, source="test")


def test_the_whole_plan() -> None:
    spec = make(
        servers=2,
        gpusPerServer=4,
        gpu={"model": "h100-sxm", "memory": "8GiB", "contextMemory": "100MiB"},
        network={"interServer": {"bandwidth": "200Gb/s", "latency": "2us"}, "intraServer": {"bandwidth": "300GB/s"}},
        workload={"command": ["torchrun", "train.py"], "ranksPerServer": 2, "tokensPerStep": 1024},
        steps=7,
        cost={"strict": True, "unknownLimit": 0.1},
    )
    plan = planning.build(spec, source="test", token="secret")
    assert plan.document == {
        "name": "demo",
        "core": {
            "servers": 2,
            "gpus_per_server": 4,
            "ranks_per_server": 2,
            "gpu": "h100-sxm",
            "gpu_memory_bytes": 8 * 2**30,
            "server_groups": None,
            "host_cost": "table",
            "host_table": None,
            "time_sync": "conservative",
            "fold": None,
            "steps": 7,
            "tokens_per_step": 1024,
            "samples_per_step": None,
            "strict": True,
            "unknown_limit": 0.1,
            "recording": None,
            "attempt": 1,
            "network": {
                "inter_bytes_per_s": 25 * 10**9,
                "inter_latency_ns": 2000,
                "intra_bytes_per_s": 300 * 10**9,
                "topology": None,
            },
            "startup_timeout_s": 600,
            "stuck_timeout_s": 60.0,
            "missing_virtual_s": 3600.0,
            "idle_timeout_s": 300.0,
            "busy_timeout_s": 1800.0,
            "left_timeout_s": 10.0,
            "reconnect_timeout_s": 30.0,
            "time_limit_s": None,
            "token": "secret",
        },
        "server": {
            "devices": 4,
            "gpu": "h100-sxm",
            "groups": None,
            "conf": {
                "mode": "core",
                "host_cost": "table",
                **hostcost.table().server_conf(),
                "devices": "4",
                "gpu.name": "NVIDIA H100 80GB HBM3",
                "gpu.cc": "9.0",
                "gpu.sm_count": "132",
                "gpu.memory_bytes": str(8 * 2**30),
                "gpu.context_bytes": str(100 * 2**20),
                "gpu.clock_khz": "1980000",
                "gpu.memory_clock_khz": "2619000",
                "gpu.memory_bus_bits": "5120",
                "gpu.l2_bytes": "52428800",
                "gpu.smem_per_block": "49152",
                "gpu.smem_per_block_optin": "232448",
                "gpu.smem_per_sm": "233472",
                "gpu.reserved_smem_per_block": "1024",
                "gpu.regs_per_sm": "65536",
                "gpu.max_threads_per_sm": "2048",
                "gpu.max_blocks_per_sm": "32",
                "gpu.nvlinks": "18",
                "gpu.power_limit_mw": "700000",
                "payload_limit": "65536",
                "nccl.kernel_bytes": str(352 << 20),
                "nccl.comm_bytes": str(488 << 20),
                "nccl.peer_bytes": str(446 << 20),
                "known_limit": "1048576",
                "values.loss": "2",
                "values.routing": "balanced",
                "reply_timeout_ms": "60000",
                "ring.records": "65536",
                "ring.defs_bytes": "4194304",
                "ring.inbox_bytes": "4194304",
            },
        },
    }


def test_what_nccl_takes_and_how_long_it_waits_can_be_said() -> None:
    nccl = {
        "kernelMemory": "0",
        "communicatorMemory": "1GiB",
        "payloadLimitBytes": 1024,
        "missingAfter": "5m",
        "missingAfterVirtual": "500ms",
    }
    document = planning.build(make(network={"nccl": nccl}), source="test").document
    conf, core = document["server"]["conf"], document["core"]
    assert (conf["nccl.kernel_bytes"], conf["nccl.comm_bytes"], conf["payload_limit"]) == ("0", str(1 << 30), "1024")
    assert (core["stuck_timeout_s"], core["missing_virtual_s"]) == (300.0, 0.5)
    with pytest.raises(SpecError, match=r"network\.nccl\.payloadLimitBytes"):
        make(network={"nccl": {"payloadLimitBytes": 2 << 20}})


def test_settings_of_the_machine_are_added_for_every_server() -> None:
    plan = planning.build(make(), source="test", token="secret")
    more = plan.with_server_conf({"host_memory.bytes": "7"})
    assert more.document["server"]["conf"] == {**plan.document["server"]["conf"], "host_memory.bytes": "7"}
    assert more.document["core"] == plan.document["core"]
    assert "host_memory.bytes" not in plan.document["server"]["conf"]


def test_what_the_spec_leaves_open_comes_from_the_catalogue() -> None:
    document = planning.build(make(), source="test").document
    gpu = catalogue.gpu("h100-sxm")
    assert document["core"]["gpu_memory_bytes"] == gpu.memory_bytes
    assert document["core"]["network"] == {
        "inter_bytes_per_s": gpu.nic_bytes_per_s,
        "inter_latency_ns": 2000,
        "intra_bytes_per_s": None,
        "topology": None,
    }
    assert document["server"]["conf"]["gpu.context_bytes"] == str(gpu.context_bytes)


def test_each_run_has_a_token_of_its_own() -> None:
    first, second = (planning.build(make(), source="test").document["core"]["token"] for _ in range(2))
    assert first != second
    assert len(first) == 32


def test_an_unknown_gpu_is_named_with_what_is_allowed() -> None:
    with pytest.raises(SpecError) as caught:
        planning.build(make(gpu={"model": "h100-smx"}), source="a.yaml")
    assert str(caught.value) == (
        "a.yaml: spec.gpu.model: 'h100-smx' is not in the GPU catalogue; did you mean h100-sxm? allowed: "
        + ", ".join(catalogue.names())
    )


def test_groups_of_servers_have_the_gpus_that_they_name() -> None:
    groups = [{"name": "new", "servers": 1}, {"name": "old", "servers": 2, "gpu": {"model": "a100-40gb-sxm"}}]
    document = planning.build(make(servers=3, serverGroups=groups), source="test").document
    new, old = catalogue.gpu("h100-sxm"), catalogue.gpu("a100-40gb-sxm")
    assert document["core"]["server_groups"] == [
        {"servers": 1, "gpu": "h100-sxm", "gpu_memory_bytes": new.memory_bytes},
        {"servers": 2, "gpu": "a100-40gb-sxm", "gpu_memory_bytes": old.memory_bytes},
    ]
    assert [group["conf"]["gpu.name"] for group in document["server"]["groups"]] == [new.name, old.name]
    assert planning.capacities(document["core"]) == [new.memory_bytes, old.memory_bytes, old.memory_bytes]


def test_a_folded_run_says_which_rank_stands_for_each() -> None:
    fold = {"mode": "replica", "parallel": [{"axis": "dp", "size": 4}, {"axis": "tp", "size": 2}], "keep": [7]}
    document = planning.build(make(servers=2, gpusPerServer=4, fold=fold), source="test").document
    assert document["core"]["fold"] == {"of": [0, 1, 0, 1, 0, 1, 0, 7]}
    assert (document["core"]["servers"], document["core"]["ranks_per_server"]) == (2, 4), "the emulated size"
    groups = [{"name": "new", "servers": 1}, {"name": "old", "servers": 1, "gpu": {"model": "a100-40gb-sxm"}}]
    mixed = make(servers=2, gpusPerServer=2, serverGroups=groups, fold={"mode": "replica"})
    assert planning.build(mixed, source="test").document["core"]["fold"] == {"of": [0, 0, 2, 2]}


def test_one_group_of_all_servers_is_as_none() -> None:
    document = planning.build(make(servers=2, serverGroups=[{"name": "all", "servers": 2}]), source="test").document
    assert document["core"]["server_groups"] is None
    assert document["server"]["groups"] is None


def test_what_is_wrong_in_a_group_is_named_there() -> None:
    groups = [{"name": "new", "servers": 1}, {"name": "old", "servers": 1, "gpu": {"model": "a100-smx"}}]
    with pytest.raises(SpecError, match=r"spec.serverGroups.1.gpu.model: 'a100-smx' is not in the GPU catalogue; did"):
        planning.build(make(servers=2, serverGroups=groups), source="test")
    groups[1]["gpu"] = {"memory": "256MiB"}
    with pytest.raises(SpecError, match=r"spec.serverGroups.1.gpu.memory: 256 MiB does not hold the context"):
        planning.build(make(servers=2, serverGroups=groups), source="test")


def test_memory_must_hold_a_context() -> None:
    with pytest.raises(SpecError, match=r"spec.gpu.memory: 256 MiB does not hold the context of a process \(550 MiB\)"):
        planning.build(make(gpu={"memory": "256MiB"}), source="test")


def test_every_model_of_the_catalogue_makes_a_plan() -> None:
    for name in catalogue.names():
        assert planning.build(make(gpu={"model": name}), source="test").document["server"]["gpu"] == name


def test_the_catalogue_is_listed() -> None:
    lines = list(planning.catalogue_lines())
    assert len(lines) == len(catalogue.names())
    assert lines[0].split() == ["h100-sxm", "79.2", "GiB", "sm_90", "NVIDIA", "H100", "80GB", "HBM3"]


def test_the_shim_falls_back_to_the_same_figures() -> None:
    """A ``server.conf`` written by hand can be short, so its keys have defaults: they are those of an H100's plan."""
    vocabulary = tomllib.loads((Path(__file__).parents[2] / "proto" / "vocabulary.toml").read_text("utf-8"))
    conf = planning.build(make(), source="test").document["server"]["conf"]
    defaults = {key: str(entry["default"]) for key, entry in vocabulary["conf"].items() if "default" in entry}
    # Without a figure NCCL's own memory is not emulated.
    found = {key: value for key, value in defaults.items() if key in conf and not key.startswith("nccl.")}
    assert len(found) == 27
    assert found == {key: conf[key] for key in found}
