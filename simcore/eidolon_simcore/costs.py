"""From a signature to a duration, with its source (law 2: nothing is silently free).

The first cost model is a roofline: the greater of work over an achievable rate and bytes over an achievable
bandwidth, plus a floor that every kernel pays. The data sheet's peaks come from the catalogue; what share of them is
achievable comes from :data:`FIT`.

What is fitted to what: the constants of :data:`FIT` are fitted to the kernel durations in PyTorch profiler traces of
one training step on an H100 SXM (GPT-2 with autocast, a 1-billion Llama in bf16, ResNet-50 in channels-last), by
family; they are used for every model. ``bench/cost_fit.py`` shows estimate over measurement for each family and
trace. GEMMs fit within 10 % for all but the smallest; half-precision GEMMs with an odd leading dimension run at an
eighth of the rate, because no tensor-core kernel can load them well. Shares for attention rise with the sequence.
Copies: device to device fitted; host copies are round figures for PCIe.

A duration has one of two sources here. ``roofline``: the signature determines work and bytes. ``unknown``: it does
not, and the volume was guessed from the launch's geometry (reductions, norms, softmax, concatenation, compiled
kernels, anything else). If the signature names an operator with shapes (the torch plugin), its tensors' bytes replace
the guess."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.kernels import Launch, Traffic, demangle, traffic

SOURCES = ("measured", "interpolated", "roofline", "unknown")


@dataclass(frozen=True, slots=True)
class Signature:
    """What an operation's cost depends on."""

    kind: str
    name: str
    attributes: Mapping[str, int]

    def get(self, key: str, default: int = 0) -> int:
        return self.attributes.get(key, default)


