"""In CI a test that is skipped fails, unless ``.ci/may_skip.toml`` names it with a reason.

A test skips itself where something is missing that it needs. On a developer's machine that is a courtesy; in CI, which
installs all of that, it would hide that a check is no longer made. ``.ci/run`` sets ``EIDOLON_CI=1``, which makes the
difference. A file that skips itself as a whole while it is collected fails too.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

LIST = Path(__file__).parent / ".ci" / "may_skip.toml"


def may_skip() -> dict[str, str]:
    """The tests on the list, with their reasons; a test's id ends before its parameters."""
    return {name: str(reason) for name, reason in tomllib.loads(LIST.read_text("utf-8")).items()}


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip that is not on the list into a failure."""
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("EIDOLON_CI") != "1":
        return
    if report.nodeid.partition("[")[0] in may_skip():
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid} was skipped in CI ({reason}), and .ci/may_skip.toml does not name it"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judges each phase of a test."""
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judges a file that is collected."""
    report = yield
    _judge(report)
    return report
