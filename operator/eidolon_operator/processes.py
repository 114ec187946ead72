"""Child processes that never outlive a run.

Three nets, each under the one before:

1. Children are asked to end, by a signal to the launcher of each workload, which forwards it.
2. This process is a *child subreaper*: a grandchild whose parent died (a data-loader worker, a daemon that called
   ``setsid``) becomes our child, so that :func:`kill_descendants` finds everything that a run ever started.
3. If this process itself is killed, the kernel signals its direct children (``PR_SET_PDEATHSIG``).

Children get a session of their own: Ctrl-C in a terminal reaches only us, and we decide in which order things end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

KILLED: Final = 128  #: exit codes above are those of a process that a signal has ended, as shells state it
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """From now on orphans among our descendants become our children."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


async def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
) -> asyncio.subprocess.Process:
    """Starts a child in a session of its own that dies with us. To be called from the main thread only: the kernel
    ties the parent-death signal to the thread that forked."""
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(128 + signal.SIGTERM)

    return await asyncio.create_subprocess_exec(
        *command,
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def descendants() -> list[int]:
    """Process ids of all living descendants of this process."""
    return _below(_children(), os.getpid())


def orphans(started: Collection[int]) -> list[int]:
    """Process ids of the descendants that are not below a process that we ``started``: their parents have died."""
    children = _children()
    own = [pid for pid in children.get(os.getpid(), ()) if pid not in started]
    return [found for pid in own for found in (pid, *_below(children, pid))]


def _children() -> dict[int, list[int]]:
    """The living children of every process on this machine."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # The command name, in parentheses, may hold anything: fields count from the last parenthesis.
            state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            children.setdefault(int(ppid), []).append(int(entry.name))
    return children


def _below(children: Mapping[int, Sequence[int]], root: int) -> list[int]:
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), ())
        found += below
        pending += below
    return found


def kill_descendants(grace_s: float) -> None:
    """Ends every descendant: a polite signal, ``grace_s`` to follow it, then SIGKILL until none is left.

    Reaps nothing, so that whoever waits for a child of its own still gets its exit code.
    """
    deadline = time.monotonic() + grace_s
    _signal_all(signal.SIGTERM)
    while descendants() and time.monotonic() < deadline:
        time.sleep(0.02)
    while descendants():
        _signal_all(signal.SIGKILL)
        time.sleep(0.02)


def reap_orphans() -> None:
    """Reaps what has ended and nobody waits for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _signal_all(number: signal.Signals) -> None:
    for pid in descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def ending(returncode: int) -> str:
    """How a process ended, as the end of a sentence."""
    if returncode < 0:
        return f"was killed by signal {-returncode} ({signal.Signals(-returncode).name})"
    return f"ended with exit code {returncode}"


def exit_code(returncode: int) -> int:
    """A process's return code as a shell states it: 128 + n for signal n."""
    return KILLED - returncode if returncode < 0 else returncode
