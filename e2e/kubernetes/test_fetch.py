"""`eidolon fetch` brings a run's files through the API server, with nothing but a kubeconfig."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.kubernetes.conftest import Namespace, simulated_cluster


def fetch(namespace: Namespace, name: str, *options: str, where: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "eidolon"), "fetch", f"simc/{name}", "--namespace", namespace.name]
    environment = os.environ | {"KUBECONFIG": str(namespace.kubectl.kubeconfig)}
    return subprocess.run([*command, *options], cwd=where, env=environment, capture_output=True, text=True, timeout=120)


def test_summary_recording_and_trace(namespace: Namespace, tmp_path: Path) -> None:
    namespace.apply(simulated_cluster("told", "busy.py", "--seconds", "1", recording={"enabled": True}))
    namespace.wait_for_phase("told", "Succeeded", timeout_s=120)
    done = fetch(namespace, "told", where=tmp_path)
    assert done.returncode == 0, done.stderr
    [directory] = (tmp_path / "eidolon-runs").iterdir()
    assert directory.name.startswith("told-20")
    assert json.loads((directory / "summary.json").read_text())["state"] == "Succeeded"
    assert any((directory / "recording").iterdir())
    assert (directory / "trace.pftrace.gz").stat().st_size > 100
    assert not (directory / "plan.json").exists()  # a local run's has the token
    again = fetch(namespace, "told", "--no-recording", "--out", "again", where=tmp_path)
    assert again.returncode == 0, again.stderr
    assert not (tmp_path / "again" / "recording").exists()
    print(done.stdout)


@pytest.mark.parametrize("name", ["none"])
def test_an_object_that_is_not_there(namespace: Namespace, tmp_path: Path, name: str) -> None:
    done = fetch(namespace, name, where=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"eidolon: fetch: there is no simc {name} in namespace {namespace.name}\n"


def test_an_object_whose_core_is_not_there(namespace: Namespace, tmp_path: Path) -> None:
    namespace.apply(simulated_cluster("quiet", "busy.py", suspend=True))
    namespace.wait_for_phase("quiet", "Suspended")
    done = fetch(namespace, "quiet", where=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("eidolon: fetch: there is no pod quiet-core, the core of simc quiet (phase Suspended")
