"""The frameworks' runs on four real H100, with the same arguments: memory of every rank is equal, times stand beside.

The lines are those of `bench/truth/h100_x4_frameworks.jsonl`, which `python -m bench.fidelity --frameworks` prints as a
table. Minutes each, and up to 40 GiB of the host: the models of `ds.py` are built whole on each rank.
"""

from __future__ import annotations

import pytest

from bench.fidelity import frameworks
from e2e.frameworks.conftest import Train

pytestmark = pytest.mark.slow
ALLOCATED, RESERVED = 0.001, 0.01  #: relative


@pytest.mark.parametrize("line", frameworks.lines(), ids=lambda line: line.name)
def test_memory_is_that_of_the_real_run(train: Train, monkeypatch: pytest.MonkeyPatch, line: frameworks.Line) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")  # as there
    result = train(*line.cluster(), "--", *line.command(), limit_s=1200, cwd=line.cwd)
    here, real = line.read(result.out + result.err), line.real()
    assert here is not None, result.all_output
    low, high = min(real.speeds), max(real.speeds)
    print(f"{real.unit}: real {real.speed} ({low} to {high}), here {here.speed}, {here.speed / real.speed - 1:+.1%}")
    for name, before, after, bar in (
        ("allocated", real.allocated, here.allocated, ALLOCATED),
        ("reserved", real.reserved, here.reserved, RESERVED),
    ):
        worst = frameworks.memory_error(before, after)
        print(f"{name}: real {before}, here {after}, {worst} off")
        assert worst is None or abs(worst) <= bar, name
