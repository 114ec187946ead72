"""From settings to a graph.

The GPUs of a server are on an NVSwitch, of which each domain has one. Each GPU and its NIC are on a PCIe switch, and
the PCIe switches of a server meet at its root. Fabrics differ in what their NICs are connected to:

========== ===========================================================================================================
crossbar   one switch that never blocks: the default, and what "N servers with a NIC each" means without more
rail       NIC r of every server of a pod on leaf r of the pod; leaves join on spines
leaf-spine all NICs of a server on one leaf; leaves join on spines
fat-tree   leaves and spines in pods, spine k of every pod on the cores of group k
torus      a router for every server, joined with its neighbours in each dimension
dragonfly  routers of a group all joined with each other, and every two groups
graph      switches and cables as listed
========== ===========================================================================================================

A leaf with D cables down and an oversubscription of V has D/V cables up. Each of them is as fast as a NIC, unless the
spec says otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from eidolon_simcore.fabric import ncclxml
from eidolon_simcore.fabric.settings import INSIDE_LATENCY_NS, FabricError, Settings
from eidolon_simcore.fabric.topology import Kind, Port, Topology


def build(settings: Settings) -> Topology:
    """The graph of a fabric. Raises :class:`FabricError` if it cannot be built."""
    fabric = Topology()
    switches: dict[int, int] = {}
    for server in range(settings.servers):
        if settings.server_xml:
            try:
                ncclxml.add_server(fabric, server, settings.server_xml)
            except ValueError as error:
                raise FabricError("server_xml", str(error)) from error
        else:
            _server(fabric, settings, server, switches)
    if settings.servers > 1 or settings.type == "graph":
        _OUTSIDE[settings.type](fabric, settings)
    for name in settings.failed:
        try:
            fabric.fail(name)
        except ValueError as error:
            raise FabricError("failed", str(error)) from error
    if problems := fabric.problems():
        raise FabricError("failed" if settings.failed else "", "; ".join(problems[:4]))
    return fabric


def _server(fabric: Topology, s: Settings, server: int, switches: dict[int, int]) -> None:
    domain = server // s.servers_per_domain
    nvlink, pcie = s.inside_of(server)
    if s.servers_per_domain > 1:
        fabric.domains[server] = domain
    nics_of_gpu = [
        [i for i in range(s.nics) if i * s.gpus_per_server // s.nics == gpu] or [gpu * s.nics // s.gpus_per_server]
        for gpu in range(s.gpus_per_server)
    ]
    root = fabric.add(f"server{server}/pcie", Kind.PCIE, server)
    nics: dict[int, int] = {}
    # A NIC cannot be faster than its slot. If the spec says so, the slot is as fast as the NIC.
    own = max(map(len, nics_of_gpu))
    slot = max(pcie, own * s.nic_bytes_per_s)
    for gpu in range(s.gpus_per_server):
        vertex = fabric.add(f"server{server}/gpu{gpu}", Kind.GPU, server)
        bridge = fabric.add(f"server{server}/pcie{gpu}", Kind.PCIE, server)
        fabric.connect(bridge, root, bytes_per_s=slot, latency_ns=INSIDE_LATENCY_NS)
        fabric.connect(vertex, bridge, bytes_per_s=slot, latency_ns=INSIDE_LATENCY_NS)
        if nvlink:
            if domain not in switches:
                where = f"domain{domain}" if s.servers_per_domain > 1 else f"server{server}"
                switches[domain] = fabric.add(f"{where}/nvswitch", Kind.NVSWITCH, server)
            fabric.connect(vertex, switches[domain], bytes_per_s=nvlink, latency_ns=INSIDE_LATENCY_NS)
        for nic in nics_of_gpu[gpu]:
            if nic not in nics:
                nics[nic] = fabric.add(f"server{server}/nic{nic}", Kind.NIC, server)
                fabric.connect(
                    nics[nic], bridge, bytes_per_s=max(slot, s.nic_bytes_per_s), latency_ns=INSIDE_LATENCY_NS
                )
        fabric.rails[Port(server, gpu)] = tuple(nics_of_gpu[gpu])


def _attach(fabric: Topology, s: Settings, nic: int, switch: int) -> None:
    fabric.connect(nic, switch, bytes_per_s=s.nic_bytes_per_s, latency_ns=s.nic_latency_ns)


def _trunk(fabric: Topology, s: Settings, a: int, b: int) -> None:
    fabric.connect(a, b, bytes_per_s=s.cable_bytes_per_s, latency_ns=s.link_latency_ns)


def _uplinks(s: Settings, down: int) -> int:
    return max(1, math.ceil(down * s.nic_bytes_per_s / (s.oversubscription * s.cable_bytes_per_s) - 1e-9))


def _join(fabric: Topology, s: Settings, leaves: list[int], spines: list[int], uplinks: int) -> None:
    for leaf in leaves:
        for i in range(uplinks):
            _trunk(fabric, s, leaf, spines[i % len(spines)])


def _crossbar(fabric: Topology, s: Settings) -> None:
    switch = fabric.add("network", Kind.LEAF)
    for nics in fabric.nics.values():
        for nic in nics:
            _attach(fabric, s, nic, switch)


def _rail(fabric: Topology, s: Settings) -> None:
    leaves: dict[tuple[int, int], int] = {}
    for server, nics in fabric.nics.items():
        pod = server // s.servers_per_pod
        for rail, nic in enumerate(nics):
            if (pod, rail) not in leaves:
                leaves[pod, rail] = fabric.add(f"pod{pod}/leaf{rail}", Kind.LEAF)
            _attach(fabric, s, nic, leaves[pod, rail])
    if s.spines == 0 or len(leaves) == 1:
        return
    uplinks = _uplinks(s, min(s.servers_per_pod, s.servers))
    spines = [fabric.add(f"spine{i}", Kind.SPINE) for i in range(s.spines or uplinks)]
    _join(fabric, s, list(leaves.values()), spines, uplinks)


def _leaf_spine(fabric: Topology, s: Settings) -> None:
    leaves = _leaves(fabric, s)
    if len(leaves) > 1:
        uplinks = _uplinks(s, s.servers_per_leaf * s.nics)
        spines = [fabric.add(f"spine{i}", Kind.SPINE) for i in range(s.spines or uplinks)]
        _join(fabric, s, leaves, spines, uplinks)


def _fat_tree(fabric: Topology, s: Settings) -> None:
    leaves = _leaves(fabric, s)
    uplinks = _uplinks(s, s.servers_per_leaf * s.nics)
    pods = -(-len(leaves) // s.leaves_per_pod)
    per_pod = s.spines or uplinks
    cores: dict[tuple[int, int], int] = {}
    for pod in range(pods):
        inside = leaves[pod * s.leaves_per_pod : (pod + 1) * s.leaves_per_pod]
        if pods == 1 and len(inside) == 1:
            return
        spines = [fabric.add(f"pod{pod}/spine{i}", Kind.SPINE) for i in range(per_pod)]
        _join(fabric, s, inside, spines, uplinks)
        if pods == 1:
            return
        up = max(1, s.leaves_per_pod * uplinks // per_pod)
        for group, spine in enumerate(spines):
            for i in range(up):
                if (group, i) not in cores:
                    cores[group, i] = fabric.add(f"core{group}.{i}", Kind.CORE)
                _trunk(fabric, s, spine, cores[group, i])


def _leaves(fabric: Topology, s: Settings) -> list[int]:
    leaves: list[int] = []
    for server, nics in fabric.nics.items():
        if server % s.servers_per_leaf == 0:
            leaves.append(fabric.add(f"leaf{len(leaves)}", Kind.LEAF))
        for nic in nics:
            _attach(fabric, s, nic, leaves[-1])
    return leaves


def _torus(fabric: Topology, s: Settings) -> None:
    routers: dict[tuple[int, ...], int] = {}
    for server, at in enumerate(itertools.product(*map(range, s.dimensions))):
        routers[at] = fabric.add(f"router{'.'.join(map(str, at))}", Kind.ROUTER)
        for nic in fabric.nics.get(server, ()):
            _attach(fabric, s, nic, routers[at])
    for at, router in routers.items():
        for axis, size in enumerate(s.dimensions):
            if size < 2 or (size == 2 and at[axis] == 1):  # two in a row have one cable and not two
                continue
            after = (*at[:axis], (at[axis] + 1) % size, *at[axis + 1 :])
            _trunk(fabric, s, router, routers[after])


def _dragonfly(fabric: Topology, s: Settings) -> None:
    per_group = s.routers_per_group * s.servers_per_router
    groups = -(-s.servers // per_group)
    routers = [
        [fabric.add(f"group{g}/router{r}", Kind.ROUTER) for r in range(s.routers_per_group)] for g in range(groups)
    ]
    for server, nics in fabric.nics.items():
        router = routers[server // per_group][server % per_group // s.servers_per_router]
        for nic in nics:
            _attach(fabric, s, nic, router)
    for group in routers:
        for a, b in itertools.combinations(group, 2):
            _trunk(fabric, s, a, b)
    for g, h in itertools.combinations(range(groups), 2):
        for k in range(s.cables_between_groups):
            there, back = (h - g - 1 + k) % s.routers_per_group, (g - h - 1 + k) % s.routers_per_group
            _trunk(fabric, s, routers[g][there], routers[h][back])


def _graph(fabric: Topology, s: Settings) -> None:
    for name in s.switches:
        kind = next((k for k in (Kind.SPINE, Kind.CORE) if k.value in name), Kind.LEAF)
        try:
            fabric.add(name, kind)
        except ValueError as error:
            raise FabricError("switches", str(error)) from error
    for cable in s.cables:
        ends = [fabric.vertex(cable.a), fabric.vertex(cable.b)]
        for name, end in zip((cable.a, cable.b), ends, strict=True):
            if end is None:
                raise FabricError("cables", f"{name!r} is neither a switch nor e.g. 'server0/nic0'")
        a, b = ends
        assert a is not None
        assert b is not None
        for _ in range(cable.count):
            try:
                fabric.connect(a.number, b.number, bytes_per_s=cable.bytes_per_s, latency_ns=cable.latency_ns)
            except ValueError as error:
                raise FabricError("cables", str(error)) from error


_OUTSIDE: dict[str, Callable[[Topology, Settings], None]] = {
    "crossbar": _crossbar,
    "rail": _rail,
    "leaf-spine": _leaf_spine,
    "fat-tree": _fat_tree,
    "torus": _torus,
    "dragonfly": _dragonfly,
    "graph": _graph,
}
