"""The files of a run as its readers get them: ``summary.json``, ``steps.parquet``, ``plan.json``, ``progress.jsonl``.

They come from disk, where anything may have happened to them, so their shape is checked here and nowhere else: who
has a document from here can use every field that it finds. A field that an older version did not write is missing, and
the reader leaves out what it would show. A summary of a newer format is refused.

The summary of a long run has its last steps only. The others are added here, from ``steps.parquet`` beside it, so that
readers need not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from eidolon_operator import shape
from eidolon_operator.shape import COUNT, INTEGER, NUMBER, Map

FORMAT: Final = 1  #: the newest ``format`` of a summary that this version reads
MOST_SERVERS: Final = 2048

_DEVICE: Final = re.compile(r"[0-9]{1,4}/[0-9]{1,4}")
_RATE: Final = (NUMBER, None)
_STEP: Final = {
    "index": COUNT,
    "name": str,
    "time_ns": COUNT,
    "end_ns": COUNT,
    "peak_bytes": Map(_DEVICE, COUNT),
    **dict.fromkeys(("tokens_per_s?", "samples_per_s?", "mfu?"), _RATE),
    "split?": Map(shape.ANY_KEY, INTEGER),
    "lag?": {"ns": COUNT, "rank": COUNT},
}
_SHARES: Final = Map(shape.ANY_KEY, NUMBER)
_OPERATION: Final = {
    "name": str,
    "operator": str,
    "source": str,
    "count": COUNT,
    "ns": COUNT,
    "share": NUMBER,
    "expected_error": NUMBER,
}
_LOAD: Final = {"name": str, "tier": str, "bytes": NUMBER, "bytes_per_s": NUMBER}
_TIMES: Final = ("compute_ns", "communication_ns", "host_ns", "idle_ns")
#: What a rank waits for in real time; simcore/eidolon_simcore/run/real_time.py says what each means.
WAITS: Final = ("peers_s", "horizon_s", "ingest_s", "room_s", "watchers_s")
_SUMMARY: Final = {
    "state?": str,
    **dict.fromkeys(("cause?", "reason?", "gpu?", "host_cost?", "host_note?"), (str, None)),
    "ranks?": COUNT,
    "fold?": ({"world": COUNT, "classes": [{"rank": COUNT, "ranks": COUNT}]}, None),
    "virtual_ns?": COUNT,
    "wall_s?": NUMBER,
    "real_time?": [{"rank": COUNT, "s": NUMBER, **dict.fromkeys(WAITS, NUMBER)}],
    "capacity_bytes?": COUNT,
    "steps?": [_STEP],
    "steps_left_out?": COUNT,
    "not_written?": [str],
    "cost_share?": _SHARES,
    "startup_cost_share?": _SHARES,
    "coverage?": {
        "expected_error?": NUMBER,
        "published?": [str],
        "errors?": _SHARES,
        "families?": Map(shape.ANY_KEY, Map(shape.ANY_KEY, COUNT)),
        "operations?": [_OPERATION],
    },
    "collectives?": [{"op": str, "count": COUNT, "bytes": NUMBER, "bus_bytes": NUMBER, "ns": COUNT}],
    "links?": [_LOAD],
    "ranks_split?": [
        {"rank": COUNT, "server": COUNT, "device": COUNT, "wait_ns?": (COUNT, None), **dict.fromkeys(_TIMES, INTEGER)}
    ],
    "host_waits?": [{"site": str, "count": COUNT, "ns": COUNT}],
    "unmodelled?": [{"name": str, "count": COUNT}],
    "unknown_reads?": [{"site": str, "count": COUNT, "bytes": COUNT, "default?": (str, None), "bulk?": bool}],
    "oom?": [
        {
            "server": COUNT,
            "device": COUNT,
            "step": COUNT,
            "requested_bytes": COUNT,
            "allocated_bytes": COUNT,
            "capacity_bytes": COUNT,
        }
    ],
}
_GROUP: Final = {"servers": range(1, MOST_SERVERS + 1), "gpu?": str, "gpu_memory_bytes": COUNT}
_FOLD: Final = {"of": [COUNT]}
_PLAN: Final = {
    "name?": str,
    "core?": {**_GROUP, "gpus_per_server?": COUNT, "server_groups?": ([_GROUP], None), "fold?": (_FOLD, None)},
}


class UnreadableError(Exception):
    """A file of a run cannot be used; the message names it and what is wrong."""


def summary(path: Path) -> dict[str, Any]:
    """The summary in a file, with all steps if the others are beside it. Raises :class:`UnreadableError`,
    :class:`FileNotFoundError`."""
    document = _document(path)
    written = document.get("format", FORMAT)
    if isinstance(written, int) and written > FORMAT:
        raise UnreadableError(f"{path}: is of format {written}, by a newer version; this one reads up to {FORMAT}")
    _check(document, _SUMMARY, path)
    if document.get("steps_left_out"):
        document["steps"] = _all_steps(path.parent) or document.get("steps", [])
    return document


def _all_steps(run: Path) -> list[dict[str, Any]]:
    """Every step of a long run; none where the file is not beside the summary."""
    from eidolon_simcore.export import steps_file  # it imports Arrow, and few runs are so long

    path = run / steps_file.NAME
    if not path.exists():
        return []
    try:
        found = steps_file.read(path)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: {' '.join(str(error).split())}") from error
    for step in found:
        _check(step, _STEP, path)
    return found


def plan(path: Path) -> dict[str, Any]:
    """The plan in a file. Raises :class:`UnreadableError`, :class:`FileNotFoundError`."""
    document = _document(path)
    _check(document, _PLAN, path)
    return document


def steps(path: Path) -> list[dict[str, Any]]:
    """The steps in the lines of a file, up to one that is still being written. Raises :class:`UnreadableError`,
    :class:`OSError`."""
    found: list[dict[str, Any]] = []
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            step = json.loads(line)
        except (ValueError, RecursionError):
            break
        _check(step, _STEP, path)
        found.append(step)
    return found


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path}: cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise UnreadableError(f"{path}: holds no JSON object")
    return document


def _check(document: Any, expected: Mapping[str, Any], path: Path) -> None:
    problem = next(shape.problems(document, dict(expected)), None)
    if problem is not None:
        raise UnreadableError(f"{path}: {problem}; the file was changed, or another version wrote it")
