"""The files of a recording: compressed columns of integers, written as they come, up to a limit.

A recording is a directory::

    recording.json     what the recording as a whole is; rewritten at its end
    names.jsonl        what numbers in columns stand for, one JSON object a line: labels, lanes, links, steps, ...
    000000.columns     blocks, one behind the other; then 000001.columns, ...

A *block* holds the next rows of a table: a length (4 bytes, little-endian), a header in JSON of that length, and the
columns. A column is an array of integers. It is kept as differences where these are smaller; its least value is taken
off, and the rest is stored in the narrowest unsigned type that holds it, compressed with Zstandard. A kernel of a
training step takes two to four bytes.

The size is bounded by dropping the oldest file of blocks, so what is kept of a long run is its end. A thread of its own
writes the blocks, so callers only pay for handing arrays over. If the disk is full, the recording ends, but not the
run; ``recording.json`` states the reason. A block that was cut short, because the machine went down, ends what can be
read, and is no error.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

import numpy as np
import zstandard
from numpy.typing import NDArray

FORMAT: Final = 1
FILES: Final = 16  #: the recording is cut into at least so many files, so that dropping one loses little
MOST_FILE_BYTES: Final = 64 << 20
LEVEL: Final = 1  #: of Zstandard; higher levels save a tenth and take twice as long
WAITING: Final = 64  #: blocks that may wait for the disk before the caller has to wait
WAIT_S: Final = 10.0  #: how long the caller waits at most
CLOSE_S: Final = 30.0  #: how long writing what is left may take at the end
_LENGTH: Final = struct.Struct("<I")
_INFINITE: Final = (-(1 << 63), (1 << 63) - 1)

Columns = Mapping[str, NDArray[Any]]


class RecordingError(Exception):
    """There is no recording, or one of another version; the message says which."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a table. ``window`` has the times (ns) between which all of them happened."""

    table: str
    columns: dict[str, NDArray[Any]]
    window: tuple[int, int]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values()), ()))


