"""What the terminal shows while a run runs."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from eidolon_operator.live import LINE_EVERY_S, LiveView, PlainLog, spark

GIB = 2**30


def step(index: int, time_ms: float = 100.0, devices: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "name": "startup" if index == 1 else "step",
        "time_ns": int(time_ms * 1e6),
        "end_ns": 4 * 10**9 + int(index * time_ms * 1e6),
        "tokens_per_s": 327_680.0,
        "samples_per_s": None,
        "peak_bytes": {f"0/{device}": 20 * GIB for device in range(devices)},
        **more,
    }


def view(total: int | None = 10) -> LiveView:
    return LiveView("demo on 1 server x 2 h100-sxm", total, 16 * [80 * GIB], now=0.0)


def shown(live: LiveView, now: float, width: int = 100) -> list[str]:
    lines = [Text.from_ansi(line).plain.rstrip() for line in live.lines(now, width)]
    assert all(cell_len(line) <= width for line in lines)
    return lines


def test_before_the_first_step() -> None:
    heading, waiting = shown(view(), 3.0)
    assert heading.startswith("demo on 1 server x 2 h100-sxm")
    assert heading.endswith("real 0:03")
    assert waiting == "starting: no step is final yet"


def test_a_running_run() -> None:
    live = view()
    live.step(step(1, 4_000), 10.0)
    for index in range(2, 7):
        live.step(step(index, mfu=0.41, lag={"ns": 1_200_000, "rank": 1}), 10.0 + index)
    heading, progress, figures, memory = shown(live, 16.0)
    assert heading.endswith("simulated 4.600 s · real 0:16 (3.5x slower)")
    assert progress.endswith("step 6 of 10 · about 0:04 left")
    assert figures.startswith("100.0 ms ")
    assert figures.endswith("327,680 tokens/s · MFU 41.0% · ranks end within 1.200 ms, rank 1 last")
    assert memory.count("20.0 GiB of 80.0 GiB") == 2


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    live = view()
    live.step(step(1, devices=8), 1.0)
    live.step(step(2, devices=8), 2.0)
    shown(live, 3.0, width)


def test_of_many_devices_the_fullest_are_shown() -> None:
    live = view(total=None)
    peaks = {f"{server}/{device}": (server + device + 1) * GIB for server in range(16) for device in range(8)}
    live.step(step(2, peak_bytes=peaks), 1.0)
    lines = shown(live, 2.0)
    assert lines[-1] == "the fullest of 128 devices"
    assert "GPU 15/7" in lines[-3]
    assert len(lines) == 5


def test_the_little_chart_rises_with_its_values() -> None:
    assert spark([100, 100, 100]) == "▆▆▆"
    assert spark([100, 100, 50]) == "▆▆▃"
    assert spark([100, 100, 1_000]) == "▆▆█"


def test_a_log_gets_the_first_steps_the_last_and_few_between() -> None:
    log = PlainLog(total=100)
    lines = [log.step(step(index), 0.125 * index) for index in range(1, 101)]
    told = [index for index, line in enumerate(lines, 1) if line is not None]
    assert told == [1, 2, 3, 43, 83, 100]
    assert LINE_EVERY_S == 5.0
    assert lines[1] == "step 2 of 100 · 100.0 ms · 327,680 tokens/s"
