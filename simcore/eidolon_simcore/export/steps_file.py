"""``steps.parquet``: every step of a long run, a column for each field, beside a summary that has the last ones only.

Parquet is what notebooks and databases read, and takes a tenth of the same in JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

NAME: Final = "steps.parquet"
_SCHEMA: Final = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in ("index", "end_ns", "time_ns")),
        pa.field("name", pa.string(), nullable=False),
        *(pa.field(name, pa.int64()) for name in ("tokens", "samples")),
        *(pa.field(name, pa.float64()) for name in ("tokens_per_s", "samples_per_s", "flops", "mfu")),
        *(pa.field(name, pa.map_(pa.string(), pa.int64())) for name in ("split", "peak_bytes", "lag", "reports")),
    ]
)
_MAPS: Final = ("split", "peak_bytes", "lag", "reports")


def write(path: Path, steps: Iterable[Mapping[str, Any]]) -> None:
    """Writes the steps, which are entries of the summary. Raises :class:`OSError`."""
    rows = [{**step, **{name: list(step[name].items()) for name in _MAPS if name in step}} for step in steps]
    partial = path.with_suffix(".partial")
    try:
        pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), partial, compression="zstd")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read(path: Path) -> list[dict[str, Any]]:
    """The steps in a file, as :func:`write` was given them. Raises :class:`OSError`, and :class:`ValueError` for what
    is no such file."""
    table = pq.read_table(path, schema=_SCHEMA)
    return [_entry(row) for row in table.to_pylist()]


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    maps = {name: dict(row[name]) for name in _MAPS if row[name] is not None}
    return {name: value for name, value in row.items() if name not in _MAPS} | maps
