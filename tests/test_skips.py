"""In CI a test that is skipped fails, unless it is on the list: the hook of the root's conftest.py."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / ".ci" / "may_skip.toml"

TESTS = """
import pytest

@pytest.mark.skip(reason="by a mark")
def test_marked(): ...

@pytest.mark.parametrize("n", [1, 2])
def test_itself(n):
    pytest.skip("by itself")

@pytest.fixture
def missing():
    pytest.skip("by a fixture")

def test_fixture(missing): ...

@pytest.mark.xfail(reason="known", strict=True)
def test_expected(): assert False

def test_well(): ...
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with the hook, tests that skip, and a list that names one of them."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "may_skip.toml").write_text('"test_some.py::test_itself" = "it may"\n')
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(TESTS)
    return tmp_path


def outcome(project: Path, *options: str, ci: str = "1") -> tuple[int, str]:
    """The exit code and what pytest printed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take longer to load than the tests to run
    command = [sys.executable, "-m", "pytest", "-ra", "--import-mode=importlib", "--rootdir", str(project), *options]
    done = subprocess.run(
        command, cwd=project, env=environment | {"EIDOLON_CI": ci}, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["here", "xdist"])
def test_in_ci_a_skip_is_a_failure_unless_it_is_on_the_list(project: Path, options: tuple[str, ...]) -> None:
    code, out = outcome(project, *options)
    assert code == 1, out
    for name, reason in (("test_marked", "by a mark"), ("test_fixture", "by a fixture")):
        what = f"test_some.py::{name} was skipped in CI (Skipped: {reason}), and .ci/may_skip.toml does not name it"
        assert what in " ".join(out.split()), out
    counts = out.splitlines()[-1]
    for count in ("2 skipped", "1 xfailed", "1 passed"):
        assert count in counts, out
    code, again = outcome(project, "--last-failed")
    assert code == 1, again
    assert "passed" not in again.splitlines()[-1], "what was skipped is tried again, and fails again"


def test_a_file_that_skips_itself_is_a_failure_too(project: Path) -> None:
    (project / "test_some.py").write_text('import pytest\npytest.importorskip("a_module_that_is_not_there")\n')
    code, out = outcome(project)
    assert code != 0, out
    assert ".ci/may_skip.toml does not name it" in out


def test_elsewhere_a_skip_is_a_skip(project: Path) -> None:
    code, out = outcome(project, ci="")
    assert code == 0, out
    assert "4 skipped" in out


def test_the_list_names_tests_that_there_are() -> None:
    for name, reason in tomllib.loads(LIST.read_text("utf-8")).items():
        file, _, test = name.partition("::")
        functions = [each.name for each in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(each, "name")]
        assert test in functions, name
        assert reason.strip()


def test_ci_asks_for_it() -> None:
    assert "export EIDOLON_CI=1" in (ROOT / ".ci" / "run").read_text()
