"""Reads a profiler trace of a real GPU as signatures with durations; the cost tables are made of these.

Each row has the signature that the shim would have sent for the same work. A kernel goes by name, geometry and
operator. A library call (GEMM, convolution, attention, batch normalisation) is one signature, whose duration is the sum
of the kernels that the library launched for it and of the gaps between them. Traces are those of PyTorch's profiler
with shapes recorded, as ``eidolon profile script`` writes them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.trace_files import complete_events
from eidolon_simcore.signature import Signature

#: c10::ScalarType's number, bytes, cudaDataType, cudnnDataType of a trace's type names
_TYPES = {
    "c10::BFloat16": (15, 2, 14, 9),
    "c10::Half": (5, 2, 2, 2),
    "float": (6, 4, 0, 0),
    "double": (7, 8, 1, 1),
    "long int": (4, 8, -1, -1),
    "long": (4, 8, -1, -1),
    "int": (3, 4, -1, -1),
    "bool": (11, 1, -1, -1),
    "unsigned char": (0, 1, -1, -1),
    "signed char": (1, 1, -1, -1),
    "c10::Float8_e4m3fn": (24, 1, 28, -1),
}
_DEVICE = ("kernel", "gpu_memset", "gpu_memcpy")  #: categories of events
INNER_GAP_NS = 1_900.0  #: between the kernels (and sets) of one library call on a busy stream; mean of the traces
_GEMM_OPERATORS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_GEMM_KERNEL = re.compile(r"nvjet|gemm|cutlass|splitK|cublas|gemv|^Memset", re.IGNORECASE)
_CONVOLUTION_KERNEL = re.compile(
    r"xmma|cutlass|nvjet|cudnn|implicit|wgrad|dgrad|fprop|splitK|convol|^Memset", re.IGNORECASE
)
_ATTENTION = {"aten::_cudnn_attention_forward": "forward", "aten::_cudnn_attention_backward": "backward"}
_BATCH_NORM = {"aten::cudnn_batch_norm": "norm forward", "aten::cudnn_batch_norm_backward": "norm backward"}
#: Passes over the tensor, and floating-point operations for each element, by direction: the shim's figures
#: (``interposer/native/libs/cudnn_norm.cpp``). A test holds the two together.
BATCH_NORM_WORK = {"forward": (3, 8), "backward": (5, 12)}


@dataclass(frozen=True, slots=True)
class Recorded:
    """Work of one signature and what it took."""

    signature: Signature
    operator: Signature | None
    ns: float
    begin_ns: float
    end_ns: float
    stream: int
    issued_ns: float  #: when the host launched it; of a library call, the first of its kernels


@dataclass(frozen=True, slots=True)
class Step:
    """All that a trace says about the device."""

    rows: list[Recorded]  #: collectives, copies and sets too, in the order in which the host issued them
    marks_ns: list[float]  #: ends of optimizer steps, on the host


def read(path: Path) -> Iterator[Recorded]:
    """All device work of a trace but collectives, copies and sets, in order of the operators that launched it."""
    return (row for row in _rows(_events(path)) if row.signature.kind not in ("collective", "copy", "set"))


def copies(path: Path) -> Iterator[tuple[Signature, int, float, float]]:
    """All copies and sets of a trace, each as signature, bytes, and begin and end in nanoseconds."""
    for event in _events(path):
        if event.get("cat") in ("gpu_memcpy", "gpu_memset"):
            signature = _copy(event) if event["cat"] == "gpu_memcpy" else Signature("set", "set", {})
            begin = 1e3 * float(event["ts"])
            yield signature, int(event["args"]["bytes"]), begin, begin + 1e3 * float(event["dur"])


def read_step(path: Path) -> Step:
    """The trace of a whole step."""
    events = _events(path)
    marks = (e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("Optimizer.step"))
    return Step(
        sorted(_rows(events), key=lambda row: row.issued_ns),
        sorted(1e3 * (float(e["ts"]) + float(e["dur"])) for e in marks),
    )


def _events(path: Path) -> list[dict[str, Any]]:
    """The complete events. Work of the device has ``issued``: when the host launched it, in microseconds."""
    events = complete_events(path)
    calls = {e["args"].get("correlation"): e["ts"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    for event in events:
        if event.get("cat") in _DEVICE:
            event["issued"] = calls.get(event["args"].get("correlation"), event["ts"])
    return events


def _rows(events: list[dict[str, Any]]) -> Iterator[Recorded]:
    operators = {e["args"].get("External id"): e for e in events if e.get("cat") == "cpu_op"}
    launched: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") not in _DEVICE:
            continue
        if event["cat"] == "gpu_memcpy":
            yield _recorded(_copy(event), None, [event])
        elif "nccl" in event["name"]:
            yield _recorded(_collective(event), None, [event])
        else:
            launched.setdefault(event["args"].get("External id"), []).append(event)
    for number, kernels in launched.items():
        yield from _of_operator(operators.get(number), sorted(kernels, key=lambda e: float(e["ts"])))


def _of_operator(event: dict[str, Any] | None, kernels: list[dict[str, Any]]) -> Iterator[Recorded]:
    # inductor names its launches for the profiler alone: without one, the shim sees a Triton kernel in no operator
    compiled = event is not None and event["name"].startswith("triton_")
    operator = None if event is None or compiled else operator_signature(event)
    library, rest = _library(event, kernels) if event is not None else ({}, kernels)
    for signature, own in library.items():
        yield _recorded(_SIGNATURES[signature](event), operator, own)
    for kernel in rest:
        launched = _kernel(kernel, event) if kernel["cat"] == "kernel" else Signature("set", "set", {})
        yield _recorded(launched, operator, [kernel])


def _recorded(signature: Signature, operator: Signature | None, kernels: list[dict[str, Any]]) -> Recorded:
    begin = min(float(k["ts"]) for k in kernels) * 1e3
    end = max(float(k["ts"]) + float(k["dur"]) for k in kernels) * 1e3
    ns = sum(float(k["dur"]) for k in kernels) * 1e3 + INNER_GAP_NS * (len(kernels) - 1)
    stream, issued = int(kernels[0]["args"].get("stream", 0)), float(kernels[0]["issued"]) * 1e3
    return Recorded(signature, operator, ns, begin, end, stream, issued)


def _library(
    event: dict[str, Any], kernels: list[dict[str, Any]]
) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Divides kernels into those of each library call and those that PyTorch launched itself."""
    name = event["name"]
    if name in _GEMM_OPERATORS:
        return _divide(kernels, lambda k: "gemm" if _GEMM_KERNEL.search(k["name"]) else "")
    if name in _ATTENTION:
        return _divide(kernels, lambda k: _ATTENTION[name])
    if name in _BATCH_NORM:
        return _divide(kernels, lambda k: _BATCH_NORM[name])
    if name == "aten::cudnn_convolution":
        return _divide(kernels, lambda k: "fprop")
    if name == "aten::convolution_backward":
        own = [k for k in kernels if _CONVOLUTION_KERNEL.search(k["name"])]
        wanted = event["args"]["Concrete Inputs"][-1].strip("[]").split(",")
        first = wanted[0].strip() == "True"
        weight = next((i for i, k in enumerate(own) if "wgrad" in k["name"]), len(own) // 2 if first else 0)
        data = {id(k) for k in own[:weight]} if first else set()
        return _divide(kernels, lambda k: "" if k not in own else "dgrad" if id(k) in data else "wgrad")
    return {}, kernels


def _divide(kernels: list[dict[str, Any]], key: Any) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    parts: dict[str, list[dict[str, Any]]] = {}
    for kernel in kernels:
        parts.setdefault(key(kernel), []).append(kernel)
    rest = parts.pop("", [])
    for name in [name for name, own in parts.items() if all(k["cat"] == "gpu_memset" for k in own)]:
        rest += parts.pop(name)
    return parts, rest


def operator_signature(event: dict[str, Any]) -> Signature:
    """The "op" signature that the torch plugin would have sent, as far as a trace tells."""
    arguments = event["args"]
    dims, types = arguments.get("Input Dims", []), arguments.get("Input type", [])
    strides = arguments.get("Input Strides", [])
    facts: dict[str, int] = {"bytes": 0, "written": 0}
    position = tensors = 0
    for i, (shape, kind) in enumerate(zip(dims, types, strict=False)):
        if kind == "TensorList":
            tensors += len(shape) or 1
            facts["tensors_numel"] = facts.get("tensors_numel", 0) + sum(math.prod(s) for s in shape)
            continue
        if kind not in _TYPES or (i < len(strides) and not shape and strides[i]):
            continue
        number, size, _, _ = _TYPES[kind]
        count = math.prod(shape)
        facts["bytes"] += count * size
        if position == 0 and event["name"].endswith("_"):
            facts["written"] = count * size
        if position < 6:
            facts |= {f"in{position}_numel": count, f"in{position}_itemsize": size, f"in{position}_dtype": number}
            facts[f"in{position}_dims"] = len(shape)
            facts |= {f"in{position}_d{d}": n for d, n in enumerate(shape[:5])}
            if i < len(strides):
                facts[f"in{position}_layout"] = int(_contiguous(shape, strides[i]))
        position += 1
    if tensors:
        facts["tensors"] = tensors
    return Signature("op", event["name"], facts)


def _contiguous(shape: list[int], strides: list[int]) -> bool:
    expected = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=False):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def _copy(event: dict[str, Any]) -> Signature:
    """The signature of a copy or a set, by a name like "Memcpy HtoD (Pageable -> Device)"."""
    way = event["name"].split()[1].lower().replace("to", "2")
    return Signature("copy", way, {"pinned": int("Pageable" not in event["name"])})


