"""``python -m eidolon_interposer.install DIRECTORY``: puts what a workload needs into a directory of its own.

In Kubernetes an init container runs it once per pod and fills an emptyDir, which the workload's container mounts
read-only. The layout is the package's own, so that the launcher finds what lies beside it in both::

    bin/launch      the static launcher
    lib, libN       the stand-ins of the NVIDIA libraries, for CUDA 13 and, where it was built, for CUDA N
    lib/plugins     torch plugins, one per torch version
    hook            the Python hook
    path            goes in front of the workload's PATH: nvidia-smi
    probe.py        what the launcher asks an image's Python
    plugin.py, torch_plugin   for a torch that no plugin is there for: its sources, and what compiles them

Every file appears whole, by rename, and ``bin/launch`` is the last: where it is, all is.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_TREES = ("lib", "lib[0-9]*", "hook", "torch_plugin", "probe.py", "plugin.py", "path", "bin")


def parts(package: Path) -> Iterator[Path]:
    """The files to install, relative to the package, the launcher last."""
    for pattern in _TREES:
        for tree in sorted(package.glob(pattern)):
            for path in sorted(tree.rglob("*")) if tree.is_dir() else [tree]:
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path.relative_to(package)


def install(directory: Path, package: Path = _PACKAGE) -> int:
    """Copies everything; returns the number of bytes. Raises :class:`OSError`."""
    if not (package / "bin" / "launch").is_file():
        raise FileNotFoundError(f"this installation of eidolon is incomplete: {package / 'bin/launch'} is missing")
    total = 0
    for part in parts(package):
        target = directory / part
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        shutil.copyfile(package / part, partial)
        partial.chmod(0o755 if part.parts[0] in ("bin", "path") else 0o644)
        partial.replace(target)
        total += target.stat().st_size
    return total


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="eidolon_interposer.install", description="Installs launcher and shim.")
    parser.add_argument("directory", type=Path, help="gets bin, lib, hook; made if it is missing")
    options = parser.parse_args(arguments)
    try:
        total = install(options.directory)
    except OSError as error:
        print(f"eidolon: {error}", file=sys.stderr)
        return 1
    print(f"installed {total / 1e6:.1f} MB in {options.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
