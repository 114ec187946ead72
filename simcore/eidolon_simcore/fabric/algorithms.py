"""From an algorithm to the bytes that it puts on each route.

The size of an operation only scales what it sends. So a *scheme* is made once for each algorithm and set of members. It
has routes, each with its part of what the busiest NVLink port carries (``inside``) or of what the busiest domain sends
(``outside``; see :class:`~.fabric.tuner.Choice`).

Inside a domain every member sends to the next one in the ring's order. That loads the ports of all members alike, as
rings, chains and reductions in the switch do. Between domains each NIC of the members carries one pair of channels,
rail to rail, as in NCCL's rings and trees. An all-to-all sends from every domain to every other. If there are more than
:data:`MAX_PEERS` others, it sends to that many, evenly spaced, which loads the links of a regular fabric the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from eidolon_simcore.fabric.routing import NoRouteError, Route, Router
from eidolon_simcore.fabric.topology import SWITCHES, Port

CHANNELS_PER_NIC = 2  #: connections between two NICs; ECMP hashes each on its own
MAX_PEERS = 16


class Share(NamedTuple):
    """A route and its part of the bytes inside a domain, or of those outside."""

    route: Route
    inside: float
    outside: float


class Nic(NamedTuple):
    """A NIC and the GPU beside it."""

    port: Port
    place: int


@dataclass(slots=True)
class Group:
    """The members of a communicator by domain, and the schemes of their operations."""

    router: Router
    members: tuple[Port, ...]
    ring: tuple[int, ...] = ()  #: order of devices on a ring inside a server; () stands for the order of their numbers
    domains: list[list[Port]] = field(default_factory=list)
    _schemes: dict[tuple[str, int], tuple[Share, ...]] = field(default_factory=dict)
    _nics: dict[int, list[Nic]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: dict[int, list[Port]] = {}
        for port in self.members:
            if port not in self.router.fabric.gpus:
                raise NoRouteError(f"server{port.server}/gpu{port.device} is not on the fabric")
            found.setdefault(self.router.fabric.domain(port), []).append(port)
        place = {device: at for at, device in enumerate(self.ring)}
        self.domains = [
            sorted(ports, key=lambda p: (p.server, place.get(p.device, p.device))) for ports in found.values()
        ]

    @property
    def local(self) -> int:
        """The most members in one domain."""
        return max(map(len, self.domains))

    def nic_bytes_per_s(self) -> int:
        """The rate of all NICs together that the domain with the least uses; 0 if there is only one domain."""
        if len(self.domains) == 1:
            return 0
        return min(sum(self._rate(nic) for nic in self.nics(d)) for d in range(len(self.domains)))

    def path_ns(self) -> int:
        """The latency of the longest way from one domain to the next; 0 if there is only one domain."""
        if len(self.domains) == 1:
            return 0
        return max(self._latency_ns(d) for d in range(min(len(self.domains), MAX_PEERS)))

    def _latency_ns(self, d: int) -> int:
        after = (d + 1) % len(self.domains)
        ways = self._across(d, after, 1)
        return max(self.router.latency_ns(route) for route, _ in ways)

    def _rate(self, nic: Nic) -> int:
        fabric = self.router.fabric
        vertex = fabric.nics[nic.port.server][nic.place]
        return sum(
            fabric.links[k].bytes_per_s
            for k in fabric.out[vertex]
            if fabric.vertices[fabric.links[k].target].kind in SWITCHES and k not in fabric.failed
        )

    def nics(self, domain: int) -> list[Nic]:
        """The NICs of the members that are not cut off. If all are, any NICs of their servers that are not."""
        found = self._nics.get(domain)
        if found is None:
            ports = self.domains[domain]
            own = {(p.server, n): Nic(p, n) for p in ports for n in self.router.fabric.own_nics(p)}
            found = [nic for nic in own.values() if self._rate(nic)]
            if not found:
                spare = [Nic(p, n) for p in ports for n in range(len(self.router.fabric.nics.get(p.server, ())))]
                found = [nic for nic in spare if self._rate(nic)][: max(1, len(own))]
            if not found:
                raise NoRouteError(f"server{ports[0].server} has no NIC that is connected")
            self._nics[domain] = found
        return found

    def scheme(self, algorithm: str, op: str, root: int = 0) -> tuple[Share, ...]:
        """The shares of an operation; ``root`` only matters to operations that have one."""
        kind = "p2p" if algorithm == "p2p" else op if op in _ROOTED else "tree" if "tree" in algorithm else algorithm
        key = (kind, root if op in _ROOTED else 0)
        found = self._schemes.get(key)
        if found is None:
            found = self._schemes[key] = tuple(self._merged(self._shares(*key)))
        return found

    def _shares(self, kind: str, root: int) -> Iterator[Share]:
        if kind in ("gather", "scatter"):
            yield from self._star(kind, root)
            return
        yield from self._inside(pairs=kind == "p2p")
        count = len(self.domains)
        if count == 1:
            return
        if kind == "tree":
            for child, parent in _double_tree(count):
                edge = 0.5 / (1 if count == 2 else 2)
                yield from self._edge(child, parent, edge)
                yield from self._edge(parent, child, edge)
        elif kind == "p2p":
            peers = min(count - 1, MAX_PEERS)
            for i in range(peers):
                shift = 1 + i * (count - 1) // peers
                for d in range(count):
                    yield from self._edge(d, (d + shift) % count, 1 / peers, channels=1, turn=0 if self._pxn else i + 1)
        elif kind == "pat":
            for distance in (1 << k for k in range((count - 1).bit_length())):
                part = min(distance, count - distance) / (count - 1)
                for d in range(count):
                    yield from self._edge(d, (d + distance) % count, part)
        elif kind in ("broadcast", "reduce"):
            first = self._domain_of(root)
            for i in range(count - 1):
                a, b = (first + i) % count, (first + i + 1) % count
                yield from self._edge(*((a, b) if kind == "broadcast" else (b, a)), 1.0)
        else:
            for d in range(count):
                yield from self._edge(d, (d + 1) % count, 1.0)

    @property
    def _pxn(self) -> bool:
        return self.router.pxn

    def _domain_of(self, root: int) -> int:
        port = self.members[root]
        return next(d for d, ports in enumerate(self.domains) if port in ports)

    def _star(self, kind: str, root: int) -> Iterator[Share]:
        """Shares from all members to the root, or from it to all. The root's port or NICs are the busiest."""
        hub = self.members[root]
        others = [port for port in self.members if port != hub]
        home = self.router.fabric.domain(hub)
        for port in others:
            ends = (port, hub) if kind == "gather" else (hub, port)
            near = self.router.fabric.domain(port) == home
            for way in self.router.between(*ends):
                part = way.part / len(others)
                yield Share(way.route, part if near else 0.0, 0.0 if near else part)

    def _inside(self, *, pairs: bool) -> Iterator[Share]:
        for ports in self.domains:
            count = len(ports)
            shifts = range(1, count) if pairs and count <= MAX_PEERS else range(1, min(2, count))
            for shift in shifts:
                for i, port in enumerate(ports):
                    for way in self.router.between(port, ports[(i + shift) % count]):
                        yield Share(way.route, way.part / len(shifts), 0.0)

    def _edge(self, a: int, b: int, part: float, channels: int = CHANNELS_PER_NIC, turn: int = 0) -> Iterator[Share]:
        """Shares from one domain to another, which are ``part`` of what the busiest domain sends."""
        for route, share in self._across(a, b, channels, turn):
            yield Share(route, 0.0, part * share)

    def _across(self, a: int, b: int, channels: int, turn: int = 0) -> Iterator[tuple[Route, float]]:
        """Routes from NIC to NIC, which keep to a rail where both domains have it. ``turn`` crosses rails, as all pairs
        of GPUs do."""
        mine, theirs = self.nics(a), self.nics(b)
        rails = {nic.place: nic for nic in theirs} if len(theirs) == len({n.place for n in theirs}) else {}
        width = max(len(mine), len(theirs))
        for i in range(width):
            out = mine[i % len(mine)]
            into = theirs[(i + turn) % len(theirs)] if turn else rails.get(out.place, theirs[i % len(theirs)])
            for channel in range(channels):
                for way in self.router.across(out.port, into.port, out.place, into.place, channel):
                    yield way.route, way.part / width / channels

    @staticmethod
    def _merged(shares: Iterator[Share]) -> Iterator[Share]:
        """The shares with those of equal routes added up: they are one flow."""
        found: dict[Route, list[float]] = {}
        for share in shares:
            entry = found.setdefault(share.route, [0.0, 0.0])
            entry[0] += share.inside
            entry[1] += share.outside
        for route, (inside, outside) in found.items():
            yield Share(route, inside, outside)


_ROOTED = ("broadcast", "reduce", "gather", "scatter")


def _double_tree(count: int) -> Iterator[tuple[int, int]]:
    """Pairs (child, parent) of two trees, such that nobody has children in both: the in-order binary tree, and its
    mirror image, or the same one shifted by one where the count is odd."""
    for child, parent in _tree(count):
        yield child, parent
    for child, parent in _tree(count):
        if count % 2 == 0:
            yield count - 1 - child, count - 1 - parent
        else:
            yield (child + 1) % count, (parent + 1) % count


def _tree(count: int) -> Iterator[tuple[int, int]]:
    for node in range(1, count):
        bit = node & -node
        parent = (node ^ bit) | (bit << 1)
        yield node, parent if parent < count else node ^ bit
