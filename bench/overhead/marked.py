"""Runs a training script as it is and notes when its optimizer steps end and what processor time has been used.

    marked.py REPORTS FIRST LAST SCRIPT [ARGUMENTS]         or -m MODULE in place of the script
    marked.py REPORTS floor MODULE                          imports it, sets up a process group, does no step

Each rank writes ``REPORTS/RANK.json`` when step ``LAST`` has ended; :class:`Report` says what is in it. Times are of
CLOCK_BOOTTIME, by which the kernel also says when a process began. The simulation leaves this clock real.

Steps are counted by a hook of torch that is called after each step of an optimizer, of the first one where a script
has several. The script itself knows nothing of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

MODULES = {"core": "eidolon_operator.one_host"}  #: of the processes beside the ranks

EPOCH_OFFSET = "MARKED_EPOCH_OFFSET"  #: variable: where a ring holds its birth. The Python of a rank may not know that


@dataclasses.dataclass
class Report:
    """What a rank has noted."""

    pid: int
    times_s: dict[str, float]  #: when parts of the start had been reached
    ends_s: list[float] = dataclasses.field(default_factory=list)  #: of each step, from the first on
    used_s: dict[str, list[float]] = dataclasses.field(default_factory=dict)  #: processor time, after FIRST and LAST


def now_s() -> float:
    """Seconds since the machine was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def processor_s(pid: int) -> float:
    """Processor time that a process has used, its ended threads included; to the nanosecond."""
    return time.clock_gettime((~pid << 3) | 2)  # the clock's number for a process: clock_getcpuclockid(3)


def services(run: str) -> dict[str, int]:
    """The core, with the agent, of the run that writes to the folder ``run``, by name; empty without a core."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_text("utf-8", "replace").split("\0")
            except OSError:
                continue
            for name, module in MODULES.items():
                if command[1:3] == ["-m", module] and any(part.startswith(run) for part in command):
                    found[name] = int(entry.name)
    return found


def start_times_s(run: str) -> dict[str, float]:
    """When the parts of the start began, as far as processes tell: the core, the launcher and this rank."""
    found = {name: began_s(pid) for name, pid in services(run).items()} | {"rank": began_s(os.getpid())}
    pid = os.getpid()
    while pid > 1:
        if Path(f"/proc/{pid}/comm").read_text().strip() == "launch":
            found["launcher"] = began_s(pid)
        pid = int(_stat(pid)[1])
    if (made_s := _ring_made_s()) is not None:
        found["context"] = made_s + now_s() - time.clock_gettime(time.CLOCK_REALTIME)
    return found


def _ring_made_s() -> float | None:
    """When this rank's ring was made, with the CUDA context, by CLOCK_REALTIME; None if it has none.

    It is read from memory. Opening the file and closing it again would give up the lock by which the rank lives.
    """
    maps = Path("/proc/self/maps").read_text().splitlines()
    begins = [line.partition("-")[0] for line in maps if ".ring" in line]
    if not begins:
        return None
    with Path("/proc/self/mem").open("rb") as memory:
        memory.seek(int(begins[0], 16) + int(os.environ[EPOCH_OFFSET]))
        return int.from_bytes(memory.read(8), "little") / 1e9


def began_s(pid: int) -> float:
    """When a process was started; the kernel tells it to 10 ms."""
    return int(_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` behind the name, which may hold anything: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class Marks:
    """The hook."""

    def __init__(self, report: Report, folder: Path, first: int, last: int) -> None:
        self._report = report
        self._folder = folder
        self._counted = first, last
        self._optimizer: Any = None
        self._pids: dict[str, int] = {}

    def __call__(self, optimizer: Any, arguments: Any, named: Any) -> None:
        """A step of some optimizer has ended."""
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:
            return
        report = self._report
        report.ends_s.append(now_s())
        if len(report.ends_s) == 1 and rank() == 0:
            report.times_s.update(start_times_s(str(self._folder.parent)))
        if len(report.ends_s) in self._counted:
            self._note_processor_time()
        if len(report.ends_s) == self._counted[1]:
            write(report, self._folder)

    def _note_processor_time(self) -> None:
        if not self._pids:
            mine = {"rank": os.getpid()}
            self._pids = mine | (services(str(self._folder.parent)) if rank() == 0 else {})
        for name, pid in self._pids.items():
            self._report.used_s.setdefault(name, []).append(processor_s(pid))


def rank() -> int:
    """This process's rank; 0 where there is only one."""
    return int(os.environ.get("RANK", "0"))


def write(report: Report, folder: Path) -> None:
    """Writes this rank's report."""
    (folder / f"{rank()}.json").write_text(json.dumps(dataclasses.asdict(report)))


def run_floor(report: Report, module: str) -> None:
    """What the start takes without a simulation and without a step."""
    __import__(module)
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()
    report.ends_s.append(now_s())
    report.used_s["rank"] = [processor_s(os.getpid())]


def main() -> None:
    """Runs the command line."""
    began_s = now_s()
    folder, first, *rest = sys.argv[1:]
    import torch  # noqa: F401

    report = Report(os.getpid(), {"script": began_s, "torch": now_s()})
    if first == "floor":
        run_floor(report, rest[0])
        write(report, Path(folder))
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(Marks(report, Path(folder), int(first), int(rest[0])))
    command = rest[1:]
    if command[0] == "-m":
        sys.argv, sys.path[0] = command[1:], str(Path.cwd())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = command, str(Path(command[0]).parent)
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
