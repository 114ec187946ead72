"""Folded calls: one call of a group and its siblings, against a call of each group at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import fabrics
import numpy as np
import pytest

from eidolon_simcore.engine.interface import OPERATION, Op
from eidolon_simcore.fabric import tuner
from eidolon_simcore.fabric.network import Network, Pattern
from eidolon_simcore.fabric.topology import Port

GIB = 1 << 30
RING = tuner.options({"NCCL_ALGO": "Ring"})
FABRICS = {
    "crossbar": {},
    "rail": {"type": "rail", "servers_per_pod": 4, "oversubscription": 2},
    "leaf-spine": {"type": "leaf-spine", "servers_per_leaf": 2, "oversubscription": 4, "routing": "spray"},
}


def ends(network: Network, patterns: Sequence[Pattern]) -> list[int]:
    """When each of these ends if all start at once, each by a rank of its own."""
    engine = network._engine
    handles = []
    for rank, pattern in enumerate(patterns):
        engine.add_rank(rank)
        engine.add_lane(rank, 0, 0)
        handles.append(engine.reserve())
        engine.define_as(handles[-1], (rank,), pattern.latency_ns, pattern.number)
    for rank, handle in enumerate(handles):
        operation = np.zeros(1, OPERATION)
        operation["op"], operation["value"] = Op.COLLECTIVE, handle
        engine.ingest(rank, operation)
    for rank in range(len(patterns)):
        engine.end_rank(rank)
    assert engine.answers() == []
    return [int(engine.spans(rank)["end_ns"][0]) for rank in range(len(patterns))]


def families(servers: int, gpus: int) -> dict[str, list[list[Port]]]:
    """Groups by family: places of a server, ranks of all servers at one place, and pairs of neighbouring servers."""
    return {
        "inside": [[Port(s, g) for g in range(gpus)] for s in range(servers)],
        "across": [[Port(s, g) for s in range(servers)] for g in range(gpus)],
        "halves": [[Port(s, g) for s in range(h, servers, 2)] for h in range(2) for g in range(gpus)],
    }


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("family", ["inside", "across", "halves"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
def test_one_folded_call_ends_when_the_calls_of_all_groups_do(
    fabric: str, family: str, op: str, *, classes: bool
) -> None:
    groups = families(8, 4)[family]
    apart = fabrics.network(servers=8, gpus=4, **FABRICS[fabric])
    alone = ends(apart, [apart.collective(op, GIB, apart.team(group, RING)) for group in groups])
    whole = fabrics.network(servers=8, gpus=4, folded=classes, **FABRICS[fabric])
    pattern = whole.collective(op, GIB, whole.team(groups[0], RING, groups[1:]))
    assert ends(whole, [pattern]) == [max(alone)]


def test_siblings_load_an_oversubscribed_leaf_as_all_groups_do() -> None:
    """With one uplink for four NICs, a ring of one group has the uplink to itself, and each of four a fourth of it."""
    fields = {"servers": 8, "gpus": 4, "type": "leaf-spine", "servers_per_leaf": 1, "oversubscription": 4}
    groups = families(8, 4)["across"]
    network = fabrics.network(**fields)
    lone = network.collective("all_gather", GIB, network.team(groups[0], RING))
    folded = network.collective("all_gather", GIB, network.team(groups[0], RING, groups[1:]))
    assert folded.latency_ns == lone.latency_ns
    assert folded.algorithm == lone.algorithm
    assert folded.alone_ns - folded.latency_ns == pytest.approx(4 * (lone.alone_ns - lone.latency_ns), rel=1e-6)
    assert ends(network, [folded]) == [folded.alone_ns]


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("fabric", FABRICS)
def test_one_folded_send_ends_when_all_sends_do(fabric: str, *, classes: bool) -> None:
    pairs = [(Port(s, g), Port(s + 4, g)) for s in range(4) for g in range(4)]
    apart = fabrics.network(servers=8, gpus=4, **FABRICS[fabric])
    alone = ends(apart, [apart.pair(a, b, GIB) for a, b in pairs])
    whole = fabrics.network(servers=8, gpus=4, folded=classes, **FABRICS[fabric])
    assert ends(whole, [whole.pair(*pairs[0], GIB, siblings=pairs[1:])]) == [max(alone)]


def test_a_send_is_found_again_with_its_siblings_and_only_with_them() -> None:
    network = fabrics.network()
    ends_of, others = (Port(0, 0), Port(1, 0)), [(Port(0, 1), Port(1, 1))]
    lone, folded = network.pair(*ends_of, GIB), network.pair(*ends_of, GIB, siblings=others)
    assert len(folded.flows) == 2 * len(lone.flows)
    assert network.pair(*ends_of, GIB) is lone
    assert network.pair(*ends_of, GIB, siblings=others) is folded
    assert network.pair(*ends_of, GIB, siblings=list(others)) is folded


def test_equal_flows_of_several_groups_are_one_flow_with_their_number_as_weight() -> None:
    """Two GPUs share a NIC, so the way from server to server has a link that is no GPU's own."""
    network = fabrics.network(servers=2, gpus=2, nics_per_server=1)
    groups = [[Port(0, 0), Port(1, 0)], [Port(0, 0), Port(1, 0)]]
    lone = network.collective("all_gather", GIB, network.team(groups[0], RING))
    folded = network.collective("all_gather", GIB, network.team(groups[0], RING, groups[1:]))
    assert [flow.weight for flow in folded.flows] == [2] * len(lone.flows)
    assert [flow.bytes for flow in folded.flows] == [2 * flow.bytes for flow in lone.flows]


def test_a_family_of_1024_gpus_is_one_flow_over_one_link_of_each_kind() -> None:
    """A ring inside every server: NVLinks out and in are equal, so one link stands for both directions of all."""
    network = fabrics.network(servers=128, folded=True)
    groups = [[Port(server, gpu) for gpu in range(8)] for server in range(128)]
    pattern = network.collective("all_gather", GIB, network.team(groups[0], RING, groups[1:]))
    assert [flow.counts for flow in pattern.flows] == [(1,)]
    assert [(link.name, link.equal) for link in network.links()] == [("server0/gpu0>server0/nvswitch", 2 * 1024)]
    assert network.ports(*(port for group in groups for port in group)) == (0,)


def test_a_class_that_is_divided_keeps_the_number_of_the_part_with_the_first_link() -> None:
    network = fabrics.network(servers=2, folded=True)
    everywhere = [[Port(server, gpu) for gpu in range(8)] for server in range(2)]
    pattern = network.collective("all_gather", GIB, network.team(everywhere[0], RING, everywhere[1:]))
    assert network.ports(*everywhere[1]) == (1,)
    assert [(link.name, link.equal) for link in network.links()] == [
        ("server0/gpu0>server0/nvswitch", 16),
        ("server1/gpu0>server1/nvswitch", 16),
    ]
    again = network.collective("all_gather", GIB, network.team(everywhere[0], RING, everywhere[1:]))
    assert again.number == pattern.number
    assert [flow.route for flow in again.flows] == [(0,), (1,)]
    assert ends(network, [again]) == [pattern.alone_ns]


def test_the_ports_of_a_representative_and_its_phantoms_are_the_ports_of_each() -> None:
    network = fabrics.network()
    each = [network.ports(Port(server, 3)) for server in range(2)]
    assert network.ports(Port(0, 3), Port(1, 3)) == each[0] + each[1]
