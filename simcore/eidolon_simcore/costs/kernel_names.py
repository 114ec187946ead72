"""What a kernel's name and launch say about the bytes it moves.

A launch gives a mangled name, a grid and a block, and for elementwise kernels the number of elements. PyTorch's names
say a lot more: how many operands there are (``std::array<char*, 3ul>``, ``BinaryFunctor``), their types
(``c10::BFloat16``), whether they are converted on the way, and how many tensors an optimizer's kernel reads and writes.

:func:`traffic` turns that into :class:`Traffic`. It is *exact* where the name and the number of elements determine the
bytes. Otherwise it is a guess from the geometry, and the caller must say so.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

_TYPES = {
    16: ("c10::complex<double>",),
    8: ("double", "long", "unsigned long", "c10::complex<float>"),
    4: ("float", "int", "unsigned int", "c10::complex<c10::Half>"),
    2: ("c10::BFloat16", "c10::Half", "__nv_bfloat16", "__half", "short", "unsigned short"),
    1: ("bool", "char", "signed char", "unsigned char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"),
}
_BYTES = {name: size for size, names in _TYPES.items() for name in names}
_TYPE = re.compile(r"(?<![\w:])(" + "|".join(sorted(map(re.escape, _BYTES), key=len, reverse=True)) + r")(?![\w*])")
_ARRAY = re.compile(r"std::array<char\*, (\d+)ul>")
_LAMBDA = re.compile(r"\{lambda\(([^()]*)\)#\d+\}(?=[,>\s])")
_OPAQUE = re.compile(r"OpaqueType<(\d+)")
_MULTI_TENSOR = re.compile(r"(\w*Functor)<([\w:]+), (\d+)(?:, (\d+))?")

CHUNK_ELEMENTS = 65_536  #: elements of a tensor that one block of multi_tensor_apply takes
_GUESSED_PER_THREAD = 64  #: elements that one thread of a reduction takes
_GUESSED_ROW = 2_048  #: elements of a row, where each block works on one


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a kernel moves. ``family`` names the efficiency that applies; ``elements`` counts loads and stores."""

    family: str
    bytes: int
    elements: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel. ``n`` is the number of elements, or -1 if that is not known."""

    name: str  #: demangled
    blocks: int
    threads: int  #: of a block
    n: int = -1


@cache
def _demangler() -> Callable[[str], str]:
    library = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
    function = library.__cxa_demangle
    function.restype = ctypes.c_void_p
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]

    def demangle(name: str) -> str:
        status = ctypes.c_int()
        text = function(name.encode(), None, None, ctypes.byref(status))
        if not text:
            return name
        try:
            return ctypes.string_at(text).decode("utf-8", "replace")
        finally:
            libc.free(text)

    return demangle


def demangle(name: str) -> str:
    """The C++ name of a mangled one. A name that is not mangled, such as those of Triton and cuBLAS, stays as it is."""
    return _demangler()(name) if name.startswith("_Z") else name


def traffic(launch: Launch) -> Traffic:
    """The bytes of a launch, by the first rule that applies to the kernel's name."""
    name = launch.name.replace("(anonymous namespace)::", "").replace("at::native::", "")
    for pattern, rule in _RULES:
        if pattern.search(name):
            return rule(launch, name)
    return _guess(launch, "other", elements_per_thread=4, bytes_per_element=8)


# ---- rules ---------------------------------------------------------------------------------------------------------


def _elementwise(launch: Launch, name: str) -> Traffic:
    per_thread = _elements_per_thread(name)
    n = launch.n if launch.n >= 0 else launch.blocks * launch.threads * per_thread
    strided = "gpu_kernel_impl" in name
    converts = "WithCast" in name
    sizes = _operand_bytes(name)
    if converts and len(sizes) > 1 and sizes[0] == 4:
        sizes[0] = 2  # under autocast one side is a half type, and the name does not say which
    family = "strided" if strided else "convert" if converts else "elementwise"
    return Traffic(family, n * sum(sizes), n * len(sizes), exact=not converts)


def _elements_per_thread(name: str) -> int:
    if "unrolled_elementwise_kernel" in name:
        return 4
    found = re.search(r"(?<!_)elementwise_kernel<\d+, (\d+)", name)
    return int(found[1]) if found else 8


def _operand_bytes(name: str) -> list[int]:
    """Sizes of an elementwise kernel's operands, outputs first."""
    functor = name.split("<", 1)[1] if "<" in name else name
    if "bfloat16_copy_kernel" in name or "float16_copy_kernel" in name:
        return [2, 4]
    if "float8" in name and "copy_kernel" in name:
        return [1, 4]
    types = [_BYTES[t] for t in _TYPE.findall(functor)]
    arguments = _LAMBDA.search(functor)
    if arguments:
        inner = [_BYTES[t] for t in _TYPE.findall(arguments[1])]
        types = inner or types
    count = _operands(functor, arguments)
    size = types[0] if types else 4
    if "BinaryFunctor<" in functor and len(types) >= 3:
        return [types[2], types[0], types[1]]  # BinaryFunctor<first, second, result, ...>
    if re.search(r"[AB]UnaryFunctor<", functor) and len(types) >= 3:
        return [types[2], types[0]]
    return [size] * count


def _operands(functor: str, arguments: re.Match[str] | None) -> int:
    array = _ARRAY.search(functor)
    if array:
        return int(array[1])
    if re.search(r"[AB]UnaryFunctor<|OnSelf_|direct_copy", functor):
        return 2
    if "FillFunctor" in functor:
        return 1
    if re.search(r"BinaryFunctor<|CUDAFunctor_|CompareFunctor", functor):
        return 3
    if arguments and arguments[1].strip():
        return arguments[1].count(",") + 2
    return 2


