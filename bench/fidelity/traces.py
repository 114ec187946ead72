"""Compares a step that a profiler saw on a real H100 with the same step here: by launches, by calls and by time.

The real steps are the traces of `bench/truth/traces`; :mod:`bench.trace_signatures` reads them, as it does for the cost
tables. The same arguments run here with a recorded timeline, and the last step but one of rank 0 is taken. What torch
launches itself must be the same, one by one and in the order of its stream. Of a library call (GEMM, convolution,
attention, collective) only the kind has to agree, because each library chooses its kernels itself. The time of a call
is the sum of its kernels.

The times that are compared were in part measured on the same traces (docs/costs.md), because kernels that no collective
ran beside are in the tables. Launches, their order and the overlap of streams are in no table.
"""

from __future__ import annotations

import difflib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import trace_signatures
from bench.fidelity import frameworks, running, truth
from eidolon_simcore.costs.display_names import display
from eidolon_simcore.costs.kernel_names import Launch, traffic
from eidolon_simcore.costs.model import CROWDED_LANES, CROWDED_NS, LAUNCH_GAP_NS
from eidolon_simcore.export.timeline.reading import HOST, Timeline

TRACES = truth.TRUTH / "traces"
NCCL = "NCCL"
_PAIR = "nccl send_recv"
LAUNCHED = ("kernel", "copy", "set")  #: by torch itself; everything else is a library's
#: The real runs of `train.py` by trace, with their arguments and GPUs. Fewer steps are enough here, where all are
#: alike.
TRAINED = {
    "gpt2_amp": ("--model gpt2 --batch 8 --seq 1024 --mode amp", 1),
    "llama1b": ("--model llama1b --batch 2 --seq 2048", 1),
    "resnet50": ("--model resnet50 --batch 256 --optim sgd --mode amp", 1),
    "llama1b_fsdp2": ("--model llama1b --batch 2 --seq 2048 --parallel fsdp", 2),
    "llama1b_fsdp4": ("--model llama1b --batch 2 --seq 2048 --parallel fsdp", 4),
}
_FEW_STEPS = "--warmup 3 --steps 2"
#: The real runs of TorchTitan by trace, with the names of their lines in h100_x4_frameworks.jsonl.
TITAN = {
    "titan_fsdp4": "llama3-8B-fsdp4",
    "titan_fsdp2_tp2": "llama3-8B-fsdp2-tp2",
    "titan_pp2_fsdp2": "llama3-8B-pp2-fsdp2",
}
_TITAN_STEPS = 4


Sum = tuple[int, float]  #: count and milliseconds
_NOTHING: Sum = (0, 0.0)


@dataclass(frozen=True, slots=True)
class Work:
    """One launch, or one call of a library."""

    stream: int
    kind: str  #: kernel, copy, set; or the library call: gemm, conv wgrad, attention forward, nccl all_gather
    name: str  #: of a launch; of a call its kind
    begin_ns: float
    end_ns: float
    ns: float

    @property
    def launched(self) -> bool:
        """Whether torch launched it itself. Otherwise it is part of a library's call."""
        return self.kind in LAUNCHED

    @property
    def family(self) -> str:
        """The family that it belongs to in sums of device time."""
        if self.kind == "kernel":
            return traffic(Launch(self.name, 1, 1)).family
        return NCCL if self.collective else "copy" if self.launched else self.kind.split()[0]

    @property
    def collective(self) -> bool:
        """Whether it is NCCL's."""
        return self.kind.startswith("nccl")


@dataclass(frozen=True, slots=True)
class Difference:
    """Neighbouring work that one side has in place of the other's. ``at`` is its place on the real stream."""

    stream: int
    at: int
    real: tuple[str, ...]
    here: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a step on one device, in milliseconds."""

    span: float  #: from the first begin to the last end
    nccl: float
    exposed: float  #: NCCL with nothing else under way
    idle: float  #: nothing at all under way


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a trace with the step here."""

    real: list[Work]
    here: list[Work]
    equal: int  #: of torch's own launches
    differences: list[Difference]


