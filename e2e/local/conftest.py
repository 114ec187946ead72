"""Fixtures of the local tests: whole runs on this machine."""

from __future__ import annotations

import sys

from e2e.runs import REPOSITORY, nothing_is_left, run

sys.path.insert(0, str(REPOSITORY / "tests"))  # helpers that are shared with the unit tests

__all__ = ["nothing_is_left", "run"]
