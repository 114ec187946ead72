"""Measures what operators cost on the host: the time of a call that only issues work on small tensors.

The device does almost nothing, and its queue is emptied often, so the time between calls is the host's own. PyTorch's
operators, autograd's nodes and the launch are all in it, as they are in a training step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .inputs import BF16, FP32, randn

CALLS, ROUNDS = 100, 7


def works() -> dict[str, Callable[[], Any]]:
    """Operators on tensors of a few thousand elements."""
    x, y, w = randn(64, 64), randn(64, 64), randn(64, 64)
    xf = randn(64, 64, dtype=FP32)
    g = randn(64, 64, grad=True)
    wg, vg = randn(64, 64, grad=True), randn(64, grad=True)
    q = randn(1, 2, 128, 64)
    qg = randn(1, 2, 128, 64, grad=True)
    layer = torch.nn.Linear(64, 64, dtype=BF16, device="cuda")
    image = randn(2, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    kernel = randn(16, 16, 3, 3).contiguous(memory_format=torch.channels_last)
    parameters = [torch.nn.Parameter(randn(64, 64).clone()) for _ in range(20)]
    for p in parameters:
        p.grad = randn(64, 64)
    index = torch.randint(0, 64, (64,), device="cuda")
    event, stream = torch.cuda.Event(), torch.cuda.Stream()

    def autocast_linear() -> Any:
        with torch.autocast("cuda", BF16):
            return F.linear(xf, xf)

    return {
        "empty": lambda: torch.empty(64, 64, device="cuda"),
        "view": lambda: x.view(-1),
        "transpose": lambda: x.t(),
        "add": lambda: x + y,
        "add_out": lambda: torch.add(x, y, out=w),
        "mul_scalar": lambda: x * 2.0,
        "to_float": lambda: x.float(),
        "mm": lambda: x @ y,
        "addmm": lambda: torch.addmm(vg.detach(), x, y),
        "bmm": lambda: torch.bmm(q[0], q[0].transpose(1, 2)),
        "linear": lambda: layer(x),
        "autocast_linear": autocast_linear,
        "silu": lambda: F.silu(x),
        "softmax": lambda: F.softmax(x, -1),
        "layer_norm": lambda: F.layer_norm(x, (64,)),
        "rms_norm": lambda: F.rms_norm(x, (64,)),
        "sum": lambda: x.sum(),
        "cat": lambda: torch.cat((x, y)),
        "index": lambda: x[index],
        "embedding": lambda: F.embedding(index, x),
        "sdpa": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "conv2d": lambda: F.conv2d(image, kernel, None, 1, 1),
        "cross_entropy": lambda: F.cross_entropy(xf, index),
        "foreach_mul": lambda: torch._foreach_mul([p.detach() for p in parameters], 1.0),
        "event_record": event.record,
        "stream_wait": lambda: stream.wait_event(event),
        "add_both": lambda: torch.autograd.grad(g + y, g, x),
        "mul_both": lambda: torch.autograd.grad(g * y, g, x),
        "linear_both": lambda: torch.autograd.grad(F.linear(g, wg), (g, wg), x),
        "silu_both": lambda: torch.autograd.grad(F.silu(g), g, x),
        "layer_norm_both": lambda: torch.autograd.grad(F.layer_norm(g, (64,), vg, vg), (g, vg), x),
        "sdpa_both": lambda: torch.autograd.grad(F.scaled_dot_product_attention(qg, qg, qg), qg, q),
        "adamw_foreach": torch.optim.AdamW(parameters, lr=0.0).step,
        "adamw_fused": torch.optim.AdamW(parameters, lr=0.0, fused=True).step,
    }


def measure() -> Iterator[dict[str, Any]]:
    """One row for each operator, with the median and least nanoseconds of a call over some rounds."""
    for name, work in works().items():
        for _ in range(5):
            work()
        times = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                work()
            times.append((time.perf_counter_ns() - begin) / CALLS)
        yield {"operator": name, "median_ns": statistics.median(times), "least_ns": min(times)}
