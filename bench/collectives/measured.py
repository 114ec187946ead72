"""Lists what was measured, by whom, and which part of it the model is fitted to.

========================== =========================================================================================
tables                     NCCL of ``aiconfigurator-core`` (PyPI, Apache-2.0; extra `bench`): nccl-tests
                           on 2, 4, 8 A100, H100, H200, B200. **Split**: odd powers of two (512 B, 2 KiB, 8 KiB, ...)
                           are fitted (of reductions half only), even ones (1 KiB, 4 KiB, ...) are held out.
graphs                     ``bench/truth/h100_collectives_graph.jsonl``: torch, CUDA graphs, 2 and 4 H100; all of it
                           (even powers of two) is fitted: the start of a launch, and what is left by size.
host                       ``bench/truth/h100_x2_collectives.jsonl``: the same issued from the host.
forced                     ``h200_x2.jsonl`` beside this file: torch 2.11 (NCCL 2.28.9), CUDA graphs, 2 H200, NVLS off,
                           every ``NCCL_ALGO`` and ``NCCL_PROTO`` (empty: NCCL's own choice), 2026-11-28.
profile                    ``h200_x2_profile.jsonl``: ``eidolon profile nccl`` on 2 H200, another machine of the same
                           kind and versions, 2026-11-28: in graphs at powers of two and three halves of them, issued
                           from the host, and device memory. None of the times is fitted.
sweeps                     ``h200_x2_graph.jsonl``: ``coll_graph.py`` as it is, twice on two H200 (torch 2.11, NCCL
                           2.28.9, NVLS off), 2026-11-28. Not fitted.
========================== =========================================================================================

A time that was measured in a graph holds a part of the graph's launch (:data:`GRAPH_LAUNCH_US`), which a run counts
separately.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eidolon_simcore.costs import hostcost

HERE = Path(__file__).parent
TRUTH = HERE.parent / "truth"

#: Our name of a GPU, and that of the package.
GPUS = {
    "a100-80gb-sxm": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "b200-sxm": "b200_sxm",
}
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
#: The part of a graph's launch that the time of a call holds. 20 calls share the launch between the event before the
#: graph and its first call.
GRAPH_LAUNCH_US = hostcost.table().call_ns("cudaGraphLaunch") / 1e3 / 20
_ELEMENT_BYTES = {"half": 2, "int8": 1, "float": 4}


class Point(NamedTuple):
    """One measurement. ``bytes`` counts the larger buffer of a rank."""

    op: str
    ranks: int
    bytes: int
    us: float
    nccl: int = 22809
    algorithm: str = ""
    protocol: str = ""
    dtype: str = "half"

    @property
    def held_out(self) -> bool:
        """Whether the fit leaves the point out, as it does with every second power of two."""
        return self.bytes & (self.bytes - 1) == 0 and int(math.log2(self.bytes)) % 2 == 0


def have_tables() -> bool:
    """Whether aiconfigurator-core is installed."""
    return importlib.util.find_spec("aiconfigurator_core") is not None


def tables(gpu: str) -> list[Point]:
    """The package's points of a GPU from NCCL 2.25 on, if there are any. Those of an all-to-all are also from older
    versions.
    """
    import pyarrow.parquet as parquet  # type: ignore[import-not-found]

    spec = importlib.util.find_spec("aiconfigurator_core")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "systems" / "data" / GPUS[gpu] / "comm" / "nccl"
    points = []
    for file in sorted(folder.glob("*/nccl_perf.parquet")):
        for row in parquet.read_table(file).to_pylist():
            op = row["op_name"].replace("alltoall", "all_to_all")
            version = _version(row.get("version") or file.parent.name)  # the folder's name is not always the version
            if version >= 22500 or op == "all_to_all":
                size = row["message_size"] * _ELEMENT_BYTES[row["nccl_dtype"]]
                points.append(Point(op, row["num_gpus"], size, row["latency"] * 1e3, version, dtype=row["nccl_dtype"]))
    return [p for p in points if 1 << 9 <= p.bytes <= 1 << 29]


def _version(text: str) -> int:
    major, minor, patch = (*map(int, text.split(".")), 0, 0)[:3]
    return major * 10_000 + minor * 100 + patch


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def graphs() -> Iterator[Point]:
    """Collectives of two and four H100 from CUDA graphs, so that no host time is in them."""
    for row in _rows(TRUTH / "h100_collectives_graph.jsonl"):
        for op, us in row.items():
            if op not in ("world", "bytes"):
                yield Point(op, row["world"], row["bytes"], us)


def host() -> Iterator[Point]:
    """Collectives of two H100 that the host issued one by one."""
    for row in _rows(TRUTH / "h100_x2_collectives.jsonl"):
        for op, us in row.items():
            if op != "bytes":
                yield Point("send" if op == "sendrecv" else op, 2, row["bytes"], us)


def forced() -> Iterator[Point]:
    """Collectives of two H200 with a forced algorithm and protocol, and with NCCL's own choice."""
    for row in _rows(HERE / "h200_x2.jsonl"):
        for op, us in row.items():
            if op not in ("algo", "proto", "bytes"):
                name = "send" if op == "sendrecv" else op
                yield Point(name, 2, row["bytes"], us, algorithm=row["algo"].lower(), protocol=row["proto"])


def profile(what: str) -> Iterator[Point]:
    """What the profiler measured on two H200. ``what`` is ``graph`` or ``issued``."""
    for row in _rows(HERE / "h200_x2_profile.jsonl"):
        if row["what"] == what:
            yield Point(row["op"], 2, row["bytes"], row["us"])


def sweeps() -> Iterator[Point]:
    """Collectives of two H200 from CUDA graphs, each size twice."""
    for row in _rows(HERE / "h200_x2_graph.jsonl"):
        for op, us in row.items():
            if op not in ("world", "bytes"):
                yield Point(op, row["world"], row["bytes"], us)
