"""The analytic model: the time of a signature from its work, its bytes, and the share of a GPU's peaks that it reaches.

The time is the greater of work over an achievable rate and bytes over an achievable bandwidth, plus a floor that every
kernel pays. The data sheet's peaks come from the catalogue. The achievable share of them comes from :data:`FIT`, which
is fitted by family to the kernel durations in profiler traces of an H100 SXM. The model carries figures between
measured points (:mod:`.interpolation`) and to other GPUs, and stands alone where nothing was measured.

Half-precision GEMMs with an odd leading dimension run at an eighth of the rate, because no tensor-core kernel can load
them well. Shares for attention rise with the sequence. Host copies are round figures for PCIe."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs import volumes
from eidolon_simcore.costs.interpolation import Work
from eidolon_simcore.costs.kernel_names import Launch, Traffic, demangle, traffic
from eidolon_simcore.costs.volumes import SIZES, Attention
from eidolon_simcore.signature import Signature


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels bound by memory: the share of the bandwidth that they reach, the floor, and the most loads and stores in
    a nanosecond (0 stands for any number)."""

    bandwidth: float
    floor_ns: int
    elements_per_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Fused:
    """Kernels of fused attention: columns of a tile of scores, share of the matrix peak, nanoseconds that each block of
    rows takes beside its tiles, and the floor."""

    columns: int
    rate: float
    turn_ns: int
    floor_ns: int

    def tiles(self, a: Attention) -> int:
        """The number of tiles that are computed. Those that a causal mask covers as a whole are not."""
        rows, columns = -(-a.sq // TILE_ROWS), -(-a.skv // self.columns)
        if not (a.causal and a.sq == a.skv):
            return a.b * a.h * rows * columns
        return a.b * a.h * sum(min(columns, -(-(row + 1) * TILE_ROWS // self.columns)) for row in range(rows))


#: By family and direction. They are fitted to 1,000 kernels of the operator set on an H200, within 11 % on average.
TILE_ROWS = 128
FUSED = {
    ("cudnn", False): Fused(128, 0.614, 1_366, 9_000),
    ("cudnn", True): Fused(128, 0.542, 11_522, 9_000),
    ("flash", False): Fused(64, 0.343, 2_165, 9_000),
    ("flash", True): Fused(64, 0.318, 5_006, 9_000),
    ("efficient", False): Fused(64, 0.162, 1_714, 6_000),
    ("efficient", True): Fused(64, 0.122, 1_541, 9_000),
}
FULL_PRECISION_RATE = 0.25  #: of the rate for half precision


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
GEMM_RATE, GEMM_FLOOR_NS, GEMM_BANDWIDTH = 0.81, 2_000, 0.81
SIMT_RATE = 0.75  #: of the plain units' peak, where tensor cores do not apply
GEMM_ALIGNMENT = {8: 1.0, 4: 0.6, 2: 0.3, 1: 0.155}  #: share by the alignment of half types (elements); 4 and 2 guessed
CONV_RATE, CONV_BANDWIDTH, CONV_FLOOR_NS = 0.80, 0.83, 3_000
LIBRARY_RATE, LIBRARY_BANDWIDTH, LIBRARY_FLOOR_NS = 0.5, 0.6, 3_000
BIASED_RATE = 0.56  #: share of attention's rate with a matrix added to its scores (measured on an H200 at 2048 x 2048)
TILES = ((128, 256), (256, 128), (128, 128))  #: of GEMM kernels, whose neighbours differ in how full the last wave is

#: Classes of work, by which the engine chooses a rate.
MEMORY, MATRIX, ATTENTION, PLAIN = 1, 2, 3, 4  # PLAIN: matrices without tensor cores


@dataclass(frozen=True, slots=True)
class Analysis:
    """Work, how far its sizes are known (``roofline`` or ``unknown``), its kind for the engine, and what it asks of
    the memory (0 where instructions bound it)."""

    work: Work
    source: str
    kind: int
    moved_bytes: float = 0.0


class Roofline:
    """The analytic model of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def kernel(self, s: Signature, operator: Signature | None) -> Analysis:
        """A kernel that was launched by name."""
        name = demangle(s.name)
        fused = volumes.fused_attention(name, operator)
        if fused is not None:
            return self._attention(fused)
        if "spin_kernel" in name and s.get("n", -1) >= 0:  # torch.cuda._sleep waits for so many cycles of the SM
            ns = s.get("n") * 1e6 / self._gpu.clock_khz
            return Analysis(Work("kernel spin", (math.log(max(1, s.get("n"))),), ns), "roofline", PLAIN)
        threads = max(1, s.get("bx", 1)) * max(1, s.get("by", 1)) * max(1, s.get("bz", 1))
        blocks = max(1, s.get("gx", 1)) * max(1, s.get("gy", 1)) * max(1, s.get("gz", 1))
        moved = traffic(Launch(name, blocks, threads, s.get("n", -1)))
        if not moved.exact and operator is not None:
            volume = operator_bytes(operator, name)
            if volume is not None:
                moved = Traffic(moved.family, volume[0], volume[1], exact=True)
        sizes = (math.log(max(1, moved.bytes)), 0.3 * math.log(blocks * threads))
        kind = MATRIX if moved.family == "matrix" else MEMORY
        key = kernel_key(name)
        kin = f"kernels {moved.family} {key.split('<', 1)[0]}"
        work = Work("kernel " + key, sizes, self.memory_ns(moved), kin)
        bytes_bound = 0.0 if FIT[moved.family].elements_per_ns else float(moved.bytes)
        return Analysis(work, "roofline" if moved.exact else "unknown", kind, bytes_bound)

    def memory_ns(self, moved: Traffic) -> float:
        """How long a kernel that is bound by memory takes for these bytes."""
        family = FIT[moved.family]
        bandwidth = self._gpu.bandwidth_bytes_per_s * family.bandwidth
        if moved.bytes < self._gpu.l2_bytes:  # part of it is still in the cache
            bandwidth *= 1.2
        ns = moved.bytes / bandwidth * 1e9
        if family.elements_per_ns:
            ns = max(ns, moved.elements / (family.elements_per_ns * self._issue()))
        return family.floor_ns + ns

    def _issue(self) -> float:
        """How fast instructions are issued, an H100 SXM being 1."""
        return self._gpu.sm_count * self._gpu.clock_khz / (132 * 1_980_000)

    # ---- libraries ------------------------------------------------------------------------------------------------

    def gemm(self, s: Signature) -> Analysis:
        """A matrix product of a library."""
        m, n, k, batch = (max(1, x) for x in s.values("m", "n", "k", "batch"))
        volume = volumes.gemm(s)
        half = SIZES[volume.dtype] == 2
        alignment = 8
        rate = self._rate(volume.units)
        if half:
            contiguous = (m, k if s.get("ta") else m, n if s.get("tb") else k)
            alignment = min(8, math.gcd(*contiguous) & -math.gcd(*contiguous))
            rate *= GEMM_ALIGNMENT[alignment]
        memory_ns = volume.bytes / (GEMM_BANDWIDTH * self._gpu.bandwidth_bytes_per_s) * 1e9
        compute_ns = volume.flops / rate * 1e9
        sizes = [math.log(x) for x in (m, n, k, batch)]
        for rows, columns in TILES:
            waves = batch * -(-m // rows) * -(-n // columns) / self._gpu.sm_count
            sizes.append(0.7 * math.log(math.ceil(waves) / waves))
        sizes += [0.15 * bool(s.get("ta")), 0.15 * bool(s.get("tb"))]
        kind = "half" if half else volume.units.removesuffix("_simt")
        work = Work(f"gemm {kind} {alignment}", tuple(sizes), max(compute_ns, memory_ns) + GEMM_FLOOR_NS)
        return Analysis(work, "roofline", PLAIN if kind in ("fp32", "fp64") else MATRIX, volume.bytes)

    def _rate(self, units: str) -> float:
        return self._gpu.peak_flops(units) * (SIMT_RATE if units in ("fp32_simt", "fp64") else GEMM_RATE)

    def conv(self, s: Signature) -> Analysis:
        """A convolution of a library, or a gradient of one."""
        n, c, h, w, k = (max(1, x) for x in s.values("n", "c", "h", "w", "k"))
        r, q, oh, ow = (max(1, x) for x in s.values("r", "s", "oh", "ow"))
        volume = volumes.conv(s)
        depth = min(c, k) / max(1, s.get("groups", 1))
        rate = self._rate(volume.units) * (CONV_RATE / GEMM_RATE) * min(1.0, depth / 128) ** 0.85
        memory_ns = volume.bytes / (CONV_BANDWIDTH * self._gpu.bandwidth_bytes_per_s) * 1e9
        sizes = (*(math.log(x) for x in (n * oh * ow, c, k, r * q)), 0.5 * math.log(h * w / (oh * ow)))
        kind = "half" if SIZES[volume.dtype] == 2 else volume.dtype
        work = Work(f"conv {s.name} {kind}", sizes, max(volume.flops / rate * 1e9, memory_ns) + CONV_FLOOR_NS)
        return Analysis(work, "roofline", MATRIX, volume.bytes)

    def attention(self, s: Signature) -> Analysis:
        """Fused attention of a library."""
        return self._attention(volumes.attention(s))

    def _attention(self, a: Attention) -> Analysis:
        volume = a.volume
        fused = FUSED[a.family, a.backward]
        tiles = fused.tiles(a)
        rate = self._gpu.peak_flops("fp16" if a.dtype == "fp32" else a.dtype) * fused.rate
        if a.dtype == "fp32":
            rate *= FULL_PRECISION_RATE
        if a.bias:
            rate *= BIASED_RATE
        padded = 64 * -(-a.d // 64)  # kernels are made for heads of 64, 128, ...
        flops = 4.0 * tiles * fused.columns * TILE_ROWS * padded * (volumes.BACKWARD_PASSES if a.backward else 1.0)
        turns = a.b * a.h * -(-a.sq // TILE_ROWS) / self._gpu.sm_count
        idle = max(1.0, 1.0 / turns)  # some of the multiprocessors have nothing to do
        compute_ns = idle * (flops / rate * 1e9 + turns * fused.turn_ns)
        memory_ns = volume.bytes / (0.8 * self._gpu.bandwidth_bytes_per_s) * 1e9
        full = a.dtype == "fp32"
        masks = 0.3 * a.causal + 0.5 * a.bias
        padding = tiles * fused.columns * TILE_ROWS / (a.b * a.h * a.sq * a.skv * (0.5 if a.causal else 1.0))
        lengths = (math.log(a.sq), math.log(a.skv), math.log(padded), 0.3 * math.log(a.d))
        heads = (0.5 * math.log(a.b * a.h), 0.3 * math.log(a.h / a.kvh))
        sizes = (*lengths, *heads, masks, 0.7 * math.log(padding))
        group = f"attention {a.family} {'backward' if a.backward else 'forward'} {'fp32' if full else 'half'}"
        work = Work(group, sizes, max(compute_ns, memory_ns) + fused.floor_ns)
        # with a bias it draws so little power that a step's GEMMs keep their clock: as if bound by memory
        return Analysis(work, "roofline", MEMORY if a.bias else ATTENTION, volume.bytes)

    def opaque_call(self, s: Signature, operator: Signature | None) -> Analysis:
        """Any other library call, by the bytes and FLOPs that it states, or else by its operator's tensors.

        A dense solver waits for its own steps for much longer than it computes. So its FLOPs alone say little."""
        moved, flops = s.get("bytes"), s.get("flops")
        solver = _SOLVER.sub("", s.name)
        source = "roofline" if (moved or flops) and solver == s.name else "unknown"
        if source == "unknown" and operator is not None and solver == s.name:
            volume = operator_bytes(operator, s.name)
            if volume is not None:
                moved, source = volume[0], "roofline"
        memory_ns = moved / (LIBRARY_BANDWIDTH * self._gpu.bandwidth_bytes_per_s) * 1e9
        compute_ns = flops / (LIBRARY_RATE * self._gpu.peak_flops("fp32_simt")) * 1e9
        sizes = (math.log(max(1, moved)), math.log(max(1, flops)))
        kin = "" if solver == s.name else f"solvers {solver}"
        work = Work(f"library {s.name}", sizes, max(memory_ns, compute_ns) + LIBRARY_FLOOR_NS, kin)
        return Analysis(work, source, MEMORY, moved)


#: What stands before the name of a dense solver: the library, and the letter of a type (X: any).
_SOLVER = re.compile(r"^cusolver:cusolverDn[SDCZX]|^cublas:cublas[SDCZ](?=(?:getr|geqr|gels|matinv))")


def kernel_key(name: str) -> str:
    """The name of a kernel's group: its demangled name without return type, arguments and spaces."""
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace(" ", "")
    depth = 0
    for i, c in enumerate(text):
        if c == "<":
            depth += 1
        elif c == ">":
            depth -= 1
        elif c == "(" and depth == 0 and i:
            return text[:i]
    return text


_REDUCES = re.compile(
    r"aten::(?:sum|mean|linalg_vector_norm|norm|max|min|amax|amin|arg\w+|all|any|std|var|prod|nll_\w+)$"
)
_GATHERS = re.compile(r"aten::(?:embedding|index_select|gather|index)$")


def operator_bytes(operator: Signature, kernel: str = "") -> tuple[int, int] | None:
    """(bytes, elements of the greatest tensor) that one kernel of an operator moves.

    That is its tensors, and an output like the first of them unless the operator writes in place or reduces.

    None for operators over lists of tensors (foreach, fused optimizers). They launch one kernel for each part of their
    lists, and the geometry of each says how much it moves.
    """
    name = operator.name
    first = operator.get("in0_numel") * operator.get("in0_itemsize", 4)
    if name == "aten::cat":
        size = re.search(r"OpaqueType<(\d+)", kernel)
        numel = operator.get("tensors_numel")
        return (2 * numel * int(size[1] if size else 4), numel) if numel else None
    if name in ("aten::split_with_sizes_copy", "aten::_chunk_cat"):
        return (2 * first, operator.get("in0_numel")) if first else None
    if operator.get("tensors"):
        return None
    if _GATHERS.search(name) and operator.get("in1_numel"):
        row = operator.get("in0_d1", 1) if operator.get("in0_dims") > 1 and name != "aten::gather" else 1
        numel = operator.get("in1_numel") * row
        return 2 * numel * operator.get("in0_itemsize", 4), numel
    total = operator.get("bytes")
    if not operator.get("written") and not _REDUCES.search(name):
        total += first
    greatest = max((value for key, value in operator.attributes.items() if key.endswith("_numel")), default=0)
    return (total, greatest) if total > 0 else None
