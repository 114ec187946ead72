"""GEMMs of the operator set.

They are named as PyTorch sees them, row-major: (m, k) x (k, n). The ``layout`` is ``tn`` for the forward pass of a
linear layer (whose weight is n x k), ``nn`` for the gradient of the input, and ``nt`` for that of the weight.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .inputs import BF16, FP16, FP32, NAMES, randn
from .measure import Case


def _gemm(layout: str, m: int, n: int, k: int, dtype: torch.dtype, *, bias: bool = False, tf32: bool = False) -> Case:
    def make() -> Callable[[], Any]:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a = randn(k, m, dtype=dtype).t() if layout == "nt" else randn(m, k, dtype=dtype)
        b = randn(n, k, dtype=dtype).t() if layout == "tn" else randn(k, n, dtype=dtype)
        out = torch.empty(m, n, dtype=dtype, device="cuda")
        if bias:
            c = randn(n, dtype=dtype)
            return lambda: torch.addmm(c, a, b)
        return lambda: torch.mm(a, b, out=out)

    name = "tf32" if tf32 else NAMES[dtype]
    return Case("gemm", "addmm" if bias else "mm", dict(layout=layout, m=m, n=n, k=k, batch=1, dtype=name), make)


#: (hidden, feed-forward, qkv width, vocabulary)
MODELS = (
    (768, 3072, 2304, 50257),
    (768, 3072, 768, 50304),
    (1024, 4096, 1024, 30522),
    (1024, 3584, 512, 32000),
    (1280, 5120, 3840, 50257),
    (1600, 6400, 4800, 50257),
    (2048, 5632, 2048, 32000),
    (2048, 8192, 512, 128256),
    (2560, 10240, 2560, 32000),
    (3072, 8192, 1024, 128256),
    (4096, 11008, 4096, 32000),
    (4096, 14336, 1024, 128256),
    (4096, 14336, 6144, 50304),
    (5120, 13824, 5120, 32000),
    (8192, 28672, 1024, 32000),
)


def _model_gemms(rows: tuple[int, ...], dtype: torch.dtype, limit: float, **options: Any) -> Iterator[Case]:
    for (hidden, wide, qkv, vocabulary), m in itertools.product(MODELS, rows):
        for n, k in ((hidden, hidden), (qkv, hidden), (wide, hidden), (hidden, wide), (vocabulary, hidden)):
            if m * n > 1 << 30 or 2.0 * m * n * k > limit:
                continue
            yield _gemm("tn", m, n, k, dtype, **options)
            yield _gemm("nn", m, k, n, dtype, **options)
            yield _gemm("nt", n, k, m, dtype, **options)


def _random_gemms(count: int, dtype: torch.dtype, limit: float, **options: Any) -> Iterator[Case]:
    made = 0
    while made < count:
        step = random.choice((8, 64, 64, 128, 256))
        m, n, k = (max(step, round(2 ** random.uniform(5, 15) / step) * step) for _ in range(3))
        if 1e7 < 2.0 * m * n * k < limit and m * n < 1 << 29:
            made += 1
            yield _gemm(random.choice(("tn", "nn", "nt")), m, n, k, dtype, **options)


def gemms() -> list[Case]:
    """Linear layers of models with both gradients, and products of random sizes."""
    cases = list(_model_gemms((2048, 4096, 8192), BF16, 4e12))
    cases += _random_gemms(500, BF16, 2e12)
    cases += _model_gemms((512, 1024), BF16, 2e12)
    cases += _model_gemms((16384,), BF16, 4e12)
    cases += _random_gemms(100, FP32, 1e11)
    cases += (c for c in _model_gemms((1024, 4096), FP32, 6e11) if random.random() < 0.35)
    return cases


def more_gemms() -> list[Case]:
    """Products with a bias, of other types, in batches and groups, and with operands not aligned to 16 bytes."""
    cases = [
        _gemm("tn", m, n, k, BF16, bias=True)
        for (h, f, q, _), m in itertools.product(MODELS[:8], (1024, 4096, 8192, 16384))
        for n, k in ((h, h), (q, h), (f, h), (h, f))
    ]
    cases += _random_gemms(80, FP16, 2e12)
    cases += _random_gemms(80, FP32, 1e12, tf32=True)
    for b, h, s, d in itertools.product((2, 8), (12, 16, 32), (256, 512, 1024, 2048), (64, 128)):
        if b * h * s * s <= 1 << 29:
            cases += [_bmm(b * h, s, s, d, BF16), _bmm(b * h, s, d, s, BF16), _bmm(b * h, s, s, d, FP32)]
    cases += [_fp8(m, n, k) for m in (1024, 4096, 16384) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336))]
    cases += [
        _grouped(g, m, n, k) for g in (4, 8, 16, 64) for m in (4096, 16384) for n, k in ((2048, 1408), (7168, 2048))
    ]
    # operands that are not aligned to 16 bytes
    for n, m in itertools.product((30521, 32001, 50257, 50258, 50260), (1024, 2048, 4096)):
        for h in (768, 1024, 1600):
            cases += [_gemm("tn", m, n, h, BF16), _gemm("nn", m, h, n, BF16), _gemm("nt", n, h, m, BF16)]
    return cases


def _bmm(batch: int, m: int, n: int, k: int, dtype: torch.dtype) -> Case:
    def make() -> Callable[[], Any]:
        torch.backends.cuda.matmul.allow_tf32 = False
        a, b = randn(batch, m, k, dtype=dtype), randn(batch, k, n, dtype=dtype)
        return lambda: torch.bmm(a, b)

    return Case("gemm", "bmm", dict(layout="nn", m=m, n=n, k=k, batch=batch, dtype=NAMES[dtype]), make)


def _fp8(m: int, n: int, k: int) -> Case:
    def make() -> Callable[[], Any]:
        a = randn(m, k).to(torch.float8_e4m3fn)
        b = randn(n, k).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=BF16)

    return Case("gemm", "_scaled_mm", dict(layout="tn", m=m, n=n, k=k, batch=1, dtype="fp8"), make)


def _grouped(groups: int, m: int, n: int, k: int) -> Case:
    def make() -> Callable[[], Any]:
        a, b = randn(m, k), randn(groups, k, n)
        ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * (m // groups)
        return lambda: torch._grouped_mm(a, b, offs=ends)

    facts = dict(layout="nn", m=m, n=n, k=k, batch=1, groups=groups, dtype="bf16")
    return Case("grouped", "_grouped_mm", facts, make)
