"""The processes of a run as a pod's containers start them: core, agent and launcher apart, TLS, a gate, and deaths.

What `eidolon run` does in one command is done here by hand, so that one of them can be killed or held.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate

import eidolon_interposer
from e2e.runs import environment
from eidolon_operator import plan as planning
from eidolon_operator import spec as specs

LAUNCH = Path(eidolon_interposer.__file__).parent / "bin" / "launch"
LIMIT_S = 240.0

# Single rank, no waits outside our calls: its timeline is the same to the nanosecond each time.
TRAIN = """
import sys, time, torch
steps, pause = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 256, device="cuda")
for step in range(steps):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    if step % 10 == 0 and not pause:
        torch.cuda.synchronize()
    if pause and step == 5:
        open(pause, "w").write("1")
        while open(pause).read() != "2":
            pass
"""


# More operations than a ring has room for, without a word between them; says how many are done.
BURST = """
import ctypes, sys
count, progress = int(sys.argv[1]), open(sys.argv[2], "w")
cuda = ctypes.CDLL("libcudart.so.13")
memory = ctypes.c_void_p()
assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
progress.write("0\\n"); progress.flush()
while open(sys.argv[3]).read() != "go":
    pass
for number in range(count):
    assert cuda.cudaMemsetAsync(memory, 0, ctypes.c_size_t(4096), None) == 0
    if number % 1000 == 0:
        progress.write(f"{number}\\n"); progress.flush()
"""


# A process gives tensors to another, which reads and writes them in place. What each side saw goes into a file.
SHARE = """
import json, sys, torch, torch.multiprocessing as mp

def other(inbox, outbox):
    free = torch.cuda.mem_get_info()[0]
    floats, numbers = inbox.get(), inbox.get()
    saw = [floats.tolist(), numbers.tolist(), free - torch.cuda.mem_get_info()[0]]
    floats.add_(1)
    torch.cuda.synchronize()
    outbox.put(saw)
    inbox.get()
    floats.copy_(torch.empty(1 << 20, device="cuda").cos_()[:4])
    torch.cuda.synchronize()
    outbox.put(numbers.tolist())
    inbox.get()

if __name__ == "__main__":
    mp.set_start_method("spawn")
    floats, numbers = torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda"), torch.arange(5, device="cuda")
    to_other, to_me = mp.Queue(), mp.Queue()
    process = mp.Process(target=other, args=(to_other, to_me))
    process.start()
    for tensor in (floats, numbers):
        to_other.put(tensor)
    saw = to_me.get()
    after_known = floats.tolist()
    numbers.mul_(3)
    torch.cuda.synchronize()
    to_other.put("go on")
    saw.append(to_me.get())
    json.dump({"other saw": saw, "after known": after_known, "after unknown": floats.tolist()}, open(sys.argv[1], "w"))
    to_other.put("end")
    process.join()
    sys.exit(process.exitcode)
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.02)
    return found


class Pod:
    """A core and one emulated server with its three processes, over TLS."""

    def __init__(self, root: Path, script: str, *arguments: str, **core: Any) -> None:
        root.mkdir()
        self.root, self.directory, self.out = root, root / "server", root / "out"
        self.directory.mkdir()
        (root / "train.py").write_text(script)
        document = {
            "apiVersion": specs.API_VERSION,
            "kind": specs.KIND,
            "metadata": {"name": "pod"},
            "spec": {"workload": {"command": [sys.executable, str(root / "train.py"), *arguments]}},
        }
        spec = specs.parse(document, source="test")
        plan = planning.build(spec, source="test").document
        plan["core"].update(core)
        plan["core"].pop("token")
        self.command = list(spec.workload.command)
        (root / "plan.json").write_text(json.dumps(plan))
        self.tls = certificate(root / "tls")
        self._started: list[subprocess.Popen[str]] = []
        self.core = self._start("eidolon_simcore", "--out", str(self.out))
        self.address = self._line(self.core).split()[1]
        self.agent = self.start_agent()

    def _start(self, module: str, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", module, "--plan", str(self.root / "plan.json"), "--tls", str(self.tls)]
        log = (self.root / f"{module}.log").open("a")
        with log:
            line = [*command, *options]
            process = subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True)
        self._started.append(process)
        return process

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    def start_agent(self) -> subprocess.Popen[str]:
        options = ["--server", "0", "--dir", str(self.directory), "--core", self.address]
        self.agent = self._start("eidolon_interposer.agent", *options)
        assert self._line(self.agent) == "ready\n", self.logs()
        return self.agent

    def start_workload(self) -> None:
        options = ["--wait", "60", "--resolve", "localhost", "--scratch", str(self.root)]
        command = [str(LAUNCH), "--dir", str(self.directory), *options, "--", *self.command]
        self.workload: subprocess.Popen[Any] = subprocess.Popen(
            command, env={**environment(), "EIDOLON_PLUGIN_BUILD": "1"}
        )

    def steps(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return len((self.out / "progress.jsonl").read_text().splitlines())
        return 0

    def finish(self) -> dict[str, Any]:
        """Waits for the end of everything; the summary."""
        self.workload_code = self.workload.wait(LIMIT_S)
        assert self.agent.wait(60) == 0, self.logs()
        self.core_code = self.core.wait(60)
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.root.glob("*.log"))

    def close(self) -> None:
        for process in (self.workload, *self._started):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(15)
                process.kill()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    made: list[Pod] = []

    def start(*arguments: str, script: str = TRAIN, **core: Any) -> Pod:
        made.append(Pod(tmp_path / f"pod-{len(made)}", script, *arguments, **core))
        made[-1].start_workload()
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_an_agent_that_is_killed_changes_nothing(pod: Callable[..., Pod]) -> None:
    undisturbed = pod("120").finish()
    disturbed = pod("120")
    for goal in (10, 40, 80):
        until(lambda goal=goal: disturbed.steps() >= goal, f"{goal} steps")
        disturbed.agent.kill()
        disturbed.agent.wait(20)
        disturbed.start_agent()
    summary = disturbed.finish()
    assert (disturbed.workload_code, summary["state"]) == (0, "Succeeded"), disturbed.logs()
    assert len(summary["steps"]) == 120
    assert summary["steps"] == undisturbed["steps"], "the same timeline, to the nanosecond"
    assert summary["virtual_ns"] == undisturbed["virtual_ns"]