def _collective(event: dict[str, Any]) -> Signature:
    """The signature of a collective, by a name like "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(...)". The name of a
    send or a receive does not say which of the two it is.
    """
    name = event["name"].split("(")[0].split("_")[1]
    return Signature("collective", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(), {})


def _kernel(kernel: dict[str, Any], event: dict[str, Any] | None) -> Signature:
    args = kernel["args"]
    facts = dict(zip(("gx", "gy", "gz", "bx", "by", "bz"), [*args["grid"], *args["block"]], strict=True))
    facts["n"] = -1
    if event is not None and "elementwise_kernel" in kernel["name"]:
        shapes = [s for s in event["args"].get("Input Dims", []) if s and not isinstance(s[0], list)]
        n = max((math.prod(s) for s in shapes), default=-1)
        if len(shapes) > 1 and all(len(s) == len(shapes[0]) for s in shapes):
            n = math.prod(max(sizes) for sizes in zip(*shapes, strict=True))
        threads = math.prod(args["grid"]) * math.prod(args["block"])
        if threads <= n <= 16 * threads:
            facts["n"] = n
    return Signature("kernel", kernel["name"], facts)


def _gemm(event: dict[str, Any]) -> Signature:
    """The signature of a product. Row-major (m, k) x (k, n) is column-major (n, k) x (k, m) to cuBLAS, so the operands
    change places.
    """
    arguments = event["args"]
    skip = int(event["name"] in ("aten::addmm", "aten::baddbmm"))
    (a, b), (sa, sb) = (arguments[key][skip : skip + 2] for key in ("Input Dims", "Input Strides"))
    kind = _TYPES[arguments["Input type"][skip]][2]
    batch = a[0] if len(a) == 3 else 1
    facts = {"m": b[-1], "n": a[-2], "k": a[-1], "batch": batch, "atype": kind, "ctype": kind}
    facts |= {"ta": int(sb[-1] != 1 and sb[-2] == 1), "tb": int(sa[-1] != 1 and sa[-2] == 1)}
    return Signature("gemm", "cublasGemmEx", facts)


