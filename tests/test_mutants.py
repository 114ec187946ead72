"""tools/mutants.py: which tests it takes for a module, what it tells mutmut, and how it reads what mutmut found."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("mutants", Path(__file__).parents[1] / "tools" / "mutants.py")
assert _SPEC is not None
assert _SPEC.loader is not None
mutants = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(mutants)


@pytest.mark.parametrize(
    ("modules", "tests"),
    [
        (["run/membership.py"], ["tests/simcore/run"]),
        (["ledger", "costs/work.py"], ["tests/simcore/costs", "tests/simcore/ledger", "tests/simcore/run"]),
        (["catalogue.py", "ledger"], ["tests/simcore"]),  # a module without a folder of tests
    ],
)
def test_the_tests_of_a_module_are_those_beside_it_and_those_of_whole_runs(
    modules: list[str], tests: list[str]
) -> None:
    assert mutants.tests_of(modules) == tests


def test_mutmut_is_told_which_files_to_change_and_which_tests_to_run() -> None:
    section = tomllib.loads(mutants.settings(["run/watchdogs.py", "ledger"], ["tests/a", "tests/b"]))["tool"]["mutmut"]
    assert section["only_mutate"] == ["eidolon_simcore/run/watchdogs.py", "eidolon_simcore/ledger/*.py"]
    assert section["pytest_add_cli_args_test_selection"] == ["tests/a", "tests/b"]


def test_the_modules_that_are_tried_by_default_exist() -> None:
    for module in mutants.CENTRAL:
        assert (mutants.ROOT / "simcore" / mutants.PACKAGE / module).is_file(), module


def test_what_became_of_each_mutant_is_read() -> None:
    text = "    a.x_f__mutmut_1: survived\n    a.xǁCǁg__mutmut_2: no tests\n\n"
    assert mutants.statuses(text) == {"a.x_f__mutmut_1": "survived", "a.xǁCǁg__mutmut_2": "no tests"}
