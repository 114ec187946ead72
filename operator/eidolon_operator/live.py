"""What a terminal shows about a run while it runs: a few lines, redrawn a few times a second.

The view is pure. It is told about steps (:meth:`LiveView.step`) and asked for lines of text with colour codes
(:meth:`LiveView.lines`). Rich lays them out, and :class:`~eidolon_operator.console.Console` puts them below the
workload's own output. Without a terminal, :class:`PlainLog` says which steps are worth a line in a log.
"""

from __future__ import annotations

import io
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from eidolon_operator import report
from eidolon_operator.reporting.model import STARTUP, device_order
from eidolon_operator.units import format_bytes, format_count, format_ns

MOST_DEVICES: Final = 8  #: number of devices with a bar of their own; the fullest are chosen
RECENT: Final = 32  #: number of steps in the small chart
LINE_EVERY_S: Final = 5.0  #: least time between two lines of a log
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_SOFT: Final = "bright_black"

Step = Mapping[str, Any]


class LiveView:
    """The state of a run, as its steps show it. ``now`` arguments are seconds on a monotonic clock."""

    def __init__(self, title: str, total: int | None, capacities: Sequence[int], now: float) -> None:
        self._title = title
        self._total = total
        self._capacities = capacities  # bytes, by server
        self._began = now
        self._times: deque[int] = deque(maxlen=RECENT)
        self._first_at = self._last_at = now
        self._count = 0
        self._last: Step | None = None

    def step(self, step: Step, now: float) -> None:
        """Takes in a step that has become final (an entry of ``progress.jsonl``)."""
        self._last, self._last_at = step, now
        self._count += 1
        if step["name"] == STARTUP:
            self._first_at = now
        else:
            self._times.append(step["time_ns"])

    def lines(self, now: float, width: int) -> list[str]:
        """The lines to show now, none wider than ``width`` columns."""
        rows: list[RenderableType] = [self._heading(now), *self._progress(now)]
        if self._last is not None:
            rows += [self._figures(self._last), *self._memory(self._last, columns=2 if width >= 90 else 1)]
        target = io.StringIO()
        console = Console(file=target, force_terminal=True, width=width, legacy_windows=False, highlight=False)
        console.print(Group(*rows), overflow="ellipsis", no_wrap=True)
        return target.getvalue().splitlines()

    # ---- lines ----------------------------------------------------------------------------------------------------

    def _heading(self, now: float) -> RenderableType:
        real = now - self._began
        right = f"real {_clock(real)}"
        if self._last is not None and real > 0:
            simulated = self._last["end_ns"] / 1e9
            ratio = real / simulated if simulated else 0.0
            right = f"simulated {format_ns(self._last['end_ns'])} · {right}"
            right += f" ({ratio:.1f}x slower)" if ratio >= 1 else f" ({1 / ratio:.1f}x faster)" if ratio else ""
        return _sides(Text(self._title, style="bold"), Text(right, style=_SOFT))

    def _progress(self, now: float) -> list[RenderableType]:
        if self._last is None:
            return [Text("starting: no step is final yet", style=_SOFT)]
        if self._total is None:
            return []
        done = min(self._last["index"], self._total)
        text = f"step {done} of {self._total}"
        if self._count > 1 and done < self._total:
            each = (self._last_at - self._first_at) / (self._count - 1)
            left = max(0.0, each * (self._total - done) - (now - self._last_at))
            text += f" · about {_clock(left)} left"
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1)
        grid.add_column(justify="right")
        bar = ProgressBar(total=self._total, completed=done, complete_style="cyan", finished_style="cyan")
        grid.add_row(bar, Text(text))
        return [grid]

    def _figures(self, step: Step) -> RenderableType:
        if step["name"] == STARTUP:
            return Text(f"startup {format_ns(step['time_ns'])}")
        text = Text(f"step {step['index']} ", style=_SOFT) if self._total is None else Text()
        text.append(format_ns(step["time_ns"]), style="bold")
        if len(self._times) > 1:
            text.append(f" {spark(self._times)}", style="cyan")
        for key, unit in (("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s")):
            if step.get(key) is not None:
                text.append(f" · {format_count(step[key])} {unit}")
        if step.get("mfu") is not None:
            text.append(f" · MFU {step['mfu']:.1%}")
        lag = step.get("lag")
        if lag:
            text.append(f" · ranks end within {format_ns(lag['ns'])}, rank {lag['rank']} last", style=_SOFT)
        return text

    def _memory(self, step: Step, columns: int) -> list[RenderableType]:
        peaks: Mapping[str, int] = step["peak_bytes"]
        if not peaks:
            return []
        shown = sorted(peaks, key=device_order)
        if len(shown) > MOST_DEVICES:
            shown = sorted(shown, key=lambda device: -peaks[device])[: MOST_DEVICES // 2]
        grid = Table.grid(expand=True, padding=(0, 1))
        for _ in range(columns):
            grid.add_column(no_wrap=True, style=_SOFT)
            grid.add_column(ratio=1)
            grid.add_column(no_wrap=True, justify="right")
        cells: list[RenderableType] = []
        for device in shown:
            peak = peaks[device]
            capacity = self._capacities[int(device.partition("/")[0])]
            style = "red" if peak > 0.95 * capacity else "green"
            bar = ProgressBar(total=capacity, completed=min(peak, capacity), complete_style=style, finished_style=style)
            cells += [Text(f"GPU {device}"), bar, Text(f"{format_bytes(peak)} of {format_bytes(capacity)}")]
        for at in range(0, len(cells), 3 * columns):
            grid.add_row(*cells[at : at + 3 * columns])
        rest = len(peaks) - len(shown)
        return [grid, *([Text(f"the fullest of {len(peaks)} devices", style=_SOFT)] if rest else [])]


class PlainLog:
    """Lines for a log: the first steps, the last one, and one every few seconds between them."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._next = 0.0

    def step(self, step: Step, now: float) -> str | None:
        """The line for a step, or None if it is not yet time for one."""
        if now < self._next and step["index"] != self._total:
            return None
        self._next = now + LINE_EVERY_S if step["index"] > 2 else 0.0
        return report.progress_line(step, self._total)


def spark(values: deque[int] | list[int]) -> str:
    """A row of blocks as high as the values, starting at 0. Values that hardly differ look the same."""
    top = max(statistics.median(values) * 1.6, 1)
    return "".join(_BLOCKS[min(7, int(value / top * 8))] for value in values)


def _sides(left: Text, right: Text) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1, no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(left, right)
    return grid


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )
