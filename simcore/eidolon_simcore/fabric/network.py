"""Patterns of collectives: what an operation of a group of GPUs puts on the fabric's links, and for how long.

The tuner (:mod:`.fabric.tuner`) says what NCCL does and how long each part takes by itself. The scheme
(:mod:`.fabric.algorithms`) says which routes carry it. Here both become flows of the engine. On an idle fabric they end
when the tuner says; on a busy one the engine's fair shares decide. A flow over NVLink carries the bytes that the wire
could have moved in the time that the algorithm needs it, so that protocol overhead takes time on the wire. A flow over
NICs carries its bytes divided by the share of a NIC that the protocol reaches. Equal routes are one flow. Patterns are
kept with their group, by operation and size.

A send and its receive are one flow. A group of sends, such as an all-to-all, takes as long as its busiest port
needs.

In a folded run a call of a group stands for the same call of its siblings (:mod:`.fabric.siblings`). Then the pattern
has the flows of all of them, as if each had made the call at the same moment. Equal flows of several groups are one
flow with their number as its weight, so each gets the share of a link that it would get by itself. NCCL's choice and
the latency are those of the group. The call ends when the last flow of any of them has: equal ranks meet again in the
next operation that spans them, so it is the slowest that counts. Siblings that share no link with the group are in the
pattern too, because the flows of another family may cross the links of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.engine.interface import Engine, Flow
from eidolon_simcore.fabric import builders, ncclxml, tuner
from eidolon_simcore.fabric.algorithms import Group
from eidolon_simcore.fabric.routing import Route, Router
from eidolon_simcore.fabric.settings import FabricError, Settings
from eidolon_simcore.fabric.topology import Port, Topology
from eidolon_simcore.fabric.wires import Link, Piece, Traffic, Wires

__all__ = ["Link", "Network", "Pattern", "Port", "Team"]

Siblings = Sequence[Sequence[Port]]  #: groups, each in the order of the one whose siblings they are

ALONE_NS = 2_000  #: time of an operation of one member, which is a launch without any wire


class Pattern(NamedTuple):
    """What an operation puts on the wire, and for how long it would have it to itself."""

    latency_ns: int
    flows: tuple[Flow, ...]
    alone_ns: int
    number: int = -1  #: the engine's number of these flows
    algorithm: str = ""  #: such as ``ring/Simple``; empty for one member
    source: str = "interpolated"  #: source of the time; ``roofline`` if no measurement of its kind stands behind it


@dataclass(slots=True)
class Team:
    """The members of a communicator in its order, its siblings, what their environment asks for, and their patterns."""

    group: Group
    siblings: tuple[Group, ...]
    shape: tuner.Shape
    wanted: tuner.Options
    patterns: dict[tuple[str, int, int, bool, int], Pattern] = field(default_factory=dict)
    traffic: dict[tuple[object, ...], Traffic] = field(default_factory=dict)


@dataclass(slots=True)
class Pair:
    """Two GPUs of which one sends to the other, their siblings, and the patterns of sends by size."""

    siblings: Siblings
    shape: tuner.Shape
    shapes: frozenset[tuner.Shape]  #: with those of the siblings
    traffic: Traffic
    patterns: dict[int, Pattern] = field(default_factory=dict)


class Network:
    """A fabric with its links in the engine.

    Args:
        folded: it solves equal links and flows once, with their number (:mod:`.quotient`), which pays in a folded run.
            Times are the same. The engine must not be one that goes back in time.
    """

    def __init__(self, engine: Engine, gpu: Gpu, settings: Settings, *, folded: bool = False) -> None:
        self._engine = engine
        self.settings = settings
        self.fabric: Topology = builders.build(settings)
        self.router = Router(self.fabric, settings.routing == "spray", settings.seed, settings.pxn)
        self.tuner = tuner.Tuner.of(gpu, settings.nvlink_bytes_per_s or settings.pcie_bytes_per_s)
        self._measured = tuner.family(gpu) == gpu.key
        try:
            self._ring = ncclxml.ring(settings.graph_xml) if settings.graph_xml else ()
        except ValueError as error:
            raise FabricError("graph_xml", str(error)) from error
        self._wires = Wires(engine, self.fabric, folded=folded)
        self._pairs: dict[tuple[Port, Port, tuner.Options], list[Pair]] = {}
        self._teams: dict[tuple[tuple[Port, ...], tuner.Options, Siblings], Team] = {}

    def links(self) -> list[Link]:
        """The links that were made so far, in the order of their numbers."""
        return self._wires.named

    def ports(self, *ports: Port) -> tuple[int, ...]:
        """The engine's links through which kernels of these GPUs move the bytes of collectives: both directions of
        their NVLinks, or of PCIe where they have none. A representative is asked for with the GPUs that it stands for,
        whose kernels run when its own do."""
        fabric, found = self.fabric, list[int]()
        for port in ports:
            out = [fabric.links[link] for link in fabric.out[fabric.gpus[port]]]
            own = [link for link in out if fabric.tier(link) == "nvlink"] or out
            found += [way for link in own for way in (link.number, link.number ^ 1)]
        return self._wires.links(found)

    @property
    def init_ns(self) -> int:
        """How long making a communicator takes."""
        return tuner.init_ns()

    def team(self, members: Sequence[Port], wanted: tuner.Options | None = None, siblings: Siblings = ()) -> Team:
        """The team of a communicator's ``members``, in its order. Its operations are those of its ``siblings`` too.
        Raises :class:`~.fabric.routing.NoRouteError`."""
        key = (tuple(members), wanted or tuner.Options(), tuple(map(tuple, siblings)))
        found = self._teams.get(key)
        if found is None:
            group, *others = (Group(self.router, ports, self._ring) for ports in (key[0], *key[2]))
            found = self._teams[key] = Team(group, tuple(others), _shape(group), key[1])
        return found

    def collective(
        self, op: str, size_bytes: int, team: Team, root: int = 0, *, in_switch: bool = True, shots: int = 0
    ) -> Pattern:
        """The pattern of an operation. ``size_bytes`` is the larger buffer of one member; ``in_switch`` says that an
        NVSwitch can reduce the type; ``shots``, where it is not 0, that a kernel of symmetric memory does it and how
        (:meth:`.tuner.Tuner.symmetric`)."""
        key = (op, size_bytes, root if op in ("broadcast", "reduce", "gather", "scatter") else 0, in_switch, shots)
        found = team.patterns.get(key)
        if found is None:
            wanted = team.wanted if in_switch else replace(team.wanted, nvls=False)
            found = team.patterns[key] = self._collective(op, size_bytes, team, root, wanted, shots)
        elif found.flows is not self._wires.flows.get(found.number, found.flows):
            found = team.patterns[key] = found._replace(flows=self._wires.flows[found.number])
        return found

    def pair(
        self,
        source: Port,
        target: Port,
        size_bytes: int,
        wanted: tuner.Options | None = None,
        siblings: Siblings = (),
    ) -> Pattern:
        """The pattern of a send and its receive, and of the same between the two GPUs of each sibling. It is found
        again soonest where ``siblings`` is the same object each time."""
        wanted = wanted or tuner.Options()
        known = self._pairs.setdefault((source, target, wanted), [])
        pair = next((one for one in known if one.siblings is siblings or one.siblings == siblings), None)
        if pair is None:
            pair = self._pair(source, target, siblings)
            known.append(pair)
        found = pair.patterns.get(size_bytes)
        if found is None:
            choices = {shape: self.tuner.choose("send", size_bytes, shape, wanted) for shape in pair.shapes}
            found = self._nothing() if source == target else self._pattern(choices, pair.traffic, pair.shape)
            pair.patterns[size_bytes] = found
        elif found.flows is not self._wires.flows.get(found.number, found.flows):
            found = pair.patterns[size_bytes] = found._replace(flows=self._wires.flows[found.number])
        return found

    def _pair(self, source: Port, target: Port, siblings: Siblings) -> Pair:
        if source == target:
            return Pair(siblings, tuner.Shape(1), frozenset(), Traffic([]))
        pieces = Counter(self._sends(source, target))
        shape = next(iter(pieces))[1].shape
        for a, b in siblings:
            pieces.update(self._sends(a, b))
        return Pair(siblings, shape, frozenset(piece.shape for _, piece in pieces), self._wires.traffic(pieces))

    def _sends(self, source: Port, target: Port) -> Iterator[tuple[Route, Piece]]:
        domains = 1 if self.fabric.domain(source) == self.fabric.domain(target) else 2
        ways = self.router.between(source, target)
        latency = max(self.router.latency_ns(way.route) for way in ways)
        rate = self._slowest(ways[0].route)
        shape = tuner.Shape(2, domains, 1 if domains == 2 else 2, rate if domains == 2 else 0, latency)
        for way in ways:
            yield way.route, Piece(way.part, 0.0, rate, shape) if domains == 1 else Piece(0.0, way.part, 0, shape)

    def _collective(
        self, op: str, size_bytes: int, team: Team, root: int, wanted: tuner.Options, shots: int
    ) -> Pattern:
        if team.shape.ranks == 1:
            return self._nothing()
        groups = [(team.group, team.shape), *((group, _shape(group)) for group in team.siblings)]
        choices: dict[tuner.Shape, tuner.Choice] = {}
        schemes: dict[tuner.Shape, tuple[str, str, int]] = {}  # of shapes whose groups send anything
        for _, shape in groups:
            if shape not in choices:
                if shots:
                    choice, scheme = self.tuner.symmetric(op, size_bytes, shape, shots), ("ring", "all_gather", 0)
                else:
                    choice = self.tuner.choose(op, size_bytes, shape, wanted)
                    scheme = (choice.algorithm, op, root)
                choices[shape] = choice
                if choice.us > choice.latency_us:
                    schemes[shape] = scheme
        key = tuple(sorted(schemes.items()))
        if key not in team.traffic:
            pieces: Counter[tuple[Route, Piece]] = Counter()
            for group, shape in groups:
                for share in group.scheme(*schemes[shape]) if shape in schemes else ():
                    wire = self._slowest(share.route) if share.inside else 0
                    pieces[share.route, Piece(share.inside, share.outside, wire, shape)] += 1
            team.traffic[key] = self._wires.traffic(pieces)
        return self._pattern(choices, team.traffic[key], team.shape)

    def _slowest(self, route: Route) -> int:
        return min(self.fabric.links[link].bytes_per_s for link in route)

    def _nothing(self) -> Pattern:
        return Pattern(ALONE_NS, (), ALONE_NS, self._engine.pattern(()))

    def _pattern(self, choices: Mapping[tuner.Shape, tuner.Choice], traffic: Traffic, shape: tuner.Shape) -> Pattern:
        number, flows = self._wires.pattern(traffic, choices)
        choice = choices[shape]
        latency_ns = round(choice.latency_us * 1e3)
        alone_ns = max(1, latency_ns + self._wires.through_ns(flows))
        measured = self._measured and shape.domains == 1 and shape.ranks <= tuner.MEASURED_RANKS
        name = f"{choice.algorithm}/{choice.protocol}"
        return Pattern(latency_ns, flows, alone_ns, number, name, "interpolated" if measured else "roofline")


def _shape(group: Group) -> tuner.Shape:
    return tuner.Shape(len(group.members), len(group.domains), group.local, group.nic_bytes_per_s(), group.path_ns())
