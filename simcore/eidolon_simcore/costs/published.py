"""GEMMs that others measured on GPUs which our own tables lack: those of ``aiconfigurator-core``, if it is installed.

The package (PyPI, Apache-2.0; extra `aic`) brings Parquet files. They are read as such, and none of its code is
imported. The bf16 rows of a GPU's newest vLLM table are taken. They time ``torch.nn.functional.linear``, so PyTorch and
cuBLAS, as in a training step. A training step does not call what the other rows time: fp8 and fp4 rows include the
quantization of the activations (on an H200, 4096 x 1024 x 8192 takes 135 us in fp8 and 85 us in bf16), and attention is
that of serving frameworks, on a paged cache, by kernels that PyTorch does not have.

On an H200, where there are both, these times and those of ``eidolon profile operators`` differ by 7 % on average, over
487 products of three layouts (:data:`ERROR`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

PACKAGE = "aiconfigurator-core"
#: The package's names of GPUs of the catalogue that it measured and our own tables lack.
GPUS = {
    "a100-80gb-sxm": "a100_sxm",
    "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm",
    "gb200": "gb200",
    "l40s": "l40s",
}
ERROR = 0.07  #: expected relative error of a product that it measured
LEAST_ROWS, LEAST_SIDE = 16, 64  #: the smallest products that are read: training steps have no smaller ones
#: Names of PyTorch's own linear layer in its vLLM tables; the second one was used until vLLM 0.14.
_LINEAR = ("torch.nn.functional.linear", "vllm_default")
_COLUMNS = {"gemm_dtype": str, "kernel_source": str, "m": int, "n": int, "k": int, "latency": float}


class PublishedError(Exception):
    """The package is installed, but its tables are not as this module knows them."""


def installed() -> bool:
    """Whether the package is there."""
    return _folder() is not None


def table(gpu: str) -> Path | None:
    """The file with a GPU's products; None if the package is not installed or has none."""
    folder = _folder()
    if folder is None or gpu not in GPUS:
        return None
    versions = folder / "systems" / "data" / GPUS[gpu] / "gemm" / "vllm"
    return max(versions.glob("*/gemm_perf.parquet"), key=lambda path: _version(path.parent.name), default=None)


@cache
def linears(gpu: str) -> tuple[tuple[int, int, int, float], ...]:
    """Bf16 linear layers that were measured on this GPU, each as (rows, outputs, features, nanoseconds). Empty without
    the package."""
    path = table(gpu)
    return () if path is None else tuple(select(path))


def select(path: Path) -> Iterator[tuple[int, int, int, float]]:
    """The bf16 linear layers by PyTorch in any of its tables, as from :func:`linears`. Only those whose rows are a
    multiple of 16 are given: odd numbers of rows stand beside even ones."""
    from pyarrow import parquet

    found: pa.Table = parquet.ParquetFile(path).read(use_threads=False)
    if missing := [name for name in _COLUMNS if name not in found.column_names]:
        raise PublishedError(f"{path}: no column {missing[0]!r}: {', '.join(_COLUMNS)} are needed")
    for dtype, source, m, n, k, ms in zip(*(found[name].to_pylist() for name in _COLUMNS), strict=True):
        if dtype == "bfloat16" and source in _LINEAR and m >= LEAST_ROWS and m % 16 == 0 and min(n, k) >= LEAST_SIDE:
            yield m, n, k, 1e6 * ms


def statement(gpus: Iterable[str]) -> list[str]:
    """What a run's summary says of the package: a line for each model of GPU whose products it has, or could have."""
    lines = []
    for gpu in dict.fromkeys(gpus):
        path = table(gpu)
        if path is not None:
            where = "/".join(path.parts[-5:-1])
            lines.append(f"{gpu}: {len(linears(gpu)):,} GEMMs of {PACKAGE} {_installed_version()} ({where})")
        elif gpu in GPUS and not installed():
            lines.append(f"{gpu}: GEMMs carried over from other GPUs; measured ones with {PACKAGE} (extra aic)")
    return lines


def _folder() -> Path | None:
    spec = importlib.util.find_spec("aiconfigurator_core")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _installed_version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:  # a folder on the path
        return "of unknown version"


def _version(text: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts versions, with numbers by their value."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in text.split("."))
