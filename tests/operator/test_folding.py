"""Which ranks run, and for which others each of them stands."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eidolon_operator import folding
from eidolon_operator.folding import Fold, Placement


def place(mode: str, mesh: dict[str, int], *keep: int, servers: int = 1, kinds: str = "") -> Placement:
    fold = Fold(mode, tuple(mesh.items()), keep)
    world = fold.mesh_size
    return folding.place(fold, kinds or "h" * servers, world // (len(kinds) or servers))


def test_without_folding_every_rank_runs() -> None:
    placement = folding.place(None, "hh", 2)
    assert placement == Placement((0, 1, 2, 3), {0: (0, 1), 1: (2, 3)})
    assert (placement.processes, placement.servers, placement.classes) == (4, [0, 1], {0: 1, 1: 1, 2: 1, 3: 1})


def test_without_a_mesh_all_ranks_are_replicas() -> None:
    placement = folding.place(Fold("replica"), "h" * 128, 8)
    assert placement.of == (0,) * 1024
    assert placement.ranks == {0: (0,)}
    assert placement.classes == {0: 1024}


def test_replica_folds_data_parallelism_and_nothing_else() -> None:
    placement = place("replica", {"pp": 2, "dp": 3, "tp": 2}, servers=3)
    assert placement.of == (0, 1, 0, 1, 0, 1, 6, 7, 6, 7, 6, 7)
    assert placement.ranks == {0: (0, 1), 1: (6, 7)}, "server 2 has phantoms only"
    assert [placement.before(server) for server in placement.servers] == [0, 2]


def test_stage_folds_all_but_pipeline_and_context_parallelism() -> None:
    placement = place("stage", {"pp": 2, "dp": 2, "cp": 2, "tp": 2})
    assert placement.of == (0, 0, 2, 2, 0, 0, 2, 2, 8, 8, 10, 10, 8, 8, 10, 10)


@pytest.mark.parametrize("axis", sorted(folding.DATA_AXES))
def test_axes_of_data_parallelism_have_several_names(axis: str) -> None:
    assert place("replica", {axis: 4}).of == (0, 0, 0, 0)


@pytest.mark.parametrize("axis", ["pp", "cp", "tp", "sp", "ep", "etp"])
def test_other_axes_are_real_inside_a_replica(axis: str) -> None:
    assert place("replica", {axis: 4}).of == (0, 1, 2, 3)


def test_a_kept_rank_stands_for_itself_alone() -> None:
    assert place("replica", {"dp": 6}, 5, 2, 0).of == (0, 0, 2, 0, 0, 5)


def test_a_rank_on_another_gpu_has_a_representative_on_such_a_gpu() -> None:
    placement = place("replica", {"dp": 4, "tp": 2}, 6, kinds="hhaa")
    assert placement.of == (0, 1, 0, 1, 4, 5, 6, 5)
    assert placement.ranks == {0: (0, 1), 2: (4, 5), 3: (6,)}


def test_servers_of_one_kind_need_not_be_neighbours() -> None:
    assert place("replica", {"dp": 4}, kinds="haha").of == (0, 1, 0, 1)


@st.composite
def folds(draw: st.DrawFn) -> tuple[Fold, list[str], int]:
    """A fold, the kind of GPU of each server, and ranks per server."""
    names = [*sorted(folding.DATA_AXES), "pp", "cp", "tp", "ep"]
    axes = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    fold = Fold(draw(st.sampled_from(("replica", "stage"))), tuple((axis, draw(st.integers(1, 4))) for axis in axes))
    world = fold.mesh_size
    ranks = draw(st.sampled_from([size for size in range(1, 17) if world % size == 0]))
    kinds = draw(st.lists(st.sampled_from("ha"), min_size=world // ranks, max_size=world // ranks))
    keep = draw(st.lists(st.integers(0, world - 1), max_size=3, unique=True))
    return Fold(fold.mode, fold.parallel, tuple(keep)), kinds, ranks


@given(folds())
def test_classes_are_what_they_claim_to_be(case: tuple[Fold, list[str], int]) -> None:
    fold, kinds, ranks_per_server = case
    placement = folding.place(fold, kinds, ranks_per_server)
    places = list(itertools.product(*(range(size) for _, size in fold.parallel)))
    real = [axis not in folding.DATA_AXES for axis, _ in fold.parallel]
    if fold.mode == "stage":
        real = [axis in folding.UNEQUAL_AXES for axis, _ in fold.parallel]
    assert len(placement.of) == len(places)
    for rank, representative in enumerate(placement.of):
        assert placement.of[representative] == representative, "it stands for itself"
        assert representative <= rank
        assert kinds[representative // ranks_per_server] == kinds[rank // ranks_per_server]
        for own, other, differs in zip(places[rank], places[representative], real, strict=True):
            assert own == other or not differs
            assert not other or differs or representative in fold.keep or len(set(kinds)) > 1, "it is the first"
        assert rank not in fold.keep or representative == rank
    running = [rank for server in placement.servers for rank in placement.ranks[server]]
    assert running == sorted(set(placement.of))
    assert all(rank // ranks_per_server == server for server in placement.servers for rank in placement.ranks[server])
    assert placement.classes == Counter(placement.of)
    assert placement.servers[0] == 0
    assert placement.ranks[0][0] == 0


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ({0: 1024}, "rank 0 stands for 1,024 ranks"),
        ({0: 1023, 1023: 1}, "rank 0 stands for 1,023 ranks, rank 1023 for itself"),
        (
            {**dict.fromkeys(range(8), 16), 128: 7, 129: 7},
            "ranks 0 to 7 stand for 16 ranks each, ranks 128 to 129 for 7 ranks each",
        ),
        ({0: 1, 1: 1}, "ranks 0 to 1 stand for themselves"),
        (
            dict.fromkeys(range(0, 40, 4), 2),
            ", ".join(["rank 0 stands for 2 ranks"] + [f"rank {rank} for 2 ranks" for rank in range(4, 32, 4)])
            + ", and 2 more classes",
        ),
    ],
)
def test_classes_are_listed_in_words(classes: dict[int, int], expected: str) -> None:
    assert folding.listed(classes) == expected


def test_how_many_ranks_run_is_said_in_a_phrase() -> None:
    assert folding.counted({0: 1023, 1023: 1}) == "2 of 1,024 ranks"
