"""The program ``eidolon``: what a shell expects of any program, around the command line (:mod:`.cli`).

* Ctrl-C ends it without a traceback, from the first moment on: while modules are being imported, as the kernel does it.
* A reader that stops reading (``| head``) ends it quietly, with the exit code that SIGPIPE would give.
* A closed or full output, and text that the terminal's encoding lacks, are no reason for a traceback either.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` is built on it, and first imports others

_signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402


def main() -> int:
    """Runs the command line on the program's arguments; returns the exit code."""
    _open_streams()
    from eidolon_operator import cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = cli.main()
        sys.stdout.flush()
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
        _drop_output()
    except OSError as error:  # /dev/full, for example
        code = 1
        cli.complain(f"cannot write the output: {error.strerror or error}")
        _drop_output()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _open_streams() -> None:
    """Whoever closed our standard streams gets nothing, and no other file takes their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that the interpreter's end does not fail over it again."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
