"""Nothing outlives a run, however it was started and however it resists.

Each test runs a small program in a process of its own: what is tested changes the state of the whole process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eidolon_operator import processes

PRELUDE = """
import asyncio, os, subprocess, sys, time
from eidolon_operator import processes

def sleeper():
    return processes.start(["sleep", "600"], env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *arguments], capture_output=True, text=True, timeout=60
    )


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(pid: int, within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_a_daemon_that_ignores_signals_is_found_and_killed(tmp_path: Path) -> None:
    """Two forks, a session of its own, SIGTERM ignored: as far as a process can get away."""
    daemon = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    )
    result = run(
        f"""
processes.become_subreaper()
subprocess.run(["sh", "-c", "setsid $0 -c \\"$1\\" $2 & exit 0", sys.executable, {daemon!r}, sys.argv[1]], check=True)
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
assert len(processes.descendants()) == 1
started = time.monotonic()
processes.kill_descendants(grace_s=0.2)
assert 0.2 <= time.monotonic() - started < 10
assert processes.descendants() == []
processes.reap_orphans()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    pass
else:
    raise AssertionError("something is left to reap")
""",
        str(tmp_path / "pid"),
    )
    assert result.returncode == 0, result.stderr
    assert not alive(int((tmp_path / "pid").read_text()))


def test_children_die_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PRELUDE
            + """
async def main():
    child = await sleeper()
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
""",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(child)


def test_a_child_has_a_session_of_its_own() -> None:
    """Ctrl-C in a terminal must not reach it: the run decides in which order things end."""
    result = run("""
async def main():
    child = await sleeper()
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    child.kill()
    await child.wait()
asyncio.run(main())
""")
    assert result.returncode == 0, result.stderr


def test_killing_nothing_takes_no_time() -> None:
    assert run("processes.kill_descendants(grace_s=30)").returncode == 0


@pytest.mark.parametrize(("returncode", "expected"), [(0, 0), (3, 3), (-signal.SIGKILL, 137), (-signal.SIGTERM, 143)])
def test_exit_codes_are_those_of_a_shell(returncode: int, expected: int) -> None:
    assert processes.exit_code(returncode) == expected


def test_descendants_survive_odd_process_names(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to(sys.executable)
    result = run(
        """
child = subprocess.Popen([sys.argv[1], "-c", "import time; time.sleep(600)"])
time.sleep(0.3)
assert processes.descendants() == [child.pid], processes.descendants()
child.kill(); child.wait()
""",
        str(program),
    )
    assert result.returncode == 0, result.stderr
