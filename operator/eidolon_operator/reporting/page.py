"""One run, or two, as a self-contained HTML page without scripts, fonts or images from elsewhere.

Pure functions make the text from a :class:`~eidolon_operator.reporting.model.Run`. A section is left out if the run has
no data for it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from eidolon_operator.reporting import charts, fabric, tables
from eidolon_operator.reporting.charts import Bar, Series
from eidolon_operator.reporting.model import PARTS, Run
from eidolon_operator.reporting.tables import Figure, Table
from eidolon_operator.units import format_bytes, format_ns

MOST_DEVICES: Final = 64  #: number of devices with a bar of their own; those with the greatest peaks are chosen
MOST_STEPS: Final = 400  #: most steps in a chart; the last are chosen
MOST_ROWS: Final = 12  #: rows of a table that are not folded away
_SOURCES: Final = {"measured": 2, "interpolated": 0, "roofline": 1, "unknown": 5}


def render(run: Run) -> str:
    """The page about one run."""
    sections = [_steps(run), _split(run), _memory(run), _collectives(run), _fabric(run), _coverage(run)]
    sections += [_findings(run), _classes(run), _configuration(run)]
    facts = [run.cluster, run.ranks]
    if "virtual_ns" in run.summary:
        facts.append(f"{format_ns(run.summary['virtual_ns'])} simulated")
    head = (
        f'<header><h1>{escape(run.name)}<span class="state {escape(run.state)}">{escape(run.state)}</span></h1>'
        f"<p>{escape(' · '.join(filter(None, facts)))}</p>{_reason(run)}</header>"
    )
    return _page(run.name, head, [_figures(tables.headline(run)), *sections])


def render_comparison(a: Run, b: Run) -> str:
    """The page that compares two runs."""
    head = (
        f"<header><h1>{escape(a.name)} <small>and</small> {escape(b.name)}</h1>"
        f"<p>{escape(a.cluster)}, and {escape(b.cluster)}</p></header>"
    )
    sections = [
        _section(
            "Figures", "Changes are those from the first run to the second.", _table(tables.comparison(a, b), most=99)
        ),
        _step_times((a, b)),
        _splits((a, b)),
    ]
    different = tables.differences(a, b)
    text = _table(different, most=99) if different else "<p>None: the plans are the same.</p>"
    sections.append(_section("Settings that differ", "", text))
    return _page(f"{a.name} and {b.name}", head, sections)


# ---- sections ------------------------------------------------------------------------------------------------------


def _steps(run: Run) -> str:
    return _step_times((run,))


def _step_times(runs: Sequence[Run]) -> str:
    shown = [run.training[-MOST_STEPS:] for run in runs]
    if not all(shown):
        return ""
    longest = max(shown, key=len)
    labels = [str(step["index"]) for step in longest]
    series = [
        Series(run.name, [step["time_ns"] for step in steps], color)
        for color, (run, steps) in enumerate(zip(runs, shown, strict=True))
    ]
    chart = charts.lines(labels, series, format_ns, title="step time")
    note = "Simulated time of each optimizer step."
    if len(runs) == 1:
        startup = next((step for step in runs[0].steps if step["name"] == "startup"), None)
        if startup is not None:
            note += f" Starting up and the first step, not shown, took {format_ns(startup['time_ns'])}."
        chart += _folded("All steps", _table(tables.steps(runs[0]), most=10_000))
    else:
        chart += _legend([(one.name, one.color, "") for one in series])
    return _section("Step time", note, chart)


def _split(run: Run) -> str:
    parts = run.split()
    total = sum(parts.values())
    if not total:
        return ""
    means = [Series(name, [parts[field]], color) for color, (field, name) in enumerate(PARTS) if parts[field]]
    legend = [(one.name, one.color, f"{format_ns(one.values[0])} · {one.values[0] / total:.1%}") for one in means]
    steps = [step for step in run.training if step.get("split")][-MOST_STEPS:]
    series = [
        Series(name, [step["split"].get(field, 0) for step in steps], color)
        for color, (field, name) in enumerate(PARTS)
    ]
    chart = charts.share_bar(means, format_ns, title="where the time of a step goes") + _legend(legend)
    if len(steps) > 1:
        chart += charts.stacks(
            [str(s["index"]) for s in steps], series, format_ns, title="parts of each step", height=220
        )
    slow = tables.stragglers(run)
    if slow is not None:
        chart += "<h3>Who waits for whom</h3>" + _table(slow)
    note = (
        "Mean over devices and steps. Communication is exposed where nothing computes under it; waiting for the host "
        "is time in which a device has nothing to do because nothing was launched yet."
    )
    return _section("Where the time goes", note, chart)


def _splits(runs: Sequence[Run]) -> str:
    splits = [run.split() for run in runs]
    if not all(sum(split.values()) for split in splits):
        return ""
    series = [Series(name, [split[field] for split in splits], color) for color, (field, name) in enumerate(PARTS)]
    chart = charts.stacks([run.name for run in runs], series, format_ns, title="parts of a step", height=260)
    return _section(
        "Where the time goes", "Mean over devices and steps.", chart + _legend([(s.name, s.color, "") for s in series])
    )


def _memory(run: Run) -> str:
    peaks = run.peaks()
    if not peaks:
        return ""
    shown = peaks
    note = "Greatest allocation of each device (server/device) over the run, against its capacity."
    if len(peaks) > MOST_DEVICES:
        fullest = sorted(peaks, key=lambda device: -peaks[device])[:MOST_DEVICES]
        shown = {device: peaks[device] for device in fullest}
        note += f" The {MOST_DEVICES} fullest of {len(peaks)}."
    rows = []
    for device, peak in shown.items():
        capacity = run.capacity_bytes(device)
        rows.append(Bar(device, peak, capacity, 5 if capacity and peak > 0.95 * capacity else 0))
    return _section("Memory", note, charts.bars(rows, format_bytes, title="peak memory by device"))


def _collectives(run: Run) -> str:
    table = tables.collectives(run)
    if table is None:
        return ""
    note = "A time runs from when the last member came until the end. Bus bandwidth is that of nccl-tests."
    return _section("Collectives", note, _table(table))


def _fabric(run: Run) -> str:
    maps = fabric.heat_maps(run)
    if not maps:
        return ""
    note = "Share of each link's capacity used, as a mean over all steps but the first."
    return _section("Fabric", note, "".join(f"<h3>{escape(name)}</h3>{chart}" for name, chart in maps))


def _coverage(run: Run) -> str:
    shares: Mapping[str, Any] = run.summary.get("cost_share", {})
    table = tables.coverage(run)
    if table is None:
        return ""
    series = [Series(source, [share], _SOURCES.get(source, 3)) for source, share in shares.items() if share]
    bar = charts.share_bar(series, lambda share: f"{share:.1%}", title="device time by cost source")
    startup = run.summary.get("startup_cost_share")
    whose = " in the steps, without the start-up," if startup else ""
    note = (
        f"Where the durations of device work{whose} come from. Measured on the GPU itself, interpolated between "
        "measurements, a roofline of what the operation does, or unknown: guessed from the launch alone."
    )
    return _section(
        "Coverage", note, bar + _legend([(s.name, s.color, f"{s.values[0]:.1%}") for s in series]) + _table(table)
    )


def _findings(run: Run) -> str:
    found = tables.findings(run)
    if not found:
        return ""
    parts = "".join(f"<h3>{escape(name)}</h3>{_table(table)}" for name, table in found)
    return _section("Findings", "What makes the figures less reliable than they look.", parts)


def _classes(run: Run) -> str:
    table = tables.classes(run)
    note = "The run was folded: one rank of each class of equal ranks ran, and the others were taken to do the same."
    return _section("Classes of ranks", note, _table(table)) if table is not None else ""


def _configuration(run: Run) -> str:
    return _section("Configuration", "", _table(tables.configuration(run), most=99)) if run.core else ""


# ---- parts ---------------------------------------------------------------------------------------------------------


def _reason(run: Run) -> str:
    reason = run.summary.get("reason")
    return f'<p class="reason">{escape(str(reason))}</p>' if reason else ""


def _figures(figures: Sequence[Figure]) -> str:
    boxes = (
        f'<div class="figure"><span>{escape(f.name)}</span><b>{escape(f.value)}</b><span>{escape(f.note)}</span></div>'
        for f in figures
    )
    return f'<div class="figures">{"".join(boxes)}</div>'


def _section(title: str, note: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(note)}</p>{body}</section>"


def _legend(entries: Sequence[tuple[str, int, str]]) -> str:
    out = []
    for name, color, value in entries:
        bold = f" <b>{escape(value)}</b>" if value else ""
        out.append(f'<span><i style="background:var(--c{color})"></i>{escape(name)}{bold}</span>')
    return f'<div class="legend">{"".join(out)}</div>'


def _table(table: Table, most: int = MOST_ROWS) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} class="number">{escape(cell)}</{tag}>' if i in table.numbers else f"<{tag}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(row)
        )

    def whole(rows: Sequence[Sequence[str]]) -> str:
        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
        head = f"<thead><tr>{cells(table.header, 'th')}</tr></thead>"
        return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'

    if len(table.rows) <= most + 2:
        return whole(table.rows)
    return whole(table.rows[:most]) + _folded(f"{len(table.rows) - most} more", whole(table.rows[most:]))


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _page(title: str, head: str, sections: Sequence[str]) -> str:
    style = (importlib.resources.files("eidolon_operator.reporting") / "page.css").read_text("utf-8")
    version = importlib.metadata.version("eidolon")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body><main>\n{head}\n"
        + "\n".join(section for section in sections if section)
        + f"\n<footer>eidolon {escape(version)}. All times are simulated unless called real.</footer>"
        + "</main></body></html>\n"
    )
