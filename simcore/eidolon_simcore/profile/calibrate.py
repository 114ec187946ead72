"""`eidolon calibrate host`: the host cost table of a machine with a GPU, for ``eidolon run --host-table``.

Small models do training steps, each in phases: forward, backward, clipping, optimizer. A phase is timed on the host
while the device has nothing else to do, and the median of many times counts. A phase is so small that the device's
queue never fills. Then the phase runs again and is counted (:mod:`.counting`): Python functions and operators by age,
launches, and library calls. Least squares of relative distances, without negative figures, give what each of them
costs.

An entered function stands for the code between this call and the next. Functions that do nothing took 0.3 us on the
host of an H200, however long ago they ran. With phases full of such functions the fit was off by 44 % on that machine,
and without them it is off by 23 %. So the models here have none but PyTorch's own.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from eidolon_simcore.costs import reference_load

from . import nnls, output
from .counting import FUNCTION_AGES, LAUNCHES, OPERATOR_AGES, Counter, idle

STEPS = 41  #: steps that are timed, of each model
WARM_STEPS = 5
#: What is fitted, in the order of :attr:`Phase.counts`.
FIGURES = (
    *("function.warm_ns", "function.cold_ns", "function.rare_ns", "function.far_ns"),
    *("operator.warm_ns", "operator.cold_ns", "operator.rare_ns", "operator.far_ns"),
    *("launch", "library"),  # copies and sets count as launches, since they are too few to be told apart
)
LAUNCH_CALLS = (
    *(*LAUNCHES, "__cudaLaunchKernel", "__cudaLaunchKernel_ptsz"),
    *("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"),
)
LIBRARY_CALLS = (
    *("cublasGemmEx", "cublasGemmBatchedEx", "cublasGemmStridedBatchedEx", "cublasSgemm_v2", "cublasHgemm"),
    *("cublasSgemmStridedBatched", "cublasDgemm_v2", "cublasLtMatmul", "cudnnBackendExecute"),
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a model's step, with what was counted and the median of its times on the host in nanoseconds."""

    name: str
    counts: tuple[int, ...]
    ns: float


# ---- models ----------------------------------------------------------------------------------------------------------


class Gpt(nn.Module):
    """A layer of few functions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        q, k, v = (t.view(b, s, -1, 32).transpose(1, 2) for t in self.qkv(self.norms[0](x)).split(width, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Scale(nn.Module):
    """A norm made of operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Llama(nn.Module):
    """A layer of many operators, such as views, a rotation, and a norm in parts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Scale(width) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))

    @staticmethod
    def _rotated(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * 0.5 + torch.cat((-second, first), -1) * 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        y = self.norms[0](x)
        q, k, v = (one(y).view(b, s, -1, 32).transpose(1, 2) for one in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self._rotated(q), self._rotated(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, width))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Wrapped(nn.Module):
    """A module around a module around a module, as frameworks have it."""

    def __init__(self, inner: nn.Module, depth: int) -> None:
        super().__init__()
        self.inner = Wrapped(inner, depth - 1) if depth > 1 else inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def _conv(width: int) -> nn.Module:
    parts: list[nn.Module] = []
    for _ in range(6):
        parts += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*parts)


def models(device: str) -> Iterator[tuple[str, nn.Module, torch.Tensor, Mapping[str, Any]]]:
    """The models, each as name, model, input, and options of its optimizer. All are bound by the host on any present
    GPU.
    """
    half = torch.bfloat16 if device == "cuda" else torch.float32
    text, image = (2, 32, 64), (2, 16, 8, 8)

    def stack(make: Callable[[], nn.Module], layers: int, shape: Sequence[int]) -> tuple[nn.Module, torch.Tensor]:
        model = nn.Sequential(*(make() for _ in range(layers))).to(device, half)
        return model, torch.randn(*shape, device=device, dtype=half, requires_grad=True)

    each, all_at_once = {"foreach": False}, {"foreach": True}
    fused = {"fused": True} if device == "cuda" else all_at_once
    yield "gpt-2", *stack(lambda: Gpt(64), 2, text), each
    yield "gpt-8", *stack(lambda: Gpt(64), 8, text), all_at_once
    yield "gpt-16", *stack(lambda: Gpt(64), 16, text), fused
    yield "llama-4", *stack(lambda: Llama(64), 4, text), fused
    yield "llama-12", *stack(lambda: Llama(64), 12, text), each
    yield "mlp-24", *stack(lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU()), 24, (8, 64)), all_at_once
    yield "conv", *stack(lambda: _conv(16), 2, image), each
    yield "wrapped", *stack(lambda: Wrapped(nn.Linear(64, 64), 40), 24, (8, 64)), fused


def phases_of(model: nn.Module, x: torch.Tensor, options: Mapping[str, Any]) -> dict[str, Callable[[], None]]:
    """The parts of a step, which follow one another."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
    kept: list[torch.Tensor] = []

    def forward() -> None:
        kept[:] = [model(x).float().pow(2).mean()]

    def clip() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return {
        "forward": forward,
        "backward": lambda: kept[0].backward(),
        "clip": clip,
        "optimizer": update,
    }


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(name: str, parts: Mapping[str, Callable[[], None]], steps: int = STEPS) -> list[Phase]:
    """Times the parts of a step, and then counts them. The step before each counted one only serves to count ages."""
    times: dict[str, list[int]] = {part: [] for part in parts}
    gc.collect()
    gc.disable()
    try:
        for step in range(WARM_STEPS + steps):
            for part, work in parts.items():
                idle()
                begin = time.perf_counter_ns()
                work()
                took = time.perf_counter_ns() - begin
                if step >= WARM_STEPS:
                    times[part].append(took)
        counter = Counter()
        counts: dict[str, tuple[int, ...]] = {}
        for _ in range(2):
            for part, work in parts.items():
                counter.during(work)
                counts[part] = counter.take()
    finally:
        gc.enable()
    return [Phase(f"{name} {part}", counts[part], statistics.median(times[part])) for part in parts]


