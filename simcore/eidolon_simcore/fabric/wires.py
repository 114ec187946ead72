"""The fabric's links in the engine, and the flows over them.

Each link is made in the engine when it is first used. In a folded run it is each *class* of links (:mod:`.quotient`),
and a flow there stands for a class of flows. Here the two kinds of run meet: who asks for a pattern states routes with
what each carries, and gets flows of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from eidolon_simcore.engine.interface import Engine, Flow, loads
from eidolon_simcore.fabric import tuner
from eidolon_simcore.fabric.quotient import Bundle, Numbers, Quotient
from eidolon_simcore.fabric.routing import Route
from eidolon_simcore.fabric.topology import Topology


class Link(NamedTuple):
    """A link of the engine: its number there, a short and stable name, and what kind of link it is."""

    number: int
    name: str
    tier: str
    bytes_per_s: int
    equal: int = 1  #: links for which it stands; the name is that of the first


class Piece(NamedTuple):
    """What a flow carries, whatever the size of the operation: a part of what the busiest NVLink port carries, and one
    of what the busiest domain sends."""

    inside: float
    outside: float
    wire: int  #: bytes/s of the slowest link of its route, where ``inside`` is not 0
    shape: tuner.Shape  #: of the group whose flow it is

    def bytes(self, choice: tuner.Choice) -> int:
        """Its bytes, where NCCL chose this for its group."""
        size = self.inside * (choice.inside_us * 1e-6 * self.wire) if self.inside else 0.0
        return max(1, round(size + self.outside * choice.outside_bytes))


@dataclass(slots=True)
class Traffic:
    """Flows that start together: routes and pieces, and how many groups send that piece over that route."""

    flows: list[tuple[Route, Piece, int]]
    bundle: Bundle | None = None  #: their classes, in a folded run


class Sized(NamedTuple):
    """Traffic whose flows have bytes: for each pattern of the engine, what is needed to make its flows again."""

    traffic: Traffic
    choices: Mapping[tuner.Shape, tuner.Choice]


class Wires:
    """See the module's docstring.

    Args:
        folded: links and flows are made by class. The engine must not be one that goes back in time.
    """

    def __init__(self, engine: Engine, fabric: Topology, *, folded: bool) -> None:
        self._engine = engine
        self._fabric = fabric
        self._quotient = Quotient(fabric) if folded else None
        self._numbers: dict[int, int] = {}  # in the engine, by link or by class of links
        self._patterns: dict[int, list[tuple[int, Sized]]] = {}  # of a folded run, by the bundle: number, what it is of
        self.named: list[Link] = []  #: links of the engine, in the order of their numbers
        self.flows: dict[int, tuple[Flow, ...]] = {}  #: present flows of a folded run's patterns, by number

    def links(self, links: list[int]) -> tuple[int, ...]:
        """The engine's numbers of some links. In a folded run these links are a union of classes from now on."""
        if self._quotient is None:
            return tuple(self._link(link) for link in links)
        self._settle(self._quotient.separate(links))
        return tuple(self._class(number) for number in self._quotient.classes(links))

    def traffic(self, flows: Mapping[tuple[Route, Piece], int]) -> Traffic:
        """Flows that start together, each with the number of groups that send it."""
        made = Traffic([(route, piece, count) for (route, piece), count in flows.items()])
        if self._quotient is not None and made.flows:
            kinds: dict[tuple[Piece, int], int] = {}
            of = [kinds.setdefault((piece, count), len(kinds)) for _, piece, count in made.flows]
            made.bundle = self._quotient.bundle([route for route, _, _ in made.flows], of)
            self._settle([])
        return made

    def pattern(self, traffic: Traffic, choices: Mapping[tuner.Shape, tuner.Choice]) -> tuple[int, tuple[Flow, ...]]:
        """The engine's pattern of a traffic when NCCL chose this for each shape of group; its number and its flows."""
        flows = self._sized(Sized(traffic, choices))
        number = self._engine.pattern(flows)
        if traffic.bundle is not None:
            self._patterns.setdefault(id(traffic.bundle), []).append((number, Sized(traffic, choices)))
            self.flows[number] = flows
        return number, flows

    def through_ns(self, flows: Iterable[Flow]) -> int:
        """How long the busiest link takes for its bytes."""
        return max(
            (-(-size * 1_000_000_000 // self.named[link].bytes_per_s) for link, size in loads(flows).items()), default=0
        )

    def _sized(self, sized: Sized) -> tuple[Flow, ...]:
        traffic, choices = sized
        made = []
        if traffic.bundle is None:
            for route, piece, count in traffic.flows:
                size = piece.bytes(choices[piece.shape])
                made.append(Flow(tuple(self._link(link) for link in route), size * count, count))
        else:
            for each in traffic.bundle.classes:
                _, piece, count = traffic.flows[each.first]
                size = piece.bytes(choices[piece.shape])
                made.append(Flow(tuple(map(self._class, each.route)), size * count, count, each.counts))
        return tuple(made)

    def _settle(self, divisions: Iterable[tuple[int, int]]) -> None:
        """Hands to the engine what has been divided: links first, and then the flows over them."""
        assert self._quotient is not None
        more, changed = self._quotient.settle()
        for old, new in (*divisions, *more):
            if old in self._numbers:
                number = self._numbers[old]
                self._named(new, self._engine.twin(number))
                self.named[number] = self.named[number]._replace(equal=self._quotient.sizes[old])
        for bundle, before in changed:
            for number, sized in self._patterns.get(id(bundle), ()):
                self._refine(number, sized, before)

    def _refine(self, number: int, sized: Sized, before: Numbers) -> None:
        flows = self._sized(sized)
        if flows != self.flows[number]:
            assert sized.traffic.bundle is not None
            self._engine.refine(number, flows, [int(before[each.first]) for each in sized.traffic.bundle.classes])
            self.flows[number] = flows

    def _link(self, link: int) -> int:
        number = self._numbers.get(link)
        if number is None:
            number = self._numbers[link] = self._engine.link(self._fabric.links[link].bytes_per_s)
            found = self._fabric.links[link]
            self.named.append(Link(number, found.name, self._fabric.tier(found), found.bytes_per_s))
        return number

    def _class(self, number: int) -> int:
        found = self._numbers.get(number)
        if found is None:
            assert self._quotient is not None
            bytes_per_s = self._fabric.links[self._quotient.first[number]].bytes_per_s
            found = self._named(number, self._engine.link(bytes_per_s))
        return found

    def _named(self, number: int, in_engine: int) -> int:
        assert self._quotient is not None
        self._numbers[number] = in_engine
        first = self._fabric.links[self._quotient.first[number]]
        count = self._quotient.sizes[number]
        self.named.append(Link(in_engine, first.name, self._fabric.tier(first), first.bytes_per_s, count))
        return in_engine
