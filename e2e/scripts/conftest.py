"""Scripts as people run them, in an environment of their own (``make setup-scripts``)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.runs import Result, Run, nothing_is_left, run

__all__ = ["nothing_is_left", "run"]

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
SCRIPTS = CACHE / "eidolon" / "scripts"
LIMIT_S = 420

Output = Callable[..., str]


@pytest.fixture
def output(run: Run) -> Output:
    """Runs a command on one server with so many GPUs, by the runner's own launcher or by one that it names, and returns
    what it printed. Fails unless it ends well and no number that it printed is infinite or not a number.
    """

    def start(gpus: int, *command: str, launcher: str | None = None) -> str:
        if not (SCRIPTS / "bin" / "torchrun").exists():
            pytest.fail(f"no packages in {SCRIPTS}: make setup-scripts")
        options = ["--gpus-per-server", str(gpus), *(("--launcher", launcher) if launcher else ())]
        limit = ["--time-limit", f"{LIMIT_S}s"]
        result: Result = run(*options, *limit, "--", *command, timeout_s=LIMIT_S + 60, site=SCRIPTS)
        assert result.code == 0, result.all_output
        printed = result.out + result.err
        assert not re.search(r"(?<![\w.])[-+]?(inf|nan)(?![\w.])", printed), result.all_output
        return printed

    return start
