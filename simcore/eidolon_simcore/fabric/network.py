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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.engine.interface import Engine, Flow
from eidolon_simcore.fabric import builders, ncclxml, tuner
from eidolon_simcore.fabric.algorithms import Group, loads
from eidolon_simcore.fabric.routing import Route, Router
from eidolon_simcore.fabric.settings import FabricError, Settings
from eidolon_simcore.fabric.topology import Port, Topology

__all__ = ["Network", "Pattern", "Port", "Team"]

Siblings = Sequence[Sequence[Port]]  #: groups, each in the order of the one whose siblings they are
Sized = tuple[Route, int]  #: a route and its bytes

ALONE_NS = 2_000  #: time of an operation of one member, which is a launch without any wire


class Link(NamedTuple):
    """A link of the engine: its number there, a short and stable name, and what kind of link it is."""

    number: int
    name: str
    tier: str
    bytes_per_s: int


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


class Network:
    """A fabric with its links in the engine, where each is made when it is first used."""

    def __init__(self, engine: Engine, gpu: Gpu, settings: Settings) -> None:
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
        self._links: dict[int, int] = {}
        self._named: list[Link] = []
        self._pairs: dict[tuple[Port, Port, int, tuner.Options], list[tuple[Siblings, Pattern]]] = {}
        self._teams: dict[tuple[tuple[Port, ...], tuner.Options, Siblings], Team] = {}

    def links(self) -> list[Link]:
        """The links that were made so far, in the order of their numbers."""
        return self._named

    def ports(self, *ports: Port) -> tuple[int, ...]:
        """The engine's links through which kernels of these GPUs move the bytes of collectives: both directions of
        their NVLinks, or of PCIe where they have none. A representative is asked for with the GPUs that it stands for,
        whose kernels run when its own do."""
        fabric, found = self.fabric, []
        for port in ports:
            out = [fabric.links[link] for link in fabric.out[fabric.gpus[port]]]
            own = [link for link in out if fabric.tier(link) == "nvlink"] or out
            found += [self._link(way) for link in own for way in (link.number, link.number ^ 1)]
        return tuple(found)

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
        known = self._pairs.setdefault((source, target, size_bytes, wanted), [])
        for others, pattern in known:
            if others is siblings or others == siblings:
                return pattern
        made = self._pair(source, target, size_bytes, wanted, siblings)
        known.append((siblings, made))
        return made

    def _pair(self, source: Port, target: Port, size_bytes: int, wanted: tuner.Options, siblings: Siblings) -> Pattern:
        if source == target:
            return self._nothing()
        choice, flows, shape = self._send(source, target, size_bytes, wanted)
        for a, b in siblings:
            flows += self._send(a, b, size_bytes, wanted)[1]
        return self._pattern(choice, flows, shape)

    def _send(
        self, source: Port, target: Port, size_bytes: int, wanted: tuner.Options
    ) -> tuple[tuner.Choice, list[Sized], tuner.Shape]:
        domains = 1 if self.fabric.domain(source) == self.fabric.domain(target) else 2
        ways = self.router.between(source, target)
        latency = max(self.router.latency_ns(way.route) for way in ways)
        rate = min(self.fabric.links[k].bytes_per_s for k in ways[0].route)
        shape = tuner.Shape(2, domains, 1 if domains == 2 else 2, rate if domains == 2 else 0, latency)
        choice = self.tuner.choose("send", size_bytes, shape, wanted)
        size = self._inside_bytes(choice, ways[0].route) if domains == 1 else choice.outside_bytes
        return choice, [(way.route, _whole(size * way.part)) for way in ways], shape

    def _collective(
        self, op: str, size_bytes: int, team: Team, root: int, wanted: tuner.Options, shots: int
    ) -> Pattern:
        if team.shape.ranks == 1:
            return self._nothing()
        chosen: dict[tuner.Shape, tuner.Choice] = {}
        flows: list[Sized] = []
        for group in (team.group, *team.siblings):
            shape = team.shape if group is team.group else _shape(group)
            if shape not in chosen:
                chosen[shape] = (
                    self.tuner.symmetric(op, size_bytes, shape, shots)
                    if shots
                    else self.tuner.choose(op, size_bytes, shape, wanted)
                )
            choice = chosen[shape]
            scheme = ("ring", "all_gather", 0) if shots else (choice.algorithm, op, root)
            for share in group.scheme(*scheme) if choice.us > choice.latency_us else ():
                size = share.inside * self._inside_bytes(choice, share.route) if share.inside else 0.0
                flows.append((share.route, _whole(size + share.outside * choice.outside_bytes)))
        return self._pattern(chosen[team.shape], flows, team.shape)

    def _inside_bytes(self, choice: tuner.Choice, route: Route) -> float:
        return choice.inside_us * 1e-6 * min(self.fabric.links[link].bytes_per_s for link in route)

    def _nothing(self) -> Pattern:
        return Pattern(ALONE_NS, (), ALONE_NS, self._engine.pattern(()))

    def _pattern(self, choice: tuner.Choice, sized: Iterable[Sized], shape: tuner.Shape) -> Pattern:
        equal = Counter(sized)
        links = self.fabric.links
        carried = loads([(route, size * count) for (route, size), count in equal.items()])
        through = max(
            (-(-round(size) * 1_000_000_000 // links[link].bytes_per_s) for link, size in carried.items()), default=0
        )
        made = tuple(
            Flow(tuple(self._link(link) for link in route), size * count, count)
            for (route, size), count in equal.items()
        )
        latency_ns = round(choice.latency_us * 1e3)
        measured = self._measured and shape.domains == 1 and shape.ranks <= tuner.MEASURED_RANKS
        name = f"{choice.algorithm}/{choice.protocol}"
        number = self._engine.pattern(made)
        return Pattern(
            latency_ns, made, max(1, latency_ns + through), number, name, "interpolated" if measured else "roofline"
        )

    def _link(self, link: int) -> int:
        number = self._links.get(link)
        if number is None:
            found = self.fabric.links[link]
            number = self._links[link] = self._engine.link(found.bytes_per_s)
            self._named.append(Link(number, found.name, self.fabric.tier(found), found.bytes_per_s))
        return number


def _shape(group: Group) -> tuner.Shape:
    return tuner.Shape(len(group.members), len(group.domains), group.local, group.nic_bytes_per_s(), group.path_ns())


def _whole(size: float) -> int:
    return max(1, round(size))
