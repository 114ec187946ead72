"""`eidolon run` from the outside: stock PyTorch on emulated GPUs, how runs end, what they leave."""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.runs import BIN, REPOSITORY, Run, environment
from eidolon_simcore.profile import counting

DDP = "examples/ddp.py"
SMALL = ("--steps", "3", "--layers", "2", "--width", "256", "--batch", "2", "--sequence", "128")


def test_demo_an_unmodified_script_on_two_servers(run: Run) -> None:
    result = run("examples/demo.yaml")
    assert result.code == 0, result.all_output
    lines = re.findall(r"^\[server 0\] step +(\d+) .* ([\d.]+) ms +([\d,]+) tokens/s$", result.out, re.MULTILINE)
    assert [int(step) for step, _, _ in lines] == list(range(1, 11)), result.all_output
    summary = result.summary
    assert summary["state"] == "Succeeded"
    assert summary["ranks"] == 4
    # Ten steps: the first one ends the start-up.
    assert [step["name"] for step in summary["steps"]] == ["startup"] + ["step"] * 9
    # The script measures what the simulation says, on its own clock.
    assert float(lines[-1][1]) == pytest.approx(summary["steps"][-1]["time_ns"] / 1e6, rel=0.05)
    for device in ("0/0", "0/1", "1/0", "1/1"):
        assert summary["steps"][-1]["peak_bytes"][device] > 2**30
    # The table, at the end.
    table = result.out[result.out.rindex("demo on 2 servers x 2 h100-sxm: Succeeded") :]
    assert re.search(r"^ +median ", table, re.MULTILINE)
    assert "Device time by cost source: " in table
    assert table.rstrip().endswith(f"Summary: {result.directory / 'summary.json'}")


def test_the_same_command_twice_gives_the_same_times(run: Run) -> None:
    """The settled step time."""
    command = ("--gpus-per-server", "2", "--", "torchrun", "--nproc-per-node", "2", DDP, *SMALL, "--steps", "9")
    first, second = run(*command), run(*command)
    assert first.code == second.code == 0, first.all_output + second.all_output
    times = [[step["time_ns"] for step in result.summary["steps"][1:]] for result in (first, second)]
    assert len(times[0]) == len(times[1]) == 8
    assert statistics.median(times[0]) == pytest.approx(statistics.median(times[1]), rel=1e-3)


