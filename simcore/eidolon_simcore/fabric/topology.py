"""The graph of a fabric: vertices and the directed links between them.

A cable is two links, one in each direction, named ``A>B`` and ``B>A`` after the vertices that it joins. A second cable
between the same two is ``A>B#2``. Users read these names in ``eidolon topology show`` and in metrics, and list them in
``network.topology.failed``. Vertices of servers are named after their server:

>>> fabric = Topology()
>>> gpu, nic = fabric.add("server0/gpu0", Kind.GPU, 0), fabric.add("server0/nic0", Kind.NIC, 0)
>>> fabric.connect(gpu, nic, bytes_per_s=50_000_000_000, latency_ns=500)
>>> [link.name for link in fabric.links]
['server0/gpu0>server0/nic0', 'server0/nic0>server0/gpu0']

A *domain* is a set of GPUs with NVLink (or PCIe) between any two of them, such as a server or a rack of an NVL72. GPUs
are known by their :class:`Port`, NICs by their place in their server. A GPU's *rails* are the NICs that are its own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple


class Port(NamedTuple):
    """One emulated GPU, as the network sees it."""

    server: int
    device: int


class Kind(enum.StrEnum):
    """What a vertex is. They stand in the order of tiers, from the GPU outwards."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"
    PCIE = "pcie"
    NIC = "nic"
    LEAF = "leaf"
    SPINE = "spine"
    CORE = "core"
    ROUTER = "router"  #: of a torus or a dragonfly, with endpoints and other routers on it


SWITCHES = frozenset((Kind.LEAF, Kind.SPINE, Kind.CORE, Kind.ROUTER))
TRANSIT = SWITCHES | {Kind.NVSWITCH, Kind.PCIE}  #: GPUs and NICs do not pass on what is not for them


class Vertex(NamedTuple):
    """A vertex. ``server`` is -1 if it belongs to no server."""

    name: str
    kind: Kind
    server: int
    number: int


class Link(NamedTuple):
    """One direction of a cable."""

    name: str
    source: int
    target: int
    bytes_per_s: int
    latency_ns: int
    number: int


@dataclass(slots=True)
class Topology:
    """The graph of a fabric; see the module's docstring."""

    vertices: list[Vertex] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    out: list[list[int]] = field(default_factory=list)  #: numbers of the links that leave each vertex
    gpus: dict[Port, int] = field(default_factory=dict)
    nics: dict[int, list[int]] = field(default_factory=dict)  #: NICs of each server, in the order of rails
    rails: dict[Port, tuple[int, ...]] = field(default_factory=dict)  #: places in ``nics`` of the GPU's own NICs
    domains: dict[int, int] = field(default_factory=dict)  #: server -> domain, if it shares one with other servers
    failed: set[int] = field(default_factory=set)  #: links that carry nothing
    _names: dict[str, int] = field(default_factory=dict)
    _links: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, kind: Kind, server: int = -1) -> int:
        """Adds a vertex; returns its number. GPUs and NICs are numbered within their server as they come."""
        if name in self._names:
            raise ValueError(f"two vertices are named {name!r}")
        number = len(self.vertices)
        self.vertices.append(Vertex(name, kind, server, number))
        self.out.append([])
        self._names[name] = number
        if kind is Kind.GPU:
            port = Port(server, len(self._ports_of(server)))
            self.gpus[port] = number
        elif kind is Kind.NIC:
            self.nics.setdefault(server, []).append(number)
        return number

    def _ports_of(self, server: int) -> list[Port]:
        ports: list[Port] = []
        while Port(server, len(ports)) in self.gpus:
            ports.append(Port(server, len(ports)))
        return ports

    def connect(self, a: int, b: int, *, bytes_per_s: int, latency_ns: int) -> None:
        """Adds a cable between two vertices."""
        if a == b:
            raise ValueError(f"a cable from {self.vertices[a].name!r} to itself")
        if bytes_per_s <= 0 or latency_ns < 0:
            ends = f"{self.vertices[a].name!r} and {self.vertices[b].name!r}"
            raise ValueError(f"the cable between {ends} has {bytes_per_s} bytes/s and {latency_ns} ns")
        for source, target in ((a, b), (b, a)):
            base = name = f"{self.vertices[source].name}>{self.vertices[target].name}"
            copies = 1
            while name in self._links:
                copies += 1
                name = f"{base}#{copies}"
            number = len(self.links)
            self.links.append(Link(name, source, target, bytes_per_s, latency_ns, number))
            self._links[name] = number
            self.out[source].append(number)

    def tier(self, link: Link) -> str:
        """What kind of link it is: ``nvlink``, ``pcie``, ``nic`` (between a NIC and its switch) or ``switch`` (between
        two switches)."""
        kinds = {self.vertices[link.source].kind, self.vertices[link.target].kind}
        if kinds <= {Kind.GPU, Kind.NVSWITCH}:
            return "nvlink"
        return "pcie" if Kind.PCIE in kinds else "nic" if Kind.NIC in kinds else "switch"

    def vertex(self, name: str) -> Vertex | None:
        """The vertex of that name; None if there is none."""
        number = self._names.get(name)
        return None if number is None else self.vertices[number]

    def link(self, name: str) -> Link | None:
        """The link of that name; None if there is none."""
        number = self._links.get(name)
        return None if number is None else self.links[number]

    def domain(self, port: Port) -> int:
        """The domain of a GPU. GPUs of one domain reach each other without a NIC."""
        return self.domains.get(port.server, port.server)

    def own_nics(self, port: Port) -> tuple[int, ...]:
        """Places, in its server's list of NICs, of the NICs that are nearest to a GPU."""
        return self.rails.get(port, ())

    def fail(self, name: str) -> None:
        """Takes a vertex with all its cables, or one cable (both directions), out of use."""
        vertex = self.vertex(name)
        if vertex is not None:
            self.failed.update(k.number for k in self.links if vertex.number in (k.source, k.target))
            return
        link = self.link(name)
        if link is None:
            raise ValueError(f"{name!r} is neither a vertex nor a link; e.g. {self._example()}")
        self.failed.update((link.number, link.number ^ 1))  # a cable's two directions are made together

    def _example(self) -> str:
        switches = [v.name for v in self.vertices if v.kind in SWITCHES][:2]
        cables = [k.name for k in self.links if self.vertices[k.source].kind is Kind.NIC][:1]
        return " or ".join(repr(name) for name in switches + cables) or "none: it has no switches"

    def servers(self) -> list[int]:
        """All servers, in order."""
        return sorted({port.server for port in self.gpus})

    def problems(self) -> list[str]:
        """What makes the fabric unusable, in lines: GPUs without a way to any other."""
        found = []
        for port, number in self.gpus.items():
            if len(self.gpus) > 1 and not any(k not in self.failed for k in self.out[number]):
                found.append(f"server{port.server}/gpu{port.device} is connected to nothing")
        return found
