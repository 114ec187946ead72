"""What Prometheus knows of a run is what the run's summary says: every query of every dashboard, and the figures."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.observe.conftest import Observed
from e2e.observe.prometheus import BOARDS, Prometheus, filled, panel_queries


def last_step(prometheus: Prometheus, run: Observed) -> dict[str, Any]:
    """The step that the last scrape saw as the last one."""
    index = int(prometheus.value(f'eidolon_step_last_index{{run="{run.name}"}}', run.at))
    step: dict[str, Any] = run.summary["steps"][index - 1]
    assert step["index"] == index
    return step


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_query_of_every_dashboard_finds_something(prometheus: Prometheus, slow: Observed, path: Path) -> None:
    found = {(title, expr): prometheus.query(filled(expr, slow.name), slow.at) for title, expr in panel_queries(path)}
    assert found
    assert [key for key, samples in found.items() if not samples] == []


def test_gauges_equal_the_summary(prometheus: Prometheus, slow: Observed) -> None:
    step = last_step(prometheus, slow)
    run = f'run="{slow.name}"'

    def value(name: str, *labels: str) -> float:
        return prometheus.value(f"{name}{{{','.join((run, *labels))}}}", slow.at)

    assert value("eidolon_step_last_duration_seconds") == pytest.approx(step["time_ns"] / 1e9)
    assert value("eidolon_step_last_tokens_per_second") == pytest.approx(step["tokens_per_s"])
    assert value("eidolon_mfu_ratio") == pytest.approx(step["mfu"])
    assert 0.05 < step["mfu"] < 1
    split = step["split"]
    window = sum(ns for name, ns in split.items() if name != "overlap_ns")
    for activity in ("compute", "communication", "copy", "host", "idle"):
        share = value("eidolon_step_time_ratio", f'activity="{activity}"')
        assert share == pytest.approx(split[f"{activity}_ns"] / window, abs=1e-6)
    for device, peak in step["peak_bytes"].items():
        server, number = device.split("/")
        labels = f'server="{server}"', f'device="{number}"'
        assert value("eidolon_device_memory_step_peak_bytes", *labels) == peak
        assert value("eidolon_device_memory_capacity_bytes", *labels) == slow.summary["capacity_bytes"]


def test_counters_are_the_sums_of_the_steps_behind_the_first(prometheus: Prometheus, slow: Observed) -> None:
    steps = slow.summary["steps"][1 : last_step(prometheus, slow)["index"]]
    for name, field, unit in (
        ("eidolon_virtual_seconds_total", "time_ns", 1e9),
        ("eidolon_tokens_total", "tokens", 1),
        ("eidolon_flops_total", "flops", 1),
    ):
        value = prometheus.value(f'{name}{{run="{slow.name}"}}', slow.at)
        assert value == pytest.approx(sum(step[field] for step in steps) / unit), name


Steps = list[dict[str, Any]]


def per_second(field: str) -> Callable[[Steps], float]:
    """So many of the field's a second of virtual time."""
    return lambda steps: sum(step[field] for step in steps) / sum(step["time_ns"] for step in steps) * 1e9


def mean_over_time(field: str) -> Callable[[Steps], float]:
    return lambda steps: sum(s[field] * s["time_ns"] for s in steps) / sum(s["time_ns"] for s in steps)