def run(name: str, limit_s: float) -> Comparison | running.Done:
    """Compares a trace with its run here. Returns how that run ended if there is nothing to compare."""
    with tempfile.TemporaryDirectory() as out:
        if name in TRAINED:
            options, world = TRAINED[name]
            line = truth.Line(f"{options} {_FEW_STEPS}", world, "h100", {})
            cluster, command = truth.arguments(line)
            done = running.run([*cluster, "--record"], command, out=Path(out), limit_s=limit_s)
        else:
            titan = next(line for line in frameworks.lines() if line.name == TITAN[name])
            command = titan.command(_TITAN_STEPS)
            cluster = [*titan.cluster(), "--record"]
            site = running.FRAMEWORKS
            done = running.run(cluster, command, out=Path(out), limit_s=limit_s, cwd=titan.cwd, site=site)
        if done.code != 0:
            return done
        seen, late = real(TRACES / f"{name}.parquet")
        here = simulated(Path(out), late)
    return Comparison(seen, here, *launches(seen, here))


# ---- the two sides ---------------------------------------------------------------------------------------------------


def real(path: Path) -> tuple[list[Work], int]:
    """The step of a trace in the order in which it was issued, and how much of it came after the optimizer's step."""
    step = trace_signatures.read_step(path)
    late = sum(row.issued_ns > step.marks_ns[-1] for row in step.rows)
    return [_work_of(row) for row in step.rows], late


def _work_of(row: trace_signatures.Recorded) -> Work:
    signature = row.signature
    kind = _kind(signature.kind, signature.name)
    name = display(signature) if signature.kind in LAUNCHED else kind
    return Work(row.stream, kind, name, row.begin_ns, row.end_ns, row.ns)


def _kind(kind: str, name: str) -> str:
    if kind == "collective":
        return _nccl(name)
    return f"{kind} {name}" if kind in ("conv", "attention") else kind


def simulated(run: Path, late: int = 0, rank: int = 0) -> list[Work]:
    """The last step but one of a recorded run, in the order of issue, on one rank. What comes after the optimizer in a
    trace begins a step here. So the first ``late`` items are left out, and those of the next step are taken in their
    place.
    """
    timeline = Timeline(run)
    ends = [end for _, of, end in timeline.rows("steps") if of == rank]
    work = _all_work(timeline, rank)
    begins = [next(i for i, one in enumerate(work) if one.begin_ns >= end) for end in ends[-3:-1]]
    return work[begins[0] + late : begins[1] + late]


def _all_work(timeline: Timeline, rank: int) -> list[Work]:
    """All device work of a rank, in the order of issue. A span holds the gap to the kernel before it, which a profiler
    does not show, so the gap is taken off. Sends and receives of one group are one kernel of NCCL.
    """
    lanes = [lane for (of, lane), where in timeline.lanes.items() if of == rank and not where.makes_communicators]
    gap_ns = LAUNCH_GAP_NS + (CROWDED_NS if len(lanes) >= CROWDED_LANES else 0)
    rows: list[tuple[int, ...]] = []
    for spans in timeline.spans((0, 1 << 62), [rank]):
        columns = (spans[name].tolist() for name in ("seq", "lane", "label", "op", "start", "length"))
        rows += zip(*columns, strict=True)
    found: list[Work] = []
    groups: set[tuple[int, int, int]] = set()
    for _, lane, number, op, start, length in sorted(rows):
        label = timeline.labels[number]
        if HOST[op] or label.kind == "call" or lane not in lanes:
            continue
        if label.kind == "collective":
            kind = _nccl(label.name)
            if kind == _PAIR and (lane, start, length) in groups:
                continue
            groups.add((lane, start, length))
            found.append(Work(lane, kind, kind, start, start + length, length))
        else:
            kind = _kind(label.kind, _called(label.name))
            ns = max(0, length - gap_ns)
            found.append(Work(lane, kind, label.name if kind in LAUNCHED else kind, start, start + ns, ns))
    return found


def _called(shown: str) -> str:
    """The kind of a call by its shown name: "forward" for "attention forward bf16 b1"."""
    return shown.split()[1] if " " in shown else shown


