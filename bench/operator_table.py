"""Gives what `eidolon profile operators` measured the signatures that the shim sends for such work in a run.

The profiler notes a case by its sizes, and each of its kernels by name and geometry. A library call (GEMM, attention,
convolution) gets one signature, with the sum of its kernels. Each of PyTorch's own kernels gets one, with an operator
that moves as many bytes as the real one."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import parquet

from bench.trace_signatures import INNER_GAP_NS
from eidolon_simcore.signature import Signature

_CUDA = {"bf16": 14, "fp16": 2, "fp32": 0, "tf32": 0, "fp8": 28}
_CUDNN = {"bf16": 9, "fp16": 2, "fp32": 0}
_TF32 = 77  # cublasComputeType_t
_SCALAR = {"bf16": 15, "fp16": 5, "fp32": 6}
_SIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4, "fp8": 1}
_TRANSPOSED = {"tn": (1, 0), "nn": (0, 0), "nt": (0, 1)}
_PASSES = {  # tensors of the input's size that forward and backward kernels move
    "layer_norm": (2, 3),
    "rms_norm": (2, 3),
    "batch_norm": (2, 3),
    "softmax": (2, 3),
    "cross_entropy": (2, 3),
}
_BACKWARD = re.compile(r"backward|Backward|grad|Grad")
_ROWS = re.compile(r"layer_norm|GammaBeta|native::batch_norm|SoftMax|softmax_warp")
_GPU_ONLY = re.compile(r"^(?:Memset|Memcpy)")

Row = tuple[Signature, Signature | None, float]


def rows(paths: list[Path]) -> Iterator[Row]:
    """Signatures with nanoseconds (L2 warm, as beside their producers) of all tables of the operator set."""
    for path in paths:
        cases: dict[int, list[dict[str, Any]]] = defaultdict(list)
        number = 0
        for row in parquet.read_table(path).to_pylist():
            number += row["index"] == 0
            cases[number].append(row)
        for kernels in cases.values():
            yield from _case(kernels[0]["family"], kernels[0]["op"], json.loads(kernels[0]["facts"]), kernels)


def copies(paths: list[Path]) -> Iterator[tuple[Signature, int, float]]:
    """Copies and sets of the same tables, as signature, bytes and nanoseconds. The time is the mean of those with a
    warm and a cold L2: in a step, the source of a copy has just been written, and its target has not."""
    for path in paths:
        for row in parquet.read_table(path, filters=[("family", "in", ("copy", "set"))]).to_pylist():
            facts = json.loads(row["facts"])
            signature = Signature(row["family"], row["op"], {"pinned": facts.get("pinned", 1)})
            yield signature, facts["bytes"], (row["warm_ns"] + row["cold_ns"]) / 2


def _case(family: str, op: str, facts: dict[str, Any], kernels: list[dict[str, Any]]) -> Iterator[Row]:
    match family:
        case "gemm" if op != "_scaled_mm":
            yield _gemm(facts), None, _ns(kernels)
        case "attention":
            yield from _attention(facts, kernels)
        case "conv":
            yield from _convolution(facts, kernels)
        case "norm" | "softmax":
            size = _SIZE[facts["dtype"]] * facts["rows"] * facts["columns"]
            for kernel in kernels:
                passes = _PASSES[op][bool(_BACKWARD.search(kernel["kernel"]))]
                if _ROWS.search(kernel["kernel"]):
                    yield _kernel(kernel), _operator(f"aten::{op}", passes * size), kernel["warm_ns"]
        case "elementwise":
            for kernel in kernels:
                if "elementwise_kernel" in kernel["kernel"]:
                    yield _elementwise(op, facts, kernel)
        case "optimizer":
            for kernel in kernels:
                if "multi_tensor_apply" in kernel["kernel"]:
                    yield _kernel(kernel), None, kernel["warm_ns"]


def _ns(kernels: list[dict[str, Any]]) -> float:
    return float(sum(kernel["warm_ns"] for kernel in kernels)) + INNER_GAP_NS * (len(kernels) - 1)


def _gemm(facts: dict[str, Any]) -> Signature:
    kind, (ta, tb) = _CUDA[facts["dtype"]], _TRANSPOSED[facts["layout"]]
    found = {"m": facts["n"], "n": facts["m"], "k": facts["k"], "batch": facts["batch"], "atype": kind, "ctype": kind}
    found |= {"ta": ta, "tb": tb}
    if facts["dtype"] == "tf32":
        found["computetype"] = _TF32
    return Signature("gemm", "cublasGemmEx", found)


def _attention(facts: dict[str, Any], kernels: list[dict[str, Any]]) -> Iterator[Row]:
    shape = {key: facts[key] for key in ("b", "h", "sq", "skv", "d", "kvh", "causal")} | {"dv": facts["d"]}
    if facts["backend"] == "cudnn":
        last = next((i + 1 for i, kernel in enumerate(kernels) if "fprop" in kernel["kernel"]), 0)
        for name, own in (("forward", kernels[:last]), ("backward", kernels[last:])):
            if last and own:
                yield Signature("attention", name, {**shape, "dtype": _CUDNN[facts["dtype"]]}), None, _ns(own)
        return
    operator = {"flash": "aten::_flash_attention", "efficient": "aten::_efficient_attention"}[facts["backend"]]
    for kernel in kernels:
        name = kernel["kernel"]
        if "flash" not in name and "fmha" not in name:
            continue
        backward = "bwd" in name or "cutlassB" in name
        first = int(backward)
        of: dict[str, int] = {"is_causal": facts["causal"]}
        for i, heads in enumerate((facts["h"], facts["kvh"], facts["kvh"])):
            of |= {f"in{first + i}_d{d}": n for d, n in enumerate((facts["b"], facts["sq"], heads, facts["d"]))}
            of[f"in{first + i}_dtype"] = _SCALAR[facts["dtype"]]
        suffix = "_backward" if backward else "_forward"
        yield _kernel(kernel), Signature("op", operator + suffix, of), kernel["warm_ns"]


def _convolution(facts: dict[str, Any], kernels: list[dict[str, Any]]) -> Iterator[Row]:
    """The signatures of the forward pass, of the gradient of the input (none for images, where c = 3) and of the
    gradient of the weight, in this order.
    """
    n, c, k, r, stride, side = (facts[key] for key in ("n", "c", "k", "r", "stride", "h"))
    padding = 0 if r == stride else r // 2
    out = (side + 2 * padding - r) // stride + 1
    shape = {"n": n, "c": c, "h": side, "w": side, "k": k, "r": r, "s": r, "oh": out, "ow": out, "groups": 1}
    turn = next((i for i, kernel in enumerate(kernels) if "at::native" in kernel["kernel"]), None)  # gradient's layout
    if turn is None or not facts["channels_last"]:
        return
    parts = {"forward": kernels[:turn]}
    back = kernels[turn + 1 :]
    if c == 3:
        parts["wgrad"] = back
    else:
        named = [i for i, kernel in enumerate(back) if "wgrad" in kernel["kernel"] or "init_d" in kernel["kernel"]]
        own = [i for i, kernel in enumerate(back) if not _GPU_ONLY.match(kernel["kernel"])]
        if not named and len(own) != 2:
            return  # kernels that convert layouts, and no name that says which gradient is whose
        cut = named[0] if named else own[1]
        parts |= {"dgrad": back[:cut], "wgrad": back[cut:]}
    for name, of in parts.items():
        if any(not _GPU_ONLY.match(kernel["kernel"]) for kernel in of):
            yield Signature("conv", name, {**shape, "dtype": _CUDNN[facts["dtype"]]}), None, _ns(of)


def _elementwise(op: str, facts: dict[str, Any], kernel: dict[str, Any]) -> Row:
    n = facts["n"]
    operator = None
    if op == "cast":
        source, target = facts["dtype"].split("-")
        operator = _operator("aten::copy_", n * (_SIZE[source] + _SIZE[target]))
    elif op.endswith("_mixed"):
        operator = _operator("aten::add_", n * (4 + 2 + 4))
    elif op in ("mul_rows", "mul_columns"):
        operator = _operator("aten::mul_", n * 4)
    return _kernel(kernel, n), operator, kernel["warm_ns"]


def _operator(name: str, moved: int) -> Signature:
    """An operator whose kernel moves this number of bytes."""
    return Signature("op", name, {"bytes": moved, "written": 1})


def _kernel(kernel: dict[str, Any], n: int = -1) -> Signature:
    grid, block = json.loads(kernel["grid"]), json.loads(kernel["block"])
    facts = dict(zip(("gx", "gy", "gz", "bx", "by", "bz"), [*grid, *block], strict=True))
    threads = grid[0] * grid[1] * grid[2] * block[0] * block[1] * block[2]
    facts["n"] = n if threads <= n <= 16 * threads else -1
    return Signature("kernel", kernel["kernel"], facts)