def test_memory_does_not_follow_from_when_a_watchdog_looks(run: Run, tmp_path: Path) -> None:
    """DDP replaces the one bucket of its first step, which NCCL's watchdog lets go of, by smaller ones."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "rank = int(os.environ['LOCAL_RANK'])\n"
        "torch.cuda.set_device(rank)\n"
        "dist.init_process_group('nccl', device_id=torch.device('cuda', rank))\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, device='cuda') for _ in range(4)))\n"
        "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])\n"
        "x, peaks = torch.randn(64, 2048, device='cuda'), []\n"
        "for _ in range(5):\n"
        "    model(x).sum().backward()\n"
        "    model.zero_grad()\n"
        "    torch.cuda.synchronize()\n"
        "    peaks.append(torch.cuda.max_memory_allocated())\n"
        "    torch.cuda.reset_peak_memory_stats()\n"
        "print(f'peaks {peaks}\\n', end='', flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    result = run("--gpus-per-server", "2", "--", "torchrun", "--nproc-per-node", "2", str(script), timeout_s=120)
    assert result.code == 0, result.all_output
    peaks = re.findall(r"peaks \[(.*)\]", result.out)
    assert len(peaks) == 2, result.all_output
    assert len({*peaks[0].split(", "), *peaks[1].split(", ")}) == 1, peaks


def test_the_plain_launcher(run: Run) -> None:
    result = run("--gpus-per-server", "2", "--launcher", "plain", "--", "python", DDP, *SMALL)
    assert result.code == 0, result.all_output
    assert result.summary["ranks"] == 2
    assert len(result.summary["steps"]) == 3


def test_one_gpu_without_any_launcher(run: Run) -> None:
    script = "import torch; print('sum', (torch.ones(4, device='cuda') * 2).shape, torch.cuda.get_device_name())"
    result = run("--", "python", "-c", script)
    assert result.code == 0, result.all_output
    assert "sum torch.Size([4]) NVIDIA H100 80GB HBM3\n" in result.out
    assert result.summary["ranks"] == 1


def test_python_and_operators_between_calls_take_host_time(run: Run, tmp_path: Path) -> None:
    """Counted, not timed: what runs again and again costs little, more where much else ran in between; a view costs as
    any operator, and launches make what ran before them cold."""
    script = tmp_path / "between.py"
    script.write_text(
        "import time, torch\n"
        "x = torch.ones(4, device='cuda')\n"
        "def again(): pass\n"
        "others = [type(again)(again.__code__.replace(co_firstlineno=i), {}) for i in range(1, 401)]\n"
        "def us(work, n):\n"
        "    begin = time.perf_counter_ns()\n"
        "    work(n)\n"
        "    return (time.perf_counter_ns() - begin) / n / 1000\n"
        "def warm(n):\n"
        "    for _ in range(n): again()\n"
        "def rare(n):\n"
        "    for other in others[:n]: other()\n"
        "def views(n):\n"
        "    for _ in range(n): x.view(2, 2)\n"
        "def detached(n):\n"
        "    for _ in range(n):\n"
        "        for _ in range(100): x.detach()\n"
        "        x.view(2, 2)\n"
        "def launched(n):\n"
        "    for _ in range(n):\n"
        "        for _ in range(110): x.zero_()\n"
        "def apart(n):\n"
        "    for _ in range(n):\n"
        "        for _ in range(110): x.zero_()\n"
        "        x.view(2, 2)\n"
        "def waited(n):\n"
        "    for _ in range(n): torch.cuda.synchronize()\n"
        "def resumed(n):\n"
        "    for _ in range(n): torch.cuda.synchronize(), again()\n"
        "works = (warm, 10_000), (rare, 400), (rare, 400), (views, 1000)\n"
        "works += (detached, 500), (launched, 300), (apart, 300), (waited, 300), (resumed, 300)\n"
        "for work, n in works:\n"
        "    print(work.__name__, round(us(work, n), 1), flush=True)\n"
    )
    result = run("--", "python", str(script))
    assert result.code == 0, result.all_output
    took = re.findall(r"^(?:\[server 0\] )?(\w+) ([\d.]+)$", result.out, re.MULTILINE)
    names = ["warm", "rare", "rare", "views", "detached", "launched", "apart", "waited", "resumed"]
    assert [name for name, _ in took] == names, result.all_output
    *others, launched, apart, waited, resumed = (float(us) for _, us in took)
    # To the second turn of the 400 functions the first was 400 entries ago: cold, but not rare.
    assert others == pytest.approx([0.46, 15.4, 0.97, 1.73, 101 * 1.73], abs=0.15)
    assert apart - launched == pytest.approx(13.6, abs=0.15)  # rare after 110 launches
    assert resumed - waited == pytest.approx(15.4, abs=0.15)


RUNS = ("warm", "cold", "rare", "warm_ns", "cold_ns", "rare_ns", "far_ns")
COUNTED = """
import sys, time, torch

x = torch.ones(4)
others = [eval(f'lambda: {i}') for i in range(3000)]
def leaf(): pass
def numbers():
    for _ in range(20): yield leaf()
def functions():
    for _ in range(50): leaf()
    for other in 2 * others[:300]: other()
    sum(1 for _ in numbers())
    for other in others: other()
    leaf()
def operators():
    for _ in range(100): x.view(2, 2)
    for other in others[:100]: other()
    x.view(2, 2)
    for _ in range(70): x.detach()
    x.view(2, 2)
    for other in others[:600]: other()
    x.t()
def mixed():  # by its functions alone the second leaf is warm
    leaf()
    for other in others[:61]: other()
    x.view(2, 2), x.t(), x.detach(), x.unsqueeze(0)
    leaf()
    for _ in range(300): x.view(2, 2)
    leaf()
    for other in others[:600]: other()
    leaf()
def plain():
    for other in 2 * others: other()
def counted(work):  # in the second turn, as a number of four digits for rare or far, cold and warm each
    work()
    begin = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begin
if __name__ == '__main__':
    x = x.cuda()
    time.perf_counter_ns()  # the first time it does more
    print(sys.argv[1], counted(globals()[sys.argv[1]]), counted(plain), flush=True)
