"""What a local run takes from the machine it is on: memory, directories for its servers, a port, programs.

Directories of servers lie in a memory file system, because the rings in them are mapped. Each is locked by the run that
made it, so that the next run can tell those that a killed run has left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from eidolon_interposer.vocabulary import ConfKey
from eidolon_operator import diagnosis, folding, launching
from eidolon_operator.plan import Plan
from eidolon_operator.spec import Spec, Workload

NOT_FOUND: Final = 127  #: exit code for a program that does not exist, as in a shell
LOOPBACK: Final = "127.0.0.1"
#: Share of the machine's memory that large allocations of all ranks together may take, unless the user says otherwise.
HOST_MEMORY_PERCENT: Final = 80
#: Memory of this machine that a process with torch takes, as is assumed before a folded run. Ranks of the examples take
#: 0.36 to 0.42 GiB; what a script itself keeps in host memory comes on top.
PROCESS_BYTES: Final = (4 << 30) // 10


class RunError(Exception):
    """The run cannot start or go on. The message is one line for the user."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


# -- memory and directories --------------------------------------------------------------------------------------------


def scratch_directory() -> Path:
    """Where directories of servers go: a file system in memory, or the one for temporary files if there is none."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


def machine_memory() -> int:
    """The memory of this machine in bytes, or less if the control group of this process is limited."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # "max" means that there is no limit
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def default_host_memory() -> int:
    """:data:`HOST_MEMORY_PERCENT` of :func:`machine_memory`, in bytes."""
    return machine_memory() * HOST_MEMORY_PERCENT // 100


def share_host_memory(scratch: Path, budget_bytes: int) -> dict[ConfKey, str]:
    """Settings for every server by which all ranks share one account of the machine's memory."""
    accounts = scratch / "host-memory"
    accounts.mkdir()
    return {"host_memory.bytes": str(budget_bytes), "host_memory.dir": str(accounts)}


@contextlib.contextmanager
def server_directory(scratch: Path, index: int) -> Iterator[Path]:
    """A directory for one emulated server. This process locks it for as long as it is in use."""
    path = Path(tempfile.mkdtemp(prefix="eidolon-", suffix=f"-{index}", dir=scratch))
    try:
        with (path / ".owner").open("w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            (path / ".owner").rename(path / "owner")  # remove_stale looks only at locks of this name
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_stale(scratch: Path) -> None:
    """Removes the directories of runs that were killed: those whose lock nobody holds."""
    for owner in scratch.glob("eidolon-*/owner"):
        with contextlib.suppress(OSError), owner.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent)


def check_space(scratch: Path, plan: Plan) -> None:
    """Raises :class:`RunError` if the rings do not fit. A full file system would be a bus error in the workload."""
    ranks = plan.spec.placement.processes
    needed, free = plan.ring_bytes * ranks, shutil.disk_usage(scratch).free
    if needed > free:
        raise RunError(f"the rings of {ranks} ranks need {needed >> 20} MiB in {scratch}; {free >> 20} MiB are free")


def fold_needs(spec: Spec) -> list[str]:
    """What a folded run will start and what this takes, in lines to show before it. No lines for any other run. Raises
    :class:`RunError` if the machine has too little memory."""
    if spec.fold is None:
        return []
    placement, memory_bytes = spec.placement, machine_memory()
    needed_bytes = placement.processes * PROCESS_BYTES
    needs = (
        f"{folding.counted(placement.classes)} need about {_gib(needed_bytes)} of memory "
        f"({_gib(PROCESS_BYTES)} for each process is assumed); this machine has {_gib(memory_bytes)}"
    )
    if needed_bytes > memory_bytes:
        raise RunError(f"spec.fold: {needs}. Fold more axes (mode stage), keep fewer ranks, or use a larger machine")
    return [f"fold {spec.fold.mode}: {folding.listed(placement.classes)}", needs]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):,.1f} GiB"


# -- the workload ------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """A TCP port on loopback on which nobody listened just now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def workload_command(workload: Workload) -> list[str]:
    """The command of one emulated server as the launcher gets it, with the path of its program.

    Where torchrun is to start the ranks, its Python is that of the ``torchrun`` that a shell would find. Raises
    :class:`RunError` if there is no such program.
    """
    path = _search_path(dict(workload.env), os.environ)
    torchrun = shutil.which("torchrun", path=path)
    python = diagnosis.interpreter([torchrun]) if torchrun is not None else None
    command = launching.workload_command(workload, python or "python")
    found = shutil.which(command[0], path=path)
    if found is None:
        reason = "is not executable" if Path(command[0]).is_file() else "is not found"
        raise RunError(f"workload: {command[0]!r} {reason}", NOT_FOUND)
    return [str(Path(found).absolute()), *command[1:]]


def workload_environment(spec: Spec, server: int, master_port: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of the workload on one emulated server."""
    own = dict(spec.workload.env)
    environment = {
        # All emulated servers share this machine's loopback and its host name, which may not resolve.
        "GLOO_SOCKET_IFNAME": "lo",
        # Output goes through a pipe. Without this, a line would show only when 8 KiB are full.
        "PYTHONUNBUFFERED": "1",
        # If no plugin was shipped for a torch, one is compiled once.
        "EIDOLON_PLUGIN_BUILD": "1",
        **{key: value for key, value in inherited.items() if not key.startswith(launching.VARIABLE_PREFIX)},
        **launching.rendezvous(spec, server, LOOPBACK, master_port),
    }
    return {**environment, **own, "PATH": _search_path(own, inherited)}


def _search_path(own: Mapping[str, str], inherited: Mapping[str, str]) -> str:
    """PATH of the workload: the user's, so that ``python`` is the one that a shell would find.

    The directory of our own Python comes last and hides nothing. So ``.venv/bin/eidolon run -- torchrun train.py``
    finds the torchrun of ``.venv``, if that is the only one.
    """
    given = own.get("PATH", inherited.get("PATH", os.defpath))
    return os.pathsep.join([given, str(Path(sys.executable).parent)])