def test_an_agent_that_does_not_come_back_is_a_stated_end(pod: Callable[..., Pod]) -> None:
    run = pod("100000", reconnect_timeout_s=2)
    until(lambda: run.steps() >= 3, "steps")
    run.agent.kill()
    run.agent.wait(20)
    assert run.core.wait(60) == 1
    summary = json.loads((run.out / "summary.json").read_text())
    assert (summary["state"], summary["cause"]) == ("Failed", "AgentLost")


def test_exit_0_with_a_full_ring_loses_nothing(pod: Callable[..., Pod], tmp_path: Path) -> None:
    """The process has ended while its agent is held: everything lies in its ring."""
    pause = tmp_path / "pause"
    run = pod("60", str(pause))
    until(lambda: pause.exists() and pause.read_text() == "1", "the sixth step")
    run.agent.send_signal(signal.SIGSTOP)
    pause.write_text("2")
    until((run.directory / "exit").exists, "the end of the workload")
    before = run.steps()
    run.agent.send_signal(signal.SIGCONT)
    summary = run.finish()
    assert summary["state"] == "Succeeded", run.logs()
    assert before < 60 == len(summary["steps"])


def test_a_rank_waits_for_room_in_a_full_ring_and_loses_nothing(pod: Callable[..., Pod], tmp_path: Path) -> None:
    """Nobody reads: the rank fills its ring and stands still. Then all of it arrives, and the rank ends with 0."""
    progress, start = tmp_path / "progress", tmp_path / "start"
    start.write_text("")
    burst = planning.RING_RECORDS + 10_000
    run = pod(str(burst), str(progress), str(start), script=BURST)

    def done() -> int:
        return int((progress.read_text().split() or ["-1"])[-1]) if progress.exists() else -1

    until(lambda: done() == 0, "the first call")
    run.agent.send_signal(signal.SIGSTOP)
    start.write_text("go")
    until(lambda: done() > planning.RING_RECORDS - 5000, "a full ring")
    time.sleep(1)  # it would have ended by now
    assert done() < burst - 5000
    run.agent.send_signal(signal.SIGCONT)
    summary = run.finish()
    assert (run.workload_code, summary["state"]) == (0, "Succeeded"), run.logs()
    assert sum(entry["count"] for entry in summary["coverage"]["operations"] if entry["family"] == "set") == burst


def test_the_steps_asked_for_end_a_workload_that_would_go_on(pod: Callable[..., Pod]) -> None:
    run = pod("1000000", steps=20)
    summary = run.finish()
    assert (run.workload_code, run.core_code) == (0, 0), run.logs()
    assert (summary["state"], summary["cause"], len(summary["steps"])) == ("Succeeded", "StepsDone", 20)
    assert (run.directory / "exit").read_text() == "0 stopped: 20 steps are done\n"


def test_a_server_that_is_taken_down_is_lost(pod: Callable[..., Pod]) -> None:
    """What deleting a pod does: SIGTERM to the workload's container, then to the agent."""
    run = pod("1000000")
    until(lambda: run.steps() >= 3, "steps")
    run.workload.send_signal(signal.SIGTERM)
    assert run.workload.wait(60) == 128 + signal.SIGTERM
    began = time.monotonic()
    run.agent.send_signal(signal.SIGTERM)
    run.agent.wait(30)
    assert time.monotonic() - began < 5
    assert run.core.wait(60) == 1
    summary = json.loads((run.out / "summary.json").read_text())
    assert (summary["state"], summary["cause"]) == ("Failed", "ServerLost")
    assert "interrupted by SIGTERM" in summary["reason"]


def test_a_killed_core_ends_the_workload(pod: Callable[..., Pod]) -> None:
    run = pod("1000000")
    until(lambda: run.steps() >= 3, "steps")
    run.core.kill()
    assert run.workload.wait(60) != 0
    assert run.agent.wait(30) == 1
    assert "simulation core lost" in (run.directory / "stop").read_text()


def test_processes_see_what_each_other_wrote_to_a_shared_tensor(pod: Callable[..., Pod], tmp_path: Path) -> None:
    """CUDA IPC: the other process sees what the first one knows, and takes no memory for it. What it computes from that
    in place, the first one sees. What it writes without knowing it is unknown to both, and reads as zero, which is
    counted.
    """
    found = tmp_path / "found.json"
    run = pod(str(found), script=SHARE)
    summary = run.finish()
    assert (run.workload_code, summary["state"]) == (0, "Succeeded"), run.logs()
    assert json.loads(found.read_text()) == {
        "other saw": [[1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3, 4], 0, [0, 3, 6, 9, 12]],
        "after known": [2.0, 3.0, 4.0, 5.0],
        "after unknown": [0.0, 0.0, 0.0, 0.0],
    }
    assert [read["bytes"] for read in summary["unknown_reads"]] == [16]
    assert not list((run.directory / "ipc").iterdir()), "whoever exports memory takes its file away"
