"""What a run shows while it runs: the workload's own output, and on a terminal a few lines of status below it.

Output passes through as it comes. With several emulated servers, each line is marked with the server that wrote it.
With one, bytes are passed on untouched, so that progress bars and colours of the workload work.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from typing import BinaryIO, Final

_ERASE_BELOW: Final = b"\r\x1b[J"  # from here to the end of the screen
_UP: Final = b"\x1b[1A"


class Console:
    """Owns stdout and stderr of the process during a run."""

    def __init__(
        self, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None, *, terminal: bool | None = None
    ) -> None:
        self._stdout = stdout or sys.stdout.buffer
        self._stderr = stderr or sys.stderr.buffer
        self.terminal = (sys.stdout.isatty() and sys.stderr.isatty()) if terminal is None else terminal
        self._status: list[bytes] = []
        self._shown = 0  # number of status lines on the screen
        self._at_line_start = True

    async def follow(self, source: asyncio.StreamReader, *, error: bool, prefix: str = "") -> None:
        """Copies a workload's stream to ours until it ends."""
        mark = prefix.encode()
        pending = b""
        while chunk := await source.read(65536):
            if not mark:
                self.write(chunk, error=error)
                continue
            *lines, pending = (pending + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            if lines:
                self.write(b"".join(mark + line + b"\n" for line in lines), error=error)
        if pending:
            self.write(mark + pending + b"\n", error=error)

    def write(self, data: bytes, *, error: bool = False) -> None:
        """Writes text above the status."""
        self._hide()
        stream = self._stderr if error else self._stdout
        try:
            stream.write(data)
            stream.flush()
        except OSError:  # nobody reads on (`| head`), or its disk is full: the run itself goes on
            return
        self._at_line_start = data.endswith(b"\n")
        self._show()

    def say(self, text: str) -> None:
        """Writes a line of our own to stderr, above the status."""
        self.write(
            ("" if self._at_line_start else "\n").encode() + f"eidolon: {text}\n".encode(errors="backslashreplace"),
            error=True,
        )

    @property
    def columns(self) -> int:
        """Number of columns that a line of the status may have."""
        return max(20, shutil.get_terminal_size().columns - 1)

    def status(self, lines: Sequence[str]) -> None:
        """Replaces the status, which only a terminal shows; without lines there is none. Lines may hold colours."""
        self._hide()
        self._status = [line.encode() for line in lines]
        self._show()

    def _hide(self) -> None:
        if self._shown:
            self._stderr.write(_UP * (self._shown - 1) + _ERASE_BELOW)
            self._stderr.flush()
            self._shown = 0

    def _show(self) -> None:
        # The status never starts in the middle of a line of the workload.
        if self.terminal and self._status and self._at_line_start:
            self._stderr.write(b"\n".join(self._status))
            self._stderr.flush()
            self._shown = len(self._status)
