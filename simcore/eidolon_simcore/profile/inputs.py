"""Inputs of the cases of the operator set, and cases of an operator with its gradient."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch

from .measure import Case

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32", torch.float8_e4m3fn: "fp8"}
_POOL: dict[torch.dtype, torch.Tensor] = {}
_POOL_BYTES = 4 << 30


def randn(*shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> torch.Tensor:
    """Random normal values. They are a part of a pool that is made once, so that inputs cost no time."""
    count = math.prod(shape)
    pool = _POOL.get(dtype)
    if pool is None or pool.numel() < count:
        size = max(count, min(_POOL_BYTES, torch.cuda.mem_get_info()[0] // 16) // dtype.itemsize)
        _POOL[dtype] = pool = torch.randn(size, dtype=dtype, device="cuda")
    begin = random.randrange(0, (pool.numel() - count) // 512 + 1) * 512
    tensor = pool[begin : begin + count].view(shape)
    return tensor.clone().requires_grad_() if grad else tensor


def both(op: str, facts: dict[str, Any], make: Callable[[], tuple[Callable[[], torch.Tensor], list[Any]]]) -> Case:
    """A case for the forward pass of an operator and one for its backward pass."""

    def build() -> Callable[[], Any]:
        forward, wanted = make()
        gradient = torch.ones_like(forward()) if facts.get("scalar") else None
        if gradient is None:
            like = forward()
            gradient = randn(*like.shape, dtype=like.dtype)
        return lambda: torch.autograd.grad(forward(), wanted, gradient)

    return Case(facts.pop("family"), op, facts, build)
