"""NCCL's own files as input: a topology (``NCCL_TOPO_DUMP_FILE``) and a graph (``NCCL_GRAPH_DUMP_FILE``).

A topology file describes one server: its CPUs, PCIe switches, GPUs with their NVLinks, and NICs. Rates follow from what
the file says: that of PCIe from speed and width, that of NVLink from the GPU's compute capability and the number of
links, that of a NIC from its speed in Mb/s. A graph file says in which order a ring passes the GPUs of a server.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache

from eidolon_simcore.fabric.topology import Kind, Port, Topology

_NVSWITCH_CLASS = "0x068000"
_PCIE_EFFICIENCY = 0.85  #: share of the raw rate that encoding and packet headers leave
_LATENCY_NS = 100
#: Bytes/s of one NVLink in one direction, by compute capability: 25 GB/s since NVLink 2, 50 GB/s from Blackwell on.
_NVLINK = {"70": 25_000_000_000, "80": 25_000_000_000, "90": 25_000_000_000, "100": 50_000_000_000}


@cache
def _parse(text: str) -> ET.Element:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("NCCL's files declare no document type or entities")
    try:
        return ET.fromstring(text)
    except ET.ParseError as error:
        raise ValueError(f"is not XML: {error}") from error


def add_server(fabric: Topology, server: int, text: str) -> None:
    """Adds the server that a topology file describes, as number ``server``. Raises :class:`ValueError`."""
    system = _parse(text)
    if system.tag != "system":
        raise ValueError(f"its root is <{system.tag}>, not <system>: is it a topology file of NCCL?")
    where = f"server{server}"
    root = fabric.add(f"{where}/host", Kind.PCIE, server)
    found = list(_devices(system, ()))
    gpus = [(element, path) for element, path in found if element.tag == "gpu"]
    nics = [(element, path) for element, path in found if element.tag == "net"]
    if not gpus:
        raise ValueError("it holds no <gpu>")
    bridges: dict[tuple[str, ...], int] = {(): root}
    rates: dict[int, int] = {}
    places: dict[tuple[str, ...], int] = {}
    switch: int | None = None
    for element, path in sorted(gpus, key=lambda found: int(found[0].get("dev", "0"))):
        vertex = fabric.add(f"{where}/gpu{element.get('dev', '0')}", Kind.GPU, server)
        bridge, rate = _bridge(fabric, server, path, bridges, rates)
        fabric.connect(vertex, bridge, bytes_per_s=rate, latency_ns=_LATENCY_NS)
        places[_ids(path)[:-1]] = vertex
        each = _NVLINK.get(element.get("sm", ""), 25_000_000_000)
        links = [link for link in element.iter("nvlink") if link.get("tclass", "").startswith(_NVSWITCH_CLASS)]
        total = sum(int(link.get("count", "1")) for link in links) * each
        if total:
            if switch is None:
                switch = fabric.add(f"{where}/nvswitch", Kind.NVSWITCH, server)
            fabric.connect(vertex, switch, bytes_per_s=total, latency_ns=_LATENCY_NS)
    _direct_links(fabric, gpus, places)
    ports = [port for port in fabric.gpus if port.server == server]
    for place, (element, path) in enumerate(nics):
        bridge, rate = _bridge(fabric, server, path, bridges, rates)
        speed = int(element.get("speed", "0")) * 1_000_000 // 8
        if speed <= 0:
            raise ValueError(f"<net name={element.get('name')!r}> has no speed")
        vertex = fabric.add(f"{where}/nic{place}", Kind.NIC, server)
        fabric.connect(vertex, bridge, bytes_per_s=max(rate, speed), latency_ns=_LATENCY_NS)
    _assign_rails(fabric, ports, len(nics))


def ring(text: str) -> tuple[int, ...]:
    """Devices in the order in which the first channel of a graph file passes them. Raises :class:`ValueError`."""
    graphs = _parse(text)
    channel = next(graphs.iter("channel"), None)
    if graphs.tag != "graphs" or channel is None:
        raise ValueError("it holds no <channel>: is it a graph file of NCCL?")
    return tuple(int(gpu.get("dev", "0")) for gpu in channel.iter("gpu"))


def _devices(element: ET.Element, path: tuple[ET.Element, ...]) -> Iterator[tuple[ET.Element, tuple[ET.Element, ...]]]:
    for child in element:
        if child.tag in ("gpu", "net"):
            yield child, path
        if child.tag in ("cpu", "pci", "nic"):
            yield from _devices(child, (*path, child) if child.tag == "pci" else path)


def _ids(path: tuple[ET.Element, ...]) -> tuple[str, ...]:
    return (*(element.get("busid", "?") for element in path), "")


def _bridge(
    fabric: Topology,
    server: int,
    path: tuple[ET.Element, ...],
    bridges: dict[tuple[str, ...], int],
    rates: dict[int, int],
) -> tuple[int, int]:
    """The PCIe switch that a device is on, which is made if need be, and the rate of the device's own slot."""
    if not path:
        return bridges[()], 25_000_000_000
    at = bridges[()]
    for depth in range(1, len(path)):
        ids = tuple(element.get("busid", "?") for element in path[:depth])
        if ids not in bridges:
            bridges[ids] = fabric.add(f"server{server}/pci-{ids[-1].removesuffix('.0')}", Kind.PCIE, server)
            rates[bridges[ids]] = _pcie_rate(path[depth - 1])
            fabric.connect(bridges[ids], at, bytes_per_s=rates[bridges[ids]], latency_ns=_LATENCY_NS)
        at = bridges[ids]
    return at, _pcie_rate(path[-1])


def _pcie_rate(element: ET.Element) -> int:
    words = element.get("link_speed", "").split()
    width = element.get("link_width", "")
    if not words or not width.isdecimal() or int(width) == 0:
        return 25_000_000_000
    return max(1, int(float(words[0]) * 1e9 * int(width) / 8 * _PCIE_EFFICIENCY))


def _direct_links(
    fabric: Topology,
    gpus: list[tuple[ET.Element, tuple[ET.Element, ...]]],
    places: dict[tuple[str, ...], int],
) -> None:
    """Adds NVLinks from GPU to GPU, without a switch. The file names both directions; the cable is added once."""
    by_id = {ids[-1]: vertex for ids, vertex in places.items() if ids}
    for element, path in gpus:
        source = by_id.get(path[-1].get("busid", "?")) if path else None
        each = _NVLINK.get(element.get("sm", ""), 25_000_000_000)
        for link in element.iter("nvlink"):
            target = by_id.get(link.get("target", ""))
            if source is not None and target is not None and source < target:
                rate = int(link.get("count", "1")) * each
                fabric.connect(source, target, bytes_per_s=rate, latency_ns=_LATENCY_NS)


def _assign_rails(fabric: Topology, ports: list[Port], nics: int) -> None:
    """Gives every GPU the NICs nearest to it, in equal parts."""
    for at, port in enumerate(ports):
        if nics >= len(ports):
            fabric.rails[port] = tuple(range(at * nics // len(ports), (at + 1) * nics // len(ports)))
        elif nics:
            fabric.rails[port] = (at * nics // len(ports),)
