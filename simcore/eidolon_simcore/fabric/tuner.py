"""What NCCL chooses for an operation, and how long that takes: two questions with two answers.

NCCL's tuner gives every algorithm and protocol a time of the form *latency x steps + bytes / bandwidth* and takes the
least. Its figures are not those of the machine: from 4 MiB on four H100 it takes Simple for an all-gather where LL128
would be a quarter faster. So inside a domain the *choice* is made by NCCL's own figures (``tuner`` in
``data/nccl.yaml``, :meth:`Tuner.promised_us`), and where the choice changes, the time jumps. The *time* is that of the
chosen line. Lines are fitted to measurements, which the data name; ``python -m bench.collectives`` compares them:

    ``start + base + hop * steps + (steps + k) * bytes / n / bandwidth``

``base`` is a kernel's own time, and ``hop`` that of one step of the protocol. LL has a flag with every 4 bytes, so the
least latency and half the wire's bandwidth; LL128 has a flag every 120 bytes; Simple sends whole chunks with a fence,
so it has the most latency and the most bandwidth. ``k`` counts the chunks that a rank copies beside those that it
sends. ``start`` is what a launch in a stream or graph of torch adds to NCCL's own time. An all-reduce has ``2(n-1)``
steps, the other ring operations have ``n-1``.

Between servers a step costs what NCCL's tuner says of the network (``inter`` in the data) plus the wire's own latency
beyond :data:`REFERENCE_PATH_NS`. The algorithms there are:

========== ========================================================= =================================================
ring       every operation                                           latency grows with ranks, all links are used once
tree       all_reduce: chains in a server, double tree over servers   latency grows with the logarithm of servers
nvls       all_reduce in one domain whose switch reduces              no steps; only with NVLink SHARP (sm_90 on)
nvls_tree  the same in every domain, double tree over them
hierarchical all_reduce: reduce-scatter inside, ring over servers per rail, all-gather inside; only when asked for
pat        all_gather, reduce_scatter with one rank a server          steps are the logarithm of ranks
p2p        all_to_all, send                                           all pairs at once
========== ========================================================= =================================================

Between domains, and for sends, the quickest line is taken.

``NCCL_ALGO``, ``NCCL_PROTO`` and ``NCCL_NVLS_ENABLE`` narrow the choice (:class:`Options`). *Corrections* say by how
much measurements differ from the formula, for each operation, number of ranks and size. They hold for what NCCL chooses
by itself, and only among sizes for which it chooses the same.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import yaml

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import NCCL_ALGORITHMS, NCCL_PROTOCOLS

PROTOCOLS = NCCL_PROTOCOLS
ALGORITHMS = NCCL_ALGORITHMS  #: algorithms that NCCL_ALGO can ask for
MEASURED_RANKS = 8  #: times of more GPUs in one domain are extrapolated
REFERENCE_PATH_NS = 2_000  #: one-way latency of the network for which NCCL's own figures were made


class Line(NamedTuple):
    """One algorithm with one protocol on one kind of GPU."""

    base_us: float
    hop_us: float
    gb_per_s: float
    extra_chunks: float


@dataclass(frozen=True, slots=True)
class Options:
    """What a rank's environment asks for, and the version of its NCCL."""

    algorithms: frozenset[str] = frozenset()  #: if empty, any
    protocols: frozenset[str] = frozenset()
    nvls: bool = True
    version: int = 22809  #: as ``ncclGetVersion`` gives it


class Shape(NamedTuple):
    """Who takes part: ``ranks`` in ``domains``, with at most ``local`` of them in one. A domain is a server, or a rack
    with one NVLink domain."""

    ranks: int
    domains: int = 1
    local: int = 0
    nic_bytes_per_s: float = 0.0  #: rate of all NICs together that the domain with the least uses
    path_ns: int = 0  #: one-way latency between two domains


