"""Why a workload never used a GPU.

A run in which no process created a CUDA context simulates nothing. The usual reason is a torch that was built without
CUDA: its stock message ("Torch not compiled with CUDA enabled") does not say which torch that is, and a script that
falls back to the CPU says nothing at all. The reason is looked for only when a run had no rank, and torch is not
imported for it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_PROBE: Final = """
import importlib.util, pathlib, runpy
found = importlib.util.find_spec("torch")
if found is not None and found.origin:
    version = runpy.run_path(str(pathlib.Path(found.origin).with_name("version.py")))
    print("torch", version["__version__"], version.get("cuda"), found.origin, sep="\\n")
else:
    print("no torch")
"""
_TIMEOUT_S: Final = 20


def no_rank(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """One line on why no process of this workload became a rank."""
    python = interpreter(command)
    if python is None:
        return "no process of the workload created a CUDA context: nothing was simulated"
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return f"no process of the workload created a CUDA context ({python} does not answer): nothing was simulated"
    match answer.stdout.splitlines():
        case ["torch", version, "None", origin]:
            return (
                f"torch {version} in {Path(origin).parent} is built without CUDA: the workload could not use a GPU. "
                "Install a CUDA build of torch; no GPU or driver is needed"
            )
        case ["torch", version, cuda, _]:
            return (
                f"no process of the workload created a CUDA context (torch {version} for CUDA {cuda} is there): "
                "nothing was simulated"
            )
        case _:
            return f"there is no torch in {python}: no process of the workload created a CUDA context"


def interpreter(command: Sequence[str]) -> str | None:
    """The Python that a command runs on: the command itself, or the interpreter in its script's first line."""
    program = Path(command[0])
    if program.name.startswith("python"):
        return str(program)
    try:
        with program.open("rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = words[1:]
    return words[0] if words and Path(words[0]).name.startswith("python") else None
