"""Compares the model of collectives with what was measured.

    python -m bench.collectives           tables of bus bandwidth and time, errors, the multi-node anchors
    python -m bench.collectives fit       fits the model's data anew

Bus bandwidth is defined as in nccl-tests: ``2(n-1)/n`` of the bytes over the time for an all-reduce, and ``(n-1)/n`` of
them for all-gather, reduce-scatter and all-to-all. Sizes that were not fitted are marked ``*``. The error of a size is
the mean over the package's rows of it (data types, NCCL versions).
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from bench.collectives import anchors, heldout, measured
from bench.collectives.measured import GPUS, OPS, Point
from eidolon_simcore import catalogue
from eidolon_simcore.costs import hostcost
from eidolon_simcore.fabric import tuner

#: The calls that torch makes for an operation that the host issues. Its other calls cost the host next to nothing.
CALLS = {
    "all_reduce": ("ncclAllReduce",),
    "all_gather": ("ncclAllGather",),
    "reduce_scatter": ("ncclReduceScatter",),
    "all_to_all": ("ncclAlltoAll",),
    "broadcast": ("ncclBroadcast",),
    "send": ("ncclSend", "ncclRecv"),
}
OUTLIERS = {("all_reduce", 1 << 20), ("all_reduce", 1 << 28)}  #: of the host-issued truth (see its README)


def bus_gb_per_s(p: Point, us: float) -> float:
    """The bus bandwidth of a point that takes ``us`` microseconds, in GB/s as nccl-tests counts it."""
    factor = 1.0 if p.op in ("broadcast", "send") else tuner.steps(p.op, p.ranks) / p.ranks
    return factor * p.bytes / us / 1e3


def size_text(size: int) -> str:
    """Bytes with a binary unit, as "256 MiB"."""
    for unit, scale in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << scale:
            return f"{size / (1 << scale):g} {unit}"
    return f"{size} B"


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, or NaN without values."""
    return sum(values) / len(values) if values else math.nan


def tables() -> None:
    """Compares with the tables of aiconfigurator-core."""
    summary = []
    for gpu in GPUS:
        chooser = tuner.Tuner.of(catalogue.gpu(gpu))
        points = measured.tables(gpu)
        held: list[float] = []
        held_8: list[float] = []  #: of them, those of a whole server
        fitted: list[float] = []
        for op in OPS:
            for ranks in (2, 4, 8):
                groups: dict[int, list[Point]] = defaultdict(list)
                for p in points:
                    if (p.op, p.ranks) == (op, ranks):
                        groups[p.bytes].append(p)
                print(f"\n{gpu} {op}, {ranks} GPUs      measured    model  busbw GB/s: measured  model   error  chosen")
                for size in sorted(groups):
                    told = [_choose(chooser, p) for p in groups[size]]
                    errors = [c.us / p.us - 1 for c, p in zip(told, groups[size], strict=True)]
                    of_split = held if groups[size][0].held_out else fitted
                    if size >= 1024:
                        of_split += [abs(e) for e in errors]
                        held_8 += [abs(e) for e in errors if of_split is held and ranks == 8]
                    us, model = mean([p.us for p in groups[size]]), mean([c.us for c in told])
                    _row(groups[size][0], us, model, mean(errors), told[-1], "*" if of_split is held else " ")
        summary.append((gpu, mean(held), max(held), len(held), mean(held_8), mean(fitted)))
    title = "aiconfigurator-core, sizes from 1 KiB to 512 MiB"
    print(f"\n{title:<56} held out: mean    worst   points   8 GPUs   fitted: mean")
    for gpu, held_mean, worst, count, mean_8, fitted_mean in summary:
        print(f"  {gpu:<54} {held_mean:>14.1%} {worst:>8.0%} {count:>8} {mean_8:>8.1%} {fitted_mean:>14.1%}")


def _choose(chooser: tuner.Tuner, p: Point) -> tuner.Choice:
    wanted = tuner.Options(version=p.nccl, nvls=p.dtype != "int8")  # switches do not add bytes
    return chooser.choose(p.op, p.bytes, tuner.Shape(p.ranks), wanted, launched=False)


