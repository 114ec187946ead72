"""Measures the kernels of a script: runs `train.py ARGS` with a profiler around one of its later optimizer steps.

No line of the script changes, since a hook of ``torch.optim`` counts optimizer steps. From step ``SKIP`` on, the host
time until each step was issued and its time by the clock are recorded, and then one step under the profiler.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SKIP = 8  #: optimizer steps before the one that is recorded: allocators, autotuners and clocks have settled


class _EnoughError(Exception):
    pass


def record(script: str, arguments: list[str], target: Path, *, steps: int = SKIP) -> None:
    """Runs ``script`` until ``steps`` + 1 optimizer steps and writes the trace of the last one to ``target`` (gzip)."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], record_shapes=True
    )
    count = 0

    def stepped(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == steps:
            torch.cuda.synchronize()
            profiler.start()
        elif count == steps + 1:
            torch.cuda.synchronize()
            profiler.stop()
            raise _EnoughError

    handle = register_optimizer_step_post_hook(stepped)
    try:
        with _argv([script, *arguments]), contextlib.suppress(_EnoughError):
            runpy.run_path(script, run_name="__main__")
    finally:
        handle.remove()
    with tempfile.TemporaryDirectory() as directory:
        raw = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(raw))
        target.write_bytes(gzip.compress(raw.read_bytes(), 6))


def kernels(trace: Path) -> list[dict[str, Any]]:
    """The device work of a profiler trace in the order of its starts, each with the operator that launched it and its
    shapes.
    """
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    operators = {e["args"].get("External id"): e for e in events if e.get("cat") == "cpu_op" and e.get("ph") == "X"}
    found = []
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        facts = event["args"]
        operator = operators.get(facts.get("External id"), {"name": "", "args": {}})
        found.append(
            {
                "kernel": event["name"],
                "begin_ns": float(event["ts"]) * 1e3,
                "ns": float(event["dur"]) * 1e3,
                "stream": facts.get("stream", 0),
                "grid": facts.get("grid", []),
                "block": facts.get("block", []),
                "bytes": facts.get("bytes", 0),
                "op": operator["name"],
                "dims": operator["args"].get("Input Dims", []),
                "types": operator["args"].get("Input type", []),
                "strides": operator["args"].get("Input Strides", []),
                "values": operator["args"].get("Concrete Inputs", []),
            }
        )
    return sorted(found, key=lambda row: float(row["begin_ns"]))


@contextlib.contextmanager
def _argv(arguments: list[str]) -> Iterator[None]:
    kept = sys.argv
    sys.argv = arguments
    try:
        yield
    finally:
        sys.argv = kept
