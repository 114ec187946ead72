"""How much an operation does: arithmetic and bytes. Its *cost* (:mod:`.costs`) says how long that takes.

Arithmetic is that of matrix units: matrix products, convolutions and attention, counted as executed (a recomputed
forward pass counts twice) with a multiplication and an addition as two. What other kernels compute is not counted: it
is a per mille of a training step, and no one's MFU counts it. Bytes are those that a launch must at least move to and
from device memory; copies say which way they go.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs import Signature
from eidolon_simcore.kernels import Launch, demangle, traffic

_CUDA_DTYPE = {0: "fp32", 1: "fp64", 2: "fp16", 3: "int8", 14: "bf16", 28: "fp8", 29: "fp8", 33: "fp4"}  # cudaDataType
_CUDNN_DTYPE = {0: "fp32", 1: "fp64", 2: "fp16", 3: "int8", 9: "bf16", 12: "fp8", 13: "fp8"}  # cudnnDataType_t
_COMPUTE = {74: "fp16", 75: "bf16", 76: "tf32", 77: "tf32", 78: "tf32"}  # cublasComputeType_t that lower fp32 inputs
_SIZE = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 1}


@dataclass(frozen=True, slots=True)
class Work:
    """A sum of work."""

    flops: float = 0.0
    tensor_ns: float = 0.0  #: what the matrix units need for it at their peak for its types
    memory_bytes: float = 0.0  #: to and from device memory
    to_device_bytes: float = 0.0  #: over PCIe
    from_device_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, name) + getattr(other, name) for name in WORK_FIELDS))


WORK_FIELDS = tuple(field.name for field in fields(Work))


def per_launch(signature: Signature, gpu: Gpu) -> Work:
    """The work of one operation of this signature, but for bytes that its records name (:func:`per_byte`)."""
    s = signature
    match s.kind:
        case "gemm":
            m, n, k, batch = (max(1, s.get(key, 1)) for key in ("m", "n", "k", "batch"))
            dtype = _CUDA_DTYPE.get(s.get("atype"), "fp32")
            moved = batch * ((m * k + k * n) * _SIZE[dtype] + m * n * _SIZE[_CUDA_DTYPE.get(s.get("ctype"), "fp32")])
            rate = _COMPUTE.get(s.get("computetype"), "fp32_simt") if dtype == "fp32" else dtype
            return _matrix(gpu, 2.0 * batch * m * n * k, rate, moved)
        case "conv":
            n, c, h, w, k = (max(1, s.get(key, 1)) for key in ("n", "c", "h", "w", "k"))
            r, q, oh, ow = (max(1, s.get(key, 1)) for key in ("r", "s", "oh", "ow"))
            depth = c / max(1, s.get("groups", 1))
            dtype = _CUDNN_DTYPE.get(s.get("dtype"), "fp32")
            tensors = _SIZE[dtype] * (n * c * h * w + n * k * oh * ow + k * depth * r * q)
            return _matrix(gpu, 2.0 * n * oh * ow * k * depth * r * q, "tf32" if dtype == "fp32" else dtype, tensors)
        case "attention":
            b, h, sq, skv, d = (max(1, s.get(key, 1)) for key in ("b", "h", "sq", "skv", "d"))
            dv, kvh = max(1, s.get("dv", d)), max(1, s.get("kvh", h))
            passes = 2.5 if s.name == "backward" else 1.0
            dtype = _CUDNN_DTYPE.get(s.get("dtype"), "bf16")
            flops = passes * 2.0 * b * h * sq * skv * (d + dv) * (0.5 if s.get("causal") else 1.0)
            return _matrix(gpu, flops, dtype, passes * _SIZE[dtype] * b * (h * sq * (d + dv) + kvh * skv * (d + dv)))
        case "kernel":
            threads = max(1, s.get("bx", 1)) * max(1, s.get("by", 1)) * max(1, s.get("bz", 1))
            blocks = max(1, s.get("gx", 1)) * max(1, s.get("gy", 1)) * max(1, s.get("gz", 1))
            moved = traffic(Launch(demangle(s.name), blocks, threads, s.get("n", -1))).bytes
            return Work(memory_bytes=float(moved))
        case "library":
            return Work(memory_bytes=float(s.get("bytes")))
    return Work()


def per_byte(signature: Signature) -> Work:
    """The work of one byte that a record of a copy or a fill names."""
    if signature.kind == "set":
        return Work(memory_bytes=1.0)
    if signature.kind != "copy":
        return Work()
    match signature.name:
        case "h2d":
            return Work(memory_bytes=1.0, to_device_bytes=1.0)
        case "d2h":
            return Work(memory_bytes=1.0, from_device_bytes=1.0)
        case "d2d":
            return Work(memory_bytes=2.0)
        case "p2p":
            return Work(memory_bytes=1.0)
    return Work()


def _matrix(gpu: Gpu, flops: float, dtype: str, moved: float) -> Work:
    peak = gpu.peak_flops("fp32_simt" if dtype == "fp32" else dtype)
    on_matrix_units = dtype not in ("fp32", "fp32_simt", "fp64")
    return Work(flops, flops / peak * 1e9 if on_matrix_units else 0.0, float(moved))
