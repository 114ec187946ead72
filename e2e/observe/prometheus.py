"""A real Prometheus (Debian's package `prometheus`) for whole-system tests, and the dashboards' queries."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eidolon_operator.machine import free_port

CHART = Path(__file__).parents[2] / "charts" / "eidolon"
BOARDS = sorted((CHART / "dashboards").glob("*.json"))
READY_S = 60.0


def filled(expr: str, run: str, window: str = "15s", namespace: str = ".*") -> str:
    """A dashboard's query with its variables chosen."""
    return expr.replace("$namespace", namespace).replace("$run", run).replace("$window", window)


def panel_queries(board: Path) -> list[tuple[str, str]]:
    """Title and query of everything that a dashboard shows."""
    panels = json.loads(board.read_text("utf-8"))["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


def get(url: str, **query: str | float) -> Any:
    """JSON over HTTP."""
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
        return json.load(answer)


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def query(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """Samples of an instant query."""
        answer = get(f"{self.url}/api/v1/query", query=expr, **({} if at is None else {"time": at}))
        assert answer["status"] == "success", (expr, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, expr: str, at: float) -> float:
        """Of a query that has one sample."""
        (sample,) = self.query(expr, at)
        return float(sample["value"][1])

    def last_step_at(self, run: str) -> float:
        """When the run's last step was first seen. (Later rates are of nothing, and a run that is over is stale.)"""
        (series,) = self.query(f'eidolon_step_last_index{{run="{run}"}}[1h]')
        samples = [(float(at), float(index)) for at, index in series["values"]]
        return next(at for at, index in samples if index == samples[-1][1])


@contextlib.contextmanager
def serve(config: str, directory: Path) -> Iterator[Prometheus]:
    """Runs the server with this ``scrape_configs`` and our rules."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.fail("Prometheus is needed: apt-get install prometheus")
    top = "global: {scrape_interval: 500ms, evaluation_interval: 1s}\n"
    rules = f"rule_files: [{CHART / 'rules' / 'eidolon.yaml'}]\n"
    (directory / "prometheus.yml").write_text(top + rules + config)
    url = f"http://127.0.0.1:{free_port()}"
    files = [f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}"]
    with (directory / "log").open("wb") as log:
        listen = f"--web.listen-address={url.removeprefix('http://')}"
        process = subprocess.Popen([program, *files, listen], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + READY_S
            while not _ready(url):
                assert process.poll() is None, (directory / "log").read_text()
                assert time.monotonic() < deadline, "Prometheus is not ready"
                time.sleep(0.1)
            yield Prometheus(url)
        finally:
            process.terminate()
            process.wait(30)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
