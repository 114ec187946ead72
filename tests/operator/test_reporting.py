"""A run's directory becomes a page, Markdown or JSON; two become a comparison."""

from __future__ import annotations

import copy
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from eidolon_operator import cli
from eidolon_operator.reporting import charts, fabric, model, page, tables
from eidolon_operator.reporting.charts import Bar, Cell, Series

GIB = 2**30
PLAN: dict[str, Any] = {
    "name": "demo",
    "core": {
        "servers": 2,
        "gpus_per_server": 2,
        "gpu": "h100-sxm",
        "gpu_memory_bytes": 80 * GIB,
        "network": {"inter_bytes_per_s": 50_000_000_000, "inter_latency_ns": 5_000, "intra_bytes_per_s": None},
        "strict": False,
        "token": "the secret of the run",
    },
}


def step(index: int, time_ms: float) -> dict[str, Any]:
    """Half of it computes, a quarter communicates, the rest is idle."""
    ns = int(time_ms * 1e6)
    parts = {"compute_ns": ns // 2, "communication_ns": ns // 4, "copy_ns": 0, "host_ns": 0, "idle_ns": ns // 4}
    return {
        "index": index,
        "name": "startup" if index == 1 else "step",
        "end_ns": 0,
        "time_ns": ns,
        "tokens_per_s": 32_768 / time_ms * 1e3,
        "samples_per_s": None,
        "mfu": 0.4,
        "split": parts,
        "peak_bytes": {f"{s}/{d}": (10 + s + d) * GIB for s in range(2) for d in range(2)},
    }


SUMMARY: dict[str, Any] = {
    "state": "Succeeded",
    "reason": "",
    "ranks": 4,
    "steps": [step(1, 2_000), step(2, 100), step(3, 110), step(4, 90)],
    "cost_share": {"measured": 0.75, "unknown": 0.25},
    "coverage": {"errors": {"measured": 0.034, "unknown": 0.0}},
    "collectives": [
        {"op": "all_reduce", "count": 30, "bytes": 30 << 20, "bus_bytes": 45 << 20, "ns": 3_000_000},
        {"op": "all_gather", "count": 3, "bytes": 3 << 20, "bus_bytes": 3 << 20, "ns": 6_000_000},
    ],
    "links": [
        {"name": f"nic out {s}/{d}", "tier": "nic", "bytes_per_s": 50_000_000_000, "bytes": 3_750_000_000 * s}
        for s in range(2)
        for d in range(2)
    ],
    "host_waits": [{"site": "cudaStreamSynchronize", "count": 3, "ns": 2_000_000}],
    "unmodelled": [{"name": "cusparse:<b>&", "count": 4}],
    "unknown_reads": [],
    "oom": [],
    "virtual_ns": 2_300_000_000,
    "wall_s": 23.0,
}


def make_run(directory: Path, summary: dict[str, Any] | None = SUMMARY, plan: dict[str, Any] | None = PLAN) -> Path:
    directory.mkdir(exist_ok=True)
    for name, document in (("summary.json", summary), ("plan.json", plan)):
        if document is not None:
            (directory / name).write_text(json.dumps(document))
    return directory


class Page(HTMLParser):
    """What a page holds, as far as these tests ask: it must be well-formed."""

    VOID = frozenset(("meta", "rect", "line", "path", "circle"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def test_the_page_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    assert cli.main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}/report.html\n"
    text = (run / "report.html").read_text()
    found = Page(text)
    assert found.headings == [
        *("Step time", "Where the time goes", "Memory", "Collectives", "Fabric", "Coverage", "Findings"),
        "Configuration",
    ]
    for figure in ("100.0 ms", "327,680", "40.0%", "12.0 GiB", "75.0%", "± 3.4%", "10.0x slower than the cluster"):
        assert figure in found.texts or any(figure in t for t in found.texts), figure


FOLD = {"world": 4, "classes": [{"rank": 0, "ranks": 3}, {"rank": 3, "ranks": 1}]}
FOLDED = PLAN | {"core": PLAN["core"] | {"fold": {"of": [0, 0, 0, 3]}}}


def test_a_folded_run_lists_its_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", SUMMARY | {"ranks": 2, "fold": FOLD}, FOLDED)
    assert cli.main(["report", str(run)]) == 0
    found = Page((run / "report.html").read_text())
    assert "Classes of ranks" in found.headings
    assert "2 servers x 2 h100-sxm · 2 of 4 ranks ran · 2.300 s simulated" in found.texts
    assert "2 of 4 ranks: rank 0 stands for 3 ranks, rank 3 for itself" in found.texts, "among the settings"
    assert cli.main(["report", str(run), "--markdown"]) == 0
    text = capsys.readouterr().out
    assert "\n2 servers x 2 h100-sxm, 2 of 4 ranks ran\n" in text
    assert "### Classes of ranks" in text
    assert "| 0 | 3 |\n| 3 | 1 |" in text


def test_a_folded_run_that_has_not_ended_has_the_classes_of_its_plan(tmp_path: Path) -> None:
    run = model.read(make_run(tmp_path / "run", None, FOLDED))
    assert run.classes == {0: 3, 3: 1}
    assert model.read(make_run(tmp_path / "other")).classes is None


@pytest.mark.parametrize("fold", [{"world": 4}, {"world": 4, "classes": [{"rank": 0}]}, [], {"classes": 3}])
def test_a_fold_that_makes_no_sense_is_refused(tmp_path: Path, fold: Any) -> None:
    with pytest.raises(model.ReportError, match=r"summary.json: fold"):
        model.read(make_run(tmp_path / "run", SUMMARY | {"fold": fold}))


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    text = page.render(model.read(make_run(tmp_path)))
    assert Page(text).addresses == []
    assert "<script" not in text
    assert not re.search(r"url\(|@import|https?://", text)


def test_the_page_shows_no_secret_and_escapes_names(tmp_path: Path) -> None:
    run = model.read(make_run(tmp_path))
    for text in (page.render(run), json.dumps(run.plan)):
        assert "the secret of the run" not in text
    assert "cusparse:&lt;b&gt;&amp;" in page.render(run)


def test_what_an_older_run_does_not_know_has_no_section(tmp_path: Path) -> None:
    old = copy.deepcopy(SUMMARY)
    for name in ("collectives", "links", "coverage"):
        del old[name]
    for entry in old["steps"]:
        del entry["split"], entry["mfu"]
    headings = Page(page.render(model.read(make_run(tmp_path, old)))).headings
    assert headings == ["Step time", "Memory", "Coverage", "Findings", "Configuration"]


def test_a_run_that_has_not_ended_shows_its_steps_so_far(tmp_path: Path) -> None:
    run = make_run(tmp_path, summary=None)
    lines = [json.dumps(entry) for entry in SUMMARY["steps"][:3]]
    (run / "progress.jsonl").write_text("\n".join(lines) + '\n{"index": 4, "na')
    found = model.read(run)
    assert (found.state, len(found.steps)) == ("unfinished", 3)
    assert "the run has not ended" in page.render(found)


def test_a_run_that_failed_before_any_step_still_has_a_page(tmp_path: Path) -> None:
    failed = {"state": "Failed", "reason": "rank 1 died", "steps": [], "ranks": 0, "virtual_ns": 0, "wall_s": 0.0}
    found = Page(page.render(model.read(make_run(tmp_path, failed))))
    assert found.headings == ["Configuration"]
    assert "rank 1 died" in found.texts


def test_no_run_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().err == f"eidolon: {tmp_path}/absent: no such directory\n"
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "not the directory of a run" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text("{")
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "summary.json: cannot be read" in capsys.readouterr().err


def test_markdown_and_json_go_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    assert cli.main(["report", str(run), "--markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## demo: Succeeded\n\n2 servers x 2 h100-sxm\n")
    assert "| all gather | 1 | 1.00 MiB | 1.00 MiB | 2.000 ms | 0.5 | 0.5 |" in text
    assert cli.main(["report", str(run), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["step_time_ns"], figures["mfu"]) == (100_000_000, 0.4)
    assert figures["peak_bytes"]["1/1"] == 12 * GIB


def test_two_runs_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = make_run(tmp_path / "a")
    slower = copy.deepcopy(SUMMARY) | {"steps": [step(1, 2_000), step(2, 150), step(3, 150)]}
    slow_plan = copy.deepcopy(PLAN)
    slow_plan["core"]["network"]["inter_bytes_per_s"] = 25_000_000_000
    b = make_run(tmp_path / "b", slower, slow_plan)
    assert cli.main(["compare", str(a), str(b)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## a and b\n")  # both are called demo: the directories tell them apart
    assert "| step time (median) | 100.0 ms | 150.0 ms | +50.0% |" in text
    assert "| network.inter_bytes_per_s | 50 GB/s | 25 GB/s |" in text
    assert cli.main(["compare", str(a), str(b), "-o", str(tmp_path / "c.html")]) == 0
    headings = Page((tmp_path / "c.html").read_text()).headings
    assert headings == ["Figures", "Step time", "Where the time goes", "Settings that differ"]


def test_the_median_leaves_the_startup_out(tmp_path: Path) -> None:
    assert model.read(make_run(tmp_path)).median("time_ns") == 100_000_000


def test_stragglers_are_those_that_wait_least(tmp_path: Path) -> None:
    rows = [
        {"rank": rank, "server": 0, "device": rank, "wait_ns": wait * 3_000_000}
        | dict.fromkeys(("compute_ns", "communication_ns", "host_ns", "idle_ns"), 0)
        for rank, wait in enumerate((5, 1, 9))
    ]
    table = tables.stragglers(model.read(make_run(tmp_path, SUMMARY | {"ranks_split": rows})))
    assert table is not None
    assert [row[:3] for row in table.rows] == [
        ("1", "0/1", "1.000 ms"),
        ("0", "0/0", "5.000 ms"),
        ("2", "0/2", "9.000 ms"),
    ]


# ---- charts --------------------------------------------------------------------------------------------------------


def marks(svg: str, tag: str) -> list[dict[str, float]]:
    """The numbers of all marks of a kind."""
    found = re.findall(rf"<{tag} ([^>]*)>", svg)
    return [{k: float(v) for k, v in re.findall(r'([\w-]+)="(-?[\d.]+)"', text)} for text in found]


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0, 7, [0, 2, 4, 6, 8]),
        (95, 104, [94, 96, 98, 100, 102, 104]),
        (3, 3, [3.0, 3.2, 3.4, 3.6, 3.8, 4.0]),
    ],
)
def test_ticks_are_round_and_cover_the_range(least: float, most: float, expected: list[float]) -> None:
    assert charts.ticks(least, most) == pytest.approx(expected)


def test_a_column_is_as_high_as_its_parts() -> None:
    svg = charts.stacks(["1"], [Series("a", [30.0], 0), Series("b", [70.0], 1)], str, title="t")
    lower, upper = marks(svg, "rect")
    assert upper["height"] / lower["height"] == pytest.approx(70 / 30, rel=0.01)
    assert upper["y"] + upper["height"] == pytest.approx(lower["y"], abs=0.2)


def test_shares_fill_the_bar() -> None:
    widths = [m["width"] for m in marks(charts.share_bar([Series("a", [1]), Series("b", [3])], str, title="t"), "rect")]
    assert widths == [charts.WIDTH / 4, charts.WIDTH * 3 / 4]


def test_bars_stand_against_their_limit() -> None:
    track, bar = marks(charts.bars([Bar("0/0", 20, 80)], str, title="t"), "rect")
    assert bar["width"] == pytest.approx(track["width"] / 4, rel=0.01)


def test_nothing_lies_outside_of_a_chart() -> None:
    labels = [str(i) for i in range(300)]
    values = [float(i % 7 + 1) for i in range(300)]
    drawn = [
        charts.lines(labels, [Series("a", values)], str, title="t"),
        charts.stacks(labels, [Series("a", values), Series("b", values, 1)], str, title="t"),
        charts.bars([Bar(f"server {i}", v, 9.0) for i, v in enumerate(values)], str, title="t"),
        charts.heat_map([("server 0", [Cell(0.5, "x"), None])] * 300, ["GPU 0", "GPU 1"], title="t"),
    ]
    for svg in drawn:
        height = float(re.search(r'viewBox="0 0 960 (\d+)"', svg)[1])  # type: ignore[index]
        for m in marks(svg, "rect") + marks(svg, "circle") + marks(svg, "text"):
            x, y = m.get("x", m.get("cx", 0.0)), m.get("y", m.get("cy", 0.0))
            assert 0 <= x <= x + m.get("width", 0.0) <= charts.WIDTH + 0.5
            assert 0 <= y <= y + (m["height"] if "width" in m else 0.0) <= height + 0.5


def test_labels_below_an_axis_do_not_touch() -> None:
    svg = charts.lines([f"step {i}" for i in range(200)], [Series("a", [1.0] * 200)], str, title="t")
    at = sorted(
        (m["x"], t)
        for m, t in zip(marks(svg, "text"), re.findall(r">([^<]*)</text>", svg), strict=True)
        if t.startswith("step")
    )
    assert len(at) > 5
    for (x, text), (following, _) in itertools.pairwise(at):
        assert following - x > charts.text_width(text)


def test_links_are_laid_out_by_server_and_device(tmp_path: Path) -> None:
    ((title, svg),) = fabric.heat_maps(model.read(make_run(tmp_path)))
    assert title == "nic out (50 GB/s each)"
    # 3.75 GB in 0.3 s of training is 12.5 GB/s of 50
    assert re.findall(r"<title>(.*?)</title>", svg) == [
        "nic out 0/0: 0.0%, 0.00 GB/s of 50 GB/s",
        "nic out 0/1: 0.0%, 0.00 GB/s of 50 GB/s",
        "nic out 1/0: 25.0%, 12.50 GB/s of 50 GB/s",
        "nic out 1/1: 25.0%, 12.50 GB/s of 50 GB/s",
    ]


def test_links_named_by_their_ends_are_laid_out_the_same_and_switches_by_tier(tmp_path: Path) -> None:
    names = ("server0/gpu0>server0/nvswitch", "server0/nvswitch>server0/gpu0", "leaf0>spine0")
    rate = {"bytes_per_s": 50_000_000_000, "bytes": 7_500_000_000}
    links = [{"name": name, "tier": "nvlink" if "gpu" in name else "spine", **rate} for name in names]
    maps = fabric.heat_maps(model.read(make_run(tmp_path, SUMMARY | {"links": links})))
    assert [title.split(" (")[0] for title, _ in maps] == ["nvlink in", "nvlink out", "spine"]
    assert all("50.0%, 25.00 GB/s of 50 GB/s" in svg for _, svg in maps)
    assert ">server 0</text>" in maps[0][1]
    assert ">leaf0&gt;spine0</text>" in maps[2][1]
