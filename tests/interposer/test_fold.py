"""The place that a process takes in a folded run, as the hook gives it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eidolon_simcore.run.folding import members

HOOK = Path(__file__).parents[2] / "interposer/eidolon_interposer/hook"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("eidolon_fold", HOOK / "eidolon_fold.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fold = load()
STARTED = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}


def test_a_process_takes_the_place_of_its_rank() -> None:
    environment = {"EIDOLON_FOLD": "1024/8:0,1017:0+0x1017,1017,0+0x6", **STARTED}
    assert fold.fold_of(environment) is not None
    assert environment["RANK"] == environment["ROLE_RANK"] == environment["EIDOLON_FOLD_RANK"] == "1017"
    assert environment["LOCAL_RANK"] == "1"
    assert environment["GROUP_RANK"] == "127"
    assert environment["GROUP_WORLD_SIZE"] == "128"
    assert environment["LOCAL_WORLD_SIZE"] == "8"
    assert environment["WORLD_SIZE"] == environment["ROLE_WORLD_SIZE"] == "1024"


def test_its_children_have_its_place_as_they_inherit_it() -> None:
    environment = {"EIDOLON_FOLD": "1024/8:0,1017:0+0x1017,1017,0+0x6", **STARTED}
    fold.fold_of(environment)
    inherited = dict(environment)
    fold.fold_of(inherited)
    assert inherited == environment


@pytest.mark.parametrize("without", ["EIDOLON_FOLD", "RANK", "LOCAL_RANK"])
def test_what_is_no_rank_of_a_folded_run_stays_as_it_is(without: str) -> None:
    environment = {"EIDOLON_FOLD": "8/8:0:0+0x8", **STARTED}
    del environment[without]
    before = dict(environment)
    assert fold.fold_of(environment) is None
    assert environment == before


def test_a_process_too_many_ends_at_once() -> None:
    with pytest.raises(SystemExit, match="LOCAL_RANK=1, but this server of the folded run has 1 processes"):
        fold.fold_of({"EIDOLON_FOLD": "8/8:0:0+0x8", **STARTED})


def test_a_mesh_axis_is_one_run() -> None:
    assert fold.listed(range(1024)) == "0+1x1024"
    assert fold.listed(range(3, 1024, 8)) == "3+8x128"
    assert fold.listed([0, 1, 8, 9]) == "0+1x2,8+1x2"
    assert fold.listed([7]) == "7"
    assert fold.listed([1, 0]) == "1,0"
    assert fold.listed([0] * 8) == "0+0x8"


@given(st.lists(st.integers(0, 200), unique=True, min_size=1))
def test_the_core_reads_the_lists_that_the_hook_writes(ranks: list[int]) -> None:
    assert members(fold.listed(ranks), 201) == tuple(ranks)
    assert fold.unlisted(fold.listed(ranks)) == ranks


@given(st.lists(st.integers(0, 20), min_size=1))
def test_what_stands_for_each_rank_is_a_list_too(numbers: list[int]) -> None:
    assert fold.unlisted(fold.listed(numbers)) == numbers
