"""Real runs, scraped by a real Prometheus while they go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.observe.prometheus import Prometheus, serve
from eidolon_operator.machine import free_port

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
RUN_S = 400.0
PORT, DCGM_PORT = free_port(), free_port()  # of every run: they come one after the other
CONFIG = f"""
scrape_configs:
  - {{job_name: eidolon, static_configs: [{{targets: ["127.0.0.1:{PORT}"]}}]}}
  - {{job_name: dcgm, honor_labels: true, static_configs: [{{targets: ["127.0.0.1:{DCGM_PORT}"]}}]}}
"""


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with serve(CONFIG, tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@dataclass(frozen=True)
class Observed:
    """A run that is over, as the summary tells it and as Prometheus saw its last step (``at``)."""

    name: str
    summary: dict[str, Any]
    at: float
    directory: Path

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
        addresses = ["--metrics", f"127.0.0.1:{PORT}", "--dcgm", f"127.0.0.1:{DCGM_PORT}"]
        dropped = ("PYTEST_", "PYTHONPATH", "LD_PRELOAD", "EIDOLON_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        done = subprocess.run(
            [str(BIN / "eidolon"), "run", "--out", str(out), *addresses, str(out / "cluster.json")],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            env=environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        summary = json.loads((out / "summary.json").read_text())
        return Observed(name, summary, prometheus.last_step_at(name), out)

    return start


@pytest.fixture(scope="session")
def slow(observe: Callable[..., Observed]) -> Observed:
    """Computes in virtual time, and far slower in real time."""
    return observe("slow", "--steps", "40", "--layers", "8", "--burn", "800000")
