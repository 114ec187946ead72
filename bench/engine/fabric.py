"""The network's cases: a two-level fat tree with 16 hosts and 16 uplinks for each leaf, and links of 50 GB/s."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]

RADIX = 16
LINK_BYTES_PER_S = 50 * 10**9


@dataclass(frozen=True)
class Flows:
    """Columns of flows, in order of start."""

    starts: NDArray[np.int64]
    routes: list[tuple[int, ...]]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.routes)

    def first(self, count: int) -> Flows:
        """The first ``count`` flows."""
        return Flows(self.starts[:count], self.routes[:count], self.sizes[:count])


class FatTree:
    """The links of the tree by number: hosts up, hosts down, leaves up, leaves down."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self.links = 4 * hosts  # host up, host down, leaf up, leaf down

    def route(self, source: int, target: int, spine: int) -> tuple[int, ...]:
        """The links from one host to another. ``spine`` matters only between two leaves."""
        up, down = source, self.hosts + target
        if source // RADIX == target // RADIX:
            return up, down
        return (
            up,
            2 * self.hosts + source // RADIX * RADIX + spine,
            3 * self.hosts + target // RADIX * RADIX + spine,
            down,
        )

    def random_route(self, rng: random.Random) -> tuple[int, ...]:
        """A route between two different hosts."""
        source, target = rng.sample(range(self.hosts), 2)
        return self.route(source, target, rng.randrange(RADIX))

    def ring(self) -> list[tuple[int, ...]]:
        """Routes from each host to the next."""
        return [self.route(i, (i + 1) % self.hosts, i % RADIX) for i in range(self.hosts)]

    def network(self, *, journal: bool) -> _engine.Network:
        """A network with the tree's links. With ``journal`` it can go back in time."""
        network = _engine.Network(journal=journal)
        for _ in range(self.links):
            network.link(LINK_BYTES_PER_S)
        return network


def churn(tree: FatTree, concurrent: int, count: int, seed: int = 1) -> Flows:
    """Random flows of 1 to 100 MB, of which always ``concurrent`` run at a time: one begins as one ends. They can be
    replayed.
    """
    rng = random.Random(seed)
    network = tree.network(journal=False)
    starts, routes, sizes = [], [], []

    def begin(time: int, number: int) -> None:
        for _ in range(number):
            starts.append(time)
            routes.append(tree.random_route(rng))
            sizes.append(rng.randrange(10**6, 10**8))
        new = slice(len(routes) - number, len(routes))
        add(network, Flows(np.array(starts[new], np.int64), routes[new], np.array(sizes[new], np.int64)))

    begin(0, concurrent)
    while len(routes) < count:
        time = network.next()
        network.advance(time)
        if ended := len(network.ended()):
            begin(time, ended)
    return Flows(np.array(starts[:count], np.int64), routes[:count], np.array(sizes[:count], np.int64))


def numbers(network: _engine.Network, flows: Flows) -> NDArray[np.int64]:
    """The numbers of the routes. A topology hands them out once, so this is no part of what is measured."""
    return np.array([network.route(route) for route in flows.routes], np.int64)


def add(network: _engine.Network, flows: Flows) -> None:
    """Adds flows to a network, each with a weight of one."""
    network.add(flows.starts, numbers(network, flows), flows.sizes, np.ones(len(flows), np.int64))
