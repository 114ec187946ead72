"""What the launcher asks an image's own Python: its version, and which torch and CUDA it would find.

Prints ``key=value`` lines: ``python``, ``executable``, ``torch`` (version), ``torch_in`` (its directory), ``cuda``
(version that torch, or the CUDA runtime that is there, was built for), ``other_python`` (only if torch's extension
module is for another Python). Nothing is imported but the standard library, and files are only read: it is quick and
has no effect. It runs in whatever Python the image holds.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

RUNTIMES = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu")


def package(name: str) -> list[Path]:
    """The directories of a package that would be imported; empty if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    return [Path(place) for place in spec.submodule_search_locations or ()] if spec else []


def torch_facts(directory: Path) -> dict[str, str]:
    """Version, CUDA version and, if it is another, the Python that a torch was built for."""
    try:
        text = (directory / "version.py").read_text(encoding="utf-8")
    except OSError:
        return {}
    facts = {}
    for key, name in (("torch", "__version__"), ("cuda", "cuda")):
        found = re.search(rf"""^{name}\s*(?::[^=]*)?=\s*['"]([^'"]+)['"]""", text, re.MULTILINE)
        if found:
            facts[key] = found[1]
    modules = [path.name for path in directory.glob("_C.*so")]
    fitting = [name for name in modules if name[len("_C") :] in EXTENSION_SUFFIXES]
    other = re.search(r"cpython-(\d)(\d+)", " ".join(modules))
    if other and not fitting:
        facts["other_python"] = f"{other[1]}.{other[2]}"
    return facts


def runtime_version() -> str:
    """Major version of a CUDA runtime library outside torch, or ''."""
    places = [directory for root in package("nvidia") for directory in root.glob("c*/lib")]
    for place in [*places, *map(Path, RUNTIMES)]:
        for library in sorted(place.glob("libcudart.so.*")):
            found = re.fullmatch(r"libcudart\.so\.(\d+)[.\d]*", library.name)
            if found:
                return found[1]
    return ""


def main() -> None:
    """Prints the facts, one ``key=value`` a line."""
    facts = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}", "executable": sys.executable}
    for directory in package("torch")[:1]:
        facts.update(torch_facts(directory))
        facts["torch_in"] = str(directory)
    if "torch" not in facts and (version := runtime_version()):
        facts["cuda"] = version
    for key, value in facts.items():
        print(f"{key}={value}")


if __name__ == "__main__":
    main()
