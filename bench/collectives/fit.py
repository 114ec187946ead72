"""Fits the tuner's data (``simcore/eidolon_simcore/data/nccl.yaml``) to what was measured.

    python -m bench.collectives fit

For each GPU and operation, the lines of the ring's protocols and of NVLS are fitted together over 2, 4 and 8 ranks, so
that the least of them follows the fitted points. For H100 and H200 the forced protocols of 2 ranks are fitted too. The
logarithm of what is left at every fitted size then becomes the correction. What nobody measured (broadcast, send and
trees on other GPUs) is taken from the H100 and scaled by how the GPU's all-gather differs.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-not-found]

from bench.collectives import heldout, measured
from bench.collectives.measured import GPUS, GRAPH_LAUNCH_US, OPS, Point
from eidolon_simcore import catalogue
from eidolon_simcore.fabric import tuner

DATA = Path(tuner.__file__).parent.parent / "data" / "nccl.yaml"
FIRST, STEP = 9, 2  #: fitted sizes are 2^9, 2^11, ...
SMALL = 1 << 14  #: bytes up to which an all-to-all is sent in the same way by all versions
START = {2: 3.2, 4: 4.5}  #: microseconds by ranks, including the launch of a graph; see `starts`

Key = tuple[str, str]
Lines = dict[Key, tuple[float, float, float, float]]
Train = dict[str, list[Point]]

_GUESS: Lines = {
    ("ring", "LL"): (4.5, 0.8, 130.0, 0.3),
    ("ring", "LL128"): (10.0, 1.2, 280.0, 0.3),
    ("ring", "Simple"): (13.0, 1.9, 360.0, 0.3),
    ("nvls", "Simple"): (40.0, 0.1, 250.0, 0.3),
}


def time_us(line: Sequence[float], op: str, algorithm: str, ranks: int, size: Any) -> Any:
    """The tuner's formula for the time inside a server, without the start."""
    base, hop, rate, extra = line
    return (
        base + hop * tuner.steps(op, ranks) + (tuner.chunks(op, algorithm, ranks) + extra) * size / ranks / rate / 1e3
    )


def chosen(gpu: str, lines: Mapping[Key, object], p: Point) -> Key:
    """What NCCL's tuner chooses among the protocols of a ring and NVLS."""
    chooser = tuner.Tuner.of(catalogue.gpu(gpu))
    keys = [key for key in lines if key[0] != "nvls" or p.ranks > 2]
    return min(keys, key=lambda key: chooser.promised_us(p.op, *key, p.ranks, p.bytes, p.nccl))


def told_us(
    lines: Mapping[Key, Sequence[float]], op: str, ranks: int, size: Any, keys: Sequence[Key] | None = None
) -> Any:
    """The time by the lines that NCCL chooses. Without ``keys`` the quickest line counts, as for an all-to-all."""
    if keys is None:
        return np.minimum.reduce([time_us(line, op, algorithm, ranks, size) for (algorithm, _), line in lines.items()])
    sizes = np.asarray(size, float)
    return np.array([time_us(lines[key], op, key[0], ranks, at) for key, at in zip(keys, sizes, strict=True)])


def fit_lines(
    gpu: str, op: str, points: Sequence[Point], forced: Sequence[Point], guess: Lines, *, prior: float
) -> Lines:
    """Fits lines by least squares of the logarithms. Outliers count little; ``prior`` is the weight of the guess."""
    keys = list(guess)
    ring = [i for i, key in enumerate(keys) if key[0] == "ring"]
    first = np.array([guess[key] for key in keys])
    for earlier, later in reversed(list(itertools.pairwise(ring))):  # a protocol's step costs more than the one before
        first[later, 1] = max(first[later, 1] - first[earlier, 1], 0.05)
    start = np.log(first).ravel()
    groups: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        groups[point.ranks].append(point)
    choices = {
        ranks: None if op in ("all_to_all", "send") else [chosen(gpu, guess, p) for p in group]
        for ranks, group in groups.items()
    }
    by_key: dict[Key, list[Point]] = defaultdict(list)
    for point in forced:
        by_key[point.algorithm, point.protocol].append(point)

    def unpack(x: Any) -> Lines:
        rows = np.exp(x).reshape(-1, 4)
        rows[ring, 1] = np.cumsum(rows[ring, 1])
        return {key: tuple(row) for key, row in zip(keys, rows, strict=True)}  # type: ignore[misc]

    def residuals(x: Any) -> Any:
        lines, parts = unpack(x), [prior * (x - start)]
        for ranks, group in groups.items():
            size = np.array([p.bytes for p in group], float)
            parts.append(np.log(told_us(lines, op, ranks, size, choices[ranks]) / np.array([p.us for p in group])))
        for key, group in by_key.items():
            if key in lines:
                size = np.array([p.bytes for p in group], float)
                told = np.log(time_us(lines[key], op, key[0], 2, size) / np.array([p.us for p in group]))
                parts.append(0.5 * told)
        return np.concatenate(parts)

    return unpack(least_squares(residuals, start, loss="soft_l1", f_scale=0.1, max_nfev=400).x)


