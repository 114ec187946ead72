"""`eidolon explain RUN`: where a run's device time comes from, and how far to believe it.

With ``--wall`` it says what the ranks waited for in real time.

All functions but :func:`load` are pure and make text from ``summary.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eidolon_operator import launching, report, summary
from eidolon_operator.units import format_ns

COSTLIEST = 10
#: Sources of cost that the user could improve by measuring a GPU.
WEAK = ("roofline", "unknown")
WALL_WORDS = (
    "own work: the rank's own code, from its first call of CUDA to its end",
    "peers: an answer depends on a collective that another rank has not issued yet, or on what that brings",
    "horizon: an answer depends on when other ranks go on",
    "ingest: records on their way to the core, its work, and the answer's way back",
    "room: the ring is full; watchers: threads that watch collectives have not seen the end of one",
)


class ExplainError(Exception):
    """The folder holds no summary that can be explained; the message says what is wrong."""


def load(run: Path) -> Mapping[str, Any]:
    """The summary in a run's folder, or in the file itself. Raises :class:`ExplainError`."""
    path = run / launching.SUMMARY if run.is_dir() else run
    try:
        found = summary.summary(path)
    except FileNotFoundError as error:
        raise ExplainError(f"{path}: {error.strerror}") from error
    except summary.UnreadableError as error:
        raise ExplainError(str(error)) from error
    coverage = found.get("coverage")
    if coverage is None or not coverage.keys() >= {"expected_error", "families", "operations"}:
        raise ExplainError(f"{path}: has no field 'coverage': not the summary of a run, or of an older version")
    return found


def render(found: Mapping[str, Any]) -> str:
    """The costliest operations with source and expected error, followed by the time by family and by source."""
    coverage = found["coverage"]
    lines = [
        f"{found.get('gpu')}: expected error of device time at most {coverage['expected_error']:.1%}",
        *(report.by_source(found) if "cost_share" in found else ()),
        *(f"Published costs: {line}" for line in coverage.get("published", ())),
        "",
        f"{'share':>6} {'time':>10} {'count':>8} {'each':>10} {'source':<12} {'error':>6}  operation",
    ]
    for entry in coverage["operations"][:COSTLIEST]:
        each = entry["ns"] // max(1, entry["count"])
        operator = f"  ({entry['operator']})" if entry["operator"] else ""
        lines.append(
            f"{entry['share']:>6.1%} {format_ns(entry['ns']):>10} {entry['count']:>8} {format_ns(each):>10}"
            f" {entry['source']:<12} {entry['expected_error']:>6.1%}  {entry['name'][:90]}{operator}"
        )
    total = sum(sum(by.values()) for by in coverage["families"].values()) or 1
    lines += ["", f"{'share':>6}  family, by source"]
    for family, by_source in list(coverage["families"].items())[: 2 * COSTLIEST]:
        ns = sum(by_source.values())
        parts = ", ".join(f"{source} {part / ns:.0%}" for source, part in by_source.items() if ns)
        lines.append(f"{ns / total:>6.1%}  {family}: {parts}")
    weak = [entry for entry in coverage["operations"] if entry["source"] in WEAK]
    if weak:
        lines += [
            "",
            "Not measured, costliest first (`eidolon profile script YOUR_SCRIPT` on a real GPU measures them):",
        ]
        lines += [f"  {entry['share']:.2%} {entry['source']} {entry['name'][:100]}" for entry in weak[:COSTLIEST]]
    return "\n".join(lines) + "\n"


def render_wall(found: Mapping[str, Any]) -> str:
    """Real time of each rank and what part of it went where. Raises :class:`ExplainError` if the summary has none."""
    ranks = found.get("real_time")
    if not ranks:
        raise ExplainError("the summary has no field 'real_time': no rank joined, or the run is of an older version")
    columns = [name.removesuffix("_s") for name in summary.WAITS]
    lines = [f"{'rank':>5} {'real time':>10} {'own work':>9} " + " ".join(f"{name:>9}" for name in columns)]
    for one in ranks:
        waits = [one[name] for name in summary.WAITS]
        whole = max(one["s"], sum(waits)) or 1.0
        shares = [max(0.0, whole - sum(waits)), *waits]
        lines.append(f"{one['rank']:>5} {one['s']:>8.2f} s " + " ".join(f"{part / whole:>9.1%}" for part in shares))
    return "\n".join([*lines, "", *WALL_WORDS]) + "\n"
