"""A file shared with other processes, seen as words.

Both sides of a ring publish with a plain store of one aligned word *after* the bytes it covers, and look at the word
before the bytes. On x86-64 the hardware keeps that order; nothing in Python reorders it.

The other processes are not trusted with the file's size: where a page is gone, this process goes on with an empty one
of its own (``native/agent/guard.h``).
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eidolon_interposer._ring import Guard


class SharedMapping:
    """The mapping of one file: ``u32``, ``i32``, ``u64`` and ``i64`` index its words, ``data`` its bytes.

    The indices are those of the word type: the 64-bit word at byte offset 128 is ``u64[16]``. The file's size at the
    time of mapping is what counts; :meth:`intact` tells whether it is still that size.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self.size = os.fstat(self.fd).st_size
            self._map = mmap.mmap(self.fd, self.size)  # fails for what is no file, or empty
        except BaseException:
            os.close(self.fd)
            raise
        self.data = memoryview(self._map)
        words = self.data[: self.size & ~7]
        self.u32, self.i32 = words.cast("I"), words.cast("i")
        self.u64, self.i64 = words.cast("Q"), words.cast("q")
        words.release()
        self._base: int = np.frombuffer(self._map, np.uint8, count=1).ctypes.data
        self._guard = Guard(self._base, self.size)

    def array(self, dtype: np.dtype[np.void], count: int, offset: int) -> NDArray[np.void]:
        """A view of ``count`` structures from byte ``offset`` on."""
        return np.frombuffer(self._map, dtype, count=count, offset=offset)

    def memory(self) -> NDArray[np.uint8]:
        """All of it, for native code. As long as it is referred to, the file stays mapped."""
        return np.frombuffer(self._map, np.uint8)

    def address(self, offset: int) -> int:
        """The address of a byte in this process, for futexes."""
        return self._base + offset

    def damage(self) -> str:
        """What became of the file, in words; empty if it is whole. Parts of it may then be read as zeros, and what is
        written to them is lost."""
        if self.fd < 0:  # it is closed
            return ""
        size = os.fstat(self.fd).st_size
        if size != self.size:
            return f"the file's size was changed from {self.size} to {size} bytes"
        if self._guard.lost:
            return "the file was made shorter for a while, or its file system has no space left"
        return ""

    def close(self) -> None:
        """Unmaps the file, once the last view made by :meth:`array` is gone too."""
        for view in (self.u32, self.i32, self.u64, self.i64, self.data):
            view.release()
        self._guard.release()
        try:
            self._map.close()
        except BufferError:  # views are out: the mapping goes with the last of them
            del self._map
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
