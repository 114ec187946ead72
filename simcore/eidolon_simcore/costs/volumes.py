"""How large the operations of matrix units are: products, convolutions, fused attention. Costs (:mod:`.roofline`) and
work (:mod:`.work`) both follow from it.

A multiplication and an addition count as two operations. Bytes count every operand once. PyTorch's own fused attention
comes as a kernel with a name; its sizes are those of the operator's query, key and value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import IN_D, IN_DTYPE

#: Names of types, by cudaDataType and by cudnnDataType_t.
CUDA_TYPES: Final = {0: "fp32", 1: "fp64", 2: "fp16", 3: "int8", 14: "bf16", 28: "fp8", 29: "fp8", 33: "fp4"}
CUDNN_TYPES: Final = {0: "fp32", 1: "fp64", 2: "fp16", 3: "int8", 9: "bf16", 12: "fp8", 13: "fp8"}
#: Values of cublasComputeType_t that compute fp32 inputs in a lower type.
COMPUTE_TYPES: Final = {74: "fp16", 75: "bf16", 76: "tf32", 77: "tf32", 78: "tf32"}
SIZES: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 1}  #: bytes
_SCALAR_BF16, _SCALAR_HALF = 15, 5  # c10::ScalarType
_FUSED_ATTENTION = re.compile(r"flash_(?:fwd|bwd)_(?:splitkv_)?kernel|fmha_cutlass[FB]|flash_bwd_dq_dk_dv")
#: Attention's backward pass in forward passes: it has five products for two, since the scores are computed again.
BACKWARD_PASSES: Final = 2.5


@dataclass(frozen=True, slots=True)
class Volume:
    """Arithmetic and bytes of one operation."""

    flops: float
    bytes: float
    dtype: str  #: type of the operands
    units: str  #: type in which it is computed, as the catalogue's peaks are named


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of fused attention."""

    backward: bool
    b: int
    h: int
    kvh: int
    sq: int
    skv: int
    d: int
    dv: int
    causal: bool
    dtype: str
    family: str  #: family of kernels: cudnn, flash or efficient
    bias: bool = False  #: whether a matrix is added to the scores

    @property
    def volume(self) -> Volume:
        """The volume of what is asked for. A causal mask halves the arithmetic."""
        passes = BACKWARD_PASSES if self.backward else 1.0
        width = self.d + self.dv
        flops = passes * 2.0 * self.b * self.h * self.sq * self.skv * width * (0.5 if self.causal else 1.0)
        moved = passes * SIZES[self.dtype] * self.b * (self.h * self.sq + self.kvh * self.skv) * width
        return Volume(flops, moved, self.dtype, "fp32_simt" if self.dtype == "fp32" else self.dtype)


def gemm(s: Signature) -> Volume:
    """The volume of a matrix product, or of a batch of them."""
    m, n, k, batch = (max(1, x) for x in s.values("m", "n", "k", "batch"))
    dtype = CUDA_TYPES.get(s.get("atype"), "fp32")
    out = CUDA_TYPES.get(s.get("ctype"), "fp32")
    moved = float(batch) * ((m * k + k * n) * SIZES[dtype] + m * n * SIZES[out])
    units = COMPUTE_TYPES.get(s.get("computetype"), "fp32_simt") if dtype == "fp32" else dtype
    return Volume(2.0 * batch * m * n * k, moved, dtype, units)


def conv(s: Signature) -> Volume:
    """The volume of a convolution, or of a gradient of one. In fp32 cuDNN may use TF32 by default."""
    n, c, h, w, k = (max(1, x) for x in s.values("n", "c", "h", "w", "k"))
    r, q, oh, ow = (max(1, x) for x in s.values("r", "s", "oh", "ow"))
    depth = c / max(1, s.get("groups", 1))
    dtype = CUDNN_TYPES.get(s.get("dtype"), "fp32")
    moved = float(SIZES[dtype]) * (n * c * h * w + n * k * oh * ow + k * depth * r * q)
    return Volume(2.0 * n * oh * ow * k * depth * r * q, moved, dtype, "tf32" if dtype == "fp32" else dtype)


def attention(s: Signature) -> Attention:
    """The sizes of a library's attention (kind ``attention``)."""
    b, h, sq, skv, d = (max(1, x) for x in s.values("b", "h", "sq", "skv", "d"))
    dtype = CUDNN_TYPES.get(s.get("dtype"), "bf16")
    dv, kvh = max(1, s.get("dv", d)), max(1, s.get("kvh", h))
    causal, bias = bool(s.get("causal")), bool(s.get("bias"))
    return Attention(s.name == "backward", b, h, kvh, sq, skv, d, dv, causal, dtype, "cudnn", bias)


def fused_attention(name: str, operator: Signature | None) -> Attention | None:
    """The sizes of a flash or memory-efficient kernel with this demangled name. None for any other kernel, or if the
    sizes are not known."""
    if operator is None or not _FUSED_ATTENTION.search(name):
        return None
    backward = "bwd" in name or "cutlassB" in name
    first = int(backward)  # the gradient comes before query, key and value
    shapes = [operator.values(*sizes[:4]) for sizes in IN_D[first : first + 3]]
    if any(0 in shape for shape in shapes):
        return None
    (b, x, y, d), (_, kx, ky, _), (*_, dv) = shapes
    flash_layout = operator.name.startswith(("aten::_flash", "aten::_efficient"))  # (b, s, h, d), else (b, h, s, d)
    sq, h = (x, y) if flash_layout else (y, x)
    skv, kvh = (kx, ky) if flash_layout else (ky, kx)
    kind = operator.get(IN_DTYPE[first])
    dtype = "bf16" if kind == _SCALAR_BF16 else "fp16" if kind == _SCALAR_HALF else "fp32"
    causal = bool(operator.get("is_causal") or operator.get("custom_mask_type"))
    family = "efficient" if "fmha" in name else "flash"
    return Attention(backward, b, h, kvh, sq, skv, d, dv, causal, dtype, family)
