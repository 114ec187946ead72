"""Frameworks as users install them, in an environment of their own (``make setup-frameworks``)."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.fidelity.running import CACHE, FRAMEWORKS
from bench.truth_files import titan
from e2e.runs import BIN, MARK, REPOSITORY, Result, active, environment, nothing_is_left

__all__ = ["nothing_is_left"]

#: TorchTitan 0.3 needs a newer torch than the other frameworks (``make setup-torchtitan03``).
TORCHTITAN03 = CACHE / "eidolon" / "torchtitan03"
TO_END_S = 60  #: after the limit, and after Ctrl-C

Train = Callable[..., Result]


class Watch(threading.Thread):
    """Private memory (MiB) of each rank at its most, from the kernel's own account, twice a second at most."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mib: dict[int, float] = {}
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(1):
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal():
                    self._look(entry)

    def _look(self, process: Path) -> None:
        try:
            variables = (process / "environ").read_bytes()
            if MARK.encode() not in variables or b"\0LOCAL_RANK=" not in variables:
                return
            rollup = (process / "smaps_rollup").read_text()
        except OSError:  # ended meanwhile
            return
        private_kib = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
        pid = int(process.name)
        self.peak_mib[pid] = max(self.peak_mib.get(pid, 0), private_kib / 1024)

    def stop(self) -> None:
        self._over.set()
        self.join()


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Runs ``eidolon run ARGUMENTS`` with the frameworks' environment active, and prints what it took.

    A run that is over its limit ends itself and says who waits for whom; one that does not is asked to, as by Ctrl-C.
    """
    count = 0
    titan()  # the examples are started from this folder

    def start(*arguments: str, limit_s: float, cwd: Path = REPOSITORY, site: Path = FRAMEWORKS) -> Result:
        nonlocal count
        count += 1
        directory = tmp_path / f"out-{count}"
        if not (site / "bin" / "torchrun").exists():
            pytest.fail(f"no frameworks in {site}: make setup-frameworks setup-torchtitan03")
        began, watch = time.monotonic(), Watch()
        process = subprocess.Popen(
            [str(BIN / "eidolon"), "run", "--out", str(directory), "--time-limit", f"{limit_s:g}s", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(), **active(site)},
            cwd=cwd,
        )
        watch.start()
        late = ""
        try:
            out, err = process.communicate(timeout=limit_s + TO_END_S)
        except subprocess.TimeoutExpired:
            late = f"over its limit of {limit_s:g} s"
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=TO_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        finally:
            watch.stop()
        result = Result(process.returncode, out, err, directory)
        assert not late, f"{late}\n{result.all_output}"
        assert result.code == 0, result.all_output
        wall_s, steps = time.monotonic() - began, result.summary["steps"]
        memory = ", ".join(f"{mib:.0f}" for mib in sorted(watch.peak_mib.values()))
        print(
            f"{len(watch.peak_mib)} ranks, {len(steps)} steps, {wall_s:.0f} s wall,"
            f" {wall_s / max(1, len(steps)):.1f} s a step with start-up; private memory of each rank: {memory} MiB"
        )
        return result

    return start