def medians(points: Sequence[Point]) -> list[Point]:
    """One point for all measurements of the same work before NCCL 2.29, and one for all since, which comes later."""
    groups: dict[tuple[int, int, bool], list[float]] = defaultdict(list)
    for p in points:
        groups[p.ranks, p.bytes, p.nccl >= 22900].append(p.us)
    return [
        Point(points[0].op, n, size, float(np.median(us)), 22900 if newer else 22809)
        for (n, size, newer), us in sorted(groups.items())
    ]


def corrections(gpu: str, op: str, lines: Lines, points: Sequence[Point]) -> dict[int, list[float]]:
    """The values of ln(measured / formula) by ranks, at the sizes of the table from 2^FIRST bytes on."""
    result = {}
    for ranks in sorted({p.ranks for p in points}):
        known = {int(math.log2(p.bytes)): p for p in points if p.ranks == ranks}
        row = []
        for at in range(FIRST, 30, STEP):
            p = known.get(at) or known[min(known, key=lambda k: abs(k - at))]
            keys = None if op == "all_to_all" else [chosen(gpu, lines, p)]
            told = float(np.min(told_us(lines, op, ranks, [p.bytes] if keys else p.bytes, keys)))
            row.append(round(math.log(p.us / told), 3))
        result[ranks] = row
    return result


def _scaled(lines: Lines, slower: float, faster: float) -> Lines:
    return {key: (b * slower, h * slower, r * faster, k) for key, (b, h, r, k) in lines.items()}


def of_gpu(gpu: str, forced: Sequence[Point], hopper: Mapping[str, Lines]) -> tuple[dict[str, Lines], Train]:
    """The lines of a GPU and what they were fitted to. If it has no forced protocols of its own, its lines are held
    near those of ``hopper``.
    """
    moves = ("all_gather", "all_to_all")  # whatever the type
    points = [p for p in measured.tables(gpu) if not p.held_out and (p.dtype == "half" or p.op in moves)]
    faster = catalogue.gpu(gpu).nvlink_bytes_per_s / 450e9
    lines: dict[str, Lines] = {}
    trained: Train = {}
    for op in OPS:
        for entry, newer in ((op, False), (f"{op}@2.29", True)):
            if newer and op != "all_to_all":
                continue
            of_op = [p for p in points if p.op == op]
            if op == "all_to_all":  # one channel and LL in every version up to SMALL; older ones were measured once
                pooled = [p._replace(nccl=22900 if newer else 22809) for p in of_op if p.bytes <= SMALL]
                of_op = [p for p in of_op if p.bytes > SMALL and (p.nccl >= 22900) == newer] + pooled
            if max(p.bytes for p in of_op) <= SMALL:
                continue
            train = medians(of_op)
            guess = {key: line for key, line in _GUESS.items() if key[0] == "ring" or op == "all_reduce"}
            if gpu[0] == "a":
                guess.pop(("nvls", "Simple"), None)
            if hopper:
                known = {("ring" if a == "p2p" else a, p): line for (a, p), line in hopper[entry].items()}
                small = min(p.us for p in train if p.ranks == 2)
                slower = small / told_us({("ring", "LL"): known["ring", "LL"]}, op, 2, 512.0)
                guess = _scaled({key: known[key] for key in guess}, slower, faster)
                lines[entry] = fit_lines(gpu, op, train, [], guess, prior=0.15)
            else:
                own = [p._replace(us=p.us - START[2]) for p in forced if p.op == op and p.protocol]
                lines[entry] = fit_lines(gpu, op, train, own, guess, prior=0.05)
            trained[entry] = train
            if op == "all_to_all":
                lines[entry] = {("p2p", protocol): line for (_, protocol), line in lines[entry].items()}
    return lines, trained


