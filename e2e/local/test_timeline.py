"""A real run, recorded: its trace, its Chakra graphs, its report and a comparison say what the summary says."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from e2e.runs import BIN, REPOSITORY, Result, Run, environment

SCRIPT = ("examples/ddp.py", "--steps", "4", "--layers", "2", "--width", "256", "--batch", "2", "--sequence", "128")


def eidolon(*arguments: str) -> str:
    command = [str(BIN / "eidolon"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(), cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def recorded(run: Run) -> Result:
    result = run("--record", "--gpus-per-server", "2", "--", "torchrun", "--nproc-per-node", "2", *SCRIPT)
    assert result.code == 0, result.all_output
    return result


def test_a_recorded_run_can_be_looked_at_in_every_way(recorded: Result) -> None:
    out = recorded.directory
    steps = recorded.summary["steps"]

    eidolon("trace", str(out))
    slices = _slices(Trace.FromString(gzip.decompress((out / "trace.pftrace.gz").read_bytes())))
    assert [end - begin for name, category, begin, end in slices if category == "step"] == [s["time_ns"] for s in steps]
    names = {name for name, *_ in slices}
    assert "nccl:all_reduce" in names
    assert any(name.startswith("gemm ") for name in names)
    assert any("at::native::" in name for name in names)
    assert not any(name.startswith("_Z") for name in names)  # as users know them

    eidolon("trace", str(out), "--format", "chakra", "--steps", "2:3")
    assert {path.name for path in out.glob("chakra.*")} == {"chakra.0.et", "chakra.1.et", "chakra.groups.json"}
    assert [0, 1] in json.loads((out / "chakra.groups.json").read_text()).values()

    page = Path(eidolon("report", str(out)).strip()).read_text()
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[:6] == ["Step time", "Where the time goes", "Memory", "Collectives", "Fabric", "Coverage"]
    figures = json.loads(eidolon("report", str(out), "--json"))
    assert figures["step_time_ns"] == sorted(s["time_ns"] for s in steps[1:])[1]
    assert "| +0.0% |" in eidolon("compare", str(out), str(out))


def _slices(trace: Trace) -> list[tuple[str, str, int, int]]:
    names: dict[int, str] = {}
    categories: dict[int, str] = {}
    begun: dict[int, list[tuple[str, str, int]]] = {}
    found = []
    for packet in trace.packet:
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        categories |= {entry.iid: entry.name for entry in packet.interned_data.event_categories}
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            category = categories[event.category_iids[0]]
            begun.setdefault(event.track_uuid, []).append((names[event.name_iid], category, packet.timestamp))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            found.append((*begun[event.track_uuid].pop(), packet.timestamp))
    return found
