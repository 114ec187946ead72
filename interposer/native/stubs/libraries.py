"""The table of NVIDIA libraries (`sonames.toml`) and what is recorded of them (`exports/cu<major>/<soname>.txt`).

An export list names the C functions that the real library exports: the union over the versions that frameworks
bring. It holds names only; the symbol version is a column of the table, since a library has one for all.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Status:
    """What functions of one return type answer: if not modelled, and if there are no emulated devices."""

    type: str
    unsupported: str
    inactive: str


@dataclass(frozen=True)
class Library:
    """One NVIDIA library, for one CUDA major version."""

    name: str
    soname: str
    version: str  # symbol version, "" for none
    wheel: str
    headers: tuple[tuple[str, ...], ...]
    defines: tuple[str, ...]
    prefix: tuple[str, ...]
    exclude: tuple[str, ...]
    variant: str
    status: tuple[Status, ...]
    answers: dict[str, str] = field(hash=False)
    preserve: tuple[str, ...]
    listed: str  # "library" or "declarations"

    def recorded(self, function: str) -> bool:
        """Whether an export of the real library belongs in its list: C names of its API, nothing internal."""
        return function.startswith(self.prefix) and not any(fnmatchcase(function, glob) for glob in self.exclude)


def libraries(cuda: int) -> list[Library]:
    """The libraries that exist for this CUDA major version, in table order."""
    table = tomllib.loads((HERE / "sonames.toml").read_text())
    return [_library(row, str(cuda)) for row in table["library"] if str(cuda) in row["soname"]]


def _library(row: dict[str, Any], cuda: str) -> Library:
    soname = row["soname"][cuda]
    return Library(
        name=row["name"],
        soname=soname,
        version=soname if row["version"] == "soname" else row["version"],
        wheel=row["wheel"][cuda],
        headers=tuple(tuple(group) for group in row["headers"]),
        defines=tuple(row.get("defines", ())),
        prefix=tuple(row["prefix"]),
        exclude=tuple(row.get("exclude", ())),
        variant=row.get("variant", r"_pt(ds|sz)$"),
        status=tuple(Status(*entry) for entry in row["status"]),
        answers=row.get("answers", {}),
        preserve=tuple(row.get("preserve", ())),
        listed=row.get("listed", "library"),
    )


def exports_file(library: Library, cuda: int) -> Path:
    """Where the export list of a library lies."""
    return HERE / "exports" / f"cu{cuda}" / f"{library.soname}.txt"


def read_exports(library: Library, cuda: int) -> list[str]:
    """The recorded exports of a library; comment lines start with '#'."""
    lines = exports_file(library, cuda).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]
