"""Ranks that die, however they were started, are named with what ended them; so are ranks that break their own ring."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from e2e.runs import Run

# Rank 1 dies in the way that the first argument names; the others go on until they are ended. They do without torch,
# which takes long to load.
WORK = """
import ctypes, glob, os, signal, sys

def work(rank, how):
    os.environ["RANK"] = str(rank)  # torch.multiprocessing sets none
    cuda = ctypes.CDLL("libcudart.so.13")
    assert cuda.cudaSetDevice(rank % 2) == 0
    assert cuda.cudaDeviceSynchronize() == 0
    ring = glob.glob(f"{os.environ['EIDOLON_DIR']}/ranks/{os.getpid()}-*.ring")[0]
    if rank != 1:
        pass
    elif how.startswith("exit"):
        os._exit(int(how[4:]))
    elif how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    elif how == "cut":
        os.truncate(ring, 4096)
    elif how == "noise":
        from eidolon_interposer.ring import HEAD
        with open(ring, "r+b") as file:
            file.seek(8 * HEAD)
            file.write(b"noise!!!")
    while True:
        cuda.cudaDeviceSynchronize()
"""
SPAWN = (
    WORK
    + """
if __name__ == "__main__":
    import torch.multiprocessing
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
"""
)
TORCHRUN = (
    WORK
    + """
work(int(os.environ["RANK"]), sys.argv[1])
"""
)

KILLED = "was killed by signal 9 (SIGKILL)"
ENDED = "ended with exit code 9 without closing its ring"


@pytest.mark.parametrize(
    ("starter", "how", "named"),
    [
        ("spawn", "SIGKILL", KILLED),
        ("spawn", "exit9", ENDED),
        ("torchrun", "SIGKILL", KILLED),
        ("torchrun", "exit9", ENDED),
        ("plain", "exit9", ENDED),
        ("shell", "SIGKILL", KILLED),
    ],
)
def test_a_rank_that_dies_is_named_with_its_signal_or_exit_code(
    run: Run, tmp_path: Path, starter: str, how: str, named: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWN if starter == "spawn" else TORCHRUN)
    options: list[str] = []
    command = [sys.executable, str(script), how]
    if starter == "torchrun":
        command = ["torchrun", "--nproc-per-node", "2", str(script), how]
    elif starter == "plain":
        options = ["--launcher", "plain", "--ranks-per-server", "2"]
    elif starter == "shell":  # that waits for its children itself
        one = f"{sys.executable} {script} {how}"
        command = ["bash", "-c", f"RANK=0 {one} & RANK=1 {one}; code=$?; kill %1; wait; exit $code"]
    result = run("--gpus-per-server", "2", *options, "--", *command)
    assert result.code != 0, result.all_output
    reason = result.summary["reason"]
    assert re.match(r"server 0: exit code \d+: rank 1 \(process \d+\) " + re.escape(named), reason), result.all_output


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("cut", "the file's size was changed from [0-9]+ to 4096 bytes"),
        ("noise", "records: head [0-9]+ and tail [0-9]+ do not fit a capacity of [0-9]+"),
    ],
)
def test_a_rank_that_breaks_its_ring_is_ended_and_named(run: Run, tmp_path: Path, how: str, named: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCHRUN)
    result = run(
        "--servers", "2", "--gpus-per-server", "2", "--", "torchrun", "--nproc-per-node", "2", str(script), how
    )
    assert result.code != 0, result.all_output
    pattern = r"server 0: exit code \d+: rank 1 \(process \d+\) was ended, for its ring is broken: " + named
    assert re.match(pattern, result.summary["reason"]), result.all_output