def unmeasured(lines: dict[str, dict[str, Lines]], forced: Sequence[Point]) -> None:
    """The lines for broadcast, send and tree, which were fitted on Hopper and are scaled for the others."""
    graphs = [p._replace(us=p.us - START[p.ranks]) for p in measured.graphs() if p.op == "broadcast"]
    own = [p._replace(us=p.us - START[2]) for p in forced if p.op == "broadcast" and p.protocol]
    ring_guess = {key: line for key, line in _GUESS.items() if key[0] == "ring"}
    broadcast = fit_lines("h100-sxm", "broadcast", graphs, own, ring_guess, prior=0.05)
    send = [p._replace(us=p.us - START[2]) for p in forced if p.op == "send" and p.bytes <= 1 << 28]
    two = {key: ring_guess[key] for key in (("ring", "LL"), ("ring", "Simple"))}
    sends = fit_lines("h100-sxm", "send", send, [], two, prior=0.05)
    reference = lines["h100-sxm"]["all_gather"]
    ring = lines["h100-sxm"]["all_reduce"]
    trees: Lines = {}
    for protocol in tuner.PROTOCOLS:
        hop = ring["ring", protocol][1]
        points = [p for p in forced if p.algorithm == "tree" and p.protocol == protocol]
        small = float(np.median([p.us for p in points if p.bytes <= 1 << 15])) - START[2] - 2 * hop
        large = points[-1]
        rate = 2 * large.bytes / 2 / 1e3 / (large.us - START[2] - small)
        trees["tree", protocol] = (max(small, ring["ring", protocol][0]), hop, rate, 0.0)
    for entries in lines.values():
        gather = entries["all_gather"]
        # Times scale with a kernel's own time (LL's), rates with the wire (Simple's).
        slower = gather["ring", "LL"][0] / reference["ring", "LL"][0]
        faster = gather["ring", "Simple"][2] / reference["ring", "Simple"][2]
        entries["broadcast"] = _scaled(broadcast, slower, faster)
        entries["send"] = {("p2p", p): line for (_, p), line in _scaled(sends, slower, faster).items()}
        floor = {p: entries["all_reduce"]["ring", p] for p in tuner.PROTOCOLS}
        for (_, p), (b, _h, r, k) in trees.items():
            entries["all_reduce"]["tree", p] = (max(b * slower, floor[p][0]), floor[p][1], r * faster, k)


def starts() -> tuple[list[float], dict[str, dict[int, list[float]]]]:
    """What a launch adds to the model that follows from the tables, and what is then left by size, smoothed over an
    octave.
    """
    chooser = tuner.Tuner.of(catalogue.gpu("h100-sxm"))
    graphs = list(measured.graphs())
    start: dict[int, float] = {}
    for ranks in (2, 4):
        of_ranks = [p for p in graphs if p.ranks == ranks and p.op in OPS]
        small = [(p.us - GRAPH_LAUNCH_US, model_us(chooser, p)) for p in of_ranks if p.bytes <= 1 << 22]
        fitted = least_squares(lambda s, of=small: [math.log((us + s[0]) / real) for real, us in of], START[ranks])
        start[ranks] = float(fitted.x[0])
    pair = [round(start[2], 2), round(start[4] - start[2], 2)]
    left: dict[str, dict[int, list[float]]] = {}
    for op in sorted({p.op for p in graphs}):
        for ranks in (2, 4):
            of_op = sorted((p for p in graphs if p.op == op and p.ranks == ranks), key=lambda p: p.bytes)
            own = np.array([np.log((p.us - GRAPH_LAUNCH_US) / (model_us(chooser, p) + start[ranks])) for p in of_op])
            smooth = heldout.smoothed([math.log2(p.bytes) for p in of_op], own)
            left.setdefault(op, {})[ranks] = [round(float(v), 3) for v in smooth]
    return pair, left


def model_us(chooser: tuner.Tuner, p: Point) -> float:
    """The microseconds that the present model gives for a point, without NVLS and without a launch."""
    return chooser.choose(p.op, p.bytes, tuner.Shape(p.ranks), tuner.Options(nvls=False), launched=False).us


