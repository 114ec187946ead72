"""The first network: every GPU has an NVLink port and a NIC of its own, and collectives are rings over them.

A collective on members of one server puts ``factor * bytes`` on each member's NVLink port (``2(n-1)/n`` for an
all-reduce of ``bytes``, ``(n-1)/n`` for all-gather, reduce-scatter and all-to-all, 1 for broadcast and its
relatives). Across servers a ring passes every server's boundary with the same bytes, spread over the NICs of its
``k`` members there. What a wire achieves and what a start costs comes from ``data/nccl.yaml`` (fitted; see there);
flows carry bytes inflated by the missing efficiency, so that links keep their real capacity. Latency grows by one hop
for every doubling of the servers (twice that for all-reduce), by one for each further server in ring-only operations.

A send and its receive are one flow, at the pace of a single pair. The engine shares links, so a group of sends (an
all-to-all) takes as long as its busiest port needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import yaml

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.engine.interface import Engine, Flow


class Port(NamedTuple):
    """One emulated GPU, as the network sees it."""

    server: int
    device: int


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Rates of the run; ``intra`` None takes the GPU's own."""

    inter_bytes_per_s: int
    inter_latency_ns: int
    intra_bytes_per_s: int | None = None


class Link(NamedTuple):
    """A link of the engine: its number there, a short stable name, what kind of link it is."""

    number: int
    name: str
    tier: str
    bytes_per_s: int


class Pattern(NamedTuple):
    """What an operation puts on the wire, and for how long it would have it to itself."""

    latency_ns: int
    flows: tuple[Flow, ...]
    alone_ns: int


_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
_RING_ONLY = ("all_gather", "reduce_scatter", "gather", "scatter")


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(
        (resources.files("eidolon_simcore") / "data" / "nccl.yaml").read_text("utf-8")
    )
    return table


class Network:
    """Links of a cluster in the engine, made as they are used, and patterns of collectives over them."""

    def __init__(self, engine: Engine, gpu: Gpu, settings: NetworkSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._intra = settings.intra_bytes_per_s or gpu.intra_bytes_per_s
        self._scale = self._intra / _table()["reference_bytes_per_s"]
        self._links: dict[tuple[str, Port], int] = {}
        self._named: list[Link] = []
        self._efficiency: float = _table()["network"]["efficiency"]
        self._hop_ns = settings.inter_latency_ns + round(_table()["network"]["hop_latency_us"] * 1e3)
        self._patterns: dict[tuple[str, int, int, tuple[Port, ...]], Pattern] = {}

    def links(self) -> list[Link]:
        """Links made so far, by their numbers."""
        return self._named

    @property
    def init_ns(self) -> int:
        return int(_table()["init_ms"]) * 1_000_000

    def collective(self, op: str, size_bytes: int, members: Sequence[Port], root: int = 0) -> Pattern:
        """``size_bytes``: the larger buffer of one member. ``members``: in the communicator's order."""
        key = (op, size_bytes, root if op in ("gather", "scatter") else 0, tuple(members))
        found = self._patterns.get(key)
        if found is None:
            found = self._patterns[key] = self._ring(op, size_bytes, members, root)
        return found

    def pair(self, source: Port, target: Port, size_bytes: int) -> Pattern:
        """A send and its receive."""
        if source == target:
            return self._pattern(2_000, [])
        local = source.server == target.server
        latency, bandwidth = self._line("send", 2, size_bytes)
        if local:
            ports = (("nvlink out", source), ("nvlink in", target))
            wire = size_bytes * self._intra / bandwidth
            return self._pattern(latency, [(ports[0], ports[1], wire)])
        wire = size_bytes / self._efficiency
        return self._pattern(latency + self._hop_ns, [(("nic out", source), ("nic in", target), wire)])

    def _ring(self, op: str, size_bytes: int, members: Sequence[Port], root: int) -> Pattern:
        n = len(members)
        if n == 1:
            return self._pattern(2_000, [])
        servers = sorted({port.server for port in members})
        local = max(sum(port.server == server for port in members) for server in servers)
        on_wire = size_bytes * (_FACTORS[op](n) if op in _FACTORS else 1.0)
        latency, bandwidth = self._line(op, max(2, local), round(on_wire))
        order = sorted(members)  # ring order: servers one after the other
        if op in ("gather", "scatter"):
            at = order.index(members[root])
            order = order[at:] + order[:at]
        flows: list[tuple[tuple[str, Port], tuple[str, Port], float]] = []
        count = {server: sum(port.server == server for port in members) for server in servers}
        for i, port in enumerate(order):
            after = order[(i + 1) % n]
            if local > 1:
                inner = after if after.server == port.server else self._first(order, port.server)
                if inner != port:
                    flows.append((("nvlink out", port), ("nvlink in", inner), on_wire * self._intra / bandwidth))
        if len(servers) > 1:
            for i, server in enumerate(servers):
                peers = [port for port in order if port.server == servers[(i + 1) % len(servers)]]
                for j, port in enumerate(port for port in order if port.server == server):
                    share = on_wire / count[server] / self._efficiency
                    flows.append((("nic out", port), ("nic in", peers[j % len(peers)]), share))
            hops = len(servers) - 1 if op in _RING_ONLY else math.ceil(math.log2(len(servers)))
            latency += hops * self._hop_ns * (2 if op == "all_reduce" else 1)
        return self._pattern(latency, flows)

    @staticmethod
    def _first(order: Sequence[Port], server: int) -> Port:
        return next(port for port in order if port.server == server)

    def _line(self, op: str, n: int, on_wire: int) -> tuple[int, float]:
        """(latency in ns, bytes/s) of the line that is quickest for these bytes."""
        table = _table()["lines"].get(op) or _table()["lines"]["broadcast"]
        lines = table[max((size for size in table if size <= n), default=min(table))]
        choices = [(latency * 1e3, bandwidth * 1e9 * self._scale) for latency, bandwidth in lines]
        latency, bandwidth = min(choices, key=lambda line: line[0] + on_wire / line[1] * 1e9)
        return round(latency), bandwidth

    def _pattern(self, latency_ns: int, flows: Sequence[tuple[tuple[str, Port], tuple[str, Port], float]]) -> Pattern:
        made = []
        through = 0
        for source, target, size in flows:
            made.append(Flow((self._link(*source), self._link(*target)), max(1, round(size))))
            rate = min(self._rate(source[0]), self._rate(target[0]))
            through = max(through, -(-max(1, round(size)) * 1_000_000_000 // rate))
        return Pattern(latency_ns, tuple(made), max(1, latency_ns + through))

    def _rate(self, kind: str) -> int:
        return self._settings.inter_bytes_per_s if kind.startswith("nic") else self._intra

    def _link(self, kind: str, port: Port) -> int:
        number = self._links.get((kind, port))
        if number is None:
            number = self._links[kind, port] = self._engine.link(self._rate(kind))
            name = f"{kind} {port.server}/{port.device}"
            self._named.append(Link(number, name, kind.split(maxsplit=1)[0], self._rate(kind)))
        return number
