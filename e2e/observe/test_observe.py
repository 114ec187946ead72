"""What Prometheus knows of a run is what the run's summary says: every query of every dashboard, and the figures."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from e2e.observe.browser import Graph, by_class, graph, measured, open_page, text
from e2e.observe.conftest import BIN, Observed
from e2e.observe.prometheus import BOARDS, Prometheus, filled, panel_queries
from eidolon_operator.units import format_ns


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


def graph_of(prometheus: Prometheus, run: Observed, name: str, directory: Path, picture: Path) -> Graph:
    return graph(prometheus.url, f'eidolon_step_last_duration_seconds{{run="{name}"}}', run.at, directory, picture)


def test_a_browser_shows_the_step_time(prometheus: Prometheus, slow: Observed, tmp_path: Path) -> None:
    """Prometheus' own graph page in a headless Chromium. EIDOLON_PICTURES=DIR keeps the picture (docs/images)."""
    picture = Path(os.environ.get("EIDOLON_PICTURES", tmp_path)).absolute() / "prometheus-step-time.png"
    shown = graph_of(prometheus, slow, slow.name, tmp_path / "profile", picture)
    assert shown.error == ""
    (series,) = shown.series
    assert series.startswith("eidolon_step_last_duration_seconds{")
    assert f'run="{slow.name}"' in series
    (line,) = shown.lines
    assert len(line) >= 10  # a point a second
    assert line[-1] == pytest.approx(last_step(prometheus, slow)["time_ns"] / 1e9, rel=0.01)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_graph_of_nothing_is_told_from_one_that_shows_a_line(
    prometheus: Prometheus, slow: Observed, tmp_path: Path
) -> None:
    shown = graph_of(prometheus, slow, "nobody", tmp_path / "profile", tmp_path / "picture.png")
    assert shown == Graph("No datapoints found.", [], [])


def report(directory: Path, tmp_path: Path) -> dict[str, Element]:
    """The sections of a run's report in a browser, by their titles; "" is the page as a whole."""
    page = tmp_path / "report.html"
    command = [str(BIN / "eidolon"), "report", str(directory), "--out", str(page)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    address = measured(page, tmp_path / "measured.html")
    whole = open_page(address, tmp_path / "profile", tmp_path / "report.png", (1100, 4000))
    return {"": whole} | {text(section.find("h2")): section for section in whole.iter("section")}


def tips(section: Element, tag: str) -> list[str]:
    """What the marks of the section's charts say under the mouse."""
    return [text(each.find("title")) for each in section.iter(tag) if each.find("title") is not None]


def rows(section: Element) -> list[list[str]]:
    return [[text(cell) for cell in row.findall("td")] for row in section.iter("tr") if row.find("td") is not None]


def check_report(shown: dict[str, Element], summary: dict[str, Any]) -> None:
    """The page says what the summary does, in charts, tables and figures that take room on the screen."""
    steps = summary["steps"][1:]
    times = [format_ns(step["time_ns"]) for step in steps]
    assert tips(shown["Step time"], "circle") == [
        f"{step['index']}: {time}" for step, time in zip(steps, times, strict=True)
    ]
    assert len(rows(shown["Step time"])) == len(steps) + 1
    figures = {text(box[0]): text(box[1]) for box in by_class(shown[""], "figure")}
    assert figures["Step time"] == format_ns(statistics.median(step["time_ns"] for step in steps))
    assert {"Tokens/s", "MFU", "Peak memory", "Known cost"} <= set(figures)
    compute = [tip for tip in tips(shown["Where the time goes"], "rect") if ": compute" in tip]
    assert len(compute) == len(steps)
    assert [text(each.find("text")) for each in shown["Memory"].iter("g")] == list(steps[-1]["peak_bytes"])
    operations = [entry["op"].replace("_", " ") for entry in summary["collectives"]]
    assert [row[0] for row in rows(shown["Collectives"])] == operations
    assert tips(shown["Fabric"], "g")
    assert [source for source in summary["cost_share"] if source not in text(shown["Coverage"])] == []
    assert any(row[-1].startswith("±") for row in rows(shown["Coverage"]))  # expected errors
    assert rows(shown["Configuration"])
    charts = list(shown[""].iter("svg"))
    assert len(charts) >= 5
    for each in [*charts, *by_class(shown[""], "figure")]:
        width, height = map(int, each.get("seen", "0 0").split())
        assert min(width, height) > 20, each.attrib
    named = {value for each in shown[""].iter() for name in ("src", "href") if (value := each.get(name))}
    assert named == set()  # nothing from anywhere else


def test_a_browser_shows_the_report(slow: Observed, tmp_path: Path) -> None:
    check_report(report(slow.directory, tmp_path), slow.summary)


def test_a_report_without_steps_does_not_pass_for_one(slow: Observed, tmp_path: Path) -> None:
    """The check above can fail."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "plan.json").write_bytes((slow.directory / "plan.json").read_bytes())
    (empty / "summary.json").write_text(json.dumps(slow.summary | {"steps": []}))
    with pytest.raises(KeyError, match="Step time"):
        check_report(report(empty, tmp_path), slow.summary)
