"""Graphs: what the builders make, what they refuse, what NCCL's files say, what has failed."""

from __future__ import annotations

from collections import Counter
from typing import Any
from xml.etree import ElementTree as ET

import fabrics
import pytest

from eidolon_simcore import catalogue
from eidolon_simcore.fabric import draw, ncclxml
from eidolon_simcore.fabric.settings import FabricError, presets
from eidolon_simcore.fabric.topology import SWITCHES, Kind, Port, Topology


def kinds(fabric: Topology) -> Counter[Kind]:
    return Counter(vertex.kind for vertex in fabric.vertices)


def test_a_server_has_gpus_on_an_nvswitch_and_a_nic_for_each() -> None:
    fabric = fabrics.build(servers=1)
    assert kinds(fabric) == {Kind.GPU: 8, Kind.NVSWITCH: 1, Kind.PCIE: 9, Kind.NIC: 8}
    link = fabric.link("server0/gpu3>server0/nvswitch")
    assert link is not None
    assert link.bytes_per_s == 450_000_000_000
    assert fabric.own_nics(Port(0, 3)) == (3,)


def test_gpus_without_nvlink_meet_at_the_pcie_root() -> None:
    fabric = fabrics.build("l40s", servers=1, gpus=4)
    assert kinds(fabric)[Kind.NVSWITCH] == 0
    assert fabric.link("server0/pcie2>server0/pcie") is not None


def test_servers_of_other_gpus_have_links_of_their_own() -> None:
    mixed = [catalogue.gpu("h100-sxm"), catalogue.gpu("a100-40gb-sxm"), catalogue.gpu("l40s")]
    fabric = fabrics.build(servers=3, gpus=2, gpus_by_server=mixed)
    nvlinks = [fabric.link(f"server{server}/gpu1>server{server}/nvswitch") for server in range(3)]
    assert [link and link.bytes_per_s for link in nvlinks] == [450_000_000_000, 300_000_000_000, None]


@pytest.mark.parametrize(("nics", "own"), [(4, (1,)), (8, (3,)), (16, (6, 7))])
def test_nics_are_shared_out_evenly(nics: int, own: tuple[int, ...]) -> None:
    assert fabrics.build(servers=1, nics_per_server=nics).own_nics(Port(0, 3)) == own


@pytest.mark.parametrize(
    ("servers", "fields", "switches"),
    [
        (4, {}, {Kind.LEAF: 1}),
        (64, {"type": "rail"}, {Kind.LEAF: 16, Kind.SPINE: 32}),
        (64, {"type": "rail", "spines": 0}, {Kind.LEAF: 16}),
        (16, {"type": "leaf-spine"}, {Kind.LEAF: 4, Kind.SPINE: 32}),
        (16, {"type": "leaf-spine", "oversubscription": 4}, {Kind.LEAF: 4, Kind.SPINE: 8}),
        (64, {"type": "fat-tree"}, {Kind.LEAF: 16, Kind.SPINE: 64, Kind.CORE: 256}),
        (12, {"type": "torus", "dimensions": [4, 3]}, {Kind.ROUTER: 12}),
        (32, {"type": "dragonfly"}, {Kind.ROUTER: 16}),
    ],
)
def test_switches_of_each_type(servers: int, fields: dict[str, Any], switches: dict[Kind, int]) -> None:
    counted = kinds(fabrics.build(servers=servers, **fields))
    assert {kind: count for kind, count in counted.items() if kind in SWITCHES} == switches


def test_oversubscription_is_the_capacity_down_over_that_up() -> None:
    settings = fabrics.make(servers=16, type="leaf-spine", oversubscription=4)
    lines = list(draw.text(fabrics.build(servers=16, type="leaf-spine", oversubscription=4), settings))
    assert lines[-1].endswith("oversubscription 4")


def test_a_torus_joins_neighbours_and_a_dimension_of_two_has_one_cable() -> None:
    fabric = fabrics.build(servers=8, type="torus", dimensions=[4, 2])
    cables = [link.name for link in fabric.links[::2] if "router" in link.name and "nic" not in link.name]
    assert len(cables) == 8 + 4
    assert fabric.link("router3.0>router0.0") is not None


def test_every_two_groups_of_a_dragonfly_are_joined() -> None:
    fabric = fabrics.build(servers=32, type="dragonfly")
    groups = {
        frozenset(fabric.vertices[v].name.split("/")[0] for v in (link.source, link.target))
        for link in fabric.links
        if link.name.count("router") == 2
    }
    assert sum(len(pair) == 2 for pair in groups) == 6


def test_an_nvl72_is_one_domain_of_eighteen_trays() -> None:
    fabric = fabrics.build("b200-sxm", servers=36, gpus=4, preset="gb200-nvl72")
    assert kinds(fabric)[Kind.NVSWITCH] == 2
    assert fabric.domain(Port(17, 0)) == fabric.domain(Port(0, 3)) != fabric.domain(Port(18, 0))


def test_presets_have_sources_and_can_be_built() -> None:
    for name, entry in presets().items():
        assert entry["source"]
        assert fabrics.build(servers=2, gpus=4 if name == "gb200-nvl72" else 8, preset=name).gpus