class Writer:
    """Writes a recording of at most ``limit_bytes`` (plus the names) into a directory, which it empties first."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for old in (*directory.glob("*.columns"), directory / "names.jsonl"):
            old.unlink(missing_ok=True)
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._file_bytes = max(1, min(MOST_FILE_BYTES, limit_bytes // FILES))
        self._names: TextIO = (directory / "names.jsonl").open("w", encoding="utf-8")
        self._file: BinaryIO | None = None
        self._files: list[tuple[Path, int, int]] = []  # files that are closed: path, bytes, spans
        self._present = [0, 0]  # bytes and rows of the open file
        self._number = 0
        self._dropped_rows = 0
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._problem = ""
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(WAITING)
        self._facts({"complete": False})
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    def name(self, kind: str, **fields: Any) -> None:
        """States what a number stands for; see :meth:`Recording.names`."""
        line = json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n"
        self._hand_over(partial(self._names.write, line))

    def block(self, table: str, make: Callable[[], Columns], window: Callable[[Columns], tuple[int, int]]) -> None:
        """Appends rows. The writing thread calls ``make``, so what that reads must not change any more."""
        self._hand_over(lambda: self._write(table, make(), window))

    def close(self, facts: Mapping[str, Any]) -> None:
        """Waits until everything is on disk, but not for a disk that hangs."""
        self._hand_over(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._problem = self._problem or f"the disk took more than {CLOSE_S:g} s"
        else:
            self._names.close()
            if self._file is not None:
                self._file.close()
        self._facts({**facts, "complete": not self._problem})

    def _hand_over(self, task: Callable[[], object] | None) -> None:
        if self._problem and task is not None:
            return
        try:
            self._queue.put(task, timeout=WAIT_S)
        except queue.Full:
            self._problem = f"the disk took more than {WAIT_S:g} s for a block"

    # ---- the writing thread -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            if self._problem:
                continue  # further blocks are taken and dropped, so that nobody waits
            try:
                task()
            except OSError as error:
                self._problem = f"{error.filename or self._directory}: {error.strerror or error}"
            except Exception as error:  # a bug here must not stop the run either
                self._problem = f"{type(error).__name__}: {error}"

    def _write(self, table: str, columns: Columns, window: Callable[[Columns], tuple[int, int]]) -> None:
        rows = len(next(iter(columns.values())))
        if not rows:
            return
        described, parts = [], []
        for name, column in columns.items():
            how, packed = pack(column)
            data = self._compressor.compress(packed)
            described.append([name, *how, len(data)])
            parts.append(data)
        header = {"table": table, "rows": rows, "window": window(columns), "columns": described}
        text = json.dumps(header, separators=(",", ":")).encode()
        if self._file is None:
            self._file = (self._directory / f"{self._number:06}.columns").open("wb")
        data = b"".join((_LENGTH.pack(len(text)), text, *parts))
        self._file.write(data)
        self._present[0] += len(data)
        self._present[1] += rows
        if self._present[0] >= self._file_bytes:
            self._next_file()

    def _next_file(self) -> None:
        assert self._file is not None
        self._file.close()
        self._files.append((Path(self._file.name), self._present[0], self._present[1]))
        self._file, self._present = None, [0, 0]
        self._number += 1
        self._names.flush()
        while sum(size for _, size, _ in self._files) > self._limit_bytes - self._file_bytes and len(self._files) > 1:
            path, _, rows = self._files.pop(0)
            path.unlink(missing_ok=True)
            self._dropped_rows += rows

    def _facts(self, facts: Mapping[str, Any]) -> None:
        document = {
            "format": FORMAT,
            "limit_bytes": self._limit_bytes,
            "dropped_rows": self._dropped_rows,
            "problem": self._problem,
            **facts,
        }
        try:
            target = self._directory / "recording.json"
            unfinished = target.with_suffix(".partial")
            unfinished.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
            unfinished.replace(target)
        except OSError as error:
            self._problem = self._problem or f"{error.filename}: {error.strerror}"


class Recording:
    """A recording as it lies in the directory of a run. Raises :class:`RecordingError` if there is none."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            self.facts: dict[str, Any] = json.loads((directory / "recording.json").read_text("utf-8"))
            lines = (directory / "names.jsonl").read_text("utf-8").splitlines()
        except FileNotFoundError as error:
            raise RecordingError(f"{directory}: no recording: {error.filename} is missing") from error
        except (OSError, ValueError, RecursionError) as error:
            raise RecordingError(f"{directory}: the recording cannot be read: {error}") from error
        if not isinstance(self.facts, dict):
            raise RecordingError(f"{directory}: recording.json holds no object")
        if self.facts.get("format") != FORMAT:
            raise RecordingError(f"{directory}: format {self.facts.get('format')}; this version reads {FORMAT}")
        self._names: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                break  # cut short
            self._names.setdefault(entry.pop("kind"), []).append(entry)

    def names(self, kind: str) -> list[dict[str, Any]]:
        """What :meth:`Writer.name` was told of this kind, in order."""
        return self._names.get(kind, [])

    def blocks(self, table: str, window: tuple[int, int] = _INFINITE) -> Iterator[Block]:
        """The blocks of a table in order, one at a time, without those that lie outside of the window."""
        decompressor = zstandard.ZstdDecompressor()
        for path in sorted(self._directory.glob("*.columns")):
            with path.open("rb") as file:
                while (header := _header(file)) is not None:
                    size = sum(column[-1] for column in header["columns"])
                    first, last = header["window"]
                    if header["table"] != table or last < window[0] or first > window[1]:
                        file.seek(size, 1)
                        continue
                    data = file.read(size)
                    if len(data) < size:
                        break
                    columns, at = {}, 0
                    for name, *how, length in header["columns"]:
                        packed = decompressor.decompress(data[at : at + length])
                        columns[name] = unpack(packed, how)
                        at += length
                    yield Block(table, columns, (first, last))

    def size_bytes(self) -> int:
        """How much room the recording takes on disk."""
        return sum(path.stat().st_size for path in self._directory.iterdir())


def _header(file: BinaryIO) -> dict[str, Any] | None:
    length = file.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    text = file.read(_LENGTH.unpack(length)[0])
    try:
        header: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):
        return None  # cut short
    return header


def pack(column: NDArray[Any]) -> tuple[list[Any], bytes]:
    """The bytes of a column, not yet compressed, and what :func:`unpack` needs to read them."""
    values = column.astype(np.int64) if column.dtype.kind == "i" else column.astype(np.uint64).view(np.int64)
    differences = np.diff(values, prepend=values[:1])
    by_difference = _range(differences) < _range(values)
    chosen = differences if by_difference else values
    least = int(chosen.min())
    kind = np.min_scalar_type(_range(chosen))
    packed = (chosen - least).astype(kind) if kind.itemsize < 8 else chosen - least
    first = int(values[0]) if by_difference else None
    return [column.dtype.str, packed.dtype.str, least, first], packed.tobytes()


def unpack(packed: bytes, how: list[Any]) -> NDArray[Any]:
    """The column that :func:`pack` made bytes of."""
    dtype, kind, least, first = how
    values = np.frombuffer(packed, kind).astype(np.int64) + least
    if first is not None:
        values[0] = first
        values = np.cumsum(values)
    column: NDArray[Any] = (values.view(np.uint64) if np.dtype(dtype).kind == "u" else values).astype(dtype)
    return column


def _range(values: NDArray[np.int64]) -> int:
    return int(values.max()) - int(values.min())
