"""A core that serves over real gRPC, in the test's own process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeAgent, plan

from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.export.summary import Report
from eidolon_simcore.run.service import Service
from eidolon_simcore.run.simulation import Simulation


class Core:
    """A core in this process, on its own thread."""

    def __init__(self, out: Path, **changes: Any) -> None:
        self.out = out
        p = plan(**changes)
        self.simulation = Simulation(p, NativeEngine(), Report(p, out), version="test", now=time.monotonic())
        self.service = Service(self.simulation)
        self.address = self.service.listen("127.0.0.1:0")
        self._thread = threading.Thread(target=self.service.run, daemon=True)
        self._thread.start()
        self.agents: list[FakeAgent] = []

    def agent(self, server: int = 0, **changes: Any) -> FakeAgent:
        agent = FakeAgent(self.address, server, **changes)
        self.agents.append(agent)
        return agent

    def summary(self) -> dict[str, Any]:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return json.loads((self.out / "summary.json").read_text())

    def close(self) -> None:
        self.service.cancel()
        for agent in self.agents:
            agent.close()
        self._thread.join(30)


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    core = Core(tmp_path)
    yield core
    core.close()
