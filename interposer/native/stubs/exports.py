"""Records what the real NVIDIA libraries export, into `exports/cu<major>/<soname>.txt`.

    python exports.py [--cuda 13] [--compiler g++] VENV...

Each VENV holds the nvidia-* wheels of one framework version; a list is the union over all of them. The driver's
libraries come with no wheel: what their headers declare stands in for them (for libcuda, also the entry points that
CUPTI has a callback id for, which include the older versions of each function).
Run it when a framework brings newer libraries, and commit the result.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from declarations import declared, include_dirs, preprocess
from libraries import Library, exports_file, libraries


def exported(path: Path) -> dict[str, str]:
    """Functions that a shared library exports: name -> symbol version ("" if none)."""
    command = ["readelf", "-W", "--dyn-syms", str(path)]
    found: dict[str, str] = {}
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[3] in ("FUNC", "IFUNC") and fields[4] != "LOCAL" and fields[6] != "UND":
            name, _, version = fields[7].partition("@")
            found[name] = version.lstrip("@")
    return found


def from_libraries(library: Library, venvs: list[Path]) -> tuple[set[str], list[str]]:
    """The exports of a library in all venvs, and what was read."""
    names: set[str] = set()
    read: list[str] = []
    for venv in venvs:
        for path in sorted(venv.glob(f"lib/python3*/site-packages/nvidia/*/lib/{library.soname}")):
            functions = {name: version for name, version in exported(path).items() if library.recorded(name)}
            other = {version for version in functions.values() if version != library.version}
            if other:
                sys.exit(f"{path}: symbol versions {sorted(other)}, sonames.toml says {library.version!r}")
            names |= functions.keys()
            read.append(f"{library.wheel} {_wheel_version(path, library.wheel)}")
    return names, read


def from_declarations(library: Library, venvs: list[Path], cuda: int, compiler: str) -> tuple[set[str], list[str]]:
    """What the headers of a library declare, in all venvs."""
    names: set[str] = set()
    read: list[str] = []
    for venv in venvs:
        includes = include_dirs([venv], cuda)
        if not all(any((path / header).exists() for path in includes) for header in library.headers[0]):
            continue
        for group in library.headers:
            names |= set(declared(preprocess(compiler, group, library.defines, includes)))
        callbacks = [path / "cupti_driver_cbid.h" for path in includes if (path / "cupti_driver_cbid.h").exists()]
        if library.name == "cuda" and callbacks:
            names |= set(re.findall(r"CUPTI_DRIVER_TRACE_CBID_(cu\w+)", callbacks[0].read_text()))
        header = next(path / library.headers[0][0] for path in includes if (path / library.headers[0][0]).exists())
        read.append(f"{library.wheel} {_wheel_version(header, library.wheel)} (declarations)")
    return {name for name in names if library.recorded(name)}, read


def _wheel_version(path: Path, wheel: str) -> str:
    site = next(parent for parent in path.parents if parent.name == "site-packages")
    infos = list(site.glob(f"{wheel.replace('-', '_')}-*.dist-info"))
    return infos[0].name.split("-")[1].removesuffix(".dist") if infos else "unknown"


def main() -> None:
    """Writes all lists; a library that no venv holds keeps its list and is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cuda", type=int, default=13)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("venvs", nargs="+", type=Path, metavar="VENV")
    arguments = parser.parse_args()
    for library in libraries(arguments.cuda):
        if library.listed == "declarations":
            names, read = from_declarations(library, arguments.venvs, arguments.cuda, arguments.compiler)
        else:
            names, read = from_libraries(library, arguments.venvs)
        if not names:
            print(f"{library.soname}: in no venv, list kept", file=sys.stderr)
            continue
        out = exports_file(library, arguments.cuda)
        out.parent.mkdir(parents=True, exist_ok=True)
        sources = ", ".join(dict.fromkeys(read))
        out.write_text(f"# C functions exported by {library.soname}: {sources}\n" + "\n".join(sorted(names)) + "\n")
        print(f"{library.soname}: {len(names)} functions from {sources}")


if __name__ == "__main__":
    main()