def _multi_tensor(launch: Launch, name: str) -> Traffic:
    """Foreach and fused optimizers. A block does one chunk of a tensor, and the last chunk of a tensor is not full."""
    elements = launch.blocks * CHUNK_ELEMENTS
    functor = _MULTI_TENSOR.search(name.split("multi_tensor_apply_kernel", 1)[1])
    size = _BYTES.get(functor[2], 4) if functor else 4
    depth = int(functor[3]) if functor else 2
    if functor and "Fused" in functor[1]:
        moved = 2 * depth - 1  # everything is read and all but the gradient written
    elif functor and ("LpNorm" in functor[1] or "Cleanup" in functor[1]):
        moved = 1
    else:
        reads = int(functor[4]) if functor and functor[4] else depth
        if functor and functor[1] == "PointwiseOpScalarFunctor":
            reads -= 1  # addcmul with the gradient twice, as every Adam does it
        moved = reads + 1
    return Traffic("optimizer", elements * size * moved, elements, exact=False)


def _reduce(launch: Launch, name: str) -> Traffic:
    return _guess(launch, "reduce", _GUESSED_PER_THREAD, _first_type(name))


def _batch_norm_last(launch: Launch, name: str) -> Traffic:
    return _guess(launch, "reduce", 170, _first_type(name))  # a grid of bounded size goes over all of it


def _softmax_warp(launch: Launch, name: str) -> Traffic:
    """Softmax by warps. One warp holds a row of at most 2^k elements, and a shorter row is padded to that."""
    power = re.search(r"softmax_warp_\w+<.*?, (\d+), ", name)
    row = 1 << int(power[1]) if power else 1024
    rows = launch.blocks * (launch.threads // 32) * (2 if row <= 128 else 1)
    passes = 3 if "backward" in name else 2
    return Traffic("softmax", rows * row * _first_type(name) * passes, rows * row, exact=False)


def _rows(family: str, row: int, passes: int) -> Callable[[Launch, str], Traffic]:
    def rule(launch: Launch, name: str) -> Traffic:
        elements = launch.blocks * row
        return Traffic(family, elements * passes * _first_type(name), elements, exact=False)

    return rule


def _move(launch: Launch, name: str) -> Traffic:
    opaque = _OPAQUE.search(name)
    size = int(opaque[1]) if opaque else _first_type(name)
    return _guess(launch, "move", 32, 2 * size)


def _chunk_cat(launch: Launch, _: str) -> Traffic:
    return _guess(launch, "move", 4, 6)  # bf16 gradients go into an fp32 buffer, four for each thread


def _split_copy(launch: Launch, _: str) -> Traffic:
    return _guess(launch, "split", 416, 4)  # FSDP's copy-out: few blocks that each go a long way


def _triton(launch: Launch, name: str) -> Traffic:
    if launch.n >= 0:
        return Traffic("triton", launch.n * 8, launch.n, exact=False)
    if "_red_" in name or "_per_" in name:
        return Traffic("triton", launch.blocks * _GUESSED_ROW * 6, launch.blocks * _GUESSED_ROW, exact=False)
    return _guess(launch, "triton", 8, 6)


def _matrix(launch: Launch, _: str) -> Traffic:
    """A GEMM kernel that was launched by name, such as torch's own from CUTLASS and Triton. Each block makes a tile of
    the output, and k is long.
    """
    return Traffic("matrix", launch.blocks * 128 * 64 * 2 * 16, launch.blocks * 128 * 128, exact=False)


def _guess(launch: Launch, family: str, elements_per_thread: int, bytes_per_element: int) -> Traffic:
    elements = launch.blocks * launch.threads * elements_per_thread
    return Traffic(family, elements * bytes_per_element, elements, exact=False)


def _first_type(name: str) -> int:
    found = _TYPE.search(name)
    return _BYTES[found[1]] if found else 4


_RULES: list[tuple[re.Pattern[str], Callable[[Launch, str], Traffic]]] = [
    (re.compile(r"multi_tensor_apply_kernel"), _multi_tensor),
    (re.compile(r"(?:^|\s|_)(?:vectorized_|unrolled_)?elementwise_kernel(?:<|_with_index)"), _elementwise),
    (re.compile(r"^triton_|^_?\w*_triton_"), _triton),
    (re.compile(r"softmax_warp_"), _softmax_warp),
    (re.compile(r"SoftMaxForward"), _rows("softmax", 16 * _GUESSED_ROW, 2)),
    (re.compile(r"SoftMaxBackward"), _rows("softmax", 16 * _GUESSED_ROW, 3)),
    (re.compile(r"(?:layer|rms|group)_?norm\w*(?:grad|[Bb]ackward)", re.IGNORECASE), _rows("norm", _GUESSED_ROW, 3)),
    (re.compile(r"(?:layer|rms|group)_?norm", re.IGNORECASE), _rows("norm", _GUESSED_ROW, 2)),
    (re.compile(r"batch_norm\w*channels_last"), _batch_norm_last),
    (re.compile(r"batch_?norm|GammaBeta|reduce_kernel|reduce_1Block|scan|Scan", re.IGNORECASE), _reduce),
    (re.compile(r"chunk_cat"), _chunk_cat),
    (re.compile(r"split_with_sizes"), _split_copy),
    (re.compile(r"CatArrayBatchedCopy|transpose|copy"), _move),
    (re.compile(r"gather_kernel|indexSelect|embedding|index_elementwise"), _rows("index", _GUESSED_ROW, 2)),
    (re.compile(r"gemm|gemv|cutlass|nvjet", re.IGNORECASE), _matrix),
]
