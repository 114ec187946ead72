"""A run in a folder whose disk becomes full on the way; prints its summary. For test_summary.py."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from fakes import AUTOGRAD, FOREGROUND
from simulated_run import Run, alone

out = Path(sys.argv[1])
run = Run(out)
with contextlib.suppress(OSError), (out / "other").open("wb", buffering=0) as file:
    while True:
        file.write(bytes(1 << 12))
rank = alone(run)
for step in range(4_000):
    rank.kernel(flags=FOREGROUND | AUTOGRAD)
    rank.mark()
    if step % 100 == 99:
        run.batch(rank)
run.summary()
sys.stdout.write((out / "summary.json").read_text())
