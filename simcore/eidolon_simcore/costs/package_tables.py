"""The tables that come with the package: Parquet files of measured signatures, with their provenance.

* ``kernels_h100.parquet`` and ``kernels_h200.parquet`` come from profiler traces of training steps. They have a row for
  each signature: kind, name, attributes and operator as JSON, mean nanoseconds, and how often it was seen.
* ``operators_h200.parquet`` has the same for the operator set of ``eidolon profile operators``.
* ``solvers_h200.parquet`` has it for calls of dense solvers (``bench/solvers_h200.json``).
* ``gemm.parquet`` is long and so has numbers only: the GEMM of a linear layer in bf16, row-major (m, k) x (n, k)
  transposed.
* ``copies.parquet`` has copies and sets by bytes, from the operator set and from the traces.

Their metadata say where they come from; ``python -m bench.tables`` makes all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from eidolon_simcore.signature import Signature

BF16 = 14  #: the cudaDataType
#: Tables by signature, and the GPU on which each was measured.
KERNELS = (
    ("kernels_h100.parquet", "h100-sxm"),
    ("kernels_h200.parquet", "h200-sxm"),
    ("operators_h200.parquet", "h200-sxm"),
    ("solvers_h200.parquet", "h200-sxm"),
)
GEMMS, GEMMS_GPU = "gemm.parquet", "h100-sxm"
COPIES = "copies.parquet"
FILES = (*(file for file, _ in KERNELS), GEMMS, COPIES)


@dataclass(frozen=True, slots=True)
class Point:
    """A signature and the time that it took on a GPU of the catalogue."""

    signature: Signature
    operator: Signature | None
    ns: float  #: mean
    gpu: str = GEMMS_GPU
    count: int = 1  #: how often it was seen


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy or a set of so many bytes, and the time that it took on a GPU of the catalogue."""

    signature: Signature
    bytes: int
    ns: float  #: mean
    gpu: str
    count: int = 1


def load(*, gemms: bool = True) -> Iterator[Point]:
    """All points of all tables but that of copies. The published ``gemms`` can be left out."""
    for file, gpu in KERNELS:
        rows = _read(file)
        for kind, name, facts, operator, ns, count in zip(
            *(rows[key] for key in ("kind", "name", "attributes", "operator", "ns", "count")), strict=True
        ):
            of = json.loads(operator) if operator else None
            parent = Signature("op", of["name"], of["attributes"]) if of else None
            yield Point(Signature(kind, name, json.loads(facts)), parent, ns, gpu, count)
    if not gemms:
        return
    rows = _read(GEMMS)
    for m, n, k, ns in zip(*(rows[key] for key in ("m", "n", "k", "ns")), strict=True):
        yield Point(linear(m, n, k), None, ns, GEMMS_GPU)


def copies() -> Iterator[Copy]:
    """All points of the table of copies and sets."""
    rows = _read(COPIES)
    for kind, name, pinned, n, ns, gpu, count in zip(
        *(rows[key] for key in ("kind", "name", "pinned", "bytes", "ns", "gpu", "count")), strict=True
    ):
        yield Copy(Signature(kind, name, {"pinned": pinned}), n, ns, gpu, count)


def linear(m: int, n: int, k: int) -> Signature:
    """The bf16 GEMM of a linear layer with m rows of k features and n outputs, as cuBLAS sees it."""
    facts = {"m": n, "n": m, "k": k, "batch": 1, "atype": BF16, "ctype": BF16, "ta": 1, "tb": 0}
    return Signature("gemm", "cublasGemmEx", facts)


def provenance() -> dict[str, dict[str, str]]:
    """The metadata of each table."""
    from pyarrow import parquet

    found = {}
    for file in FILES:
        with resources.as_file(resources.files("eidolon_simcore") / "data" / "tables" / file) as path:
            metadata = parquet.read_schema(path).metadata or {}
        found[file] = {k.decode(): v.decode() for k, v in metadata.items() if not k.startswith(b"ARROW")}
    return found


def _read(file: str) -> dict[str, list[Any]]:
    from pyarrow import parquet

    with resources.as_file(resources.files("eidolon_simcore") / "data" / "tables" / file) as path:
        columns: dict[str, list[Any]] = parquet.ParquetFile(path).read(use_threads=False).to_pydict()
    return columns
