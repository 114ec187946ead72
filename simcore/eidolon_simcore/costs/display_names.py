"""What users call the operations of a run.

A signature names a kernel as the linker does, and a library call by its shapes. Here both become what a profiler on a
real GPU would show, as nearly as possible. That is the demangled C++ name of a kernel. The kernels of a library are
chosen on the device, so nobody can know their names here; they are shown as the operation with its sizes and type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eidolon_simcore.costs.kernel_names import demangle
from eidolon_simcore.costs.model import Signature
from eidolon_simcore.costs.volumes import CUDA_TYPES, CUDNN_TYPES
from eidolon_simcore.vocabulary import Attribute

_COPIES: Final[Mapping[str, str]] = {
    "h2d": "Memcpy HtoD",
    "d2h": "Memcpy DtoH",
    "d2d": "Memcpy DtoD",
    "h2h": "Memcpy HtoH",
    "p2p": "Memcpy PtoP",
}


_ATTENTION_SIZES: Final[tuple[Attribute, ...]] = ("b", "h", "sq", "skv", "d")


def display(signature: Signature) -> str:
    """The name to show for a device operation."""
    s = signature
    match s.kind:
        case "kernel":
            return demangle(s.name)
        case "gemm":
            shape = "x".join(map(str, s.values("m", "n", "k", default=1)))
            batch = f" batch {s.get('batch')}" if s.get("batch", 1) > 1 else ""
            return f"gemm {CUDA_TYPES.get(s.get('atype'), 'fp32')} {shape}{batch}"
        case "conv":
            sizes = "x".join(map(str, s.values("n", "c", "h", "w", default=1)))
            kernel = f"{s.get('r', 1)}x{s.get('s', 1)}"
            return f"conv {s.name} {CUDNN_TYPES.get(s.get('dtype'), 'fp32')} {sizes} k{s.get('k', 1)} {kernel}".strip()
        case "attention":
            sizes = " ".join(f"{key}{s.get(key, 1)}" for key in _ATTENTION_SIZES)
            return f"attention {s.name} {CUDNN_TYPES.get(s.get('dtype'), 'bf16')} {sizes}"
        case "copy":
            pageable = " (pageable)" if s.name in ("h2d", "d2h") and not s.get("pinned", 1) else ""
            return _COPIES.get(s.name, f"Memcpy {s.name}") + pageable
        case "set":
            return "Memset"
        case "collective":
            return f"nccl:{s.name}"
        case _:
            return s.name