@pytest.mark.parametrize(
    ("title", "of"),
    [
        ("Step time", lambda steps: sum(step["time_ns"] for step in steps) / len(steps) / 1e9),
        ("Tokens per second", per_second("tokens")),
        ("Samples per second", per_second("samples")),
        ("Arithmetic", per_second("flops")),
        ("MFU", mean_over_time("mfu")),
    ],
)
def test_throughput_panels_tell_virtual_time_however_slow_the_simulation_is(
    prometheus: Prometheus, slow: Observed, title: str, of: Callable[[Steps], float]
) -> None:
    """A panel shows the last step, or the steps of a window: those that ended between its first and last scrape."""
    virtual_s = sum(step["time_ns"] for step in slow.settled) / 1e9
    real_s = prometheus.value(f'eidolon_engine_real_seconds_total{{run="{slow.name}"}}', slow.at) - prometheus.value(
        f'min_over_time(eidolon_engine_real_seconds_total{{run="{slow.name}"}}[1h])', slow.at
    )
    assert real_s * len(slow.settled) / len(slow.summary["steps"]) > 5 * virtual_s
    window = "20s"
    (seen,) = prometheus.query(f'eidolon_steps_total{{run="{slow.name}"}}[{window}]', slow.at)
    first, last = (int(float(seen["values"][i][1])) for i in (0, -1))
    first = max(first, 1)  # the first step is in no total
    assert last > first
    board = next(path for path in BOARDS if path.stem == "throughput")
    for expr in (expr for name, expr in panel_queries(board) if name == title):
        steps = slow.summary["steps"][first if "$window" in expr else last - 1 : last]
        assert prometheus.value(filled(expr, slow.name, window), slow.at) == pytest.approx(of(steps), rel=0.01), expr


def test_dcgm_tells_a_run_that_computes_from_one_that_communicates(
    prometheus: Prometheus, slow: Observed, observe: Callable[..., Observed]
) -> None:
    waiting = observe("waiting", "--steps", "12", "--burn", "400000", bandwidth="20Gb/s", tokens=256)
    steps = {run.name: last_step(prometheus, run)["split"] for run in (slow, waiting)}
    assert steps["slow"]["compute_ns"] > 2 * steps["slow"]["communication_ns"]
    assert steps["waiting"]["communication_ns"] > 5 * steps["waiting"]["compute_ns"]

    def value(run: Observed, name: str) -> float:
        return prometheus.value(f'{name}{{Hostname="{run.name}-server-0",gpu="0"}}', run.at)

    for name, factor in (
        ("DCGM_FI_PROF_SM_ACTIVE", 2.0),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 5.0),
        ("DCGM_FI_DEV_POWER_USAGE", 1.5),
    ):
        assert value(slow, name) > factor * value(waiting, name), name
    split = steps["waiting"]
    window = sum(ns for name, ns in split.items() if name != "overlap_ns")
    busy = (split["compute_ns"] + split["communication_ns"]) / window
    assert value(waiting, "DCGM_FI_DEV_GPU_UTIL") == pytest.approx(100 * busy, abs=2)  # a collective keeps it busy
    used = value(slow, "DCGM_FI_DEV_FB_USED")
    assert used <= max(last_step(prometheus, slow)["peak_bytes"].values()) >> 20
    assert used + value(slow, "DCGM_FI_DEV_FB_FREE") == pytest.approx(slow.summary["capacity_bytes"] >> 20, abs=2)


def test_recording_rules_are_evaluated(prometheus: Prometheus, slow: Observed) -> None:
    tokens = prometheus.value(f'eidolon:tokens:per_virtual_second{{run="{slow.name}"}}', slow.at)
    assert tokens == pytest.approx(slow.settled[-1]["tokens_per_s"], rel=0.05)  # its window holds early steps, too


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_the_step_time(prometheus: Prometheus, slow: Observed, tmp_path: Path) -> None:
    """Prometheus' own graph page in a headless Chromium. EIDOLON_PICTURES=DIR keeps the picture (docs/images)."""
    picture = Path(os.environ.get("EIDOLON_PICTURES", tmp_path)).absolute() / "prometheus-step-time.png"
    page = {
        "g0.expr": f'eidolon_step_last_duration_seconds{{run="{slow.name}"}}',
        "g0.tab": "0",
        "g0.range_input": "1m",
        "g0.end_input": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(slow.at + 5)),
    }
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options = ["--hide-scrollbars", "--window-size=1120,880", "--virtual-time-budget=8000", f"--screenshot={picture}"]
    url = f"{prometheus.url}/graph?{urllib.parse.urlencode(page)}"
    subprocess.run([*browser, *options, url], check=True, capture_output=True, timeout=120)
    assert picture.stat().st_size > 10_000
