"""The budget for host memory: who would exceed it waits for the others; where nobody frees any, pages are shared."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import eidolon_interposer

LIB = Path(os.environ.get("EIDOLON_TEST_LIB", Path(eidolon_interposer.__file__).parent / "lib"))
MIB = 1 << 20
CHILD = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
blocks = {}

def take(mib):
    pointer = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(pointer), ctypes.c_size_t(64), ctypes.c_size_t(mib << 20)) == 0
    libc.memset(pointer, 1, ctypes.c_size_t(mib << 20))
    blocks[len(blocks)] = (pointer, mib)

def free(index):
    libc.free(blocks.pop(index)[0])

def byte(index, at, value=None):
    data = (ctypes.c_ubyte * (blocks[index][1] << 20)).from_address(blocks[index][0].value)
    if value is not None:
        data[at] = value
    return data[at]

def private_mib():
    resident, shared = map(int, open("/proc/self/statm").read().split()[1:3])
    return (resident - shared) * 4096 >> 20

def mappings():
    return len(open("/proc/self/maps").readlines())

print("ready", flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class Process:
    """A Python under the shim; each line that it is told is evaluated, and answered by one line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self.answer() == "ready"

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def is_silent(self, seconds: float) -> bool:
        return not select.select([self._process.stdout], [], [], seconds)[0]

    def complaints(self) -> str:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        return self._process.stderr.read()


Start = Callable[[], Process]


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts processes with a common budget; parameters: MiB, and the milliseconds that they wait for a change."""
    budget_mib, patience_ms = request.param
    accounts = tmp_path / "host-memory"
    accounts.mkdir()
    conf = f"mode=null\nserver=0\ndevices=1\nhost_memory.bytes={budget_mib * MIB}\nhost_memory.dir={accounts}\n"
    (tmp_path / "server.conf").write_text(f"{conf}host_memory.patience_ms={patience_ms}\n")
    environment = {**os.environ, "EIDOLON_DIR": str(tmp_path), "LD_PRELOAD": str(LIB / "libeidolon.so")}
    with ExitStack() as stack:

        def one() -> Process:
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [sys.executable, "-c", CHILD], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return Process(process)

        yield one


@pytest.mark.parametrize("start", [(400, 600_000)], indirect=True)
def test_who_would_exceed_the_budget_waits_until_another_frees(start: Start) -> None:
    large, other = start(), start()
    large.ask("take(150)")
    large.ask("take(100)")  # beyond half of the budget: allowed to the one that holds most
    other.tell("take(100)")
    assert other.is_silent(0.5)
    large.ask("free(0)")
    assert other.is_silent(0.2)  # 200 MiB and two interpreters are still more than half
    large.ask("free(1)")
    assert other.answer() == "None"
    assert int(other.ask("private_mib()")) >= 100
    assert other.complaints() == ""


@pytest.mark.parametrize("start", [(100, 100)], indirect=True)
def test_where_nobody_frees_any_a_few_pages_are_shared_and_it_is_said(start: Start) -> None:
    process = start()
    before = int(process.ask("mappings()"))
    process.ask("take(256)")
    assert int(process.ask("private_mib()")) < 100
    process.ask("byte(0, 4096 + 5, 77)")
    assert process.ask("byte(0, 4096 + 5 + (16 << 20))") == "77"
    process.ask("free(0)")
    assert int(process.ask("mappings()")) <= before + 2
    assert "over the budget of 100 MiB and no rank frees any" in process.complaints()


@pytest.mark.parametrize("start", [(100, 2_000)], indirect=True)
def test_who_waited_in_vain_waits_less_the_next_time(start: Start) -> None:
    """A model of a hundred large tensors does not wait a hundred times as long."""
    process = start()
    began = time.monotonic()
    for _ in range(8):
        process.ask("take(256)")
    assert 2 <= time.monotonic() - began < 12  # 16 if each waited 2 s


@pytest.mark.parametrize("start", [(100, 600_000)], indirect=True)
def test_a_process_that_ended_holds_nothing(start: Start) -> None:
    gone, process = start(), start()
    gone.ask("take(80)")
    gone.complaints()
    assert process.ask("take(40)") == "None"


@pytest.mark.parametrize("start", [(50, 600_000)], indirect=True)
def test_small_allocations_do_not_count(start: Start) -> None:
    process = start()
    for _ in range(4):
        assert process.ask("take(20)") == "None"
