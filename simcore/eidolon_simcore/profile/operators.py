"""The operator set: what training steps consist of, over the sizes that they use. The most valuable cases come first.

``facts`` of a case are what its cost depends on; they become columns of the table.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Container
from typing import Any

import torch

from . import gemms, layers, moves
from .inputs import BF16, FP32, NAMES, randn
from .measure import Case


def operator_set(quick: bool = False, families: Container[str] = ()) -> list[Case]:
    """All cases, or those of some families. ``quick`` takes a thirtieth of them, for trying them out."""
    random.seed(8)
    cases: list[Case] = []
    first = (gemms.gemms, layers.attention, layers.norms, moves.elementwise, layers.losses, layers.convolutions)
    for part in (*first, _optimizers, moves.moves, gemms.more_gemms, layers.pools, moves.copies):
        cases += part()
    if families:
        cases = [case for case in cases if case.family in families]
    return cases[::30] if quick else cases


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
