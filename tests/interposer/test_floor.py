"""How old a system our libraries still load on: they go into images that are not ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import eidolon_interposer

LIB = Path(eidolon_interposer.__file__).parent / "lib"
#: Of RHEL 8, Debian 10 and the wheels of torch (manylinux_2_28); its C++ library is that of GCC 8.
GLIBC, GLIBCXX = (2, 28), (3, 4, 25)


def highest(library: Path, kind: str) -> tuple[int, ...]:
    """The newest version of a system library's symbols that a library asks for."""
    found = re.findall(rb"%s_([0-9][0-9.]*)" % kind.encode(), library.read_bytes())
    return max((tuple(map(int, version.strip(b".").split(b"."))) for version in found), default=())


@pytest.mark.parametrize("library", sorted(LIB.rglob("*.so*")), ids=lambda path: path.name)
def test_libraries_load_on_old_systems(library: Path) -> None:
    assert highest(library, "GLIBC") <= GLIBC
    assert highest(library, "GLIBCXX") <= GLIBCXX


def test_there_are_libraries() -> None:
    assert (LIB / "libeidolon.so").is_file()