"""


@pytest.mark.parametrize("what", ["functions", "operators", "mixed"])
def test_calibration_counts_as_a_run_does(run: Run, tmp_path: Path, what: str) -> None:
    """Under a host table that makes a time of the counts: 1 ns for what is warm, 10 us for cold, 100 ms for others."""
    script, table = tmp_path / "counted.py", tmp_path / "host.yaml"
    script.write_text(COUNTED)
    ages = {"function": counting.FUNCTION_AGES, "operator": counting.OPERATOR_AGES}
    told = "operator" if what == "operators" else "function"
    lines = ["provenance: {cpu: abacus}"]
    for kind, bounds in ages.items():
        costs = (1, 10_000, 100_000_000, 100_000_000) if kind == told else (0, 0, 0, 0)
        lines.append(f"{kind}: {dict(zip(RUNS, (*bounds, *costs), strict=True))}")
    table.write_text("\n".join(lines))
    result = run("--host-table", str(table), "--", "python", str(script), what)
    assert result.code == 0, result.all_output
    assert "host cost: table of abacus; " in result.out
    took = re.search(rf"{what} (\d+) (\d+)$", result.out, re.MULTILINE)
    assert took is not None, result.all_output
    names: dict[str, Any] = {"__name__": "counted"}
    exec(COUNTED, names)
    counter = counting.Counter()

    def counted(work: str) -> tuple[int, ...]:
        for _ in range(2):
            counter.take()
            counter.during(names[work])
        found = counter.take()
        warm, cold, rare, far = found[:4] if told == "function" else found[4:8]
        return warm, cold, rare + far

    # What reading the clock enters is in both times of the run.
    work, plain = counted(what), counted("plain")
    assert [int(took[1]) // unit % 10_000 - int(took[2]) // unit % 10_000 for unit in (1, 10_000, 100_000_000)] == [
        one - other for one, other in zip(work, plain, strict=True)
    ]
    assert min(work) > 0 if told == "function" else work[0] > 100


def test_a_host_table_that_is_none_is_an_error(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "host.yaml"
    table.write_text("calls: {cudaFree: -1}\n")
    result = run("--host-table", str(table), "--", "python", "-c", "pass")
    assert result.code == 2
    assert "--host-table: calls.cudaFree: -1: a whole number from 0 on is allowed" in result.all_output


def test_the_run_ends_after_the_given_steps(run: Run) -> None:
    command = ("torchrun", "--nproc-per-node", "2", DDP, *SMALL[2:], "--steps", "100000")
    result = run("--gpus-per-server", "2", "--steps", "4", "--", *command)
    assert result.code == 0, result.all_output
    assert result.summary["state"] == "Succeeded"
    assert len(result.summary["steps"]) == 4


def test_the_baseline_without_a_core(run: Run) -> None:
    result = run("--null-core", "--", "torchrun", "--nproc-per-node", "1", DDP, *SMALL)
    assert result.code == 0, result.all_output
    assert "step   3" in result.out
    assert not (result.directory / "summary.json").exists()


def test_host_waits_and_virtual_time_do_not_deadlock(run: Run, tmp_path: Path) -> None:
    """Rank 0 synchronises, then sets the key that rank 1 waits for."""
    script = tmp_path / "store.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "dist.init_process_group('nccl')\n"
        "store = dist.distributed_c10d._get_default_store()\n"
        "x = torch.ones(1 << 20, device='cuda')\n"
        "dist.all_reduce(x)\n"
        "if dist.get_rank() == 0:\n"
        "    for _ in range(100): x = x * 2\n"
        "    torch.cuda.synchronize()\n"
        "    store.set('key', 'value')\n"
        "else:\n"
        "    print('got', store.get('key'), flush=True)\n"
        "dist.all_reduce(x)\n"
        "torch.cuda.synchronize()\n"
        "dist.destroy_process_group()\n"
    )
    result = run("--gpus-per-server", "2", "--", "torchrun", "--nproc-per-node", "2", str(script), timeout_s=120)
    assert result.code == 0, result.all_output
    assert "got b'value'" in result.out


MIXED = """
apiVersion: eidolon.dev/v1alpha1
kind: SimulatedCluster
metadata: {name: mixed}
spec:
  servers: 2
  serverGroups:
    - {name: new, servers: 1}
    - {name: old, servers: 1, gpu: {model: a100-40gb-sxm, memory: 30GiB}}
  workload:
    launcher: plain
    command: [python, SCRIPT]
