"""`eidolon run`, started as a user starts it, for whoever compares what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
#: The frameworks as users install them (`make setup-frameworks`).
FRAMEWORKS = Path(os.environ.get("EIDOLON_FRAMEWORKS") or CACHE / "eidolon" / "frameworks")


@dataclass(frozen=True, slots=True)
class Done:
    """A run that has ended."""

    code: int
    out: str
    err: str
    wall_s: float
    summary: dict[str, Any]  #: empty where it left none

    @property
    def reason(self) -> str:
        """Why there is no result, in a line."""
        tail = (self.err.strip() or self.out.strip()).splitlines()[-3:]
        return f"exit code {self.code}: {' | '.join(tail)}"


def run(
    cluster: Sequence[str],
    command: Sequence[str],
    *,
    out: Path,
    limit_s: float,
    cwd: Path | None = None,
    site: Path | None = None,
) -> Done:
    """``eidolon run CLUSTER -- COMMAND``, which leaves its files in ``out``; a run over its limit is ended. ``site``:
    another environment whose Python the command takes."""
    # As the real runs were: NVLink multicast off, no downloads.
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "HF_HUB_OFFLINE": "1"}
    if site is not None:
        environment |= {"VIRTUAL_ENV": str(site), "PATH": f"{site / 'bin'}:{os.environ['PATH']}"}
    began = time.monotonic()
    eidolon = [str(Path(sys.executable).with_name("eidolon")), "run", "--out", str(out), *cluster, "--", *command]
    try:
        done = subprocess.run(eidolon, capture_output=True, text=True, timeout=limit_s, env=environment, cwd=cwd)
        code, printed, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, printed, err = -1, "", f"no result within {limit_s:.0f} s"
    written = out / "summary.json"
    summary = json.loads(written.read_text()) if written.exists() else {}
    return Done(code, printed, err, time.monotonic() - began, summary)
