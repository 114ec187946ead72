"""What collectives take: against measurements, and the rules of patterns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eidolon_simcore import catalogue
from eidolon_simcore.engine.dataflow import DataflowEngine
from eidolon_simcore.network import Network, NetworkSettings, Port

NIC = 50_000_000_000
#: Microseconds a call on H100 SXM in CUDA graphs (NCCL 2.28.9, NVLS off), by total bytes: part of what was measured.
MEASURED = json.loads((Path(__file__).parent / "h100_collectives.json").read_text())


def network(gpu: str = "h100-sxm") -> Network:
    return Network(DataflowEngine(), catalogue.gpu(gpu), NetworkSettings(NIC, 2_000))


def ports(count: int, per_server: int = 8) -> list[Port]:
    return [Port(i // per_server, i % per_server) for i in range(count)]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row['world']}x{row['bytes']}")
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_one_server_fits_the_measurements_within_15_percent(row: dict[str, float], op: str) -> None:
    us = network().collective(op, int(row["bytes"]), ports(int(row["world"]))).alone_ns / 1e3
    assert us == pytest.approx(row[op], rel=0.15)


def test_the_engine_gives_a_lone_collective_the_time_that_the_pattern_says() -> None:
    engine = DataflowEngine()
    pattern = Network(engine, catalogue.gpu("h100-sxm"), NetworkSettings(NIC, 2_000)).collective(
        "all_reduce", 1 << 24, ports(4, per_server=2)
    )
    handle = engine.collective((0,), pattern.latency_ns, pattern.flows)
    assert engine._collectives[handle].duration == pattern.alone_ns


def test_across_servers_the_nics_are_the_bottleneck_and_all_of_them_are_used() -> None:
    size = 1 << 30
    one = network().collective("all_reduce", size, [Port(0, 0), Port(1, 0)]).alone_ns
    eight = network().collective("all_reduce", size, ports(16)).alone_ns
    assert one == pytest.approx(size / (NIC * 0.94) * 1e9, rel=0.02)  # 46 to 48 GB/s of a 400 Gb/s NIC
    assert one / eight == pytest.approx(8 / (2 * 15 / 16), rel=0.1)


def test_latency_grows_with_servers_and_a_faster_nvlink_helps() -> None:
    times = [network().collective("all_reduce", 1024, ports(8 * n)).alone_ns for n in (1, 2, 4, 8)]
    assert times == sorted(times)
    assert len(set(times)) == 4
    h100, b200 = (network(g).collective("all_gather", 1 << 30, ports(8)).alone_ns for g in ("h100-sxm", "b200-sxm"))
    assert 1.8 < h100 / b200 < 2.1


def test_one_member_costs_a_launch_and_no_wire() -> None:
    pattern = network().collective("all_reduce", 1 << 30, ports(1))
    assert (pattern.flows, pattern.alone_ns) == ((), 2_000)


def test_a_pair_uses_nvlink_inside_and_the_nic_outside() -> None:
    size = 1 << 28
    inside = network().pair(Port(0, 0), Port(0, 1), size).alone_ns
    outside = network().pair(Port(0, 0), Port(1, 0), size).alone_ns
    assert inside == pytest.approx(size / 297e9 * 1e9, rel=0.05)
    assert outside == pytest.approx(size / 47e9 * 1e9, rel=0.05)


@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather", "scatter", "all_to_all", "reduce_scatter"])
@pytest.mark.parametrize("per_server", [1, 3, 8])
def test_every_operation_has_flows_on_every_shape(op: str, per_server: int) -> None:
    pattern = network().collective(op, 1 << 20, ports(6, per_server), root=2)
    assert pattern.flows
    assert pattern.alone_ns > pattern.latency_ns > 0
