"""Charts as SVG, by pure functions from numbers to text.

Each returns one ``<svg>`` that scales to the width it is given. Colours are CSS variables (``--c0`` ... of the page),
so that a chart follows the page into dark mode. The exact value of every mark is in a ``<title>``, which browsers show
as a tooltip. Text is measured by a rule of thumb (:func:`text_width`), well enough to keep labels apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 960  #: of every chart, in its own units
_FONT: Final = 12
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    """A named row of values. ``color`` is the number of a colour of the page."""

    name: str
    values: Sequence[float]
    color: int = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar with its label, its value and the limit that it is shown against."""

    label: str
    value: float
    limit: float
    color: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a heat map. ``share``, from 0 to 1, colours it."""

    share: float
    title: str


def text_width(text: str, size: float = _FONT) -> float:
    """Approximate width of a text."""
    return len(text) * size * 0.58


def ticks(least: float, most: float, count: int = 5) -> list[float]:
    """Round numbers that cover the range. Their distance is 1, 2 or 5 times a power of ten."""
    if most <= least:
        most = least + 1
    raw = (most - least) / max(1, count)
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def lines(labels: Sequence[str], series: Sequence[Series], form: Format, *, title: str, height: int = 240) -> str:
    """A line chart of values over an ordered axis. The vertical axis begins at 0 unless that would hide differences."""
    values = [value for one in series for value in one.values]
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = ticks(0.0 if low < 0.6 * high or high == low else low - (high - low) * 0.5, high + (high - low) * 0.05)
    if scale[0] < 0:
        scale = ticks(0.0, high)
    left = max(text_width(form(value)) for value in scale) + 16
    plot = _Plot(left, 12, WIDTH - 14, height - 26, scale[0], scale[-1])
    out = [_axis(plot, scale, form)]
    if scale[0] > 0:
        text = f"axis from {escape(form(scale[0]))}"
        out.append(f'<text x="{plot.right}" y="{plot.bottom - 6}" text-anchor="end" class="small">{text}</text>')
    count = len(labels)
    at = [plot.left + (plot.right - plot.left) * (i + 0.5) / count for i in range(count)]
    out.append(_below(labels, at, height - 8))
    for one in series:
        points = [(at[i], plot.y(value)) for i, value in enumerate(one.values)]
        path = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
        out.append(f'<path d="{path}" fill="none" stroke="var(--c{one.color})" stroke-width="2"/>')
        if count <= 200:
            radius = 3 if count <= 60 else 1.5
            out += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="var(--c{one.color})">'
                f"<title>{escape(f'{labels[i]}: {form(one.values[i])}')}</title></circle>"
                for i, (x, y) in enumerate(points)
            ]
    return _svg(height, out, title)


def stacks(labels: Sequence[str], series: Sequence[Series], form: Format, *, title: str, height: int = 240) -> str:
    """Columns of stacked parts."""
    count = len(labels)
    totals = [sum(one.values[i] for one in series) for i in range(count)]
    if not count or max(totals) <= 0:
        return ""
    scale = ticks(0.0, max(totals))
    left = max(text_width(form(value)) for value in scale) + 16
    plot = _Plot(left, 12, WIDTH - 14, height - 26, scale[0], scale[-1])
    out = [_axis(plot, scale, form)]
    slot = (plot.right - plot.left) / count
    width = min(56.0, slot * (0.72 if count <= 60 else 1.0))
    at = [plot.left + slot * (i + 0.5) for i in range(count)]
    for i in range(count):
        base = 0.0
        for one in series:
            if one.values[i] <= 0:
                continue
            top, bottom = plot.y(base + one.values[i]), plot.y(base)
            base += one.values[i]
            share = one.values[i] / totals[i]
            tip = escape(f"{labels[i]}: {one.name} {form(one.values[i])} ({share:.1%})")
            out.append(
                f'<rect x="{at[i] - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{max(0.4, bottom - top):.1f}" fill="var(--c{one.color})"><title>{tip}</title></rect>'
            )
    out.append(_below(labels, at, height - 8))
    return _svg(height, out, title)


def share_bar(series: Sequence[Series], form: Format, *, title: str) -> str:
    """One bar with the parts of a whole, which are the first values of the series."""
    total = sum(one.values[0] for one in series)
    if total <= 0:
        return ""
    out, x = [], 0.0
    for one in series:
        width = WIDTH * one.values[0] / total
        if width <= 0:
            continue
        share = one.values[0] / total
        tip = escape(f"{one.name}: {form(one.values[0])} ({share:.1%})")
        out.append(
            f'<rect x="{x:.1f}" y="0" width="{max(0.5, width):.1f}" height="34" fill="var(--c{one.color})">'
            f"<title>{tip}</title></rect>"
        )
        text = f"{share:.0%}" if share >= 0.995 or share < 0.01 else f"{share:.1%}"
        if text_width(text) + 12 < width:
            out.append(f'<text x="{x + width / 2:.1f}" y="21.5" text-anchor="middle" class="on">{text}</text>')
        x += width
    return _svg(34, out, title)


def bars(rows: Sequence[Bar], form: Format, *, title: str) -> str:
    """Horizontal bars, each shown against its limit."""
    if not rows:
        return ""
    pitch = 24 if len(rows) <= 24 else 18
    left = max(text_width(row.label) for row in rows) + 14
    texts = [f"{form(row.value)} of {form(row.limit)}" if row.limit else form(row.value) for row in rows]
    right = WIDTH - max(text_width(text) for text in texts) - 16
    most = max(max(row.value, row.limit) for row in rows) or 1.0
    out = []
    for i, row in enumerate(rows):
        y = i * pitch
        whole, part = (right - left) * (row.limit or most) / most, (right - left) * row.value / most
        share = f" ({row.value / row.limit:.1%})" if row.limit else ""
        tip = escape(f"{row.label}: {texts[i]}{share}")
        out.append(
            f"<g><title>{tip}</title>"
            f'<text x="{left - 10:.1f}" y="{y + pitch / 2 + 4:.1f}" text-anchor="end">{escape(row.label)}</text>'
            f'<rect x="{left:.1f}" y="{y + 4}" width="{whole:.1f}" height="{pitch - 8}" rx="3" class="track"/>'
            f'<rect x="{left:.1f}" y="{y + 4}" width="{max(1.0, part):.1f}" height="{pitch - 8}" rx="3" '
            f'fill="var(--c{row.color})"/>'
            f'<text x="{right + 10:.1f}" y="{y + pitch / 2 + 4:.1f}" class="soft">{escape(texts[i])}</text></g>'
        )
    return _svg(len(rows) * pitch, out, title)


def heat_map(rows: Sequence[tuple[str, Sequence[Cell | None]]], columns: Sequence[str], *, title: str) -> str:
    """A heat map of rows of cells, darker for more. None leaves a gap."""
    if not rows or not columns:
        return ""
    left = max(text_width(label) for label, _ in rows) + 14
    slot = min(84.0, (WIDTH - left) / len(columns))
    pitch = 26 if len(rows) <= 40 else 14
    top = 22
    out = []
    every = max(1, math.ceil((max(text_width(column) for column in columns) + 6) / slot))
    for j, column in enumerate(columns):
        if j % every == 0:
            x = left + slot * (j + 0.5)
            out.append(f'<text x="{x:.1f}" y="14" text-anchor="middle" class="soft">{escape(column)}</text>')
    skip = max(1, math.ceil(14 / pitch))
    for i, (label, cells) in enumerate(rows):
        y = top + i * pitch
        if i % skip == 0:
            out.append(
                f'<text x="{left - 10:.1f}" y="{y + pitch / 2 + 4:.1f}" text-anchor="end">{escape(label)}</text>'
            )
        for j, cell in enumerate(cells):
            if cell is None:
                continue
            share = min(1.0, max(0.0, cell.share))
            gap = 2 if slot > 8 else 0.5
            out.append(
                f'<g><title>{escape(cell.title)}</title><rect x="{left + slot * j:.1f}" y="{y}" '
                f'width="{slot - gap:.1f}" height="{pitch - gap:.1f}" rx="2" class="track"/>'
                f'<rect x="{left + slot * j:.1f}" y="{y}" width="{slot - gap:.1f}" height="{pitch - gap:.1f}" rx="2" '
                f'fill="var(--heat)" fill-opacity="{share:.3f}"/>'
            )
            text = f"{cell.share:.0%}"
            if text_width(text, 11) + 4 < slot and pitch >= 20:
                ink = "on" if share > 0.55 else "small"
                out.append(
                    f'<text x="{left + slot * (j + 0.5) - gap / 2:.1f}" y="{y + pitch / 2 + 3.5:.1f}" '
                    f'text-anchor="middle" class="{ink}">{text}</text>'
                )
            out.append("</g>")
    return _svg(top + len(rows) * pitch, out, title)


# ---- parts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plot:
    left: float
    top: float
    right: float
    bottom: float
    low: float
    high: float

    def y(self, value: float) -> float:
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)


def _axis(plot: _Plot, scale: Sequence[float], form: Format) -> str:
    out = []
    for value in scale:
        y = plot.y(value)
        out.append(
            f'<line x1="{plot.left:.1f}" x2="{plot.right:.1f}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{plot.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end" class="soft">{escape(form(value))}</text>'
        )
    return "".join(out)


def _below(labels: Sequence[str], at: Sequence[float], y: float) -> str:
    """The labels of the axis, as many as fit."""
    if len(at) > 1:
        widest = max(text_width(label) for label in labels) + 10
        every = max(1, math.ceil(widest / (at[1] - at[0])))
    else:
        every = 1
    return "".join(
        f'<text x="{x:.1f}" y="{y}" text-anchor="middle" class="soft">{escape(labels[i])}</text>'
        for i, x in enumerate(at)
        if i % every == 0
    )


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}" '
        f'font-size="{_FONT}">{"".join(parts)}</svg>'
    )
