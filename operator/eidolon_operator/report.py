"""What a run prints at its end: a table of steps, then everything that makes its times less trustworthy.

Pure functions from ``summary.json`` to text. The text has no colour and no box drawing, so that it reads the same in a
terminal, in a log and in a pull request.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from eidolon_operator import folding
from eidolon_operator.units import format_bytes, format_count, format_ns

#: A table shows all steps up to this many, and otherwise the first and the last few.
MAX_STEPS: Final = 24
FIRST_STEPS: Final = 6
LAST_STEPS: Final = 12
#: Largest number of devices whose peak memory has a column each. With more, one column has the greatest.
MAX_DEVICES: Final = 8
#: Number of lines in each list (host waits, unmodelled calls, unknown reads).
MAX_LINES: Final = 10

Step = Mapping[str, Any]
Summary = Mapping[str, Any]


class _Row(NamedTuple):
    label: str
    cells: tuple[str, ...]


def render(summary: Summary, *, title: str) -> str:
    """The whole report."""
    blocks = [_heading(summary, title), _step_table(summary["steps"]) or _no_steps(summary), _findings(summary)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def progress_line(step: Step, total: int | None) -> str:
    """One line for a step that has become final."""
    if step["name"] == "startup":
        return f"startup {format_ns(step['time_ns'])}"
    of = f" of {total}" if total else ""
    parts = [f"step {step['index']}{of}", format_ns(step["time_ns"])]
    parts += [f"{format_count(step[key])} {unit}" for key, unit in _RATES if step.get(key) is not None]
    return " · ".join(parts)


_RATES: Final = (("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s"))


def _heading(summary: Summary, title: str) -> str:
    host = " ".join(filter(None, (summary["host_cost"], summary["host_note"])))
    classes = folding.of_summary(summary)
    lines = [
        f"{title}: {summary['state']}" + (f": {summary['reason']}" if summary.get("reason") else ""),
        f"{folding.ran(summary['ranks'], classes)} on {summary['gpu']}; host cost: {host}; "
        f"{format_ns(summary['virtual_ns'])} simulated in {summary['wall_s']:.1f} s",
    ]
    if classes:
        lines.append(f"Folded: {folding.listed(classes)}")
    lines += [f"Not written: {text}" for text in summary.get("not_written", ())]
    return "\n".join(lines)


# -- steps -------------------------------------------------------------------------------------------------------------


def _step_table(steps: Sequence[Step]) -> str:
    if not steps:
        return ""
    rates = [(key, unit) for key, unit in _RATES if any(step.get(key) is not None for step in steps)]
    devices = sorted({device for step in steps for device in step["peak_bytes"]}, key=_device_order)
    header = ["simulated time", *(unit for _, unit in rates), *_memory_header(devices)]

    def row(step: Step) -> _Row:
        cells = [format_ns(step["time_ns"])]
        known = step["name"] != "startup"  # a rate during the start-up means nothing
        cells += [format_count(step[key]) if known and step.get(key) is not None else "-" for key, _ in rates]
        cells += _memory_cells(step["peak_bytes"], devices)
        return _Row("startup" if step["name"] == "startup" else str(step["index"]), tuple(cells))

    rows = [row(step) for step in steps]
    if len(rows) > MAX_STEPS:
        hidden = len(rows) - FIRST_STEPS - LAST_STEPS
        gap = _Row("...", (f"({hidden} more)", *[""] * (len(header) - 1)))
        rows = [*rows[:FIRST_STEPS], gap, *rows[-LAST_STEPS:]]
    real = [step for step in steps if step["name"] != "startup"]
    if len(real) > 1:
        median = [format_ns(statistics.median(step["time_ns"] for step in real))]
        for key, _ in rates:
            values = [step[key] for step in real if step.get(key) is not None]
            median.append(format_count(statistics.median(values)) if values else "-")
        median += _memory_cells(_peaks(real), devices)
        rows.append(_Row("median", tuple(median)))
    note = "Memory: peak of each device by server/device" if 0 < len(devices) <= MAX_DEVICES else ""
    note = "Memory: greatest peak of all devices, and where" if len(devices) > MAX_DEVICES else note
    if note and len(real) > 1:
        note += "; in the last row that of the whole run"
    return _table(["step", *header], rows) + (f"\n{note}." if note else "")


def _no_steps(summary: Summary) -> str:
    peaks = summary.get("peak_bytes") or {}
    cells = _memory_cells(peaks, sorted(peaks, key=_device_order))
    if not cells:
        return "No step became final."
    if len(peaks) > MAX_DEVICES:
        return f"No step became final. Greatest peak of memory: {cells[0]}, on device {cells[1]}."
    named = zip(sorted(peaks, key=_device_order), cells, strict=True)
    return f"No step became final. Peak memory: {', '.join(f'{device} {cell}' for device, cell in named)}."


def _memory_header(devices: Sequence[str]) -> list[str]:
    if not devices:
        return []
    return [f"mem {device}" for device in devices] if len(devices) <= MAX_DEVICES else ["peak memory", "on"]


def _memory_cells(peaks: Mapping[str, int], devices: Sequence[str]) -> list[str]:
    if not devices:
        return []
    if len(devices) <= MAX_DEVICES:
        return [format_bytes(peaks[device]) if device in peaks else "-" for device in devices]
    if not peaks:
        return ["-", "-"]
    worst = min(peaks, key=lambda device: (-peaks[device], _device_order(device)))
    return [format_bytes(peaks[worst]), worst]


def _peaks(steps: Sequence[Step]) -> dict[str, int]:
    greatest: dict[str, int] = {}
    for step in steps:
        for device, count in step["peak_bytes"].items():
            greatest[device] = max(count, greatest.get(device, 0))
    return greatest


def _device_order(device: str) -> tuple[int, ...]:
    return tuple(int(part) for part in device.split("/"))


def _table(header: Sequence[str], rows: Sequence[_Row]) -> str:
    lines = [tuple(header), *((row.label, *row.cells) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    texts = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    texts.insert(1, "-" * max(map(len, texts)))
    if rows and rows[-1].label == "median":
        texts.insert(-1, texts[1])
    return "\n".join(texts)


# -- findings ----------------------------------------------------------------------------------------------------------


def _findings(summary: Summary) -> str:
    # The framework's allocator asks again after it has freed what it can. The same refusal twice is one line.
    lines = list(dict.fromkeys(_out_of_memory(item) for item in summary["oom"]))
    lines += by_source(summary)
    lines += [f"Published costs: {line}" for line in summary["coverage"]["published"]]
    waits = sorted(summary["host_waits"], key=lambda item: (-item["ns"], item["site"]))
    lines += _list(
        "Host waits",
        f"{_count(sum(item['count'] for item in waits), 'wait')}, {format_ns(sum(item['ns'] for item in waits))}",
        [f"{item['site']}: {item['count']} x, {format_ns(item['ns'])}" for item in waits],
    )
    calls = sorted(summary["unmodelled"], key=lambda item: (-item["count"], item["name"]))
    lines += _list(
        "Unmodelled calls",
        f"{_count(sum(item['count'] for item in calls), 'call')} of {_count(len(calls), 'function')}, "
        'which mostly returned "not supported"',
        [f"{item['name']}: {item['count']} x" for item in calls],
    )
    reads = sorted(summary["unknown_reads"], key=lambda item: (-item["count"], item["site"]))
    lines += _list(
        "Unknown reads",
        f"{_count(sum(item['count'] for item in reads), 'read')} of values that were never computed",
        [f"{item['site']}: {item['count']} x, {format_bytes(item['bytes'])}, {_given(item)}" for item in reads],
    )
    return "\n".join(lines)


def by_source(summary: Summary) -> list[str]:
    """The share of device time by the source of its cost: of the steps, and apart from them of the start-up."""
    startup = summary.get("startup_cost_share")
    lines = [f"Device time by cost source: {_sources(summary['cost_share'])}"]
    if startup:
        lines.append(f"  of the steps; the start-up (building, compilation, autotuning) had {_sources(startup)}")
    return lines


def _sources(share: Mapping[str, float]) -> str:
    order = [key for key in ("measured", "interpolated", "roofline", "unknown") if key in share]
    order += [key for key in share if key not in order]
    return ", ".join(f"{key} {share[key]:.1%}" for key in order) or "no device time"


def _out_of_memory(item: Mapping[str, Any]) -> str:
    return (
        f"Out of memory in step {item['step']} on server {item['server']} device {item['device']}: "
        f"{format_bytes(item['requested_bytes'])} requested with {format_bytes(item['allocated_bytes'])} of "
        f"{format_bytes(item['capacity_bytes'])} allocated"
        + ("; the allocator freed what it had cached, and its next try succeeded" if item.get("cured") else "")
    )


def _given(read: Mapping[str, Any]) -> str:
    if read.get("default"):
        return f"default: {read['default']}"
    return "in bulk: zeros" if read.get("bulk") else "no default: zeros"


def _list(title: str, total: str, items: Sequence[str]) -> list[str]:
    if not items:
        return [f"{title}: none"]
    shown = [f"  {item}" for item in items[:MAX_LINES]]
    if len(items) > MAX_LINES:
        shown.append(f"  ... and {len(items) - MAX_LINES} more in summary.json")
    return [f"{title}: {total}", *shown]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
