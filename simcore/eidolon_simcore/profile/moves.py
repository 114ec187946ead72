"""Kernels of the operator set that are bound by memory: elementwise work, moves of data, copies and sets."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .inputs import BF16, FP16, FP32, NAMES, both, randn
from .measure import Case

SIZES = tuple(2**p for p in (10, 14, 17, 19, 20, 21, 22, 23, 24, 25, 26, 28))
_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul_scalar": lambda x: x * 1.5,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
    "pow": lambda x: x.pow(2),
    "pow3": lambda x: x.pow(3.0),
    "neg": torch.neg,
    "rsqrt": torch.rsqrt,
    "clone": torch.clone,
    "fill": lambda x: x.fill_(1.0),
    "cos": torch.cos,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "isfinite": torch.isfinite,
    "sum": torch.sum,
    "mean_rows": lambda x: x.view(-1, 1024).mean(-1),
    "sum_columns": lambda x: x.view(-1, 1024).sum(0),
    "argmax": lambda x: x.view(-1, 1024).argmax(-1),
}
_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "add_": lambda x, y: x.add_(y),
    "threshold_backward": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.0),
    "gelu_backward": torch.ops.aten.gelu_backward,
    "silu_backward": torch.ops.aten.silu_backward,
    "tanh_backward": torch.ops.aten.tanh_backward,
}


def elementwise() -> list[Case]:
    """Elementwise kernels, casts and reductions, by number of elements."""
    return [*_of_one_type(), *_casts(), *_of_mixed_types(), *_broadcasts()]


def _of_one_type() -> list[Case]:
    cases = []
    for dtype in (BF16, FP32):
        for n in SIZES:
            for name, one in _UNARY.items():
                if (n > 1 << 26 and name not in ("mul_scalar", "sum", "clone")) or (n == SIZES[-1] and dtype == FP32):
                    continue

                def make1(
                    one: Callable[[torch.Tensor], torch.Tensor] = one, n: int = n, dtype: torch.dtype = dtype
                ) -> Any:
                    x = randn(n, dtype=dtype).clone()
                    return lambda: one(x)

                cases.append(Case("elementwise", name, dict(n=n, dtype=NAMES[dtype]), make1))
            for name, two in _BINARY.items():
                if n > 1 << 26 and name != "add":
                    continue

                def make2(
                    two: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = two,
                    n: int = n,
                    dtype: torch.dtype = dtype,
                ) -> Any:
                    x, y = randn(n, dtype=dtype).clone(), randn(n, dtype=dtype)
                    return lambda: two(x, y)

                cases.append(Case("elementwise", name, dict(n=n, dtype=NAMES[dtype]), make2))
    return cases


def _casts() -> list[Case]:
    cases = []
    for source, target in ((FP32, BF16), (BF16, FP32), (FP32, FP16), (FP16, FP32)):
        for n in SIZES[:-1]:

            def cast(source: torch.dtype = source, target: torch.dtype = target, n: int = n) -> Any:
                x = randn(n, dtype=source)
                return lambda: x.to(target)

            cases.append(Case("elementwise", "cast", dict(n=n, dtype=f"{NAMES[source]}-{NAMES[target]}"), cast))
    return cases


def _of_mixed_types() -> list[Case]:
    cases = []
    for n, kind in itertools.product(SIZES[3:-1], ("add", "mul", "add_")):

        def mixed(n: int = n, kind: str = kind) -> Any:
            x, y = randn(n, dtype=FP32).clone(), randn(n)
            operation: Any = {"add": torch.add, "mul": torch.mul, "add_": torch.Tensor.add_}[kind]
            return lambda: operation(x, y)

        cases.append(Case("elementwise", f"{kind}_mixed", dict(n=n, dtype="fp32-bf16"), mixed))
    return cases


def _broadcasts() -> list[Case]:
    cases = []
    for n, columns in itertools.product(SIZES[3:-1], (128, 1024, 4096)):

        def rows(n: int = n, columns: int = columns) -> Any:
            x, y = randn(n // columns, columns), randn(n // columns, 1, dtype=FP32)
            return lambda: x * y

        def column(n: int = n, columns: int = columns) -> Any:
            x, y = randn(n // columns, columns), randn(columns)
            return lambda: x * y

        cases.append(Case("elementwise", "mul_rows", dict(n=n, columns=columns, dtype="bf16"), rows))
        cases.append(Case("elementwise", "mul_columns", dict(n=n, columns=columns, dtype="bf16"), column))
    return cases


def moves() -> list[Case]:
    """Copies, transposes, concatenations, indexing, dropout, sorting."""
    return [*_rearranged(), *_embeddings(), *_shards()]


def _rearranged() -> list[Case]:
    cases = []
    for n, dtype in itertools.product(SIZES[2:-1], (BF16, FP32)):
        width = 1024

        def x(n: int = n, dtype: torch.dtype = dtype) -> torch.Tensor:
            return randn(n // 1024, 1024, dtype=dtype)

        def heads(n: int = n, dtype: torch.dtype = dtype) -> torch.Tensor:
            return randn(max(1, n // (16 * 128 * 128)), min(128, n // 2048), 16, 128, dtype=dtype).transpose(1, 2)

        works: dict[str, Callable[..., Callable[[], Any]]] = {
            "copy": lambda x=x: (lambda a, b: lambda: b.copy_(a))(x(), torch.empty_like(x())),
            "transpose": lambda x=x: (lambda a: lambda: a.t().contiguous())(x()),
            "heads": lambda heads=heads: (lambda a: lambda: a.contiguous())(heads()),
            "cat": lambda x=x: (lambda a: lambda: torch.cat((a, a), -1))(x()),
            "cat0": lambda x=x: (lambda a: lambda: torch.cat((a, a), 0))(x()),
            "rotate_neg": lambda x=x: (lambda a: lambda: torch.cat((-a[:, 512:], a[:, :512]), -1))(x()),
            "dropout": lambda x=x: (lambda a: lambda: F.dropout(a, 0.1, True))(x()),
            "gather_rows": lambda x=x: (lambda a, i: lambda: a[i])(
                x(), torch.randint(0, x().shape[0], (x().shape[0],), device="cuda")
            ),
            "index_add": lambda x=x: (lambda a, b, i: lambda: b.index_add_(0, i, a))(
                x(), x().clone(), torch.randint(0, x().shape[0], (x().shape[0],), device="cuda")
            ),
            "sort": lambda x=x: (lambda a: lambda: a.sort(-1))(x()),
            "topk": lambda x=x: (lambda a: lambda: a.topk(8, -1))(x()),
            "cumsum": lambda x=x: (lambda a: lambda: a.cumsum(-1))(x()),
            "masked_fill": lambda x=x: (lambda a, m: lambda: a.masked_fill(m, 0.0))(x(), x() > 0),
            "where": lambda x=x: (lambda a, m: lambda: torch.where(m, a, 0.0))(x(), x() > 0),
            "roll": lambda x=x: (lambda a: lambda: a.roll(1, 0))(x()),
            "slice_copy": lambda x=x: (lambda a: lambda: a[:, ::2].contiguous())(x()),
        }
        for name, make in works.items():
            if n > 1 << 24 and name in ("sort", "index_add", "topk", "cumsum"):
                continue
            cases.append(Case("move", name, dict(n=n, columns=width, dtype=NAMES[dtype]), make))
    return cases


def _embeddings() -> list[Case]:
    cases = []
    for rows, columns, vocabulary in itertools.product((1024, 4096, 16384), (768, 2048, 4096), (1000, 32000, 128256)):

        def embed(rows: int = rows, columns: int = columns, vocabulary: int = vocabulary) -> Any:
            w = randn(vocabulary, columns, grad=True)
            index = torch.randint(0, vocabulary, (rows,), device="cuda")
            return lambda: F.embedding(index, w), [w]

        facts = dict(rows=rows, columns=columns, vocabulary=vocabulary, dtype="bf16", family="index")
        cases.append(both("embedding", facts, embed))
    return cases


def _shards() -> list[Case]:
    """What FSDP does around its collectives."""
    cases = []
    for ranks, n in itertools.product((2, 4, 8), (2**20, 2**23, 2**25, 2**27)):

        def split(ranks: int = ranks, n: int = n) -> Callable[[], Any]:
            whole = randn(ranks, n // ranks)
            sizes = [n // ranks // 4] * 4
            outs = [torch.empty(ranks, size, dtype=BF16, device="cuda") for size in sizes]
            return lambda: torch.split_with_sizes_copy(whole, sizes, dim=1, out=outs)

        def chunk(ranks: int = ranks, n: int = n, dtype: torch.dtype = FP32) -> Callable[[], Any]:
            parts = [randn(n // 4096 // 4, 4096) for _ in range(4)]
            out = torch.empty(ranks, n // ranks, dtype=dtype, device="cuda")
            return lambda: torch._chunk_cat(parts, 0, ranks, out=out)

        cases.append(Case("move", "split_with_sizes_copy", dict(n=n, ranks=ranks, dtype="bf16"), split))
        cases.append(Case("move", "_chunk_cat", dict(n=n, ranks=ranks, dtype="bf16-fp32"), chunk))
        same = lambda chunk=chunk: chunk(dtype=BF16)  # noqa: E731
        cases.append(Case("move", "_chunk_cat", dict(n=n, ranks=ranks, dtype="bf16"), same))
    return cases


# ---- copies and sets -----------------------------------------------------------------------------------------------

OCTAVES = (4, 64, 256, *(2**p for p in range(10, 31)))  #: bytes
#: There are three sizes in an octave where the time depends on the bytes. Parts of an octave are whole cache lines.
THIRDS = (*OCTAVES[:9], *(round(2 ** (16 + i / 3) / 512) * 512 for i in range(43)))


def copies() -> list[Case]:
    """Work of the copy engines and of the driver's own kernels, each of which is one ``cudaMemcpyAsync`` or
    ``cudaMemsetAsync``.
    """
    cases = [Case("copy", "d2d", dict(bytes=n, pinned=0), partial(_copy, "cuda", "cuda", n)) for n in THIRDS]
    for n, pinned in itertools.product(OCTAVES, (True, False)):
        facts = dict(bytes=n, pinned=int(pinned))
        cases.append(Case("copy", "h2d", facts, partial(_copy, "cpu", "cuda", n, pinned)))
        cases.append(Case("copy", "d2h", facts, partial(_copy, "cuda", "cpu", n, pinned)))
    return cases + [Case("set", "set", dict(bytes=n), partial(_set, n)) for n in OCTAVES]


def _copy(source: str, target: str, n: int, pinned: bool = False) -> Callable[[], Any]:
    """``copy_`` of contiguous bytes. All pages are written first, as the system gives them out at the first touch."""
    a, b = (
        torch.ones(n, dtype=torch.uint8, device=place, pin_memory=pinned and place == "cpu")
        for place in (source, target)
    )
    return lambda: b.copy_(a, non_blocking=pinned)


def _set(n: int) -> Callable[[], None]:
    """A set by the driver, as libraries call it. PyTorch's own ``zero_`` is a kernel."""
    memory = torch.ones(n, dtype=torch.uint8, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")

    def work() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        result = driver.cuMemsetD8Async(ctypes.c_uint64(memory.data_ptr()), 0, ctypes.c_size_t(n), stream)
        if result:
            raise RuntimeError(f"cuMemsetD8Async: error {result}")

    return work
