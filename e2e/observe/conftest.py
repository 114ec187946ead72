"""A real run, scraped by a real Prometheus (Debian's package `prometheus`) while it goes on."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
CHART = HERE.parents[1] / "charts" / "eidolon"
READY_S, RUN_S = 60.0, 400.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def get(url: str, **query: str | float) -> Any:
    """JSON over HTTP."""
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
        return json.load(answer)


@dataclass(frozen=True)
class Prometheus:
    """A server that scrapes ``port`` (ours) and ``dcgm_port``."""

    url: str
    port: int
    dcgm_port: int

    def query(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """Samples of an instant query."""
        answer = get(f"{self.url}/api/v1/query", query=expr, **({} if at is None else {"time": at}))
        assert answer["status"] == "success", (expr, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def last_scrape(self) -> float:
        """When the run was last scraped. (Once it is over, its series are stale and "now" finds nothing.)"""
        samples = self.query("eidolon_step_last_index[1h]")
        return max(float(series["values"][-1][0]) for series in samples)

    def value(self, expr: str, at: float) -> float:
        """Of a query that has one sample."""
        (sample,) = self.query(expr, at)
        return float(sample["value"][1])


CONFIG = """
global: {scrape_interval: 500ms, evaluation_interval: 1s}
rule_files: [RULES]
scrape_configs:
  - {job_name: eidolon, static_configs: [{targets: ["127.0.0.1:PORT"]}]}
  - {job_name: dcgm, honor_labels: true, static_configs: [{targets: ["127.0.0.1:DCGM"]}]}
"""


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.fail("Prometheus is needed: apt-get install prometheus")
    directory = tmp_path_factory.mktemp("prometheus")
    port, dcgm, own = free_port(), free_port(), free_port()
    text = CONFIG.replace("RULES", str(CHART / "rules" / "eidolon.yaml"))
    (directory / "prometheus.yml").write_text(text.replace("PORT", str(port)).replace("DCGM", str(dcgm)))
    log = (directory / "log").open("wb")
    command = [
        program,
        "--config.file",
        str(directory / "prometheus.yml"),
        "--storage.tsdb.path",
        str(directory / "data"),
    ]
    process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{own}"], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{own}"
    try:
        deadline = time.monotonic() + READY_S
        while not _ready(url):
            assert process.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, "Prometheus is not ready"
            time.sleep(0.1)
        yield Prometheus(url, port, dcgm)
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@dataclass(frozen=True)
class Observed:
    """A run that is over, as the summary tells it and as Prometheus saw it last (``at``)."""

    name: str
    summary: dict[str, Any]
    at: float
    wall_s: float

    @property
    def settled(self) -> list[dict[str, Any]]:
        """Steps behind the first few, in which DDP and the allocator still change."""
        steps: list[dict[str, Any]] = self.summary["steps"][5:]
        return steps


@pytest.fixture(scope="session")
def observe(prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Observed]:
    def start(name: str, *arguments: str, bandwidth: str = "400Gb/s", tokens: int = 8192) -> Observed:
        out = tmp_path_factory.mktemp(name)
        spec = {
            "apiVersion": "eidolon.dev/v1alpha1",
            "kind": "SimulatedCluster",
            "metadata": {"name": name},
            "spec": {
                "servers": 2,
                "gpusPerServer": 1,
                "network": {"interServer": {"bandwidth": bandwidth, "latency": "5us"}},
                "workload": {
                    "launcher": "torchrun",
                    "command": [str(HERE / "train.py")],
                    "args": [*arguments, "--tokens", str(tokens)],
                    "tokensPerStep": 2 * tokens,
                    "samplesPerStep": 2,
                },
            },
        }
        (out / "cluster.json").write_text(json.dumps(spec))  # JSON is YAML
        addresses = ["--metrics", f"127.0.0.1:{prometheus.port}", "--dcgm", f"127.0.0.1:{prometheus.dcgm_port}"]
        dropped = ("PYTEST_", "PYTHONPATH", "LD_PRELOAD", "EIDOLON_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        began = time.monotonic()
        done = subprocess.run(
            [str(BIN / "eidolon"), "run", "--out", str(out), *addresses, str(out / "cluster.json")],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            env=environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        summary = json.loads((out / "summary.json").read_text())
        return Observed(name, summary, prometheus.last_scrape(), time.monotonic() - began)

    return start


@pytest.fixture(scope="session")
def slow(observe: Callable[..., Observed]) -> Observed:
    """Computes in virtual time, and far slower in real time."""
    return observe("slow", "--steps", "24", "--burn", "800000")
