"""A quotient of the network: links and flows that are equal are solved once, with their number.

A folded run has thousands of GPUs that do the same at the same time, so most links carry the same as many others. The
engine need not know them all. It gets one link for each *class* of links and one flow for each class of flows
(:class:`~.engine.interface.Flow` with ``counts``), and its rates are those of the whole network, to the bit.

The classes are found by colour refinement. Links start in one class if they are of one kind and capacity. Then two
things are done in turn until nothing changes:

1. Flows that start together are in one class if they are of one *kind* (the same bytes and weight whatever the size of
   the operation) and cross as many links of each class.
2. A class of links is divided where its links have different numbers of flows of some class.

What comes out is *equitable*: every link of a class has as many flows of each class as the next one. Why that is
enough: max-min rates are the one solution of equations which say, link by link, what a link gives to the flows that it
holds back (``simcore/native/src/shares.h``). Where all links of a class have one capacity and as many flows of each
class, levels that solve the equations of the classes solve those of all links. So they are the solution. Flows of a
class start together with the same bytes, have the same rates and end together, so this stays true as time goes on. What
is not equal, since a hash sends two flows over one cable or since a group lies across two leaves, ends up in different
classes by itself.

Several families of flows share links, so there is one partition of links for all. Flows that come later can divide
classes that are in use. Then the engine divides what is under way: the parts of a class had the same past, so each has
the state of the whole (:meth:`~.engine.interface.Engine.refine`). Classes are never joined.

Hashes only serve to find what may be equal. What is put into one class has been compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.fabric.routing import Route
from eidolon_simcore.fabric.topology import Topology

Numbers = NDArray[np.int64]
NONE: Numbers = np.zeros(0, np.int64)


class FlowClass(NamedTuple):
    """Equal flows: the classes of links that each crosses, and how many of them are on each link of such a class."""

    first: int  #: the least flow
    size: int
    route: tuple[int, ...]
    counts: tuple[int, ...]


class Division(NamedTuple):
    """A class of links, and a part of it that is a class of its own from now on."""

    old: int
    new: int


@dataclass(slots=True)
class Bundle:
    """Flows that start together, and their classes."""

    routes: Numbers  #: links by flow, filled up with -1
    kinds: Numbers  #: by flow
    links: Numbers  #: all that they use, in order
    classes: list[FlowClass] = field(default_factory=list)
    of: Numbers = field(default_factory=lambda: NONE)  #: class by flow
    _seen: Numbers = field(default_factory=lambda: NONE)  # the colours of the links for which `of` holds
    _looked: int = 0  # how many classes of links there were when it was last looked at
    _keys: Numbers = field(default_factory=lambda: NONE)  # link * number of classes + class, in order
    _counts: Numbers = field(default_factory=lambda: NONE)  # flows of that class on that link


class Quotient:
    """The classes of a fabric's links."""

    def __init__(self, fabric: Topology) -> None:
        kinds: dict[Hashable, int] = {}
        self._colours = np.array(
            [kinds.setdefault((fabric.tier(link), link.bytes_per_s), len(kinds)) for link in fabric.links], np.int64
        )
        _, first, sizes = np.unique(self._colours, return_index=True, return_counts=True)
        self.first: list[int] = first.tolist()  #: the least link of each class
        self.sizes: list[int] = sizes.tolist()
        self._bundles: list[Bundle] = []

    def classes(self, links: Iterable[int]) -> list[int]:
        """The classes of some links, each once, in the order in which they come."""
        return list(dict.fromkeys(self._colours[list(links)].tolist()))

    def bundle(self, routes: Sequence[Route], kinds: Sequence[int]) -> Bundle:
        """Flows that start together. Call :meth:`settle` before their classes are used."""
        lengths = np.fromiter(map(len, routes), np.int64, len(routes))
        table = np.full((len(routes), int(lengths.max(initial=0))), -1, np.int64)
        inside = np.arange(table.shape[1]) < lengths[:, None]
        table[inside] = np.fromiter(itertools.chain.from_iterable(routes), np.int64, int(lengths.sum()))
        made = Bundle(table, np.asarray(kinds, np.int64), np.unique(table[inside]))
        self._bundles.append(made)
        return made

    def separate(self, links: Sequence[int]) -> list[Division]:
        """Makes the links a union of classes. Call :meth:`settle` afterwards."""
        chosen = np.unique(np.asarray(links, np.int64))
        return self._divide(chosen, self._colours[chosen])

    def settle(self) -> tuple[list[Division], list[tuple[Bundle, Numbers]]]:
        """Divides classes until they are equitable for all bundles. Returns what was divided, in order, and the bundles
        whose classes are others than before, each with the former class of its flows."""
        divisions: list[Division] = []
        former: dict[int, tuple[Bundle, Numbers]] = {}
        moved = True
        while moved:
            moved = False
            for bundle in self._bundles:
                if bundle._looked == len(self.first):
                    continue
                bundle._looked = len(self.first)
                colours = self._colours[bundle.links]
                if len(bundle.of) and np.array_equal(colours, bundle._seen):
                    continue
                moved = True
                former.setdefault(id(bundle), (bundle, bundle.of))
                bundle._seen = colours
                divisions += self._divide(bundle.links, self._told_apart(bundle))
        for bundle, _ in former.values():
            bundle.classes = self._described(bundle)
        return divisions, list(former.values())

    def _told_apart(self, bundle: Bundle) -> Numbers:
        """Numbers that are equal for links of a bundle which are of one class and have the same flows on them."""
        colours = np.append(self._colours, -1)[bundle.routes]
        colours.sort(axis=1)
        bundle.of = _equal_rows(np.column_stack((bundle.kinds, colours)))
        count = int(bundle.of.max()) + 1
        on_route = bundle.routes >= 0
        keys = (bundle.routes * count + bundle.of[:, None])[on_route]
        bundle._keys, bundle._counts = np.unique(keys, return_counts=True)
        link, flow = bundle._keys // count, bundle._keys % count
        starts = np.flatnonzero(np.append(True, link[1:] != link[:-1]))
        lengths = np.diff(np.append(starts, len(link)))
        row = np.repeat(np.arange(len(starts)), lengths)
        offset = np.arange(len(link)) - starts[row]
        for seed in itertools.count():
            words = np.random.default_rng(seed).integers(1 << 62, size=count, dtype=np.int64)
            sums = np.add.reduceat(words[flow] * bundle._counts, starts)
            found = _equal_rows(np.column_stack((self._colours[bundle.links], lengths, sums)))
            _, first = np.unique(found, return_index=True)
            other = starts[first[found]][row] + offset
            if np.array_equal(flow[other], flow) and np.array_equal(bundle._counts[other], bundle._counts):
                return found
        raise AssertionError

    def _divide(self, links: Numbers, groups: Numbers) -> list[Division]:
        """Divides classes so that links with different ``groups`` are apart, from each other and from all others. The
        part with the least link keeps its number."""
        divisions: list[Division] = []
        _, first, group, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
        colours = self._colours[links[first]]
        parts = np.bincount(colours, minlength=len(self.sizes))
        others = np.asarray(self.sizes) - np.bincount(colours, weights=sizes, minlength=len(self.sizes)).astype(
            np.int64
        )
        new = colours.copy()
        for at in np.flatnonzero((parts[colours] > 1) | (others[colours] > 0)).tolist():
            colour, least = int(colours[at]), int(links[first[at]])
            if least != self.first[colour]:
                new[at] = self._born(colour, least, int(sizes[at]), divisions)
            elif others[colour]:
                rest = np.setdiff1d(np.flatnonzero(self._colours == colour), links, assume_unique=True)
                self._colours[rest] = self._born(colour, int(rest[0]), len(rest), divisions)
        self._colours[links] = new[group]
        return divisions

    def _born(self, old: int, first: int, size: int, divisions: list[Division]) -> int:
        new = len(self.first)
        self.first.append(first)
        self.sizes.append(size)
        self.sizes[old] -= size
        divisions.append(Division(old, new))
        return new

    def _described(self, bundle: Bundle) -> list[FlowClass]:
        _, first, sizes = np.unique(bundle.of, return_index=True, return_counts=True)
        routes = bundle.routes[first]
        keys = routes * len(first) + np.arange(len(first))[:, None]
        counts = bundle._counts[np.minimum(np.searchsorted(bundle._keys, keys), len(bundle._keys) - 1)]
        found = []
        for flow, size, links, colours, numbers in zip(
            first.tolist(),
            sizes.tolist(),
            routes.tolist(),
            self._colours[routes].tolist(),
            counts.tolist(),
            strict=True,
        ):
            length = len(links) - links.count(-1)
            each = dict(zip(colours[:length], numbers[:length], strict=True))
            found.append(FlowClass(flow, size, tuple(each), tuple(each.values())))
        return found


def _equal_rows(rows: Numbers) -> Numbers:
    """The same number for equal rows; numbers start at 0, and rise with the first row that has them."""
    for seed in itertools.count():
        words = np.random.default_rng(seed).integers(1 << 62, size=rows.shape[1], dtype=np.int64) | 1
        _, first, found = np.unique((rows * words).sum(axis=1), return_index=True, return_inverse=True)
        if np.array_equal(rows[first][found], rows):
            place = np.empty(len(first), np.int64)
            place[np.argsort(first)] = np.arange(len(first))
            return place[found]
    raise AssertionError