"""


def test_servers_of_two_generations(run: Run, tmp_path: Path) -> None:
    """Each server's script sees its own GPU, and the same work takes as long as that GPU needs."""
    (tmp_path / "train.py").write_text(
        "import os, time, torch\n"
        "x = torch.randn(4096, 4096, dtype=torch.bfloat16, device='cuda')\n"
        "began, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
        "x @ x\n"
        "began.record()\n"
        "for _ in range(20): x @ x\n"
        "end.record()\n"
        "torch.cuda.synchronize()\n"
        "seen = torch.cuda.get_device_properties(0)\n"
        "print('server', os.environ['RANK'], seen.name, seen.total_memory >> 30, began.elapsed_time(end), sep='|')\n"
    )
    (tmp_path / "mixed.yaml").write_text(MIXED.replace("SCRIPT", str(tmp_path / "train.py")))
    result = run(str(tmp_path / "mixed.yaml"))
    assert result.code == 0, result.all_output
    lines = [line[line.index("server|") :].split("|") for line in result.out.splitlines() if "server|" in line]
    new, old = sorted(lines)
    assert "H100" in new[2], "rank 0 is on the first group's server"
    assert "A100" in old[2]
    assert (int(new[3]), int(old[3])) == (79, 30)
    assert 1.5 < float(old[4]) / float(new[4]) < 4, "dense bf16: 989 against 312 TFLOP/s"


# -- how runs fail -----------------------------------------------------------------------------------------------------


def test_out_of_memory_is_the_frameworks_own_error(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "oom.py"
    script.write_text(
        "import torch\nkeep = []\nwhile True: keep.append(torch.empty(1 << 30, dtype=torch.uint8, device='cuda'))\n"
    )
    result = run("--gpu-memory", "8GiB", "--", "python", str(script))
    assert result.code == 1, result.all_output
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB" in result.err
    oom = result.summary["oom"][-1]
    assert (oom["server"], oom["device"], oom["requested_bytes"], oom["capacity_bytes"]) == (0, 0, 2**30, 8 * 2**30)
    assert 7 * 2**30 <= oom["allocated_bytes"] < 8 * 2**30
    assert result.out.count("Out of memory in step 1 on server 0 device 0: 1.00 GiB requested") == 1


def test_the_exit_code_is_the_workloads(run: Run) -> None:
    result = run("--", "python", "-c", "import torch; torch.ones(1, device='cuda'); raise SystemExit(7)")
    assert result.code == 7, result.all_output
    assert result.summary["state"] == "Failed"


def test_a_server_that_fails_ends_the_others(run: Run) -> None:
    """The second server waits for the first one, which is gone."""
    script = "import os, time; os.environ['PET_NODE_RANK'] == '0' and os._exit(9); time.sleep(600)"
    started = time.monotonic()
    result = run("--servers", "2", "--", "python", "-c", script)
    assert result.code == 9, result.all_output
    assert time.monotonic() - started < 60


def test_a_run_that_takes_too_long_is_ended(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "late.yaml"
    file.write_text(
        "{apiVersion: eidolon.dev/v1alpha1, kind: SimulatedCluster, metadata: {name: late},"
        " spec: {timeLimit: 1s, workload: {command: [python, -c, 'import time; time.sleep(600)']}}}"
    )
    started = time.monotonic()
    result = run(str(file))
    assert result.code != 0, result.all_output
    assert "the run took longer than 1 s (spec.timeLimit)" in result.err
    assert time.monotonic() - started < 60


def test_a_torch_without_cuda_is_said_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda = None\n")
    (tmp_path / "train.py").write_text("import torch\n")
    result = run("--", "python", "train.py", cwd=tmp_path)
    assert result.code == 1, result.all_output
    assert f"eidolon: torch 2.11.0+cpu in {tmp_path}/torch is built without CUDA" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    command = [str(BIN / "eidolon"), "run", "--servers", "2", "--out", str(tmp_path / "out"), "--", "torchrun", DDP]
    process = subprocess.Popen(
        [*command, *SMALL[2:], "--steps", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
        cwd=REPOSITORY,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "step   2" in line:
            break
    else:
        raise AssertionError("the workload never trained")
    started = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert time.monotonic() - started < 45


def test_a_run_that_is_killed_takes_everything_with_it(run: Run, tmp_path: Path) -> None:
    command = [str(BIN / "eidolon"), "run", "--out", str(tmp_path / "out"), "--", "python", "-u", "-c"]
    script = "import os, time, torch; torch.ones(1, device='cuda'); print('pid', os.getpid()); time.sleep(600)"
    process = subprocess.Popen([*command, script], stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    pid = next(int(line.split()[1]) for line in process.stdout if line.startswith("pid"))
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()
    time.sleep(6)  # the agent has 5 s after a SIGTERM
    # Nobody was left to remove the directory in shared memory: the next run does.
    assert run("--null-core", "--", "true").code == 0
