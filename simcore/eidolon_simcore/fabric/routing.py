"""Which way bytes take.

Between two GPUs of one domain it is the shortest way that passes no other GPU and no NIC. Between domains the bytes
leave by the NIC of the sender's rail and arrive by the NIC of the receiver's rail. Where the rails differ and PXN is
on, they first cross NVLink to the GPU of the sender's server that has the receiver's rail, and keep to that rail
outside.

Between two NICs there may be many shortest ways. ECMP picks one by a hash of the two ends, the flow's number and a
seed. Nothing else goes into the hash, so the same spec gives the same ways. Spray uses all of them, or
:data:`MAX_SPRAY` evenly chosen ones if there are more, and each carries an equal part of the bytes. Ways do not use
what has failed. If no way is left, a :class:`NoRouteError` names both ends.

Distances are found by a breadth-first search from the target's side, and are kept. Between NICs the search is among
switches only, so all NICs of a leaf share it, and each route of a ring over a large fabric costs little.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from eidolon_simcore.fabric.topology import SWITCHES, TRANSIT, Kind, Port, Topology

MAX_SPRAY = 16  #: the most ways over which the bytes of one flow are spread

Route = tuple[int, ...]  #: numbers of links


class NoRouteError(ValueError):
    """Nothing connects two ends."""


@dataclass(frozen=True, slots=True)
class Way:
    """A route and the part of a flow's bytes that takes it."""

    route: Route
    part: float


