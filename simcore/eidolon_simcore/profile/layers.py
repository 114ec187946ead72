"""Layers of the operator set, each with forward and backward pass: attention, norms, losses, convolutions, pooling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .inputs import BF16, FP16, FP32, NAMES, both, randn
from .measure import Case


def _sdpa(b: int, h: int, kv: int, s: int, d: int, causal: bool, dtype: torch.dtype, backend: str) -> Case:
    def make() -> Callable[[], Any]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        kind = dict(
            cudnn=SDPBackend.CUDNN_ATTENTION,
            flash=SDPBackend.FLASH_ATTENTION,
            efficient=SDPBackend.EFFICIENT_ATTENTION,
        )[backend]
        q = randn(b, s, h, d, dtype=dtype, grad=True).transpose(1, 2)
        k, v = (randn(b, s, kv, d, dtype=dtype, grad=True).transpose(1, 2) for _ in range(2))
        gradient = randn(b, s, h, d, dtype=dtype).transpose(1, 2)

        def work() -> None:
            with sdpa_kernel(kind):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv != h)
            torch.autograd.grad(out, (q, k, v), gradient)

        return work

    facts = dict(b=b, h=h, kvh=kv, sq=s, skv=s, d=d, causal=int(causal), dtype=NAMES[dtype], backend=backend)
    return Case("attention", "sdpa", facts, make)


def attention() -> list[Case]:
    """Scaled dot-product attention, by backend."""
    cases = []
    for backend in ("cudnn", "flash", "efficient"):
        for s, d, tokens in itertools.product((128, 256, 512, 1024, 2048, 4096, 8192), (64, 128), (4096, 8192, 16384)):
            for h, kv in ((12, 12), (16, 16), (32, 8)) if d == 64 else ((16, 16), (32, 32), (32, 8)):
                for causal in (True, False):
                    if s > tokens or (backend != "cudnn" and (tokens != 8192 or h == 12)):
                        continue
                    if backend != "cudnn" and kv != h:  # torch repeats k and v there
                        continue
                    cases.append(_sdpa(tokens // s, h, kv, s, d, causal, BF16, backend))
    for s, d in itertools.product((512, 1024, 2048), (64, 128)):
        cases.append(_sdpa(8192 // s, 12, 12, s, d, True, FP32, "efficient"))
        cases.append(_sdpa(8192 // s, 16, 16, s, d, False, FP32, "efficient"))
    cases += [_sdpa(n, 16, 16, 197, 64, False, BF16, backend) for n in (16, 64, 128) for backend in ("cudnn", "flash")]
    return cases


ROWS: tuple[tuple[int, int], ...] = (
    (1024, 768),
    (8192, 768),
    (32768, 768),
    (8192, 1024),
    (4096, 2048),
    (16384, 2048),
    (2048, 4096),
    (8192, 4096),
)
ROWS += ((32768, 4096), (8192, 8192), (256, 1024), (65536, 256), (64 * 197, 1024), (8192, 1600))


def norms() -> list[Case]:
    """Layer, RMS and batch normalisation."""
    cases = []
    for (rows, columns), dtype in itertools.product(ROWS, (BF16, FP32)):

        def layer(rows: int = rows, columns: int = columns, dtype: torch.dtype = dtype) -> Any:
            x = randn(rows, columns, dtype=dtype, grad=True)
            w, b = randn(columns, dtype=dtype, grad=True), randn(columns, dtype=dtype, grad=True)
            return lambda: F.layer_norm(x, (columns,), w, b), [x, w, b]

        def rms(rows: int = rows, columns: int = columns, dtype: torch.dtype = dtype) -> Any:
            x, w = randn(rows, columns, dtype=dtype, grad=True), randn(columns, dtype=dtype, grad=True)
            return lambda: F.rms_norm(x, (columns,), w), [x, w]

        facts: dict[str, Any] = dict(rows=rows, columns=columns, dtype=NAMES[dtype], family="norm")
        cases += [both("layer_norm", dict(facts), layer), both("rms_norm", dict(facts), rms)]

        def batch(rows: int = rows, columns: int = columns, dtype: torch.dtype = dtype) -> Any:
            side = max(1, math.isqrt(max(1, rows // 64)))
            x = randn(64, columns, side, side, dtype=dtype).contiguous(memory_format=torch.channels_last)
            x = x.requires_grad_()
            w, b = (randn(columns, dtype=FP32, grad=True) for _ in range(2))
            mean, var = torch.zeros(columns, device="cuda"), torch.ones(columns, device="cuda")
            return lambda: F.batch_norm(x, mean, var, w, b, True), [x, w, b]

        if columns in (256, 1024, 2048) or rows == 32768:
            cases.append(both("batch_norm", dict(facts), batch))
    for channels, side, dtype in itertools.product((64, 128, 256, 512), (7, 14, 28, 56, 112), (BF16, FP32)):
        if channels * side * side > 64 * 112 * 112 * 2:
            continue

        def image(channels: int = channels, side: int = side, dtype: torch.dtype = dtype) -> Any:
            x = randn(128, channels, side, side, dtype=dtype).contiguous(memory_format=torch.channels_last)
            x = x.requires_grad_()
            w, b = (randn(channels, dtype=FP32, grad=True) for _ in range(2))
            mean, var = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
            return lambda: F.batch_norm(x, mean, var, w, b, True), [x, w, b]

        shape = dict(rows=128 * side * side, columns=channels, dtype=NAMES[dtype], family="norm")
        cases.append(both("batch_norm", shape, image))
    return cases


def losses() -> list[Case]:
    """Cross entropy and softmax."""
    cases = []
    for tokens, vocabulary in itertools.product((1024, 2048, 4096, 8192, 16384), (1000, 30522, 32000, 50257, 128256)):
        if tokens * vocabulary > 1 << 30:
            continue

        def make(tokens: int = tokens, vocabulary: int = vocabulary) -> Any:
            x = randn(tokens, vocabulary, dtype=FP32, grad=True)
            y = torch.randint(0, vocabulary, (tokens,), device="cuda")
            return lambda: F.cross_entropy(x, y), [x]

        facts = dict(rows=tokens, columns=vocabulary, dtype="fp32", family="softmax", scalar=1)
        cases.append(both("cross_entropy", facts, make))
    for rows, columns, dtype in itertools.product((1024, 16384, 131072), (128, 512, 1024, 2048, 4096), (BF16, FP32)):
        if rows * columns > 1 << 28:
            continue

        def soft(rows: int = rows, columns: int = columns, dtype: torch.dtype = dtype) -> Any:
            x = randn(rows, columns, dtype=dtype, grad=True)
            return lambda: F.softmax(x, -1), [x]

        shape: dict[str, Any] = dict(rows=rows, columns=columns, dtype=NAMES[dtype], family="softmax")
        cases.append(both("softmax", shape, soft))
    return cases


def convolutions() -> list[Case]:
    """Layers of ResNet and U-Net, and patches of vision transformers."""
    layers = [(3, 64, 7, 2, 224), (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56)]
    layers += [(256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 512, 1, 1, 28), (256, 512, 1, 2, 56)]
    layers += [(512, 128, 1, 1, 28), (128, 128, 3, 1, 28), (512, 256, 1, 1, 28), (256, 256, 3, 2, 28)]
    layers += [(256, 1024, 1, 1, 14), (512, 1024, 1, 2, 28), (1024, 256, 1, 1, 14), (256, 256, 3, 1, 14)]
    layers += [(1024, 512, 1, 1, 14), (512, 512, 3, 2, 14), (512, 2048, 1, 1, 7), (1024, 2048, 1, 2, 14)]
    layers += [
        (2048, 512, 1, 1, 7),
        (512, 512, 3, 1, 7),
        (64, 64, 3, 1, 112),
        (64, 128, 3, 2, 56),
        (128, 256, 3, 2, 28),
    ]
    layers += [(3, 768, 16, 16, 224), (3, 1024, 16, 16, 224), (3, 64, 3, 1, 224), (64, 128, 3, 1, 112)]
    cases = []
    for dtype, batches in ((BF16, (32, 64, 128, 256, 512)), (FP32, (32, 64, 128, 256)), (FP16, (128,))):
        for (c, k, r, stride, side), n, last in itertools.product(layers, batches, (True, False)):
            if not last and (n != 64 or dtype != BF16):
                continue
            if n * c * side * side > 1 << 29:
                continue

            def make(
                c: int = c,
                k: int = k,
                r: int = r,
                stride: int = stride,
                side: int = side,
                n: int = n,
                dtype: torch.dtype = dtype,
                last: bool = last,
            ) -> Any:
                layout = torch.channels_last if last else torch.contiguous_format
                x = randn(n, c, side, side, dtype=dtype).contiguous(memory_format=layout).requires_grad_(c != 3)
                w = randn(k, c, r, r, dtype=dtype).contiguous(memory_format=layout).requires_grad_()
                padding = 0 if r == stride else r // 2
                wanted = [x, w] if c != 3 else [w]
                return lambda: F.conv2d(x, w, None, stride, padding), wanted

            facts = dict(n=n, c=c, k=k, r=r, stride=stride, h=side, channels_last=int(last), dtype=NAMES[dtype])
            cases.append(both("conv2d", {**facts, "family": "conv"}, make))
    return cases


def pools() -> list[Case]:
    """Pooling of images."""
    cases = []
    for n, c, side in itertools.product((64, 128, 256), (64, 256), (56, 112)):

        def pool(n: int = n, c: int = c, side: int = side) -> Any:
            x = randn(n, c, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
            return lambda: F.max_pool2d(x, 3, 2, 1), [x]

        def mean(n: int = n, c: int = c, side: int = side) -> Any:
            x = randn(n, c, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
            return lambda: F.adaptive_avg_pool2d(x, 1), [x]

        facts: dict[str, Any] = dict(n=n, c=c, h=side, dtype="bf16", family="pool")
        cases += [both("max_pool2d", dict(facts), pool), both("avg_pool2d", dict(facts), mean)]
    return cases
