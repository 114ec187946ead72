"""Starts `eidolon run` as a user starts it, for benchmarks that compare the outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    summary: dict[str, Any]  #: empty if it left none

    @property
    def reason(self) -> str:
        """Why there is no result, in a line."""
        tail = (self.err.strip() or self.out.strip()).splitlines()[-3:]
        return f"exit code {self.code}: {' | '.join(tail)}"


def ended(command: Sequence[str], limit_s: float, cwd: Path | None = None, **environment: str) -> Done:
    """Runs a command as the real runs were started, with NVLink multicast off and without downloads. It is ended when
    it exceeds its limit.
    """
    variables = {**os.environ, "NCCL_NVLS_ENABLE": "0", "HF_HUB_OFFLINE": "1", **environment}
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=variables, cwd=cwd)
        code, printed, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, printed, err = -1, "", f"no result within {limit_s:.0f} s"
    except FileNotFoundError as error:
        code, printed, err = 127, "", str(error)
    return Done(code, printed, err, time.monotonic() - began, {})


def run(
    cluster: Sequence[str],
    command: Sequence[str],
    *,
    out: Path,
    limit_s: float,
    cwd: Path | None = None,
    site: Path | None = None,
) -> Done:
    """Runs ``eidolon run CLUSTER -- COMMAND``, which leaves its files in ``out``. ``site`` is another environment whose
    Python the command takes.
    """
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if site is not None:
        environment = {"VIRTUAL_ENV": str(site), "PATH": f"{site / 'bin'}:{os.environ['PATH']}"}
    eidolon = [str(Path(sys.executable).with_name("eidolon")), "run", "--out", str(out), *cluster, "--", *command]
    done = ended(eidolon, limit_s, cwd, **environment)
    written = out / "summary.json"
    return replace(done, summary=json.loads(written.read_text())) if written.exists() else done