def _nccl(shown: str) -> str:
    """The kind of a collective by its name, such as "nccl:all_gather". A send and a receive are the same kernel."""
    name = shown.removeprefix("nccl:")
    return _PAIR if name in ("send", "recv") else f"nccl {name}"


# ---- comparison ------------------------------------------------------------------------------------------------------


def by_stream(work: Iterable[Work]) -> dict[int, list[Work]]:
    """The work of each stream, in its order."""
    streams: dict[int, list[Work]] = {}
    for one in work:
        streams.setdefault(one.stream, []).append(one)
    return streams


def match(real: Mapping[int, Sequence[Work]], here: Mapping[int, Sequence[Work]]) -> dict[int, int]:
    """Pairs real streams with streams here. Their numbers say nothing, so those that have most in common are paired
    first.
    """
    counts = {side: {k: Counter(one.name for one in v) for k, v in of.items()} for side, of in ((0, real), (1, here))}
    common = {(a, b): (counts[0][a] & counts[1][b]).total() for a in real for b in here}
    found: dict[int, int] = {}
    for (a, b), count in sorted(common.items(), key=lambda item: (-item[1], item[0])):
        if count and a not in found and b not in found.values():
            found[a] = b
    return found


def compare(real: Sequence[str], here: Sequence[str]) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """Which of the real names are equal, in order, to one here. For the others, each difference (i1, i2, j1, j2) says
    that real[i1:i2] stands in place of here[j1:j2].
    """
    head = next((i for i, (a, b) in enumerate(zip(real, here, strict=False)) if a != b), min(len(real), len(here)))
    left = min(len(real), len(here)) - head
    tail = next((i for i in range(left) if real[-1 - i] != here[-1 - i]), left)
    middle = real[head : len(real) - tail], here[head : len(here) - tail]
    equal = [*range(head), *range(len(real) - tail, len(real))]
    differences = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, *middle, autojunk=False).get_opcodes():
        if tag == "equal":
            equal += range(head + i1, head + i2)
        else:
            differences.append((head + i1, head + i2, head + j1, head + j2))
    return sorted(equal), differences


def launches(real: Iterable[Work], here: Iterable[Work]) -> tuple[int, list[Difference]]:
    """How many of torch's own launches are equal, and what differs, stream by stream."""
    streams, others = by_stream(real), by_stream(here)
    pairs = match(streams, others)
    equal, differences = 0, []
    for stream, own in streams.items():
        other = others.get(pairs.get(stream, -1), [])
        names, other_names = [one.name for one in own], [one.name for one in other]
        same, parts = compare(names, other_names)
        equal += sum(own[i].launched for i in same)
        differences += [Difference(stream, a, tuple(names[a:b]), tuple(other_names[c:d])) for a, b, c, d in parts]
    for stream in others.keys() - pairs.values():
        differences.append(Difference(-1, 0, (), tuple(one.name for one in others[stream])))
    return equal, differences


def sums(work: Iterable[Work], key: Callable[[Work], str]) -> dict[str, Sum]:
    """Number and milliseconds of the work, by a key."""
    found: dict[str, Sum] = {}
    for one in work:
        count, ms = found.get(key(one), _NOTHING)
        found[key(one)] = count + 1, ms + one.ns / 1e6
    return found


def both(real: Mapping[str, Sum], here: Mapping[str, Sum]) -> dict[str, tuple[Sum, Sum]]:
    """For each key what both sides have of it. The costliest real ones come first."""
    keys = sorted({**here, **real}, key=lambda key: -real.get(key, _NOTHING)[1])
    return {key: (real.get(key, _NOTHING), here.get(key, _NOTHING)) for key in keys}


def times(work: Sequence[Work]) -> Times:
    """How a device's time went."""
    nccl = _covered(one for one in work if one.collective)
    computing = _covered(one for one in work if not one.collective)
    busy = _covered(work)
    span = max(one.end_ns for one in work) - min(one.begin_ns for one in work)
    return Times(span / 1e6, nccl, busy - computing, span / 1e6 - busy)


def _covered(work: Iterable[Work]) -> float:
    """The milliseconds in which any of the work is under way."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted((one.begin_ns, one.end_ns) for one in work):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total / 1e6
