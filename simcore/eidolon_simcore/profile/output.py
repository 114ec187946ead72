"""Writes figures as rows of one table, with their provenance: as Parquet if pyarrow is there, else as JSON lines.

A table is written again every few seconds, so that a machine that is taken away leaves what it had measured.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

VERSION = 1  #: of the tables' format
SAVE_EVERY_S = 20.0


class Table:
    """Rows of one kind, which are saved to ``path``. Its suffix is chosen by what can be written."""

    def __init__(self, path: Path, provenance: dict[str, str]) -> None:
        self._path = path
        self._provenance = provenance
        self._rows: list[dict[str, Any]] = []
        self._saved_at = time.monotonic()

    def add(self, **row: Any) -> None:
        """Adds one row. Values other than numbers and text are kept as JSON."""
        self._rows.append({k: v if isinstance(v, (int, float, str)) else json.dumps(v) for k, v in row.items()})
        if time.monotonic() - self._saved_at > SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Writes all rows so far."""
        self._saved_at = time.monotonic()
        if not self._rows:
            return
        columns: dict[str, None] = {}
        for row in self._rows:
            columns.update(dict.fromkeys(row))
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError:
            with gzip.open(self._path.with_suffix(".jsonl.gz"), "wt", encoding="utf-8") as file:
                file.write(json.dumps(self._provenance) + "\n")
                file.writelines(json.dumps(row) + "\n" for row in self._rows)
            return
        table = pa.table({name: [row.get(name) for row in self._rows] for name in columns})
        table = table.replace_schema_metadata(self._provenance)
        partial = self._path.with_suffix(".partial")
        parquet.write_table(table, partial, compression="zstd")
        partial.replace(self._path.with_suffix(".parquet"))


def provenance(note: str = "") -> dict[str, str]:
    """What a figure depends on besides its row: the GPU and its limits, versions, and the date."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "eidolon.table": str(VERSION),
        "gpu": torch.cuda.get_device_name(0),
        "sm_count": str(properties.multi_processor_count),
        "memory_bytes": str(properties.total_memory),
        "l2_bytes": str(getattr(properties, "L2_cache_size", 0)),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "",
        "smi": smi("driver_version,power.limit,clocks.max.sm,clocks.max.mem,persistence_mode"),
        "cpu": _cpu(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "note": note,
    }


def smi(query: str) -> str:
    """What ``nvidia-smi`` answers about GPU 0. Empty if there is no GPU."""
    try:
        command = ["nvidia-smi", "-i", "0", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
