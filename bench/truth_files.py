"""Reads the large files of `bench/truth`, after comparing the SHA-256 of each with `SHA256SUMS` there.

    python -m bench.truth_files     unpacks the folder that TorchTitan's runs start from, and prints its path

Profiler traces are packed (:mod:`bench.trace_files`). TorchTitan finds a generated dataset and a tokenizer in the
folder that it is started from. This folder is an archive, which is unpacked to ``build/truth/titan``.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

TRUTH: Final = Path(__file__).with_name("truth")
SUMS: Final = "SHA256SUMS"
TITAN: Final = "frameworks/titan.tar.xz"
#: Where archives are unpacked: nothing there is tracked by git.
UNPACKED: Final = TRUTH.parents[1] / "build" / "truth"
MARK: Final = ".sha256"  #: in an unpacked folder: the checksum of its archive


class DamagedError(ValueError):
    """A file is not the one whose checksum was noted; the message names it and both checksums."""


def checked(path: Path, root: Path = TRUTH) -> bytes:
    """The bytes of a file below ``root``, whose ``SHA256SUMS`` (as `sha256sum` writes it) names it.

    Raises :class:`DamagedError` where it is not named there or has another checksum.
    """
    lines = (line.split(maxsplit=1) for line in (root / SUMS).read_text("utf-8").splitlines())
    noted = {name.lstrip("*"): digest for digest, name in lines}
    name, data = path.resolve().relative_to(root.resolve()).as_posix(), path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if noted.get(name) != found:
        raise DamagedError(f"{path}: SHA-256 {found}: {noted.get(name, 'nothing')} is noted in {root / SUMS}")
    return data


def titan(target: Path = UNPACKED) -> Path:
    """The folder from which TorchTitan's runs start, unpacked below ``target`` unless it is there already."""
    data = checked(TRUTH / TITAN)
    digest, folder = hashlib.sha256(data).hexdigest(), target / "titan"
    if _mark(folder) == digest:
        return folder
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as made, tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if (content := archive.extractfile(member)) is not None:  # else it is a folder
                path = Path(made) / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
        (Path(made) / "titan" / MARK).write_text(digest, "utf-8")
        try:
            shutil.rmtree(folder, ignore_errors=True)
            (Path(made) / "titan").rename(folder)
        except OSError:
            if _mark(folder) != digest:  # else another process has just unpacked the same
                raise
    return folder


def _mark(folder: Path) -> str:
    """The checksum of the archive that a folder was unpacked from; empty where there is none."""
    path = folder / MARK
    return path.read_text("utf-8") if path.is_file() else ""


if __name__ == "__main__":
    print(titan())
