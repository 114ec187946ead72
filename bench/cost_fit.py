"""Estimate over measurement of the roofline, by family, on profiler traces of real GPUs.

Run: ``python bench/cost_fit.py TRACE.json.gz ...`` (PyTorch profiler traces with shapes). The baseline is the trace.
Names in traces are demangled already; elementwise kernels' sizes come from their grids.
"""

from __future__ import annotations

import collections
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from eidolon_simcore.catalogue import gpu
from eidolon_simcore.costs import CostModel, Signature
from eidolon_simcore.kernels import Launch, traffic

_TYPES = {"c10::BFloat16": (14, 9), "c10::Half": (2, 2), "float": (0, 0)}


def estimate(model: CostModel, event: dict[str, Any], op: dict[str, Any] | None) -> tuple[str, float] | None:
    """(family, microseconds) of a kernel of the trace."""
    name, args = event["name"], event["args"]
    if "nccl" in name:
        return None
    if op is not None:
        found = library(op)
        if found is not None:
            if "sdpa" in op["name"] or "attention" in op["name"]:
                return None if "flash" not in name else (found.kind + " " + found.name, model.cost(found).base_ns / 1e3)
            if not any(word in name.lower() for word in ("nvjet", "gemm", "cutlass")):
                return None
            return found.kind, model.cost(found).base_ns / 1e3
    if any(word in name.lower() for word in ("nvjet", "cutlass", "xmma", "cudnn", "gemm", "splitk")):
        return None
    grid, block = args["grid"], args["block"]
    attributes = dict(zip(("gx", "gy", "gz", "bx", "by", "bz"), grid + block, strict=True)) | {"n": -1}
    blocks, threads = grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2]
    moved = traffic(Launch(name, blocks, threads))
    family = moved.family + ("" if moved.exact else " ?")
    return family, model.cost(Signature("kernel", name, attributes)).base_ns / 1e3


def library(op: dict[str, Any]) -> Signature | None:
    """The signature that the shim would send for a library operator."""
    dims, types = op["args"].get("Input Dims"), op["args"].get("Input type")
    name = op["name"]
    if name in ("aten::mm", "aten::addmm"):
        a, b = (dims[0], dims[1]) if name == "aten::mm" else (dims[1], dims[2])
        dtype = _TYPES.get(types[0] if name == "aten::mm" else types[1], (0, 0))[0]
        strides = op["args"]["Input Strides"]
        first, second = (strides[0], strides[1]) if name == "aten::mm" else (strides[1], strides[2])
        shape = {"m": b[1], "n": a[0], "k": a[1], "batch": 1, "atype": dtype, "ctype": dtype}
        shape |= {"ta": int(second[0] == 1), "tb": int(first[0] == 1)}
        return Signature("gemm", "cublasGemmEx", shape)
    if "cudnn_attention" in name:
        q, k = (dims[1], dims[2]) if "backward" in name else (dims[0], dims[1])
        direction = "backward" if "backward" in name else "forward"
        shape = {
            "b": q[0],
            "h": q[1],
            "sq": q[2],
            "skv": k[2],
            "d": q[3],
            "dv": q[3],
            "kvh": k[1],
            "causal": 1,
            "dtype": 9,
        }
        return Signature("attention", direction, shape)
    return None


def main() -> None:
    model = CostModel(gpu("h100-sxm"))
    for path in sys.argv[1:]:
        events = json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]
        ops = {e["args"].get("External id"): e for e in events if e.get("cat") == "cpu_op"}
        sums: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0, 0])
        for event in events:
            if event.get("cat") != "kernel":
                continue
            found = estimate(model, event, ops.get(event["args"].get("External id")))
            if found is not None:
                row = sums[found[0]]
                row[0] += event["dur"]
                row[1] += found[1]
                row[2] += abs(found[1] - event["dur"])
                row[3] += 1
        print(Path(path).name)
        for family, (real, estimated, error, count) in sorted(sums.items(), key=lambda item: -item[1][0]):
            ratio = f"estimate / measured {estimated / real:5.2f}, mean absolute error {error / real * 100:4.0f} %"
            print(f"  {family:20} {count:5} kernels {real / 1e3:8.2f} ms measured, {ratio}")


if __name__ == "__main__":
    main()
