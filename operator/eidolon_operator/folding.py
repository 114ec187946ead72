"""Folding: which ranks of a run are real processes, and which of them stands for each of the others.

In one step of a large job almost all ranks do the same. So the ranks are divided into classes of equal ranks, and one
rank of each class runs: its *representative*, the lowest rank of the class. The other ranks are *phantoms*. Which ranks
are equal follows from the mesh of the job, whose axes are numbered from the outermost to the innermost, as frameworks
number their ranks. Two ranks are equal if they differ only on axes that are folded:

* ``replica`` folds the axes of data parallelism (:data:`DATA_AXES`). The other axes are real inside a replica.
* ``stage`` folds every axis but those of :data:`UNEQUAL_AXES`. Pipeline stages hold different layers, and ranks of
  context parallelism work on different parts of a sequence, which cost differently under a causal mask.

So a representative has coordinate 0 on every folded axis. There are two exceptions. A rank that is to be kept stands
for itself. A rank whose GPU differs from its representative's is of another class, whose lowest rank stands for it.

*Example.* Of 16 ranks on the mesh dp 8, tp 2, ``replica`` runs ranks 0 and 1. Rank 0 stands for all even ranks, and
rank 1 for all odd ranks. With ``stage``, rank 0 stands for all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Axes on which ranks are replicas of each other, or hold equal shards of one: their data differs, their work does not.
DATA_AXES: Final = frozenset(("dp", "dp_replicate", "dp_shard", "ddp", "fsdp", "hsdp", "replicate", "shard", "data"))
#: Axes on which the work of ranks differs.
UNEQUAL_AXES: Final = frozenset(("pp", "cp"))
#: How many groups of classes a list of them has.
MOST_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class Fold:
    """What an object asks for, of which only some ranks run. The CRD describes the fields."""

    mode: str  #: ``replica`` or ``stage``
    parallel: tuple[tuple[str, int], ...] = ()  #: name and size of each axis; empty: one axis of data parallelism
    keep: tuple[int, ...] = ()

    @property
    def mesh_size(self) -> int:
        """Ranks on the mesh; 1 if there is none."""
        return math.prod(size for _, size in self.parallel)


@dataclass(frozen=True, slots=True)
class Placement:
    """The processes of a run. Without folding every rank is one, and stands for itself."""

    of: tuple[int, ...]  #: by rank, the rank whose process stands for it
    ranks: Mapping[int, tuple[int, ...]]  #: by emulated server, the ranks that run there; only servers that have some

    @property
    def servers(self) -> list[int]:
        """The emulated servers on which processes run, in ascending order. Rank 0 always runs, so the first is 0."""
        return list(self.ranks)

    @property
    def processes(self) -> int:
        """How many ranks run."""
        return sum(map(len, self.ranks.values()))

    @property
    def classes(self) -> dict[int, int]:
        """By representative, how many ranks it stands for, itself included."""
        return dict(sorted(Counter(self.of).items()))

    def before(self, server: int) -> int:
        """How many ranks run on the servers before this one."""
        return sum(len(ranks) for other, ranks in self.ranks.items() if other < server)


def of_summary(summary: Mapping[str, Any]) -> dict[int, int] | None:
    """The classes of a run as its summary has them, by representative; None if the run was not folded."""
    fold = summary.get("fold")
    return {item["rank"]: item["ranks"] for item in fold["classes"]} if fold else None


def of_core(core: Mapping[str, Any]) -> dict[int, int] | None:
    """The same as the core's section of a plan has them."""
    fold = core.get("fold")
    return dict(sorted(Counter(fold["of"]).items())) if fold else None


def counted(classes: Mapping[int, int]) -> str:
    """How many ranks run of how many, such as ``2 of 1,024 ranks``."""
    return f"{len(classes):,} of {sum(classes.values()):,} ranks"


def ran(count: int, classes: Mapping[int, int] | None) -> str:
    """How many ranks ran, such as ``8 ranks`` or, of a folded run with these classes, ``2 of 1,024 ranks ran``."""
    if classes:
        return f"{count:,} of {sum(classes.values()):,} ranks ran"
    return f"{count:,} rank{'s' if count != 1 else ''}"


def groups(classes: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Classes with their multiplicity, in the order of their representatives. Neighbours that have the same are one
    entry: its first and its last representative, and how many ranks each of them stands for, itself included."""
    found: list[tuple[int, int, int]] = []
    for rank, multiplicity in classes.items():
        if found and found[-1][1:] == (rank - 1, multiplicity):
            found[-1] = (found[-1][0], rank, multiplicity)
        else:
            found.append((rank, rank, multiplicity))
    return found


def listed(classes: Mapping[int, int]) -> str:
    """Classes in words, such as ``rank 0 stands for 1,023 ranks, rank 1023 for itself``. Of more than
    :data:`MOST_LISTED` groups, the rest is counted."""
    shown = groups(classes)[:MOST_LISTED]
    words = [_stands_for(*group, verb=not index) for index, group in enumerate(shown)]
    left = len(classes) - sum(last - first + 1 for first, last, _ in shown)
    return ", ".join(words) + (f", and {left:,} more classes" if left else "")


def _stands_for(first: int, last: int, multiplicity: int, *, verb: bool) -> str:
    who = f"rank {first}" if first == last else f"ranks {first} to {last}"
    whom = f"{multiplicity:,} ranks" if first == last else f"{multiplicity:,} ranks each"
    if multiplicity == 1:
        whom = "itself" if first == last else "themselves"
    return " ".join(filter(None, (who, ("stands" if first == last else "stand") if verb else "", "for", whom)))


def place(fold: Fold | None, kinds: Sequence[Hashable], ranks_per_server: int) -> Placement:
    """The placement of a run. ``kinds`` tells GPUs apart: by server, something that is equal where they are equal.

    The mesh of ``fold`` must have as many ranks as the servers together, if it has any, and ``keep`` must name ranks.
    """
    world = len(kinds) * ranks_per_server
    of = range(world) if fold is None else _representatives(fold, kinds, ranks_per_server)
    return Placement(tuple(of), _by_server(sorted(set(of)), ranks_per_server))


def _representatives(fold: Fold, kinds: Sequence[Hashable], ranks_per_server: int) -> list[int]:
    world = len(kinds) * ranks_per_server
    kept = frozenset(fold.keep)
    first: dict[Hashable, int] = {}  # the lowest rank of each class
    of = []
    for rank, position in enumerate(_positions(fold, world)):
        lowest = first.setdefault((position, kinds[rank // ranks_per_server]), rank)
        of.append(rank if rank in kept else lowest)
    return of


def _positions(fold: Fold, world: int) -> list[int]:
    """By rank, a number for its place on the axes that are not folded."""
    positions = [0]
    for axis, size in fold.parallel or (("dp", world),):
        folded = axis in DATA_AXES if fold.mode == "replica" else axis not in UNEQUAL_AXES
        positions = [p if folded else p * size + place for p in positions for place in range(size)]
    return positions


def _by_server(ranks: Iterable[int], ranks_per_server: int) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        server = rank // ranks_per_server
        found[server] = (*found.get(server, ()), rank)
    return found
