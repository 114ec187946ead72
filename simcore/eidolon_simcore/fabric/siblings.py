"""Which groups of ranks do what this group does, when only some ranks of a world run.

In a folded run one real process stands for a class of equal ranks, its *representative*. A call that a group of
representatives makes stands for the same call in other groups, the group's *siblings*. This module finds them from the
group and the classes alone.

Ranks are numbered in the order of a mesh, such as (pipeline stage, replica, shard, tensor-parallel place), so a rank is
a number with one digit for each axis. A group of one or more axes has all ranks that agree in the digits of the other
axes. The groups of the same axes therefore are shifts of each other: each is the group's *shape*, which is its members
less the least of them, plus a rank whose digits of these axes are 0. They tile the world, so every rank is in one of
them. The reverse holds too: a shape whose shifts tile ``range(n)`` is the shape of some axes of some mesh with n ranks
(N. G. de Bruijn, "On number systems", 1956). So the axes need not be stated. They are read from the shape, and a group
whose shape has no axes is no group of a mesh.

The law
-------
1. A tile is a sibling where every member has the same representative as the member of the group at its position. A tile
   with a rank that runs for itself, such as one on another GPU model, is none: its own representatives make the call.
2. A group of no mesh has siblings only if all its members are of different classes. Then its siblings are its shifts
   that keep all classes. Such shifts do not overlap, since each class has one position. Pipeline neighbours are such
   groups, and so are the first and the last stage, which share an embedding.
3. A group is not its own sibling.

A send and its receive are a group of two. Where law 2 does not find the siblings of the pair, because both ends are of
one class, they are the pairs at the same two positions of the siblings of the group in which it is sent
(:func:`at`).

>>> siblings([0, 1], of=[0, 1, 0, 1, 0, 1])  # two ranks that run; tensor parallelism of 2, three replicas
((2, 3), (4, 5))
>>> siblings([0, 2, 4], of=[0, 1, 0, 1, 0, 1])  # the replicas of rank 1 have a representative of their own
()
>>> siblings([1, 2], of=[0, 0, 2, 2, 4, 4])  # from the last place of one stage to the first of the next: no shift fits
()
>>> siblings([0, 4], of=[0, 0, 2, 2, 4, 4])  # the first and the last of three stages
((1, 5),)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Group = tuple[int, ...]
Member = TypeVar("Member")  #: a rank, or its device


class Axis(NamedTuple):
    """An axis of a mesh: neighbours on it differ by ``stride``, and it has ``size`` of them."""

    stride: int
    size: int


def siblings(members: Sequence[int], of: Sequence[int]) -> tuple[Group, ...]:
    """The groups for which a call of a group stands, without itself, in the order of their shifts.

    Args:
        members: the group's ranks in its own order, each once.
        of: the representative of each rank of the world; a representative's is itself.

    Raises:
        ValueError: a member is not in the world or is named twice, or ``of`` names a rank that is no representative.
    """
    group, classes = np.asarray(members, dtype=np.int64), np.asarray(of, dtype=np.int64)
    _check(group, classes)
    least = int(group.min())
    starts = _starts(np.sort(group) - least, len(classes))
    if starts is None or not np.isin(least, starts):  # of no mesh, or across its tiles
        starts = _shifts_of_different(group, classes)
    tiles = starts[:, None] + (group - least)[None, :]
    same = (classes[tiles] == classes[group]).all(axis=1) & (starts != least)
    return tuple(map(tuple, tiles[same].tolist()))


def at(positions: Sequence[int], groups: Sequence[Sequence[Member]]) -> tuple[tuple[Member, ...], ...]:
    """The members of each group at these positions: the siblings of a part of a group, such as a pair, from those of
    the group."""
    return tuple(tuple(group[position] for position in positions) for group in groups)


def axes(shape: NDArray[np.int64]) -> list[Axis] | None:
    """The axes of which a shape is made, the innermost first; None if there are none such. ``shape`` is in ascending
    order and starts with 0. Axes that follow each other without a gap are one."""
    found: list[Axis] = []
    while len(shape) > 1:
        stride = int(shape[1])
        run = np.arange(len(shape)) * stride
        different = np.flatnonzero(shape != run)
        size = int(different[0]) if len(different) else len(shape)
        if len(shape) % size or (found and stride % (found[-1].stride * found[-1].size)):
            return None
        rows = shape.reshape(-1, size)
        if not np.array_equal(rows, rows[:, :1] + run[:size]):
            return None
        found.append(Axis(stride, size))
        shape = rows[:, 0]
    return found


def _starts(shape: NDArray[np.int64], world: int) -> NDArray[np.int64] | None:
    """The least ranks of the tiles: those whose digits are 0 on every axis of the shape."""
    found = axes(shape)
    if found is None:
        return None
    starts, below = np.zeros(1, dtype=np.int64), 1
    for stride, size in [*found, Axis(world, 1)]:
        if stride % below:
            return None
        between = np.arange(stride // below, dtype=np.int64) * below
        starts, below = (between[:, None] + starts[None, :]).ravel(), stride * size
    return starts


def _shifts_of_different(group: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The least ranks of all shifts of a group within the world; only its own if two members are of one class."""
    least, most = int(group.min()), int(group.max())
    if len(np.unique(classes[group])) < len(group):
        return np.asarray([least], dtype=np.int64)
    return np.flatnonzero(classes[: len(classes) - (most - least)] == classes[least])


def _check(group: NDArray[np.int64], classes: NDArray[np.int64]) -> None:
    world = len(classes)
    if not len(group):
        raise ValueError("a group has no members")
    outside = group[(group < 0) | (group >= world)]
    if len(outside):
        raise ValueError(f"rank {outside[0]} of a group is not in a world of {world}")
    if len(np.unique(group)) < len(group):
        raise ValueError(f"a group names a rank twice: {group.tolist()}")
    outside = classes[(classes < 0) | (classes >= world)]
    if len(outside):
        raise ValueError(f"representative {outside[0]} is not in a world of {world}")
    other = np.flatnonzero(classes[classes] != classes)
    if len(other):
        raise ValueError(f"rank {classes[other[0]]} represents rank {other[0]}, but not itself")