@dataclass(slots=True)
class Router:
    """Routes over one graph; see the module's docstring."""

    fabric: Topology
    spray: bool = False
    seed: int = 0
    pxn: bool = True
    _distances: dict[int, dict[int, int]] = field(default_factory=dict)
    _inward: list[list[int]] = field(default_factory=list)
    _passing: dict[bool, list[list[int]]] = field(default_factory=dict)  # of _inward: from what passes bytes on
    _ways: dict[tuple[int, int, int], tuple[Way, ...]] = field(default_factory=dict)
    _relays: dict[tuple[int, int, int], Port | None] = field(default_factory=dict)
    _uplinks: dict[tuple[int, bool], tuple[int, Route]] = field(default_factory=dict)
    _nexts: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._inward = [[] for _ in self.fabric.vertices]
        for link in self.fabric.links:
            if link.number not in self.fabric.failed:
                self._inward[link.target].append(link.number)
        vertices, links = self.fabric.vertices, self.fabric.links
        for only_switches, kinds in ((True, SWITCHES), (False, TRANSIT)):
            passes = [vertex.kind in kinds for vertex in vertices]
            self._passing[only_switches] = [[k for k in into if passes[links[k].source]] for into in self._inward]

    # ---- between GPUs ---------------------------------------------------------------------------------------------

    def between(self, source: Port, target: Port, flow: int = 0) -> tuple[Way, ...]:
        """Ways from one GPU to another. ``flow`` tells apart flows between the same two, such as channels."""
        if self.fabric.domain(source) == self.fabric.domain(target):
            return self.paths(self.fabric.gpus[source], self.fabric.gpus[target], flow)
        mine, theirs = self.fabric.own_nics(source), self.fabric.own_nics(target)
        if not mine or not theirs:
            raise NoRouteError(f"{_name(source if not mine else target)} has no NIC")
        rail = theirs[flow % len(theirs)]
        relay = self._relay(source, rail) if self.pxn and rail not in mine else None
        if relay is not None:
            return self.across(relay, target, rail, rail, flow, origin=source)
        out = rail if rail in mine else mine[flow % len(mine)]
        return self.across(source, target, out, rail, flow)

    def across(
        self, exit_gpu: Port, entry: Port, out: int, into: int, flow: int = 0, origin: Port | None = None
    ) -> tuple[Way, ...]:
        """Ways that use given NICs: from ``origin`` (or ``exit_gpu``) through NIC ``out`` of one server, then through
        NIC ``into`` of the other, to ``entry``."""
        fabric = self.fabric
        there, here = fabric.nics[exit_gpu.server], fabric.nics[entry.server]
        if out >= len(there) or into >= len(here):
            raise NoRouteError(f"NIC {out} of server {exit_gpu.server} or NIC {into} of {entry.server} does not exist")
        head = self.paths(fabric.gpus[exit_gpu], there[out], flow)
        if origin is not None and origin != exit_gpu:
            head = _joined(self.paths(fabric.gpus[origin], fabric.gpus[exit_gpu], flow), head)
        middle = self.paths(there[out], here[into], flow)
        return _joined(_joined(head, middle), self.paths(here[into], fabric.gpus[entry], flow))

    def _relay(self, source: Port, rail: int) -> Port | None:
        """The GPU of the source's server that this NIC belongs to, if NVLink joins it to the source."""
        key = (source.server, source.device, rail)
        if key not in self._relays:
            found = (p for p, nics in self.fabric.rails.items() if p.server == source.server and rail in nics)
            relay = next(found, None)
            if relay is not None and not self._over_nvlink(source, relay):
                relay = None
            self._relays[key] = relay
        return self._relays[key]

    def _over_nvlink(self, a: Port, b: Port) -> bool:
        try:
            ways = self.paths(self.fabric.gpus[a], self.fabric.gpus[b], 0)
        except NoRouteError:
            return False
        inner = {self.fabric.vertices[self.fabric.links[k].target].kind for way in ways for k in way.route}
        return Kind.PCIE not in inner

    # ---- between vertices -----------------------------------------------------------------------------------------

    def paths(self, source: int, target: int, flow: int = 0) -> tuple[Way, ...]:
        """Ways between two vertices."""
        key = (source, target, 0 if self.spray else flow)
        found = self._ways.get(key)
        if found is None:
            found = self._ways[key] = self._search(source, target, flow)
        return found

    def _search(self, source: int, target: int, flow: int) -> tuple[Way, ...]:
        start, head = self._uplink(source, outward=True)
        end, tail = self._uplink(target, outward=False)
        if not head or not tail:  # not from NIC to NIC: a search in the server's own graph
            start, head, end, tail = source, (), target, ()
        elif start == end:  # both NICs are on one switch
            return (Way(head + tail, 1.0),)
        distance = self._distance(start, end, source, target)
        salt = _hash(self.seed, source, target, 0 if self.spray else flow)
        find = self._all if self.spray else self._one
        routes = find(start, end, distance, salt)
        part = 1 / len(routes)
        return tuple([Way(head + route + tail, part) for route in routes])

    def _uplink(self, nic: int, *, outward: bool) -> tuple[int, Route]:
        """The one switch that a NIC is connected to, and the link to it or from it."""
        found = self._uplinks.get((nic, outward))
        if found is None:
            found = self._uplinks[nic, outward] = self._find_uplink(nic, outward=outward)
        return found

    def _find_uplink(self, nic: int, *, outward: bool) -> tuple[int, Route]:
        if self.fabric.vertices[nic].kind is Kind.NIC:
            links = self.fabric.out[nic] if outward else self._inward[nic]
            ends = [(self.fabric.links[k].target if outward else self.fabric.links[k].source, k) for k in links]
            up = [(v, k) for v, k in ends if self.fabric.vertices[v].kind in SWITCHES and k not in self.fabric.failed]
            if len(up) == 1:
                return up[0][0], (up[0][1],)
        return nic, ()

    def _distance(self, start: int, end: int, source: int, target: int) -> dict[int, int]:
        """The number of hops to ``end``, at least for every vertex on a shortest way from ``start``. ``source`` and
        ``target`` only serve the error message."""
        known = self._distances.get(end)
        if known is not None and start in known:
            return known
        vertices, links = self.fabric.vertices, self.fabric.links
        passing = self._passing[vertices[end].kind in SWITCHES]
        beside = {links[k].target for k in self.fabric.out[start] if k not in self.fabric.failed}
        distance, queue, limit = {end: 0}, deque([end]), None
        while queue:
            at = queue.popleft()
            if limit is not None and distance[at] >= limit:
                break
            sources = [links[number].source for number in passing[at]]
            for before in (*sources, start) if at in beside else sources:
                if before in distance:
                    continue
                distance[before] = distance[at] + 1
                queue.append(before)
                if before == start:
                    limit = distance[before]
        if start not in distance:
            names = f"{vertices[source].name} to {vertices[target].name}"
            raise NoRouteError(f"no way leads from {names}" + (" any more" if self.fabric.failed else ""))
        self._distances[end] = distance
        return distance

    def _next(self, at: int, end: int, distance: dict[int, int]) -> list[int]:
        """The links from a vertex that lead nearer to the end."""
        found = self._nexts.get((at, end))
        if found is None:
            left = distance[at] - 1
            links, failed = self.fabric.links, self.fabric.failed
            found = [k for k in self.fabric.out[at] if distance.get(links[k].target) == left and k not in failed]
            self._nexts[at, end] = found
        return found

    def _one(self, start: int, end: int, distance: dict[int, int], salt: int) -> list[Route]:
        route: list[int] = []
        at = start
        while at != end:
            choices = self._next(at, end, distance)
            pick = 0 if len(choices) == 1 else _hash(salt, at) % len(choices)
            route.append(choices[pick])
            at = self.fabric.links[choices[pick]].target
        return [tuple(route)]

    def _all(self, start: int, end: int, distance: dict[int, int], salt: int) -> list[Route]:
        counts: dict[int, int] = {end: 1}

        def count(at: int) -> int:
            if at not in counts:
                counts[at] = sum(count(self.fabric.links[k].target) for k in self._next(at, end, distance))
            return counts[at]

        total = count(start)
        used = min(total, MAX_SPRAY)
        # If there are more ways, different flows leave out different ones.
        first = salt % total if total > used else 0
        return [self._nth(start, end, distance, counts, (first + i * total // used) % total) for i in range(used)]

    def _nth(self, start: int, end: int, distance: dict[int, int], counts: dict[int, int], n: int) -> Route:
        route: list[int] = []
        at = start
        while at != end:
            for number in self._next(at, end, distance):
                ways = counts[self.fabric.links[number].target]
                if n < ways:
                    route.append(number)
                    at = self.fabric.links[number].target
                    break
                n -= ways
        return tuple(route)

    def latency_ns(self, route: Route) -> int:
        """The latency of all cables of a route together."""
        return sum(self.fabric.links[number].latency_ns for number in route)


def _joined(first: tuple[Way, ...], second: tuple[Way, ...]) -> tuple[Way, ...]:
    if len(first) == len(second) == 1:
        return (Way(first[0].route + second[0].route, first[0].part * second[0].part),)
    return tuple(Way(a.route + b.route, a.part * b.part) for a in first for b in second)


def _hash(*words: int) -> int:
    """SplitMix64 over the words. It spreads neighbouring numbers, and is the same on every machine."""
    state = 0
    for word in words:
        state = (state + word + 0x9E3779B97F4A7C15) & 0xFFFF_FFFF_FFFF_FFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFF_FFFF_FFFF_FFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFF_FFFF_FFFF_FFFF
        state ^= state >> 31
    return state


def _name(port: Port) -> str:
    return f"server{port.server}/gpu{port.device}"
