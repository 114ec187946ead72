"""The main job: a DDP script of stock PyTorch trains on servers that are not there, from one YAML."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.layout import REPOSITORY
from e2e.kubernetes.conftest import Namespace
from e2e.kubernetes.kubectl import Object, wait_for

EXAMPLE = REPOSITORY / "examples" / "ddp-2x2.yaml"


def example() -> Object:
    """The example's SimulatedCluster."""
    [found] = [
        document for document in yaml.safe_load_all(EXAMPLE.read_text()) if document["kind"] == "SimulatedCluster"
    ]
    return dict(found)


def test_the_example(namespace: Namespace, torch: str) -> None:
    namespace.run("create", "configmap", "ddp", f"--from-file={REPOSITORY / 'examples' / 'ddp.py'}")
    namespace.run("apply", "-f", str(EXAMPLE))
    name = example()["metadata"]["name"]
    namespace.wait_for_phase(name, "Running", timeout_s=120)
    pods = namespace.pods()
    assert set(pods) == {f"{name}-core", f"{name}-server-0", f"{name}-server-1"}
    assert all(pod["status"]["phase"] == "Running" for pod in pods.values())

    seen = namespace.wait_for_phase(name, "Succeeded", timeout_s=240)

    table = namespace.run("get", "simc", name)
    header, row = (re.split(r"\s{2,}", line.strip()) for line in table.splitlines())
    columns = dict(zip(header, row, strict=True))
    assert re.fullmatch(r"[\d.]+ ?(ms|s|us|µs)", columns["STEP TIME"])
    assert columns["THROUGHPUT"].endswith("tokens/s")
    assert columns["PHASE"] == "Succeeded"
    # What the framework's own clock said is what the simulation says.
    log = namespace.run("logs", f"{name}-server-0", "-c", "workload")
    printed = [float(found[1]) for found in re.finditer(r"([\d.]+) ms", log)]
    assert printed, log
    assert seen["status"]["stepTimeNs"] / 1e6 == pytest.approx(printed[-1], rel=0.05)
    print(table)

    namespace.run("delete", "-f", str(EXAMPLE), "--timeout=60s")
    selector = "--selector=app.kubernetes.io/managed-by=eidolon-operator"
    kinds = "pods,services,configmaps,secrets"
    wait_for(lambda: not namespace.run("get", kinds, selector, "-o", "name"), 60)


@pytest.mark.parametrize("host", ["table", pytest.param("measured", marks=pytest.mark.slow)])
def test_the_same_step_times_as_a_local_run(namespace: Namespace, torch: str, tmp_path: Path, host: str) -> None:
    """One YAML, two places. With host cost from the table nothing in it depends on where it runs."""
    object_ = example()
    object_["spec"].setdefault("cost", {})["host"] = host
    name = object_["metadata"]["name"]
    namespace.run("create", "configmap", "ddp", f"--from-file={REPOSITORY / 'examples' / 'ddp.py'}")
    namespace.apply(object_)
    namespace.wait_for_phase(name, "Succeeded", timeout_s=300)
    path = f"/api/v1/namespaces/{namespace.name}/services/http:{name}-core:http/proxy/summary"
    cluster = json.loads(namespace.kubectl("get", "--raw", path))

    local = local_run(object_, tmp_path)

    there, here = ([step["time_ns"] for step in summary["steps"]] for summary in (cluster, local))
    pairs = list(zip(there, here, strict=True))
    difference = max(abs(one - other) / other for one, other in pairs)
    print(f"host cost {host}: largest difference of {len(pairs)} step times: {difference:.2e}")
    if host == "table":
        idle = any(summary.get("idle_jumps") for summary in (cluster, local))
        assert difference <= (1e-3 if idle else 0), pairs


def local_run(object_: Object, directory: Path) -> dict[str, Any]:
    """The summary of the same object with `eidolon run`, its script where it lies here."""
    script = str(REPOSITORY / "examples" / "ddp.py")
    workload = object_["spec"]["workload"]
    words = {"/opt/ddp/ddp.py": script}
    workload["command"] = [words.get(word, word) for word in workload["command"]]
    for name in ("volumes", "volumeMounts", "env", "workingDir"):
        workload.pop(name, None)
    file = directory / "local.yaml"
    file.write_text(yaml.safe_dump(object_))
    out = directory / "out"
    command = [str(Path(sys.executable).parent / "eidolon"), "run", "--out", str(out), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found