class Choice(NamedTuple):
    """What is done, and how long each part takes by itself. ``inside_us`` is the time of the busiest NVLink port.
    ``outside_bytes`` leave (and enter) a domain; they are already divided by the share of a wire that the protocol
    reaches."""

    algorithm: str
    protocol: str
    latency_us: float
    inside_us: float
    outside_bytes: float
    us: float  #: time of the whole operation on an idle fabric


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("eidolon_simcore") / "data" / "nccl.yaml").read_text("utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


def init_ns() -> int:
    """How long making a communicator takes. It only matters at start-up."""
    return int(_table()["init_ms"]) * 1_000_000


def family(gpu: Gpu) -> str:
    """The measured GPU whose figures hold for this one: that of its own generation, or else the newest older one."""
    major = int(gpu.cc.split(".")[0])
    if gpu.key in _table()["gpus"]:
        return gpu.key
    if gpu.nvlink_bytes_per_s == 0 or major < 9:
        return "a100-80gb-sxm"
    return "h100-sxm" if major == 9 else "b200-sxm"


def steps(op: str, ranks: int) -> int:
    """How many steps a ring takes for an operation."""
    return 2 * (ranks - 1) if op == "all_reduce" else ranks - 1


def chunks(op: str, algorithm: str, ranks: int) -> float:
    """How many chunks the busiest port of a rank sends. A buffer has as many chunks as there are ranks."""
    if algorithm == "tree":  # it is a chain, up and down through every rank between the ends
        return ranks * (2 if ranks > 2 else 1)
    if algorithm == "nvls" or op in ("broadcast", "reduce", "send"):
        return ranks
    return steps(op, ranks)


def bulk_factor(op: str, size_bytes: float, ranks: int) -> float:
    """How many times as fast NCCL sends, once the bytes to one peer are so many that its rate jumps (as measured on
    Hopper); 1 for fewer bytes."""
    bulk = _table()["bulk"]
    to_one = size_bytes / ranks if op == "all_to_all" else size_bytes
    return float(bulk["faster"]) if to_one >= bulk["from_bytes"] else 1.0


def options(words: Mapping[str, str], version: int = 22809) -> Options:
    """Options from environment variables, read as NCCL does. Lists have commas; ``^`` in front of one stands for all
    others; parts like ``op:`` are ignored. Unknown names are left out, and a list without known names asks for
    nothing."""
    return Options(
        algorithms=_chosen(words.get("NCCL_ALGO", ""), {name.replace("_", ""): name for name in ALGORITHMS}),
        protocols=_chosen(words.get("NCCL_PROTO", ""), {name.lower(): name for name in PROTOCOLS}),
        nvls=words.get("NCCL_NVLS_ENABLE", "") != "0",
        version=version,
    )


def _chosen(text: str, known: Mapping[str, str]) -> frozenset[str]:
    text = text.strip().lower().rpartition(":")[2]
    names = {known[word.strip()] for word in text.removeprefix("^").split(",") if word.strip() in known}
    return frozenset(known.values()) - names if text.startswith("^") else frozenset(names)


def unpacked(signature: Signature) -> Options:
    """Options from a communicator's signature. ``algorithms`` and ``protocols`` are masks by the place of each in our
    lists, where 0 stands for any; ``nvls`` is 0 or 1; ``version`` is NCCL's own."""

    def named(mask: int, names: tuple[str, ...]) -> frozenset[str]:
        return frozenset(name for i, name in enumerate(names) if mask >> i & 1)

    return Options(
        algorithms=named(signature.get("algorithms"), ALGORITHMS),
        protocols=named(signature.get("protocols"), PROTOCOLS),
        nvls=signature.get("nvls", 1) != 0,
        version=signature.get("version") or 22809,
    )


@dataclass(frozen=True, slots=True)
class Tuner:
    """The choices of one kind of GPU, whose wires are ``scale`` times as fast as those of the measured one."""

    key: str
    scale: float
    nvlink: bool
    switch_reduces: bool

    @classmethod
    def of(cls, gpu: Gpu, intra_bytes_per_s: int | None = None) -> Tuner:
        """The tuner of a GPU; ``intra_bytes_per_s`` replaces the rate of its links inside a server."""
        key = family(gpu)
        scale = (intra_bytes_per_s or gpu.intra_bytes_per_s) / float(_table()["gpus"][key]["wire_bytes_per_s"])
        nvlink = gpu.nvlink_bytes_per_s > 0
        return cls(key, scale, nvlink, nvlink and int(gpu.cc.split(".")[0]) >= 9)

    # ---- the choice -----------------------------------------------------------------------------------------------

    def choose(
        self, op: str, size_bytes: int, shape: Shape, wanted: Options | None = None, *, launched: bool = True
    ) -> Choice:
        """NCCL's choice among what the environment allows; if that is nothing that exists, its choice among all.
        ``launched`` False leaves out what a launch by torch adds, as nccl-tests would show it."""
        wanted = wanted or Options()
        everything = list(self._choices(op, size_bytes, shape, wanted))
        nvls = [c for c in everything if wanted.nvls or not c.algorithm.startswith("nvls")]
        allowed = [
            c
            for c in nvls
            if (not wanted.algorithms or c.algorithm in wanted.algorithms or c.algorithm == "p2p")
            and (not wanted.protocols or c.protocol in wanted.protocols)
        ]
        if "hierarchical" not in wanted.algorithms:
            allowed = [c for c in allowed if c.algorithm != "hierarchical"]
            everything = [c for c in everything if c.algorithm != "hierarchical"]
        nvls = [c for c in nvls if c.algorithm != "hierarchical"]
        promised = functools.partial(self._promised, op, size_bytes, shape, wanted.version)
        best, own = min(allowed or nvls, key=promised), min(nvls, key=promised)
        if shape.domains == 1 and best == own:
            best = self._corrected(op, size_bytes, shape, wanted, best)
        return self._launched(op, size_bytes, shape, best) if launched else best

    def symmetric(self, op: str, size_bytes: int, shape: Shape, shots: int) -> Choice:
        """What a kernel of symmetric memory does. With one shot each member reads all of every peer's buffer (of a
        reduce-scatter, its part); with two it reads its part of each and then spreads the sum. Times are those of
        torch's kernels on two H200 (``symmetric`` in ``data/nccl.yaml``)."""
        own = _table()["symmetric"]
        if op == "barrier":
            return Choice("symmetric", "barrier", own["barrier_us"], 0.0, 0.0, own["barrier_us"])
        peers, part = shape.ranks - 1, size_bytes / shape.ranks
        crossing = peers * (size_bytes if shots == 1 and op == "all_reduce" else part) * shots
        line = own["shots"][shots]
        inside_us = crossing / (line["gb_per_s"] * self.scale * 1e3)
        name = "one-shot" if shots == 1 else "two-shot"
        return Choice("symmetric", name, line["latency_us"], inside_us, 0.0, line["latency_us"] + inside_us)

    def _promised(self, op: str, size_bytes: int, shape: Shape, version: int, choice: Choice) -> float:
        """The time by which NCCL's tuner chooses; where that is not known, the time itself."""
        if shape.domains > 1 or choice.algorithm not in _table()["tuner"]["base_us"]:
            return choice.us
        return self.promised_us(op, choice.algorithm, choice.protocol, shape.ranks, size_bytes, version)

    def promised_us(
        self, op: str, algorithm: str, protocol: str, ranks: int, size_bytes: float, version: int = 22809
    ) -> float:
        """The time that NCCL's own tuner gives a ring, a tree or NVLS inside a domain (src/graph/tuning.cc)."""
        own, gpu = _table()["tuner"], _table()["gpus"][self.key]["tuner"]
        bus = gpu["bus_gb_per_s"] * self.scale
        of_ring = {"LL": min(0.5 * bus, gpu["ll_gb_per_s"]), "LL128": 0.92 * bus, "Simple": bus}
        if version >= 22900:
            of_ring["LL128"] = min(of_ring["LL128"], gpu["ll128_gb_per_s"])
        crossed, part = steps(op, ranks), ranks / steps(op, ranks)
        if op in ("broadcast", "reduce"):
            crossed, part = 1, 1.0
        if algorithm == "nvls":
            crossed, rate = 1, gpu["nvls_gb_per_s"] * self.scale * ranks
        elif algorithm == "tree":
            crossed, part = 2 * (ranks - 1), 0.5
            rate = 0.92 * bus * {"LL": 1 / 3.8, "LL128": 7 / 9, "Simple": 1.0}[protocol]
            factors = own["tree_factor"][protocol]
            rate *= factors[min(len(factors) - 1, max(0, int(size_bytes).bit_length() - 7))]
        else:
            rate = of_ring[protocol]
        latency = own["base_us"][algorithm][protocol] + own["hop_us"][algorithm][protocol] * crossed
        return float(latency + size_bytes / (rate * part * 1e3))

    def _choices(self, op: str, size_bytes: int, shape: Shape, wanted: Options) -> Iterator[Choice]:
        for (algorithm, protocol), line in self._lines(op, wanted.version).items():
            if protocol == "LL128" and not self.nvlink:
                continue
            if algorithm == "nvls" and (not self.switch_reduces or shape.local == 2 or shape.ranks == 2):
                continue
            name = "nvls_tree" if algorithm == "nvls" and shape.domains > 1 else algorithm
            yield self._time(op, name, protocol, line, size_bytes, shape)
            if op == "all_reduce" and algorithm == "ring" and shape.domains > 1 and shape.local > 1:
                yield self._time(op, "hierarchical", protocol, line, size_bytes, shape)
            ring = algorithm == "ring" and op in ("all_gather", "reduce_scatter") and protocol == "Simple"
            if ring and shape.domains > 1 and shape.local == 1:
                yield self._time(op, "pat", protocol, line, size_bytes, shape)

    def _time(self, op: str, algorithm: str, protocol: str, line: Line, size_bytes: int, shape: Shape) -> Choice:
        n, domains, local = shape.ranks, shape.domains, shape.local or shape.ranks
        inside = chunks(op, "nvls" if algorithm == "nvls_tree" else algorithm, n) + line.extra_chunks
        if domains == 1:
            latency = line.base_us + line.hop_us * steps(op, n)
            wire = inside * size_bytes / n / (line.gb_per_s * self.scale * 1e3)
            if algorithm == "p2p":
                wire /= bulk_factor(op, size_bytes, n)
            return Choice(algorithm, protocol, latency, wire, 0.0, latency + wire)
        inter = _table()["inter"]
        of_tree = algorithm in ("tree", "pat", "nvls_tree")
        hop_us = inter["hop_us"]["nvls_tree" if algorithm == "nvls_tree" else "tree" if of_tree else "ring"][protocol]
        hop_us += max(0, shape.path_ns - REFERENCE_PATH_NS) / 1e3
        depth = math.ceil(math.log2(domains))
        crossed = steps(op, domains)
        if algorithm == "ring" or algorithm == "p2p":
            hops = depth if algorithm == "p2p" else crossed
            latency = line.hop_us * ((steps(op, n) - crossed) if algorithm == "ring" else local - 1) + hop_us * hops
        elif algorithm == "pat":
            latency = hop_us * math.ceil(math.log2(n))
        elif algorithm == "hierarchical":
            latency = line.hop_us * 2 * (local - 1) + hop_us * crossed
        else:
            latency = hop_us * 2 * depth + (line.hop_us * 2 * (local - 1) if algorithm == "tree" else 0.0)
        latency += line.base_us
        outside = outside_bytes(op, algorithm, size_bytes, n, domains, local)
        if algorithm == "hierarchical":
            inside = (2 * (local - 1) + line.extra_chunks) * n / local
        elif algorithm in ("ring", "p2p"):
            inside = inside * (local - 1) / local
        wire = inside * size_bytes / n / (line.gb_per_s * self.scale * 1e3) if local > 1 else 0.0
        achieved = outside / inter["efficiency"][protocol]
        us = latency + max(wire, achieved / shape.nic_bytes_per_s * 1e6 if shape.nic_bytes_per_s else 0.0)
        return Choice(algorithm, protocol, latency, wire, achieved, us)

    # ---- the data -------------------------------------------------------------------------------------------------

    def _lines(self, op: str, version: int) -> dict[tuple[str, str], Line]:
        return _lines(self.key, op, version >= 22900)

    def _corrected(self, op: str, size_bytes: int, shape: Shape, wanted: Options, choice: Choice) -> Choice:
        entry = _entry(self.key, op, wanted.version >= 22900)
        last = _last_fitted(self.key, entry)
        if size_bytes <= last:
            factor = math.exp(self._correction(entry, op, shape.ranks, size_bytes, wanted, choice))
        else:  # beyond the last fitted size it goes on with the slope between the last two
            before, at = (self.choose(op, size, shape, wanted, launched=False).us for size in (last // 4, last))
            factor = (at + (at - before) * (size_bytes - last) / (last - last // 4)) / choice.us
            factor /= bulk_factor(op, size_bytes, shape.ranks) if choice.algorithm == "p2p" else 1.0
        latency, inside = choice.latency_us * factor, choice.inside_us * factor
        return choice._replace(latency_us=latency, inside_us=inside, us=latency + inside)

    def _correction(self, entry: str, op: str, ranks: int, size_bytes: int, wanted: Options, choice: Choice) -> float:
        """The logarithm of the measured time over the formula's. It is interpolated in the logarithms of bytes and
        ranks, among sizes for which NCCL chooses as it does here. 0 where none is known."""
        table: dict[int, list[float]] = _table()["gpus"][self.key]["corrections"].get(entry, {})
        first, step = _table()["corrections_from"], _table()["corrections_step"]
        at = math.log2(max(1, size_bytes))
        version = wanted.version if op == "all_to_all" else max(wanted.version, 22900)  # those that were measured
        known: dict[int, float] = {}
        for n, row in table.items():
            sizes = [first + step * i for i in range(len(row))]
            same = [i for i, size in enumerate(sizes) if _chooses(self, op, n, 1 << size, version) == choice[:2]]
            if same:
                known[n] = _interpolate(at, [sizes[i] for i in same], [row[i] for i in same])
        if not known:
            return 0.0
        counts = sorted(known)
        return _interpolate(math.log2(ranks), [math.log2(n) for n in counts], [known[n] for n in counts])

    @staticmethod
    def launch_us(ranks: int) -> float:
        """What a launch adds. It was measured for 2 and 4 ranks and is extrapolated to 8."""
        first, per_doubling = _table()["launch"]["start_us"]
        return float(first + per_doubling * (min(3.0, math.log2(ranks)) - 1))

    def _launched(self, op: str, size_bytes: int, shape: Shape, choice: Choice) -> Choice:
        launch = _table()["launch"]
        latency = choice.latency_us + self.launch_us(shape.ranks)
        residuals = launch["residuals"].get(self.key, {}).get(_LIKE.get(op, op), {}).get(shape.ranks)
        factor = 1.0
        if residuals and shape.domains == 1:
            at = [launch["residuals_from"] + launch["residuals_step"] * i for i in range(len(residuals))]
            factor = math.exp(_interpolate(math.log2(max(1, size_bytes)), at, residuals))
        latency, inside = latency * factor, choice.inside_us * factor
        us = latency + max(inside, choice.us - choice.latency_us if shape.domains > 1 else 0.0)
        return choice._replace(latency_us=latency, inside_us=inside, us=us)


def outside_bytes(op: str, algorithm: str, size_bytes: float, ranks: int, domains: int, local: int) -> float:
    """How many bytes leave the busiest domain."""
    if algorithm in ("tree", "nvls_tree"):
        return size_bytes * (1 if domains == 2 else 2)
    if algorithm == "hierarchical":
        return size_bytes * 2 * (domains - 1) / domains
    if algorithm == "p2p":
        return size_bytes * local * (ranks - local) / ranks if op == "all_to_all" else size_bytes
    if op in ("broadcast", "reduce"):
        return size_bytes
    return size_bytes * steps(op, ranks) / ranks


_LIKE = {"gather": "all_gather", "scatter": "all_gather", "reduce": "broadcast", "recv": "send"}


def _entry(key: str, op: str, since_2_29: bool) -> str:
    op = _LIKE.get(op, op)
    newer = f"{op}@2.29"
    return newer if since_2_29 and newer in _table()["gpus"][key]["lines"] else op


@cache
def _lines(key: str, op: str, since_2_29: bool) -> dict[tuple[str, str], Line]:
    entry = _table()["gpus"][key]["lines"][_entry(key, op, since_2_29)]
    return {
        (algorithm, protocol): Line(*numbers)
        for algorithm, protocols in entry.items()
        for protocol, numbers in protocols.items()
    }


@cache
def _chooses(chooser: Tuner, op: str, ranks: int, size_bytes: int, version: int) -> tuple[str, str]:
    """Algorithm and protocol that NCCL chose where it was measured: inside a server, with nothing asked for."""
    choices = chooser._choices(op, size_bytes, Shape(ranks), Options(version=version))
    best = min(choices, key=functools.partial(chooser._promised, op, size_bytes, Shape(ranks), version))
    return best.algorithm, best.protocol


@cache
def _last_fitted(key: str, entry: str) -> int:
    """The largest size in bytes for which there is a correction of an operation."""
    rows = _table()["gpus"][key]["corrections"].get(entry)
    count = len(next(iter(rows.values()))) if rows else 1
    return 1 << (_table()["corrections_from"] + _table()["corrections_step"] * (count - 1)) if rows else 1 << 62


def _interpolate(x: float, xs: list[float], ys: list[float]) -> float:
    """The value at ``x`` of the lines between the points; beyond the ends it is constant."""
    right = bisect.bisect_left(xs, x)
    if right == 0:
        return ys[0]
    if right == len(xs):
        return ys[-1]
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])
