"""The operator set: what training steps consist of, over the sizes that they use. In order of value.

``facts`` of a case are what its cost depends on; they become columns of the table. GEMMs are named as PyTorch sees
them, row-major: (m, k) x (k, n), with ``layout`` ``tn`` (forward of a linear layer: weight n x k), ``nn`` (gradient
of the input) and ``nt`` (gradient of the weight).
"""

from __future__ import annotations

import ctypes
import itertools
import math
import random
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .measure import Case

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32", torch.float8_e4m3fn: "fp8"}
_POOL: dict[torch.dtype, torch.Tensor] = {}
_POOL_BYTES = 4 << 30


def randn(*shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> torch.Tensor:
    """Random normal values: part of a pool made once, so that inputs cost no time."""
    count = math.prod(shape)
    pool = _POOL.get(dtype)
    if pool is None or pool.numel() < count:
        size = max(count, min(_POOL_BYTES, torch.cuda.mem_get_info()[0] // 16) // dtype.itemsize)
        _POOL[dtype] = pool = torch.randn(size, dtype=dtype, device="cuda")
    begin = random.randrange(0, (pool.numel() - count) // 512 + 1) * 512
    tensor = pool[begin : begin + count].view(shape)
    return tensor.clone().requires_grad_() if grad else tensor


def operator_set(quick: bool = False, families: Container[str] = ()) -> list[Case]:
    """All cases, or those of some families; ``quick`` takes a thirtieth of them, for trying them out."""
    random.seed(8)
    cases: list[Case] = []
    parts = (_gemms, _attention, _norms, _bytes, _loss, _convolutions, _optimizers, _moves, _more_gemms, _rest)
    for part in (*parts, _copies):
        cases += part()
    if families:
        cases = [case for case in cases if case.family in families]
    return cases[::30] if quick else cases


# ---- GEMM ----------------------------------------------------------------------------------------------------------


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


def _gemms() -> list[Case]:
    cases = list(_model_gemms((2048, 4096, 8192), BF16, 4e12))
    cases += _random_gemms(500, BF16, 2e12)
    cases += _model_gemms((512, 1024), BF16, 2e12)
    cases += _model_gemms((16384,), BF16, 4e12)
    cases += _random_gemms(100, FP32, 1e11)
    cases += (c for c in _model_gemms((1024, 4096), FP32, 6e11) if random.random() < 0.35)
    return cases


def _more_gemms() -> list[Case]:
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


# ---- attention -----------------------------------------------------------------------------------------------------


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


def _attention() -> list[Case]:
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


# ---- kernels bound by memory ---------------------------------------------------------------------------------------

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


def _both(op: str, facts: dict[str, Any], make: Callable[[], tuple[Callable[[], torch.Tensor], list[Any]]]) -> Case:
    """Forward and backward of an operator."""

    def build() -> Callable[[], Any]:
        forward, wanted = make()
        gradient = torch.ones_like(forward()) if facts.get("scalar") else None
        if gradient is None:
            like = forward()
            gradient = randn(*like.shape, dtype=like.dtype)
        return lambda: torch.autograd.grad(forward(), wanted, gradient)

    return Case(facts.pop("family"), op, facts, build)


def _norms() -> list[Case]:
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
        cases += [_both("layer_norm", dict(facts), layer), _both("rms_norm", dict(facts), rms)]

        def batch(rows: int = rows, columns: int = columns, dtype: torch.dtype = dtype) -> Any:
            side = max(1, math.isqrt(max(1, rows // 64)))
            x = randn(64, columns, side, side, dtype=dtype).contiguous(memory_format=torch.channels_last)
            x = x.requires_grad_()
            w, b = (randn(columns, dtype=FP32, grad=True) for _ in range(2))
            mean, var = torch.zeros(columns, device="cuda"), torch.ones(columns, device="cuda")
            return lambda: F.batch_norm(x, mean, var, w, b, True), [x, w, b]

        if columns in (256, 1024, 2048) or rows == 32768:
            cases.append(_both("batch_norm", dict(facts), batch))
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
        cases.append(_both("batch_norm", shape, image))
    return cases


SIZES = tuple(2**p for p in (10, 14, 17, 19, 20, 21, 22, 23, 24, 25, 26, 28))


def _bytes() -> list[Case]:
    """Elementwise kernels, casts, reductions, by number of elements."""
    cases = []
    unary: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
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
    binary: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "add": torch.add,
        "mul": torch.mul,
        "add_": lambda x, y: x.add_(y),
        "threshold_backward": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.0),
        "gelu_backward": torch.ops.aten.gelu_backward,
        "silu_backward": torch.ops.aten.silu_backward,
        "tanh_backward": torch.ops.aten.tanh_backward,
    }
    for dtype in (BF16, FP32):
        for n in SIZES:
            for name, one in unary.items():
                if (n > 1 << 26 and name not in ("mul_scalar", "sum", "clone")) or (n == SIZES[-1] and dtype == FP32):
                    continue

                def make1(
                    one: Callable[[torch.Tensor], torch.Tensor] = one, n: int = n, dtype: torch.dtype = dtype
                ) -> Any:
                    x = randn(n, dtype=dtype).clone()
                    return lambda: one(x)

                cases.append(Case("elementwise", name, dict(n=n, dtype=NAMES[dtype]), make1))
            for name, two in binary.items():
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
    for source, target in ((FP32, BF16), (BF16, FP32), (FP32, FP16), (FP16, FP32)):
        for n in SIZES[:-1]:

            def cast(source: torch.dtype = source, target: torch.dtype = target, n: int = n) -> Any:
                x = randn(n, dtype=source)
                return lambda: x.to(target)

            cases.append(Case("elementwise", "cast", dict(n=n, dtype=f"{NAMES[source]}-{NAMES[target]}"), cast))
    for n, kind in itertools.product(SIZES[3:-1], ("add", "mul", "add_")):

        def mixed(n: int = n, kind: str = kind) -> Any:
            x, y = randn(n, dtype=FP32).clone(), randn(n)
            operation: Any = {"add": torch.add, "mul": torch.mul, "add_": torch.Tensor.add_}[kind]
            return lambda: operation(x, y)

        cases.append(Case("elementwise", f"{kind}_mixed", dict(n=n, dtype="fp32-bf16"), mixed))
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


def _loss() -> list[Case]:
    cases = []
    for tokens, vocabulary in itertools.product((1024, 2048, 4096, 8192, 16384), (1000, 30522, 32000, 50257, 128256)):
        if tokens * vocabulary > 1 << 30:
            continue

        def make(tokens: int = tokens, vocabulary: int = vocabulary) -> Any:
            x = randn(tokens, vocabulary, dtype=FP32, grad=True)
            y = torch.randint(0, vocabulary, (tokens,), device="cuda")
            return lambda: F.cross_entropy(x, y), [x]

        facts = dict(rows=tokens, columns=vocabulary, dtype="fp32", family="softmax", scalar=1)
        cases.append(_both("cross_entropy", facts, make))
    for rows, columns, dtype in itertools.product((1024, 16384, 131072), (128, 512, 1024, 2048, 4096), (BF16, FP32)):
        if rows * columns > 1 << 28:
            continue

        def soft(rows: int = rows, columns: int = columns, dtype: torch.dtype = dtype) -> Any:
            x = randn(rows, columns, dtype=dtype, grad=True)
            return lambda: F.softmax(x, -1), [x]

        shape: dict[str, Any] = dict(rows=rows, columns=columns, dtype=NAMES[dtype], family="softmax")
        cases.append(_both("softmax", shape, soft))
    return cases


def _convolutions() -> list[Case]:
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
            cases.append(_both("conv2d", {**facts, "family": "conv"}, make))
    return cases


def _optimizers() -> list[Case]:
    cases = []
    shapes: dict[str, list[tuple[int, ...]]] = {
        "small": [(1024,)] * 200,
        "layers": [(4096, 4096)] * 4 + [(4096,)] * 8,
        "one": [(128256, 2048)],
    }
    shapes["mid"] = [(768, 3072)] * 24 + [(768,)] * 60
    for (name, sizes), dtype in itertools.product(shapes.items(), (BF16, FP32)):
        for kind in ("adamw_fused", "adamw_foreach", "sgd_foreach", "sgd_fused", "norm", "copy"):

            def make(sizes: list[Any] = sizes, dtype: torch.dtype = dtype, kind: str = kind) -> Callable[[], Any]:
                parameters = [torch.nn.Parameter(randn(*s, dtype=dtype).clone()) for s in sizes]
                for p in parameters:
                    p.grad = randn(*p.shape, dtype=dtype)
                fused = True if kind.endswith("fused") else None
                if kind.startswith("adamw"):
                    return torch.optim.AdamW(parameters, lr=1e-5, fused=fused).step
                if kind.startswith("sgd"):
                    return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9, fused=fused).step
                values = [p.detach() for p in parameters]
                if kind == "norm":
                    return lambda: torch._foreach_norm(values)
                targets = [torch.empty_like(v, dtype=FP32 if dtype == BF16 else BF16) for v in values]
                return lambda: torch._foreach_copy_(targets, values)

            elements = sum(math.prod(s) for s in sizes)
            cases.append(
                Case("optimizer", kind, dict(n=elements, tensors=len(sizes), list=name, dtype=NAMES[dtype]), make)
            )
    return cases


def _moves() -> list[Case]:
    """Copies, transposes, concatenations, indexing, dropout, sorting."""
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
    for rows, columns, vocabulary in itertools.product((1024, 4096, 16384), (768, 2048, 4096), (1000, 32000, 128256)):

        def embed(rows: int = rows, columns: int = columns, vocabulary: int = vocabulary) -> Any:
            w = randn(vocabulary, columns, grad=True)
            index = torch.randint(0, vocabulary, (rows,), device="cuda")
            return lambda: F.embedding(index, w), [w]

        facts = dict(rows=rows, columns=columns, vocabulary=vocabulary, dtype="bf16", family="index")
        cases.append(_both("embedding", facts, embed))
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


def _rest() -> list[Case]:
    cases = []
    for n, c, side in itertools.product((64, 128, 256), (64, 256), (56, 112)):

        def pool(n: int = n, c: int = c, side: int = side) -> Any:
            x = randn(n, c, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
            return lambda: F.max_pool2d(x, 3, 2, 1), [x]

        def mean(n: int = n, c: int = c, side: int = side) -> Any:
            x = randn(n, c, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
            return lambda: F.adaptive_avg_pool2d(x, 1), [x]

        facts: dict[str, Any] = dict(n=n, c=c, h=side, dtype="bf16", family="pool")
        cases += [_both("max_pool2d", dict(facts), pool), _both("avg_pool2d", dict(facts), mean)]
    return cases


# ---- copies and sets -----------------------------------------------------------------------------------------------

OCTAVES = (4, 64, 256, *(2**p for p in range(10, 31)))  #: bytes
#: Three an octave where the time depends on the bytes. Parts of an octave are whole cache lines.
THIRDS = (*OCTAVES[:9], *(round(2 ** (16 + i / 3) / 512) * 512 for i in range(43)))


def _copies() -> list[Case]:
    """What the copy engines and the driver's own kernels do: one ``cudaMemcpyAsync`` or ``cudaMemsetAsync`` each."""
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
    """PyTorch's own ``zero_`` is a kernel; libraries call the driver, and so does this."""
    memory = torch.ones(n, dtype=torch.uint8, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")

    def work() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        result = driver.cuMemsetD8Async(ctypes.c_uint64(memory.data_ptr()), 0, ctypes.c_size_t(n), stream)
        if result:
            raise RuntimeError(f"cuMemsetD8Async: error {result}")

    return work
