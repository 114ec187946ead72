"""Profiler traces as files: Chrome's JSON, as PyTorch writes it, and a packed form that is a fifth of its size.

    python -m bench.trace_files pack TRACE.json.gz ... --out DIR     makes DIR/TRACE.parquet
    python -m bench.trace_files unpack TRACE.parquet ... --out DIR   makes DIR/TRACE.json.gz

The packed form is a Parquet table with a row for each complete event ("X"), in the order of the file, and with all of
its fields to the last digit: times in whole nanoseconds, the arguments that are numbers of their own in columns, the
others as JSON. It leaves out the arrows between events, which follow from their numbers, and names of processes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from bench.truth_files import TRUTH, checked

#: Arguments that differ from event to event, each a column.
NUMBERS: Final = (
    *("External id", "correlation", "Ev Idx"),
    *("Sequence number", "Record function id", "Fwd thread id"),
)
_TEXTS: Final = ("cat", "name", "pid", "tid", "args")
_TIMES: Final = ("ts", "dur")
_PAGE_BYTES: Final = 1 << 26  # a column is one page, in which the encodings find the most

Event = dict[str, Any]


def complete_events(path: Path) -> list[Event]:
    """The complete events of a trace, packed or not, in the order of the file; ``ts`` and ``dur`` are microseconds.

    A file of `bench/truth` is compared with its checksum first (:func:`bench.truth_files.checked`).
    """
    data = checked(path) if path.resolve().is_relative_to(TRUTH) else path.read_bytes()
    if path.suffix == ".parquet":
        return _unpacked(parquet.read_table(io.BytesIO(data)))
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]


def pack(events: list[Event], path: Path) -> None:
    """Writes complete events in the packed form."""
    table = _packed(events)
    numbers = [name for name in table.column_names if name not in _TEXTS]
    parquet.write_table(
        table,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=list(_TEXTS),
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        data_page_size=_PAGE_BYTES,
        dictionary_pagesize_limit=_PAGE_BYTES,
        row_group_size=max(1, len(events)),
    )


def _packed(events: list[Event]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [event[name] for event in events] for name in ("cat", "name")}
    columns |= {name: [json.dumps(event[name]) for event in events] for name in ("pid", "tid")}
    columns |= {f"{name}_ns": [round(event[name] * 1000) for event in events] for name in _TIMES}
    columns |= {name: [event.get("args", {}).get(name) for event in events] for name in NUMBERS}
    others = (
        {k: v for k, v in event["args"].items() if k not in NUMBERS} if "args" in event else None for event in events
    )
    columns["args"] = [None if one is None else json.dumps(one) for one in others]
    return pa.table(columns)


def _others(event: Event) -> str | None:
    """The arguments that have no column, as JSON; None for an event without any arguments."""
    if "args" not in event:
        return None
    return json.dumps({name: value for name, value in event["args"].items() if name not in NUMBERS})


def _unpacked(table: pa.Table) -> list[Event]:
    known: dict[str, Any] = {}  # values by their JSON: many events share few texts

    def value(text: str) -> Any:
        if text not in known:
            known[text] = json.loads(text)
        return known[text]

    events = []
    for row in table.to_pylist():
        event: Event = {
            "ph": "X",
            "cat": row["cat"],
            "name": row["name"],
            "pid": value(row["pid"]),
            "tid": value(row["tid"]),
        }
        event |= {name: row[f"{name}_ns"] / 1000 for name in _TIMES}
        if row["args"] is not None:
            event["args"] = {name: row[name] for name in NUMBERS if row[name] is not None} | value(row["args"])
        events.append(event)
    return events


def main() -> None:
    """Runs what the command line asks for and prints it."""
    parser = argparse.ArgumentParser(prog="python -m bench.trace_files", description="Packs and unpacks traces.")
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files that are made")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in arguments.traces:
        events, name = complete_events(path), path.name.partition(".")[0]
        if arguments.what == "pack":
            pack(events, arguments.out / f"{name}.parquet")
        else:
            text = json.dumps({"traceEvents": events})
            (arguments.out / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
