"""Runs for the tests in this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def lone(tmp_path: Path) -> Run:
    """A server of one rank, whose host has nothing else to do."""
    return Run(tmp_path, ranks_per_server=1)
