"""Measures clock and power under load: what a power limit does to work that goes on for longer than a moment.

Each load runs for some seconds; then its time, the SM clock and the power draw of the last half are noted. Loads of two
kinds mixed in known proportions show how their powers add up, which is what a training step is to the power limit."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
import torch.nn.functional as F

from . import output
from .inputs import BF16, FP32, randn

IDLE_S = 0.7


class _Sampler:
    """Clock and power every 20 ms, from NVML if its Python binding is there, and otherwise from nvidia-smi."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.samples: list[tuple[float, float, float]] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self._read: Callable[[], tuple[float, float]] = lambda: (
                float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
                pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            )
            self._read()
        except Exception:  # without a binding, NVML or permission there is still nvidia-smi
            self._read = lambda: _numbers(output.smi("clocks.sm,power.draw.instant"))

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self.samples.append((time.monotonic(), *self._read()))


def _numbers(text: str) -> tuple[float, float]:
    parts = [float(x) for x in text.split(",")] if text else []
    return (parts[0], parts[1]) if len(parts) == 2 else (0.0, 0.0)


def loads() -> dict[str, Callable[[], Callable[[], Any]]]:
    """Each name makes one kind of work."""

    def gemm(m: int, n: int, k: int, dtype: torch.dtype = BF16, zeros: bool = False) -> Callable[[], Any]:
        torch.backends.cuda.matmul.allow_tf32 = False
        a, b = randn(m, k, dtype=dtype), randn(n, k, dtype=dtype).t()
        if zeros:
            a, b = torch.zeros_like(a), torch.zeros(n, k, dtype=dtype, device="cuda").t()
        out = torch.empty(m, n, dtype=dtype, device="cuda")
        return lambda: torch.mm(a, b, out=out)

    def attention(backward: bool) -> Callable[[], Any]:
        q, k, v = (randn(2, 4096, 32, 128, grad=backward).transpose(1, 2) for _ in range(3))
        if not backward:
            return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradient = randn(2, 4096, 32, 128).transpose(1, 2)
        return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    def convolution() -> Callable[[], Any]:
        x = randn(128, 256, 28, 28).contiguous(memory_format=torch.channels_last)
        w = randn(256, 256, 3, 3).contiguous(memory_format=torch.channels_last)
        return lambda: F.conv2d(x, w, None, 1, 1)

    def elementwise(dtype: torch.dtype) -> Callable[[], Any]:
        x, y = randn(1 << 26, dtype=dtype), randn(1 << 26, dtype=dtype)
        out = torch.empty_like(x)
        return lambda: torch.mul(x, y, out=out)

    def copy() -> Callable[[], Any]:
        x = randn(1 << 27)
        out = torch.empty_like(x)
        return lambda: out.copy_(x)

    def norm() -> Callable[[], Any]:
        x, w = randn(16384, 4096), randn(4096)
        return lambda: F.rms_norm(x, (4096,), w)

    return {
        "gemm_8192_14336_4096": lambda: gemm(8192, 14336, 4096),
        "gemm_8192_4096_4096": lambda: gemm(8192, 4096, 4096),
        "gemm_4096_2048_2048": lambda: gemm(4096, 2048, 2048),
        "gemm_2048_768_768": lambda: gemm(2048, 768, 768),
        "attention_forward": lambda: attention(False),
        "attention_backward": lambda: attention(True),
        "convolution": convolution,
        "elementwise_bf16": lambda: elementwise(BF16),
        "elementwise_fp32": lambda: elementwise(FP32),
        "copy": copy,
        "rms_norm": norm,
        "gemm_fp32": lambda: gemm(4096, 4096, 4096, FP32),
        "gemm_zeros": lambda: gemm(8192, 14336, 4096, zeros=True),
        "idle": lambda: lambda: torch.cuda._sleep(2_000_000),
    }


#: (first, its share of the time, second)
MIXES = (
    ("gemm_8192_14336_4096", 0.75, "elementwise_fp32"),
    ("gemm_8192_14336_4096", 0.5, "elementwise_fp32"),
    ("gemm_8192_14336_4096", 0.25, "elementwise_fp32"),
    ("gemm_8192_14336_4096", 0.5, "attention_backward"),
)


def measure(seconds: float) -> Iterator[dict[str, Any]]:
    """One row for each load: microseconds of a call right after idle and under sustained load, SM clock, and power."""
    made = loads()
    alone: dict[str, float] = {}
    for name, make in made.items():
        work = make()
        row = _run([(work, 1)], seconds)
        alone[name] = row["us"]
        yield {"load": name, "mix": "", "share": 1.0, **row}
        del work
    for first, share, second in MIXES:
        works = made[first](), made[second]()
        total = 40_000.0  # us of a round
        counts = [max(1, round(part * total / alone[n])) for n, part in ((first, share), (second, 1 - share))]
        row = _run(list(zip(works, counts, strict=True)), seconds)
        yield {"load": first, "mix": second, "share": share, "calls": counts, **row}


def _run(works: list[tuple[Callable[[], Any], int]], seconds: float) -> dict[str, Any]:
    for work, _ in works:
        work()
    torch.cuda.synchronize()
    time.sleep(IDLE_S)
    burst = _events(works, 1)
    begin = time.monotonic()
    rounds: list[list[float]] = []
    clocks: list[float] = []
    with _Sampler() as sampler:
        per_round = max(1, round(20_000 / max(1.0, sum(burst[i] * n for i, (_, n) in enumerate(works)))))
        while time.monotonic() - begin < seconds:
            rounds.append(_events(works, per_round))
            clocks.append(_clock())
    late = [(mhz, w) for at, mhz, w in sampler.samples if at > begin + seconds / 2] or [(0.0, 0.0)]
    kept = rounds[len(rounds) // 2 :]
    times = [statistics.median(r[i] for r in kept) for i in range(len(works))]
    return {
        "burst_us": burst[0],
        "us": times[0],
        "other_us": times[1] if len(times) > 1 else 0.0,
        "spin_mhz": statistics.median(clocks[len(clocks) // 2 :]),
        "smi_mhz": statistics.median(m for m, _ in late),
        "power_w": statistics.median(w for _, w in late),
    }


def _events(works: list[tuple[Callable[[], Any], int]], rounds: int) -> list[float]:
    """The microseconds of one call of each piece of work, over some rounds of all of them."""
    marks = []
    for _ in range(rounds):
        for i, (work, count) in enumerate(works):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(count):
                work()
            end.record()
            marks.append((i, count, begin, end))
    torch.cuda.synchronize()
    total = [0.0] * len(works)
    for i, count, begin, end in marks:
        total[i] += 1e3 * begin.elapsed_time(end) / count / rounds
    return total


def _clock() -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(400_000)
    end.record()
    torch.cuda.synchronize()
    return 400_000 / (1e3 * begin.elapsed_time(end))