def fit(phases: Sequence[Phase]) -> tuple[list[float], float]:
    """The nanoseconds of each of :data:`FIGURES`, and the mean relative distance of the phases from them."""
    rows = [[count / phase.ns for count in phase.counts] for phase in phases]
    found = nnls.solve(rows, [1.0] * len(rows))
    return found, statistics.fmean(abs(fitted(phase, found) / phase.ns - 1) for phase in phases)


def fitted(phase: Phase, figures: Sequence[float]) -> float:
    """The nanoseconds that a phase takes by the figures."""
    return math.fsum(count * ns for count, ns in zip(phase.counts, figures, strict=True))


# ---- the table -------------------------------------------------------------------------------------------------------


def table(phases: Sequence[Phase], provenance: Mapping[str, str], reference_ns: int) -> str:
    """The YAML of a host cost table. What it does not name costs what the table of the package says."""
    figures, distance = fit(phases)
    by_name = dict(zip(FIGURES, (round(ns) for ns in figures), strict=True))
    origin = {**provenance, "phases": str(len(phases)), "mean_distance": f"{distance:.3f}"}
    lines = ["# Host cost table, made by `eidolon calibrate host`: nanoseconds.", "provenance:"]
    lines += [f"  {key}: {json.dumps(value)}" for key, value in origin.items()]
    lines.append(f"reference_ns: {reference_ns} # CPU time of the load in eidolon_simcore/costs/reference_load.py")
    for kind, bounds in (("function", FUNCTION_AGES), ("operator", OPERATOR_AGES)):
        ages = dict(zip(("warm", "cold", "rare"), bounds, strict=True))
        times = {f"{age}_ns": by_name[f"{kind}.{age}_ns"] for age in (*ages, "far")}
        lines.append(f"{kind}: {{{', '.join(f'{key}: {value}' for key, value in (ages | times).items())}}}")
    lines.append("calls:")
    for figure, names in (("launch", LAUNCH_CALLS), ("library", LIBRARY_CALLS)):
        lines += [f"  {name}: {by_name[figure]}" for name in names]
    lines.append(f"# phase: measured us, fitted us, counts of {', '.join(FIGURES)}")
    lines += [
        f"#   {p.name}: {p.ns / 1e3:.0f} {fitted(p, figures) / 1e3:.0f} {' '.join(map(str, p.counts))}" for p in phases
    ]
    return "\n".join(lines) + "\n"


def run(out: Path, note: str, say: Callable[[str], None]) -> None:
    """Measures this machine and writes its table."""
    phases: list[Phase] = []
    for name, model, x, options in models("cuda"):
        phases += measure(name, phases_of(model, x, options))
        say(f"{name}: {sum(p.ns for p in phases if p.name.startswith(name + ' ')) / 1e6:.2f} ms a step")
    if not sum(phase.counts[FIGURES.index("launch")] for phase in phases):
        raise SystemExit("eidolon calibrate: the profiler saw no launch: is CUPTI there, and not in use by another?")
    text = table(phases, output.provenance(note), reference_load.measure_ns())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, "utf-8")
    say(f"{out}: mean distance {fit(phases)[1]:.1%} over {len(phases)} phases")