@dataclass(frozen=True, slots=True)
class Cost:
    """``base_ns`` plus ``ns_per_byte`` for each byte that the record names (copies and sets)."""

    base_ns: int
    ns_per_byte: float
    source: str


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels bound by memory: share of the bandwidth, floor, and loads and stores a nanosecond at most (0: any)."""

    bandwidth: float
    floor_ns: int
    elements_per_ns: float = 0.0


#: See the module's docstring. The element rates are those of an H100; they scale with SMs and clock.
FIT: Mapping[str, Family] = {
    "elementwise": Family(0.90, 1_000),
    "convert": Family(0.62, 1_300),
    "strided": Family(0.95, 1_000, 990.0),
    "optimizer": Family(0.96, 7_000),
    "reduce": Family(0.65, 2_000),
    "softmax": Family(0.55, 1_800),
    "norm": Family(0.65, 2_000),
    "move": Family(0.60, 1_500),
    "split": Family(0.80, 1_500),
    "index": Family(0.60, 1_500),
    "triton": Family(0.80, 1_500),
    "matrix": Family(0.80, 3_000),
    "other": Family(0.50, 1_500),
}
GEMM_RATE, GEMM_FLOOR_NS, GEMM_STORE = 0.80, 1_500, 0.5  #: share of peak, floor, share of the store that is not hidden
SIMT_RATE = 0.75  #: of the plain units' peak, where tensor cores do not apply
GEMM_TILE = 128
GEMM_ALIGNMENT = {8: 1.0, 4: 0.6, 2: 0.3, 1: 0.155}  #: share by the alignment of half types (elements); 4 and 2 guessed
CONV_RATE, CONV_BANDWIDTH, CONV_FLOOR_NS = 0.80, 0.83, 3_000
LIBRARY_RATE, LIBRARY_BANDWIDTH, LIBRARY_FLOOR_NS = 0.5, 0.6, 3_000

_CUDA_DTYPE = {0: "fp32", 1: "fp64", 2: "fp16", 3: "int8", 14: "bf16", 28: "fp8", 29: "fp8", 33: "fp4"}  # cudaDataType
_CUDNN_DTYPE = {0: "fp32", 1: "fp64", 2: "fp16", 3: "int8", 9: "bf16", 12: "fp8", 13: "fp8"}  # cudnnDataType_t
_COMPUTE = {74: "fp16", 75: "bf16", 76: "tf32", 77: "tf32", 78: "tf32"}  # cublasComputeType_t that lower fp32 inputs
_SIZE = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 1}


class CostModel:
    """Costs of one GPU model."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._kinds: dict[str, Callable[[Signature, Signature | None], Cost]] = {
            "kernel": self._kernel,
            "gemm": self._gemm,
            "conv": self._conv,
            "attention": self._attention,
            "library": self._library,
            "copy": self._copy,
            "set": self._set,
        }

    def cost(self, signature: Signature, operator: Signature | None = None) -> Cost:
        """The cost of a device operation; ``operator`` is the "op" signature that its attribute ``op`` names."""
        rule = self._kinds.get(signature.kind)
        if rule is None:
            return Cost(FIT["other"].floor_ns, 0.0, "unknown")
        return rule(signature, operator)

    # ---- kernels by name ------------------------------------------------------------------------------------------

    def _kernel(self, s: Signature, operator: Signature | None) -> Cost:
        threads = max(1, s.get("bx", 1)) * max(1, s.get("by", 1)) * max(1, s.get("bz", 1))
        blocks = max(1, s.get("gx", 1)) * max(1, s.get("gy", 1)) * max(1, s.get("gz", 1))
        moved = traffic(Launch(demangle(s.name), blocks, threads, s.get("n", -1)))
        if not moved.exact and operator is not None:
            volume = _operator_bytes(operator)
            if volume is not None:
                moved = Traffic(moved.family, volume[0], volume[1], exact=True)
        return Cost(self.memory_ns(moved), 0.0, "roofline" if moved.exact else "unknown")

    def memory_ns(self, moved: Traffic) -> int:
        family = FIT[moved.family]
        bandwidth = self._gpu.bandwidth_bytes_per_s * family.bandwidth
        if moved.bytes < self._gpu.l2_bytes:  # part of it is still in the cache
            bandwidth *= 1.2
        ns = moved.bytes / bandwidth * 1e9
        if family.elements_per_ns:
            ns = max(ns, moved.elements / (family.elements_per_ns * self._issue()))
        return round(family.floor_ns + ns)

    def _issue(self) -> float:
        """How fast instructions are issued, an H100 SXM being 1."""
        return self._gpu.sm_count * self._gpu.clock_khz / (132 * 1_980_000)

    # ---- libraries ------------------------------------------------------------------------------------------------

    def _gemm(self, s: Signature, _: Signature | None) -> Cost:
        m, n, k, batch = (max(1, s.get(key, 1)) for key in ("m", "n", "k", "batch"))
        dtype = _CUDA_DTYPE.get(s.get("atype"), "fp32")
        size, out = _SIZE[dtype], _SIZE[_CUDA_DTYPE.get(s.get("ctype"), "fp32")]
        flops = 2.0 * batch * m * n * k
        rate = self._rate(dtype, s.get("computetype"))
        if size == 2:
            contiguous = (m, k if s.get("ta") else m, n if s.get("tb") else k)
            rate *= GEMM_ALIGNMENT[min(8, math.gcd(*contiguous) & -math.gcd(*contiguous))]
        tiles = batch * -(-m // GEMM_TILE) * -(-n // GEMM_TILE)
        if tiles < self._gpu.sm_count:  # split over k, at a price
            rate *= math.sqrt(tiles / self._gpu.sm_count)
        stored = float(batch * m * n * out)
        moved = float(batch * (m * k + k * n) * size) + stored
        bandwidth = self._gpu.bandwidth_bytes_per_s
        compute_ns = flops / rate * 1e9 + GEMM_STORE * stored / bandwidth * 1e9
        return self._roofline(max(compute_ns, moved / (0.8 * bandwidth) * 1e9) + GEMM_FLOOR_NS)

    def _rate(self, dtype: str, compute: int = 0) -> float:
        if dtype == "fp32":
            dtype = _COMPUTE.get(compute, "fp32_simt")
        if dtype in ("fp32_simt", "fp64"):
            return self._gpu.peak_flops(dtype) * SIMT_RATE
        return self._gpu.peak_flops(dtype) * GEMM_RATE

    def _conv(self, s: Signature, _: Signature | None) -> Cost:
        n, c, h, w, k = (max(1, s.get(key, 1)) for key in ("n", "c", "h", "w", "k"))
        r, q, oh, ow = (max(1, s.get(key, 1)) for key in ("r", "s", "oh", "ow"))
        groups = max(1, s.get("groups", 1))
        dtype = _CUDNN_DTYPE.get(s.get("dtype"), "fp32")
        size = _SIZE[dtype]
        flops = 2.0 * n * oh * ow * k * (c / groups) * r * q
        depth = min(c, k) / groups
        rate = self._rate("tf32" if dtype == "fp32" else dtype) * (
            CONV_RATE / GEMM_RATE
        )  # cuDNN may use TF32 by default
        rate *= min(1.0, depth / 128) ** 0.85
        moved = float(size) * (n * c * h * w + n * k * oh * ow + k * (c / groups) * r * q)
        memory_ns = moved / (CONV_BANDWIDTH * self._gpu.bandwidth_bytes_per_s) * 1e9
        return self._roofline(max(flops / rate * 1e9, memory_ns) + CONV_FLOOR_NS)

    def _attention(self, s: Signature, _: Signature | None) -> Cost:
        b, h, sq, skv, d = (max(1, s.get(key, 1)) for key in ("b", "h", "sq", "skv", "d"))
        dv, kvh = max(1, s.get("dv", d)), max(1, s.get("kvh", h))
        dtype = _CUDNN_DTYPE.get(s.get("dtype"), "bf16")
        flops = 2.0 * b * h * sq * skv * (d + dv) * (0.5 if s.get("causal") else 1.0)
        backward = s.name == "backward"
        share = attention_share(backward, d, skv)
        if backward:
            flops *= 2.5
        rate = self._gpu.peak_flops("fp16" if dtype == "fp32" else dtype) * share * (0.25 if dtype == "fp32" else 1.0)
        moved = float(_SIZE[dtype]) * b * (h * sq * (d + dv) + kvh * skv * (d + dv)) * (2.5 if backward else 1.0)
        memory_ns = moved / (0.8 * self._gpu.bandwidth_bytes_per_s) * 1e9
        return self._roofline(max(flops / rate * 1e9, memory_ns) + (8_000 if backward else 4_000))

    def _library(self, s: Signature, operator: Signature | None) -> Cost:
        moved, flops = s.get("bytes"), s.get("flops")
        source = "roofline" if moved or flops else "unknown"
        if source == "unknown" and operator is not None:
            volume = _operator_bytes(operator)
            if volume is not None:
                moved, source = volume[0], "roofline"
        memory_ns = moved / (LIBRARY_BANDWIDTH * self._gpu.bandwidth_bytes_per_s) * 1e9
        compute_ns = flops / (LIBRARY_RATE * self._gpu.peak_flops("fp32_simt")) * 1e9
        return Cost(round(max(memory_ns, compute_ns) + LIBRARY_FLOOR_NS), 0.0, source)

    # ---- bytes ----------------------------------------------------------------------------------------------------

    def _copy(self, s: Signature, _: Signature | None) -> Cost:
        gpu = self._gpu
        if s.name == "d2d":
            return Cost(1_200, 2e9 / (0.81 * gpu.bandwidth_bytes_per_s), "roofline")
        if s.name == "p2p":
            return Cost(5_000, 1e9 / (0.8 * gpu.intra_bytes_per_s), "roofline")
        if s.name == "h2h":
            return Cost(500, 1e9 / 10e9, "roofline")
        if s.get("pinned", 1):
            return Cost(1_500, 1e9 / (0.95 * gpu.pcie_bytes_per_s), "roofline")
        return Cost(4_000, 1e9 / min(10e9, gpu.pcie_bytes_per_s), "roofline")  # through a bounce buffer

    def _set(self, _: Signature, __: Signature | None) -> Cost:
        return Cost(800, 1e9 / (0.90 * self._gpu.bandwidth_bytes_per_s), "roofline")

    @staticmethod
    def _roofline(ns: float) -> Cost:
        return Cost(round(ns), 0.0, "roofline")


def attention_share(backward: bool, d: int, skv: int) -> float:
    """Share of the matrix peak that fused attention reaches: rises with the sequence, falls with a small head."""
    best, half = (0.58, 1_600.0) if backward else (0.66, 1_100.0)
    return best * skv / (skv + half) * (0.95 if d <= 64 else 1.0)


def _operator_bytes(operator: Signature) -> tuple[int, int] | None:
    """(bytes, elements of the greatest tensor) that one kernel of an operator moves.

    That is its tensors, and an output like the first of them unless the operator writes in place.

    None for operators over lists of tensors (foreach, fused optimizers): they launch one kernel for each part of their
    lists, whose own geometry says how much it moves.
    """
    if operator.get("tensors"):
        return None
    first = operator.get("in0_numel") * operator.get("in0_itemsize", 4)
    total = operator.get("bytes") + (0 if operator.get("written") else first)
    greatest = max((value for key, value in operator.attributes.items() if key.endswith("_numel")), default=0)
    return (total, greatest) if total > 0 else None
