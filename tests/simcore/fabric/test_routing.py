"""Ways: shortest, hashed, sprayed, rail by rail, around what has failed."""

from __future__ import annotations

from collections import Counter

import fabrics
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eidolon_simcore.fabric.routing import NoRouteError, Router, Way
from eidolon_simcore.fabric.topology import Port


def names(router: Router, ways: tuple[Way, ...]) -> list[list[str]]:
    return [[router.fabric.links[k].name for k in way.route] for way in ways]


def test_inside_a_server_bytes_cross_the_nvswitch() -> None:
    router = Router(fabrics.build(servers=1))
    assert names(router, router.between(Port(0, 1), Port(0, 6))) == [
        ["server0/gpu1>server0/nvswitch", "server0/nvswitch>server0/gpu6"]
    ]


def test_between_servers_bytes_keep_to_their_rail() -> None:
    router = Router(fabrics.build(servers=4, type="rail"))
    (way,) = names(router, router.between(Port(0, 5), Port(3, 5)))
    assert [name for name in way if "leaf" in name] == ["server0/nic5>pod0/leaf5", "pod0/leaf5>server3/nic5"]


def test_pxn_crosses_nvlink_to_the_receivers_rail() -> None:
    fabric = fabrics.build(servers=2, type="rail", spines=0)
    router = Router(fabric)
    (way,) = names(router, router.between(Port(0, 1), Port(1, 6)))
    assert way[:2] == ["server0/gpu1>server0/nvswitch", "server0/nvswitch>server0/gpu6"]
    assert "server0/nic6>pod0/leaf6" in way
    with pytest.raises(NoRouteError, match="no way leads from server0/nic1 to server1/nic6"):
        Router(fabric, pxn=False).between(Port(0, 1), Port(1, 6))


def test_ecmp_is_the_same_each_time_and_spreads() -> None:
    fabric = fabrics.build(servers=8, type="leaf-spine")
    first, second = Router(fabric), Router(fabric)
    flows = [(Port(0, d), Port(4, d), i) for d in range(8) for i in range(64)]
    ways = [first.between(*flow) for flow in flows]
    assert ways == [second.between(*flow) for flow in flows]
    spines = Counter(
        name.split(">")[1] for (way,) in (names(first, w) for w in ways) for name in way if ">spine" in name
    )
    assert len(spines) == 32
    assert max(spines.values()) < 2 * len(flows) / 32
    other = [Router(fabric, seed=1).between(*flow) for flow in flows]
    assert sum(a != b for a, b in zip(ways, other, strict=True)) > len(flows) / 2


def test_spray_uses_all_ways_in_equal_parts() -> None:
    router = Router(fabrics.build(servers=8, type="leaf-spine", oversubscription=4), spray=True)
    ways = router.between(Port(0, 0), Port(4, 0))
    assert len({way.route for way in ways}) == 8
    assert sum(way.part for way in ways) == pytest.approx(1)


def test_a_failed_switch_is_avoided_and_the_last_one_is_missed() -> None:
    healthy = fabrics.build(servers=8, type="leaf-spine", spines=2)
    (way,) = names(Router(healthy), Router(healthy).between(Port(0, 0), Port(4, 0)))
    used = next(name.split(">")[1].split("#")[0] for name in way if ">spine" in name)
    broken = fabrics.build(servers=8, type="leaf-spine", spines=2, failed=[used])
    (around,) = names(Router(broken), Router(broken).between(Port(0, 0), Port(4, 0)))
    assert used not in " ".join(around)
    dead = fabrics.build(servers=8, type="leaf-spine", spines=2, failed=["spine0", "spine1"])
    with pytest.raises(NoRouteError, match="no way leads from server0/nic0 to server4/nic0 any more"):
        Router(dead).between(Port(0, 0), Port(4, 0))


def test_a_failed_cable_of_an_explicit_graph_sends_bytes_the_longer_way() -> None:
    def cable(a: str, b: str) -> dict[str, object]:
        return {"a": a, "b": b, "bytes_per_s": fabrics.NIC, "latency_ns": 500}

    ends = [cable("server0/nic0", "near"), cable("server1/nic0", "far"), cable("near", "far")]
    graph = {"type": "graph", "switches": ["near", "far", "round"]}
    cables = [*ends, cable("near", "round"), cable("round", "far")]
    ways = []
    for failed in ([], ["near>far"]):
        fabric = fabrics.build(servers=2, gpus=1, **graph, cables=cables, failed=failed)
        router = Router(fabric)
        (way,) = names(router, router.between(Port(0, 0), Port(1, 0)))
        ways.append([name for name in way if "near" in name or "round" in name])
    assert ways == [
        ["server0/nic0>near", "near>far"],
        ["server0/nic0>near", "near>round", "round>far"],
    ]
    cut = fabrics.build(servers=2, gpus=1, **graph, cables=cables, failed=["near>far", "round"])
    with pytest.raises(NoRouteError, match="no way leads from server0/nic0 to server1/nic0"):
        Router(cut).between(Port(0, 0), Port(1, 0))


@given(st.integers(0, 5 * 2 * 128 * 128 - 1))
def test_a_way_is_connected_and_uses_each_link_once(case: int) -> None:
    """One number holds the whole case: what is drawn costs next to nothing, however busy the machine is."""
    case, to = divmod(case, 128)
    case, start = divmod(case, 128)
    router = ROUTERS[case]
    fabric, source, target = router.fabric, Port(*divmod(start, 8)), Port(*divmod(to, 8))
    if source == target:
        return
    ways = router.between(source, target)
    assert sum(way.part for way in ways) == pytest.approx(1)
    for way in ways:
        assert len(set(way.route)) == len(way.route)
        at = fabric.gpus[source]
        for number in way.route:
            assert fabric.links[number].source == at
            at = fabric.links[number].target
        assert at == fabric.gpus[target]


ROUTERS = [
    Router(fabric, spray=spray)
    for kind in ("crossbar", "rail", "leaf-spine", "fat-tree", "dragonfly")
    for fabric in [fabrics.build(servers=16, type=kind, servers_per_pod=4)]
    for spray in (False, True)
]