HEAD = """\
# NCCL's times: what eidolon_simcore.fabric.tuner reads. Made by `python -m bench.collectives fit`;
# bench/collectives/measured.py says what was measured and which half of it was fitted.
#
# lines, per GPU, operation, algorithm and protocol: [base us, us per step, GB/s of the wire, extra chunks]
# corrections, per operation and ranks: ln(measured / formula) at 2^corrections_from bytes and every corrections_step
# doublings after that
# launch: what a launch by torch adds to NCCL's own time (stream or CUDA graph): start_us [of 2 ranks, more per
# doubling]
# tuner: the figures by which NCCL's own tuner chooses (src/graph/tuning.cc, 2.30)
# inter: NCCL's tuner (src/graph/tuning.cc, 2.30) on hops over the network; of one NIC 46 to 48 of 50 GB/s are seen
init_ms: 200 # making a communicator; only start-up sees it
corrections_from: 9
corrections_step: 2
bulk: {from_bytes: 335544320, faster: 1.19} # sends: their rate jumps between 256 and 384 MiB to one peer
inter:
  hop_us:
    ring: {LL: 2.7, LL128: 4.0, Simple: 14.0}
    tree: {LL: 5.0, LL128: 8.5, Simple: 14.0}
    nvls_tree: {LL: 20.9, LL128: 20.9, Simple: 20.9}
  efficiency: {LL: 0.25, LL128: 0.86, Simple: 0.94}
tuner: # inside a domain; NVLS: a latency of its own, no steps
  base_us:
    ring: {LL: 6.6, LL128: 14.0, Simple: 8.4}
    tree: {LL: 6.8, LL128: 14.0, Simple: 8.4}
    nvls: {Simple: 0}
  hop_us:
    ring: {LL: 0.6, LL128: 1.9, Simple: 3.4}
    tree: {LL: 0.6, LL128: 1.25, Simple: 4.0}
    nvls: {Simple: 25.0}
  tree_factor: # of its rate, from 64 B on by powers of two
    LL: [1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]
    LL128: [1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1]
    Simple: [.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9]
"""

#: The figures by which NCCL's tuner chooses: GB/s of all channels of a ring, the most that LL has, what LL128 has from
#: NCCL 2.29 on, and NVLS for each GPU. The last two of a B200 are where the tables' times jump.
TUNER = {
    "a100-80gb-sxm": (240, 87.7, 240, 0),
    "h100-sxm": (360, 141, 440, 45),
    "h200-sxm": (360, 141, 440, 45),
    "b200-sxm": (720, 282, 320, 90),
}


def _tuner(gpu: str) -> str:
    bus, low_latency, ll128, nvls = TUNER[gpu]
    return f"{{bus_gb_per_s: {bus}, ll_gb_per_s: {low_latency}, ll128_gb_per_s: {ll128}, nvls_gb_per_s: {nvls}}}"


def write(
    lines: Mapping[str, Mapping[str, Lines]],
    left: Mapping[str, Mapping[str, Mapping[int, list[float]]]],
    start: Sequence[float],
    residuals: Mapping[str, Mapping[int, list[float]]],
) -> None:
    """Writes the fitted figures to the table that the tuner reads."""
    text = [
        HEAD,
        "launch:",
        f"  start_us: {list(start)}",
        "  residuals_from: 10",
        "  residuals_step: 2",
        "  residuals:",
    ]
    if residuals:
        text.append("    h100-sxm:")
    for op, of_ranks in residuals.items():
        text.append(f"      {op}: {{{', '.join(f'{n}: {row}' for n, row in of_ranks.items())}}}")
    if not residuals:
        text[-1] += " {}"
    text.append("gpus:")
    for gpu, entries in lines.items():
        text += [
            f"  {gpu}:",
            f"    wire_bytes_per_s: {catalogue.gpu(gpu).nvlink_bytes_per_s}",
            f"    tuner: {_tuner(gpu)}",
            "    lines:",
        ]
        for op, of_op in sorted(entries.items()):
            text.append(f'      "{op}":')
            algorithms: dict[str, list[str]] = defaultdict(list)
            for (algorithm, protocol), line in of_op.items():
                algorithms[algorithm].append(f"{protocol}: [{', '.join(f'{v:.4g}' for v in line)}]")
            text += [f"        {algorithm}: {{{', '.join(rows)}}}" for algorithm, rows in algorithms.items()]
        text.append("    corrections:")
        for op, rows in left[gpu].items():
            text.append(f'      "{op}":')
            text += [f"        {n}: {row}" for n, row in rows.items()]
    DATA.write_text("\n".join(text) + "\n", "utf-8")
    for cached in (tuner._table, tuner._lines, tuner._chooses):
        cached.cache_clear()


def main() -> None:
    """Fits all GPUs of which something was measured, and writes the table."""
    forced = list(measured.forced())
    lines: dict[str, dict[str, Lines]] = {}
    trained: dict[str, Train] = {}
    for gpu in ("h100-sxm", *(g for g in GPUS if g != "h100-sxm")):
        lines[gpu], trained[gpu] = of_gpu(gpu, forced, {} if gpu[:2] == "h1" or gpu[:2] == "h2" else lines["h100-sxm"])
        print(f"{gpu}: {', '.join(lines[gpu])}", flush=True)
    unmeasured(lines, forced)
    left = {
        gpu: {entry: corrections(gpu, points[0].op, lines[gpu][entry], points) for entry, points in of_ops.items()}
        for gpu, of_ops in trained.items()
    }
    write(lines, left, [0.0, 0.0], {})
    start, residuals = starts()
    write(lines, left, start, residuals)
    print(f"start {start}; wrote {DATA}")
