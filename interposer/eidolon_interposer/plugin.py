"""Builds and finds the torch plugin (interposer/torch): one small shared library per torch version.

The plugin sees torch's own C++ classes, so it is compiled against the headers of the torch that it is for, once:

    python -m eidolon_interposer.plugin build --torch-from VENV --out DIR

A plugin for torch 2.11.0+cu130 is `torch-2.11.0+cu130.so`. Those of a release lie beside the shim's libraries, in
`lib/plugins`; those built on demand in the user's cache, under a digest of the sources, so that a newer Eidolon never
loads an older plugin. Nothing of torch is imported: its version is read from its files, and the compiler gets only
include and library directories. No CUDA toolkit is needed: the wheels' own headers do, with two small ones of ours in
place of those that the wheels lack.

Only the standard library is used, and the file runs as a script by its path: the hook starts it so, inside a user's
Python, where this package cannot be imported.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
SHIPPED = _PACKAGE / "lib" / "plugins"


class PluginError(Exception):
    """A plugin cannot be built; says why in one line (a compiler's output follows it)."""


# ---- where things are ------------------------------------------------------------------------------------------------


def sources() -> tuple[Path, Path]:
    """The directories of the plugin's sources and of the shim's headers: of an installation, or of a checkout."""
    installed = _PACKAGE / "torch_plugin"
    if (installed / "plugin.cpp").is_file():
        return installed, installed
    checkout = _PACKAGE.parent
    if (checkout / "torch" / "plugin.cpp").is_file():
        return checkout / "torch", checkout / "native" / "core"
    raise PluginError(f"no plugin sources in {installed} or {checkout / 'torch'}")


def digest() -> str:
    """Names the sources that a cached plugin was built from."""
    plugin, shim = sources()
    headers = {shim / "core.h", shim / "abi.h", shim / "vocabulary.h", *(shim / "api").glob("*.h")}
    files = sorted({*plugin.rglob("*.h"), *plugin.rglob("*.cpp"), *headers, shim / "glibc.c"})
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


def cache() -> Path:
    """Where plugins that were built on demand are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "eidolon" / "plugins" / digest()


def site_of(place: Path) -> Path:
    """The site-packages directory with torch in a virtual environment, or that directory itself."""
    for site in (place, *sorted(place.glob("lib*/python3*/site-packages"))):
        if (site / "torch" / "version.py").is_file():
            return site
    raise PluginError(f"no torch in {place}")


def torch_version(site: Path) -> str:
    """`torch.__version__`, read without importing torch."""
    text = (site / "torch" / "version.py").read_text()
    if found := re.search(r"""^__version__\s*(?::[^=]*)?=\s*['"]([^'"]+)['"]""", text, re.MULTILINE):
        return found[1]
    raise PluginError(f"{site / 'torch' / 'version.py'} names no version")


def file_name(version: str) -> str:
    """The plugin's file for a torch version (with its local part: builds for other CUDA versions differ)."""
    if not re.fullmatch(r"[0-9A-Za-z.+_-]+", version):
        raise PluginError(f"{version!r} is no torch version")
    return f"torch-{version}.so"


def locate(version: str) -> Path | None:
    """The plugin for a torch version: shipped, else from the cache."""
    for directory in (SHIPPED, cache()):
        path = directory / file_name(version)
        if path.is_file():
            return path
    return None


# ---- building --------------------------------------------------------------------------------------------------------


def _cuda_include(site: Path) -> Path:
    directories = [*sorted(site.glob("nvidia/cu[0-9]*/include"), reverse=True), site / "nvidia/cuda_runtime/include"]
    if toolkit := os.environ.get("CUDA_HOME"):
        directories.append(Path(toolkit) / "include")
    for directory in directories:
        if (directory / "cuda_runtime_api.h").is_file():
            return directory
    raise PluginError(f"no cuda_runtime_api.h beside torch in {site} (nvidia-cuda-runtime, or CUDA_HOME)")


def commands(site: Path, out: Path) -> tuple[list[str], list[str]]:
    """The compiler's command lines. Symbols of the shim stay undefined: it is loaded before any plugin."""
    plugin, shim = sources()
    torch = site / "torch"
    floor = out.with_name("glibc.o")  # the plugin loads wherever the shim does
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    return [*compiler, *("-x", "c", "-O2", "-fPIC", "-fno-builtin", "-c", str(shim / "glibc.c"), "-o", str(floor))], [
        *compiler,
        *("-std=c++20", "-O2", "-DNDEBUG", "-D_GLIBCXX_USE_CXX11_ABI=1", "-Wall", "-Wextra", "-Werror"),
        *("-fPIC", "-shared", "-fvisibility=hidden", "-fvisibility-inlines-hidden"),
        *("-I", str(plugin), "-I", str(shim)),
        *("-isystem", str(torch / "include"), "-isystem", str(_cuda_include(site))),
        *("-idirafter", str(plugin / "fallback")),
        *(str(plugin / "plugin.cpp"), str(floor), "-o", str(out)),
        *("-L", str(torch / "lib"), "-Wl,--no-as-needed", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-Wl,-z,nodelete"),
    ]


def _environment() -> dict[str, str]:
    # Inside a simulation: the compiler is none of its processes.
    hidden = {"LD_PRELOAD", "LD_LIBRARY_PATH", "EIDOLON_DIR", "PYTHONPATH"}
    return {key: value for key, value in os.environ.items() if key not in hidden}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # One of many ranks builds, the others wait. The file stays: removing it would race.
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(site: Path, directory: Path) -> Path:
    """Compiles the plugin for the torch in `site`; it appears in `directory` whole or not at all."""
    version = torch_version(site)
    if not (site / "torch" / "lib" / "libc10_cuda.so").is_file():
        raise PluginError(f"torch {version} in {site} is built without CUDA")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file_name(version)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch:
        made = Path(scratch) / path.name
        for line in commands(site, made):
            try:
                result = subprocess.run(
                    line, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
                )
            except FileNotFoundError:
                raise PluginError(f"no compiler: {line[0]} (set CXX)") from None
            if result.returncode != 0:
                raise PluginError(f"the plugin for torch {version} does not compile:\n{result.stdout}")
        made.replace(path)
    return path


def ensure(site: Path) -> Path:
    """The plugin for the torch in `site`: shipped, else from the cache, built into it if there is none."""
    return locate(torch_version(site)) or _cached(site)


def ship(site: Path, directory: Path) -> Path:
    """Puts the plugin for the torch in `site` into `directory`. It comes from the cache: compiling takes a minute, and
    most changes to a checkout are not to the plugin."""
    directory.mkdir(parents=True, exist_ok=True)
    made = _cached(site)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch:
        return Path(shutil.copy2(made, scratch)).replace(directory / made.name)


def _cached(site: Path) -> Path:
    directory = cache()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file_name(torch_version(site))
    with _locked(directory / f"{path.name}.lock"):
        return path if path.is_file() else build(site, directory)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eidolon_interposer.plugin", description="The torch plugin.")
    commands = parser.add_subparsers(dest="command", required=True)
    here = Path(sys.prefix)
    make = commands.add_parser("build", help="put the plugin for one torch into a directory")
    make.add_argument("--torch-from", type=Path, default=here, help="a virtual environment or its site-packages")
    make.add_argument("--out", type=Path, default=SHIPPED, help="directory that gets torch-VERSION.so")
    have = commands.add_parser("ensure", help="print the plugin's path; build it into the cache if there is none")
    have.add_argument("--torch-from", type=Path, default=here, help="a virtual environment or its site-packages")
    options = parser.parse_args(arguments)
    try:
        site = site_of(options.torch_from.resolve())
        print(ship(site, options.out) if options.command == "build" else ensure(site))
    except (PluginError, OSError) as error:
        print(f"eidolon: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