def _attention(direction: str) -> Any:
    def signature(event: dict[str, Any]) -> Signature:
        arguments = event["args"]
        begin = int(direction == "backward")
        q, k, v = arguments["Input Dims"][begin : begin + 3]
        causal = "True" in arguments["Concrete Inputs"]
        bias = bool(arguments["Input Dims"][8 if begin else 3])
        flags = [x for x in arguments["Concrete Inputs"] if x in ("True", "False")]
        if direction == "forward":  # compute_log_sumexp, is_causal, return_debug_mask
            causal = len(flags) > 1 and flags[1] == "True"
        facts = {"b": q[0], "h": q[1], "sq": q[2], "skv": k[2], "d": q[3], "dv": v[3], "kvh": k[1]}
        kind = _TYPES[arguments["Input type"][begin]][3]
        return Signature("attention", direction, {**facts, "causal": int(causal), "dtype": kind, "bias": int(bias)})

    return signature


def _convolution(direction: str) -> Any:
    def signature(event: dict[str, Any]) -> Signature:
        arguments = event["args"]
        dims, values = arguments["Input Dims"], arguments["Concrete Inputs"]
        if direction == "fprop":
            x, w = dims[0], dims[1]
            numbers = [json.loads(v) for v in values[2:5]]  # padding, stride, dilation
            padding, stride, dilation = numbers
            oh, ow = ((x[2 + i] + 2 * padding[i] - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1 for i in range(2))
            kind = arguments["Input type"][0]
        else:
            y, x, w = dims[0], dims[1], dims[2]
            oh, ow = y[2], y[3]
            kind = arguments["Input type"][0]
        facts = {"n": x[0], "c": x[1], "h": x[2], "w": x[3], "k": w[0], "r": w[2], "s": w[3], "oh": oh, "ow": ow}
        facts |= {"groups": x[1] // w[1], "dtype": _TYPES[kind][3]}
        return Signature("conv", "forward" if direction == "fprop" else direction, facts)

    return signature


def _batch_norm(direction: str) -> Any:
    passes, flops = BATCH_NORM_WORK[direction]

    def signature(event: dict[str, Any]) -> Signature:
        elements = math.prod(event["args"]["Input Dims"][0])
        facts = {"bytes": passes * elements * _TYPES[event["args"]["Input type"][0]][1], "flops": flops * elements}
        return Signature("library", f"cudnn:batch_norm_{direction}", facts)

    return signature


_SIGNATURES: dict[str, Any] = {
    "gemm": _gemm,
    "forward": _attention("forward"),
    "backward": _attention("backward"),
    "fprop": _convolution("fprop"),
    "dgrad": _convolution("dgrad"),
    "wgrad": _convolution("wgrad"),
    "norm forward": _batch_norm("forward"),
    "norm backward": _batch_norm("backward"),
}
