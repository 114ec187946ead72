"""A real headless Chromium, and what a page shows in it once its scripts have run."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.parse
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder

import pytest

LOAD_S = 120.0
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
#: Appended to a page: every element tells its size on the screen.
_MEASURE = """<script>for (const each of document.body.querySelectorAll("*")) {
  const box = each.getBoundingClientRect();
  each.setAttribute("seen", Math.round(box.width) + " " + Math.round(box.height));
}</script>"""


def open_page(url: str, directory: Path, picture: Path, size: tuple[int, int] = (1120, 880)) -> Element:
    """Loads a page twice, for its document and for its picture (PNG); ``directory`` is for the browser itself."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000"]
    options += [f"--user-data-dir={directory}", f"--window-size={size[0]},{size[1]}"]
    for output in (f"--screenshot={picture}", "--dump-dom"):
        done = subprocess.run([chromium, *options, output, url], check=True, capture_output=True, timeout=LOAD_S)
    return _tree(done.stdout.decode())


def measured(page: Path, copy: Path) -> str:
    """The address of a copy of a page in which elements have an attribute ``seen``: ``WIDTH HEIGHT``."""
    copy.write_text(page.read_text("utf-8") + _MEASURE, "utf-8")
    return copy.as_uri()


def text(element: Element | None) -> str:
    """All text of an element in one line; of none: empty."""
    return "" if element is None else " ".join("".join(element.itertext()).split())


def by_class(element: Element, name: str) -> list[Element]:
    """The elements of a class, in order."""
    return [each for each in element.iter() if name in each.get("class", "").split()]


@dataclass(frozen=True)
class Graph:
    """Prometheus' own page of a graph."""

    error: str  #: what it says instead of a graph
    series: list[str]  #: by its legend
    lines: list[list[float]]  #: the values of each line that is drawn


def graph(prometheus: str, expr: str, end: float, directory: Path, picture: Path) -> Graph:
    """What the page of the two minutes up to the minute after ``end`` shows (it takes its end by the minute)."""
    until = time.strftime("%Y-%m-%d %H:%M:00", time.gmtime(end + 60))
    query = {"g0.expr": expr, "g0.tab": "0", "g0.range_input": "2m", "g0.end_input": until}
    page = open_page(f"{prometheus}/classic/graph?{urllib.parse.urlencode(query)}", directory, picture)
    ticks = [
        (float(each.get("transform", "").partition(",")[2].rstrip(")")), float(each.get("data-y-value", "")))
        for each in by_class(page, "tick")
        if each.get("data-y-value")
    ]
    strokes = [each.get("d", "") for each in page.iter("path") if each.get("stroke")]
    return Graph(
        " ".join(filter(None, (text(each) for each in by_class(page, "error")))),
        [text(each) for each in by_class(page, "label")],
        [[_at(ticks, float(point.partition(",")[2])) for point in _points(line)] for line in strokes],
    )


def _points(path: str) -> list[str]:
    """``X,Y`` of each corner. A point with gaps on both sides is drawn as a closed path of its own."""
    return path.replace("M", " ").replace("L", " ").replace("Z", " ").split()


def _at(ticks: list[tuple[float, float]], y: float) -> float:
    """The value that stands at a height, between two marks of the axis."""
    (y0, low), (y1, high) = ticks[0], ticks[-1]
    return low + (high - low) * (y - y0) / (y1 - y0)


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tree = TreeBuilder()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tree.start(tag, {name: value or "" for name, value in attrs})
        if tag in _VOID:
            self.tree.end(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            self.tree.end(tag)

    def handle_data(self, data: str) -> None:
        self.tree.data(data)


def _tree(document: str) -> Element:
    """Of a document as a browser writes it: every element is closed."""
    builder = _Builder()
    builder.feed(document[document.index("<html") :])
    builder.close()
    return builder.tree.close()