def _row(p: Point, us: float, model: float, error: float, choice: tuner.Choice, mark: str) -> None:
    rates = f"{bus_gb_per_s(p, us):>10.1f} {bus_gb_per_s(p, model):>7.1f}"
    print(
        f"  {size_text(p.bytes):>10}{mark} {us:>24.1f} {model:>8.1f}  {rates:>28} {error:>+7.1%}  "
        f"{choice.algorithm}/{choice.protocol}"
    )


def graphs() -> None:
    """Compares with torch in CUDA graphs."""
    chooser = tuner.Tuner.of(catalogue.gpu("h100-sxm"))
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    print("\nH100, torch in CUDA graphs, NVLS off            measured    model  busbw GB/s: measured  model   error")
    for p in sorted(measured.graphs(), key=lambda p: (p.op, p.ranks, p.bytes)):
        choice = chooser.choose(p.op, p.bytes, tuner.Shape(p.ranks), tuner.Options(nvls=False))
        us = choice.us + measured.GRAPH_LAUNCH_US
        errors[p.op, p.ranks].append(us / p.us - 1)
        print(f"{p.op} x{p.ranks}", end="")
        _row(p, p.us, us, us / p.us - 1, choice, " ")
    _summary("graphs, listed sizes", errors)
    chooser = tuner.Tuner.of(catalogue.gpu("h200-sxm"))
    between: dict[tuple[str, int], list[float]] = defaultdict(list)
    forced: dict[tuple[str, int], list[float]] = defaultdict(list)
    for p in measured.forced():
        words = {"NCCL_ALGO": p.algorithm, "NCCL_PROTO": p.protocol, "NCCL_NVLS_ENABLE": "0"}
        choice = chooser.choose(p.op, p.bytes, tuner.Shape(2), tuner.options(words))
        groups, key = (forced, f"{p.op} {p.algorithm}/{p.protocol}") if p.protocol else (between, p.op)
        groups[key, 2].append((choice.us + measured.GRAPH_LAUNCH_US) / p.us - 1)
    _summary("2 H200 in graphs (own sweep), NCCL's own choice, every power of two and three halves of some", between)
    _summary("2 H200 in graphs (own sweep), algorithm and protocol forced", forced)


def host() -> None:
    """Compares with calls from the host. Such a call takes the longer of the time to issue it (by the host cost table)
    and its own time.
    """
    chooser = tuner.Tuner.of(catalogue.gpu("h100-sxm"))
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for p in measured.host():
        if (p.op, p.bytes) not in OUTLIERS:
            choice = chooser.choose(p.op, p.bytes, tuner.Shape(2), tuner.Options(nvls=False))
            issue = sum(hostcost.table().call_ns(name) for name in CALLS[p.op]) / 1e3
            errors[p.op, 2].append(max(issue, choice.us) / p.us - 1)
    _summary("2 H100 issued from the host (data/host_cost.yaml), without the two outliers", errors)


def _summary(title: str, errors: dict[tuple[str, int], list[float]]) -> None:
    print(f"\n{title:<100} mean    worst")
    for (op, ranks), of_op in sorted(errors.items()):
        print(f"  {f'{op} x{ranks}':<98} {mean([abs(e) for e in of_op]):>6.1%} {max(of_op, key=abs):>+8.1%}")
    every = [abs(e) for of_op in errors.values() for e in of_op]
    print(f"  {'all':<98} {mean(every):>6.1%} {max(every):>8.1%}")


def main(words: Iterable[str] | None = None) -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(prog="python -m bench.collectives")
    parser.add_argument("what", nargs="?", choices=["fit", "tables", "graphs", "held", "host", "anchors"])
    what = parser.parse_args(None if words is None else list(words)).what
    if what in ("fit", "tables", None) and not measured.have_tables():
        print("no tables: pip install 'eidolon[bench]' brings aiconfigurator-core")
        if what is not None:
            raise SystemExit(1)
    if what == "fit":
        from bench.collectives import fit

        fit.main()
        return
    if what in ("tables", None) and measured.have_tables():
        tables()
    if what in ("graphs", None):
        graphs()
    if what in ("held", None):
        print()
        heldout.show()
    if what in ("host", None):
        host()
    if what in ("anchors", None):
        anchors.show()


if __name__ == "__main__":
    main()