def test_an_explicit_graph() -> None:
    cables = [{"a": f"server{i}/nic0", "b": "sw", "bytes_per_s": fabrics.NIC, "latency_ns": 700} for i in range(2)]
    fabric = fabrics.build(servers=2, gpus=1, type="graph", switches=["sw"], cables=cables)
    link = fabric.link("sw>server1/nic0")
    assert link is not None
    assert (link.bytes_per_s, link.latency_ns) == (fabrics.NIC, 700)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"type": "ring"}, "type", "'ring': crossbar, rail"),
        ({"preset": "dgx-1"}, "preset", "dgx-a100"),
        ({"type": "torus", "dimensions": [3, 2]}, "dimensions", "3x2 is not one to three numbers whose product is 2"),
        ({"type": "leaf-spine", "spines": 0}, "spines", "at least 1"),
        ({"failed": ["spine9"]}, "failed", "'spine9' is neither a vertex nor a link; e.g. 'network'"),
        ({"oversubscription": 0}, "oversubscription", "0 is less than"),
        ({"type": "graph", "switches": ["a", "a"]}, "switches", "two vertices are named 'a'"),
        ({"nicks": 3}, "nicks", "is not known"),
        ({"server_xml": "<graphs/>"}, "server_xml", "not <system>"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(FabricError) as caught:
        fabrics.build(**fields)
    assert caught.value.field == field
    assert words in caught.value.message


def test_a_failed_switch_takes_its_cables_with_it() -> None:
    fabric = fabrics.build(servers=64, type="rail", failed=["spine0"])
    names = {fabric.links[number].name for number in fabric.failed}
    assert "spine0>pod0/leaf0" in names
    assert "pod0/leaf0>spine0" in names
    assert len(names) == 2 * 16


SERVER = """
<system version="1">
  <cpu numaid="0" arch="x86_64">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0"><nvlink target="0000:90:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:20:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:21:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1"><nvlink target="0000:90:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:22:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_1" dev="1" speed="200000" port="1"/></nic>
      </pci>
    </pci>
  </cpu>
</system>
"""


def test_a_topology_file_of_nccl_describes_a_server() -> None:
    fabric = fabrics.build(servers=2, gpus=2, type="rail", server_xml=SERVER)
    rates = {link.name: link.bytes_per_s for link in fabric.links}
    assert rates["server0/gpu0>server0/nvswitch"] == 450_000_000_000
    assert rates["server1/gpu1>server1/pci-0000:20:00"] == pytest.approx(54.4e9)
    assert fabric.own_nics(Port(1, 1)) == (1,)


def test_a_graph_file_of_nccl_gives_the_order_of_a_ring() -> None:
    channel = '<channel><net dev="0"/><gpu dev="2"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>'
    text = f'<graphs version="1"><graph id="0" nchannels="1">{channel}</graph></graphs>'
    assert ncclxml.ring(text) == (2, 0, 1)
    group = fabrics.network(servers=1, gpus=3, graph_xml=text).team(fabrics.ports(3)).group
    assert [port.device for port in group.domains[0]] == [2, 0, 1]


def test_the_picture_names_links_with_their_speeds() -> None:
    fabric = fabrics.build(servers=64, type="rail", failed=["spine0"])
    picture = draw.svg(fabric, "a <fabric>")
    assert picture.startswith("<svg")
    assert "a &lt;fabric&gt;" in picture
    assert "server0/nic0&gt;pod0/leaf0" in picture or "server0/nic0>pod0/leaf0" in picture
    assert "50 GB/s (400 Gb/s), 500 ns, failed" in picture
    assert "4 of 64 servers shown" in picture
    assert "512 x leaf - spine: 50 GB/s (400 Gb/s)" in picture


@pytest.mark.parametrize(
    ("servers", "gpus", "fields"),
    [
        (1, 8, {}),
        (2, 1, {"nics_per_server": 2}),
        (16, 8, {"type": "torus", "dimensions": [4, 2, 2]}),
        (16, 8, {"type": "dragonfly"}),
        (36, 4, {"preset": "gb200-nvl72"}),
        (64, 8, {"type": "fat-tree"}),
    ],
)
def test_a_picture_draws_every_cable_between_what_it_shows_and_nothing_beyond_its_frame(
    servers: int, gpus: int, fields: dict[str, Any]
) -> None:
    fabric = fabrics.build(servers=servers, gpus=gpus, **fields)
    picture = ET.fromstring(draw.svg(fabric, "it"))
    space = "{http://www.w3.org/2000/svg}"
    boxes = {group.findtext(f"{space}title"): group.find(f"{space}rect") for group in picture.iter(f"{space}g")}
    width, height = map(float, picture.attrib["viewBox"].split()[2:])
    for box in boxes.values():
        assert box is not None
        left, top, wide = (float(box.attrib[name]) for name in ("x", "y", "width"))
        assert 0 <= left <= left + wide <= width
        assert 0 <= top <= height
    cables = {(path.findtext(f"{space}title") or "").split(":")[0] for path in picture.iter(f"{space}path")}
    both = [k.name for k in fabric.links[::2] if {fabric.vertices[v].name for v in (k.source, k.target)} <= set(boxes)]
    assert cables == set(both)
    assert any("gpu" in name and "nvswitch" in name for name in cables)
