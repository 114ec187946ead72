"""Siblings of a group: found by its axes, and held against a search that knows no axes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eidolon_simcore.fabric.siblings import at, siblings

Group = tuple[int, ...]


def tiled(members: Sequence[int], of: Sequence[int]) -> tuple[Group, ...] | None:
    """The siblings by laying the group's shape at the least rank that is not covered yet; None if that does not fit."""
    least, covered, starts = min(members), set[int](), []
    for rank in range(len(of)):
        if rank in covered:
            continue
        tile = {member - least + rank for member in members}
        if max(tile) >= len(of) or tile & covered:
            return None
        covered |= tile
        starts.append(rank)
    if least not in starts:
        return None
    tiles = [tuple(member - least + start for member in members) for start in starts if start != least]
    return tuple(tile for tile in tiles if all(of[a] == of[b] for a, b in zip(tile, members, strict=True)))


def meshes(sizes: Sequence[int], axes: Sequence[int]) -> list[Group]:
    """The groups of some axes of a mesh, the outermost axis first, each in the order of its ranks."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(itertools.product(*map(range, sizes))):
        key = tuple(digit for axis, digit in enumerate(place) if axis not in axes)
        groups.setdefault(key, []).append(rank)
    return list(map(tuple, groups.values()))


def folded(sizes: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Each rank's representative if these axes are folded: the rank whose digits of them are 0."""
    of = []
    for place in itertools.product(*map(range, sizes)):
        rank = 0
        for axis, (digit, size) in enumerate(zip(place, sizes, strict=True)):
            rank = rank * size + (0 if axis in axes else digit)
        of.append(rank)
    return of


def test_every_shape_of_a_small_world_has_the_tiles_that_a_search_finds() -> None:
    of = [0] * 13
    for world in range(1, 14):
        for bits in range(1, 1 << world):
            members = [rank for rank in range(world) if bits >> rank & 1]
            assert siblings(members, of[:world]) == (tiled(members, of[:world]) or ()), (members, world)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_groups_of_a_mesh_stand_for_those_of_the_same_axes_and_classes(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    some_axes = st.sets(st.integers(0, len(sizes) - 1))
    groups, of = meshes(sizes, data.draw(some_axes)), folded(sizes, data.draw(some_axes))
    group = data.draw(st.sampled_from(groups))
    order = data.draw(st.permutations(range(len(group))))
    members = [group[place] for place in order]
    same = [
        tuple(other[place] for place in order)
        for other in groups
        if other != group and all(of[a] == of[b] for a, b in zip(group, other, strict=True))
    ]
    assert sorted(siblings(members, of)) == sorted(same)


def test_tensor_parallel_groups_of_all_replicas_are_one_family_and_those_of_another_stage_another() -> None:
    of = folded((2, 3, 2), axes=(1,))  # stage, replica, tensor-parallel place
    assert siblings([0, 1], of) == ((2, 3), (4, 5))
    assert siblings([6, 7], of) == ((8, 9), (10, 11))
    assert siblings([0, 2, 4], of) == ()  # the replicas of a place: nobody else stands there


def test_a_rank_that_runs_for_itself_is_in_no_sibling() -> None:
    of = [0, 1, 0, 1, 4, 1, 0, 1]
    assert siblings([0, 1], of) == ((2, 3), (6, 7))
    assert siblings([4, 5], of) == ()


def test_pipeline_neighbours_and_the_ends_of_a_pipeline_are_shifts_that_keep_the_classes() -> None:
    of = folded((4, 3), axes=(1,))
    assert siblings([3, 6], of) == ((4, 7), (5, 8))
    assert siblings([6, 3], of) == ((7, 4), (8, 5))
    assert siblings([0, 9], of) == ((1, 10), (2, 11))
    assert siblings([0, 3, 9], of) == ((1, 4, 10), (2, 5, 11))


def test_a_group_of_no_mesh_with_two_members_of_a_class_stands_for_itself() -> None:
    of = folded((2, 4), axes=(1,))
    assert siblings([0, 1, 2], of) == ()
    assert siblings([1, 2], of) == ()


def test_a_pair_of_a_group_stands_for_the_pairs_at_its_positions() -> None:
    of = folded((4, 4), axes=(0, 1))
    ring = siblings([0, 1, 2, 3], of)
    assert at((1, 2), ring) == ((5, 6), (9, 10), (13, 14))
    assert at((3, 0), ring) == ((7, 4), (11, 8), (15, 12))


@pytest.mark.parametrize(
    ("members", "of", "words"),
    [
        ([], [0], "a group has no members"),
        ([0, 4], [0, 0, 0, 0], "rank 4 of a group is not in a world of 4"),
        ([0, -1], [0, 0, 0, 0], "rank -1 of a group is not in a world of 4"),
        ([1, 1], [0, 0], "names a rank twice"),
        ([0], [0, 2], "representative 2 is not in a world of 2"),
        ([0], [1, 0], "rank 1 represents rank 0, but not itself"),
    ],
)
def test_what_is_no_group_or_no_fold_is_refused(members: list[int], of: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        siblings(members, of)
