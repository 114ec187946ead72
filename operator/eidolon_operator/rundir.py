"""The folder of a run: no two runs ever write into one.

A folder that nobody named is made under a new name: making a directory is atomic, so of two runs that begin in the
same second one gets the next name. A folder that the user named may hold the files of an earlier run, which this one
replaces. It must not be in use: whoever uses a folder holds the lock on the file ``run.lock`` in it, which says who
that is. The kernel lets the lock go with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

RUNS: Final = "eidolon-runs"  #: where folders go that nobody named
LOCK: Final = "run.lock"


class InUseError(Exception):
    """Another process writes into the folder; the message says which."""


@contextlib.contextmanager
def new(name: str) -> Iterator[Path]:
    """A new folder ``eidolon-runs/NAME``, or with ``-2``, ``-3``, ... behind the name if that is taken. Raises
    :class:`OSError`."""
    for number in itertools.count(1):
        path = Path(RUNS) / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            break
    with given(path) as used:
        yield used


@contextlib.contextmanager
def given(path: Path) -> Iterator[Path]:
    """The folder that the user named, which is made if it is not there. Raises :class:`InUseError`,
    :class:`OSError`."""
    path.mkdir(parents=True, exist_ok=True)
    lock = path / LOCK
    with _locked(lock) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()}: {shlex.join(sys.argv)}\n")
        file.flush()
        try:
            yield path
        finally:
            lock.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file for the user. Raises :class:`OSError` with the file's name, also where the disk is full."""
    try:
        path.write_text(text, "utf-8", errors="backslashreplace")  # names of files in it need not be text
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[TextIO]:
    """The lock file, locked. Its last holder may have removed it between opening and locking, so that is checked."""
    while True:
        with lock.open("a+", encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                who = file.readline().strip() or "another process"
                raise InUseError(f"{lock.parent} is in use by {who}") from None
            if not _is(lock, file):
                continue
            yield file
            return


def _is(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
