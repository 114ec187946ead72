"""Where SimGrid is, and how to ask it. It is a system package (Debian: python3-simgrid), not one of this project's."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "simgrid_flows.py"
PYTHON = os.environ.get("EIDOLON_SIMGRID_PYTHON", "/usr/bin/python3")


@functools.cache
def missing() -> str | None:
    """Why SimGrid cannot be asked, None if it can."""
    if not Path(PYTHON).exists():
        return f"{PYTHON} does not exist (EIDOLON_SIMGRID_PYTHON)"
    probe = subprocess.run([PYTHON, "-c", "import simgrid"], capture_output=True, text=True)
    if probe.returncode == 0:
        return None
    return f"{PYTHON} cannot import simgrid (Debian: apt-get install python3-simgrid)"


def ask(links: list[int], flows: list[tuple[float, tuple[int, ...], int]], timeout_s: float = 600) -> dict[str, Any]:
    case = json.dumps({"links": links, "flows": [[start, list(route), size] for start, route, size in flows]})
    done = subprocess.run([PYTHON, str(SCRIPT)], input=case, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise RuntimeError(f"SimGrid failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
