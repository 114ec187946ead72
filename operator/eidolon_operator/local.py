"""The local backend: a simulated cluster as processes on this machine.

There is one process with the simulation core and the agents of all emulated servers, and for each server a process
group of the workload. Of a folded run there are only the servers that have ranks to run; they keep their numbers::

    eidolon run
      ├─ python -m eidolon_operator.one_host   rings in /dev/shm/eidolon-RUN-N -> core, writes summary.json
      └─ launch -- COMMAND                     for each server N: the workload, with the shim injected

They start in this order, the second once the first is ready, and end in the reverse order. A workload that ends writes
its exit state, then its agent drains the rings and says goodbye, and the core ends when all agents have. Whatever
happens, nothing outlives the run (see :mod:`eidolon_operator.processes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from eidolon_interposer.serverdir import tell_launcher, write_exit, write_server_conf
from eidolon_operator import diagnosis, folding, launching, live, machine, processes
from eidolon_operator import summary as summaries
from eidolon_operator.console import Console
from eidolon_operator.machine import RunError
from eidolon_operator.plan import Plan
from eidolon_operator.spec import Spec

READY_TIMEOUT_S: Final = 60.0  # for the core to start, and to welcome its agents
GRACE_S: Final = 10.0  # for the other servers' workloads once one has failed, and after Ctrl-C
DRAIN_TIMEOUT_S: Final = 60.0  # for the core once the workloads have ended
RECONNECT_TIMEOUT_S: Final = 1.0  # an agent that is gone does not come back: nobody here starts another
_CORE: Final = "simulation core"
_FOR_EVER_S: Final = 10.0 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    exit_code: int
    summary: Mapping[str, Any] | None = None  #: what the core wrote; None if there is no core or it died
    message: str | None = None  #: why the exit code is not 0, where the workload's own output does not say it


@dataclass(slots=True)
class _Server:
    """One emulated server: its directory, its workload."""

    index: int
    directory: Path
    workload: asyncio.subprocess.Process | None = None
    output: list[asyncio.Task[None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses at which the core serves while it runs, as HOST:PORT (port 0: any free one). None: it does not."""

    metrics: str | None = None
    dcgm: str | None = None

    def arguments(self) -> list[str]:
        """Command-line arguments for the core."""
        http = ["--http", self.metrics] if self.metrics else []
        return [*http, *(["--dcgm", self.dcgm] if self.dcgm else [])]


def run(
    spec: Spec,
    plan: Plan,
    command: Sequence[str],
    *,
    out: Path,
    null_core: bool = False,
    endpoints: Endpoints | None = None,
    host_memory_bytes: int | None = None,
) -> Outcome:
    """Runs the simulation to its end.

    ``command`` is that of one emulated server (:func:`machine.workload_command`). ``out`` gets the plan, the logs and
    the summary; it is there, and this run's alone (:mod:`.rundir`). ``host_memory_bytes`` is the memory of this machine
    that large allocations of all ranks together may take; a rank that would exceed it waits until another frees. The
    default is :func:`machine.default_host_memory`. Raises :class:`RunError`.
    """
    processes.become_subreaper()
    scratch = machine.scratch_directory()
    machine.remove_stale(scratch)
    if not null_core:
        machine.check_space(scratch, plan)
    try:
        with contextlib.ExitStack() as stack:
            servers = [
                _Server(index, stack.enter_context(machine.server_directory(scratch, index)))
                for index in spec.placement.servers
            ]
            budget = machine.default_host_memory() if host_memory_bytes is None else host_memory_bytes
            plan = plan.with_server_conf(machine.share_host_memory(servers[0].directory, budget))
            plan = plan.with_core(reconnect_timeout_s=RECONNECT_TIMEOUT_S)
            local = _LocalRun(spec, plan, command, out, servers, endpoints or Endpoints(), null_core=null_core)
            try:
                return asyncio.run(local.run())
            finally:
                processes.reap_orphans()
    except OSError as error:
        raise RunError(f"{error.filename or out}: {error.strerror or error}") from error


class _LocalRun:
    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        command: Sequence[str],
        out: Path,
        servers: list[_Server],
        endpoints: Endpoints,
        *,
        null_core: bool,
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._command = command
        self._out = out
        self._core_log = out / launching.CORE_LOG
        self._servers = servers
        self._endpoints = endpoints
        self._null_core = null_core
        self._core: asyncio.subprocess.Process | None = None
        self._started: list[asyncio.subprocess.Process] = []
        self._console = Console()
        self._interrupted: signal.Signals | None = None
        self._hurry = asyncio.Event()
        self._late: str | None = None
        self._code = 0  # exit code of the first workload that failed
        self._lost: str | None = None  # which of our own processes ended too early, and how
        self._master_port = machine.free_port()

    async def run(self) -> Outcome:
        loop = asyncio.get_running_loop()
        starting = asyncio.create_task(self._start())

        def on_signal(number: signal.Signals) -> None:
            if self._interrupted is not None:
                self._hurry.set()  # the second Ctrl-C ends the grace
            self._interrupted = self._interrupted or number
            starting.cancel()  # no effect once all has started
            for server in self._servers:
                _send(server.workload, number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, on_signal, number)
        progress = asyncio.create_task(self._show_progress())
        told = asyncio.create_task(self._tell_what_runs())
        try:
            await starting
            return await self._wait()
        except asyncio.CancelledError:  # by a signal, before all had started
            return self._outcome(1)
        finally:
            progress.cancel()
            told.cancel()
            self._console.status(())
            await asyncio.to_thread(processes.kill_descendants, grace_s=0.5)
            for process in self._started:
                await process.wait()

    # -- start ---------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._null_core:
            for server in self._servers:
                conf = {**self._plan.document["server"]["conf"], "mode": "null"}
                write_server_conf(server.directory, conf, server.index)
        else:
            plan_file = self._out / launching.PLAN
            plan_file.touch(mode=0o600)  # it holds the token of the run
            plan_file.write_text(json.dumps(self._plan.document, indent=1) + "\n", "utf-8")
            await self._start_core(plan_file)
        for server in self._servers:
            await self._start_workload(server)

    async def _start_core(self, plan_file: Path) -> None:
        """Starts the core, with the agents, and waits for the line that says that it is ready. Addresses that it prints
        before are shown to the user."""
        for stale in (launching.SUMMARY, launching.PROGRESS):
            (self._out / stale).unlink(missing_ok=True)
        command = [sys.executable, "-m", launching.ONE_HOST_MODULE, "--plan", str(plan_file)]
        command += [*self._endpoints.arguments(), "--out", str(self._out)]
        command += ["--dirs", *(f"{server.index}={server.directory}" for server in self._servers)]
        with self._core_log.open("wb") as file:
            core = await processes.start(
                command, env=_service_environment(), stdout=asyncio.subprocess.PIPE, stderr=file
            )
        self._core = core
        self._started.append(core)
        assert core.stdout is not None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await core.stdout.readline()
                while line.startswith((b"http ", b"dcgm ")):
                    self._console.say(" at ".join(line.decode().split()))
                    line = await core.stdout.readline()
        except TimeoutError:
            text = f"the {_CORE} is not ready after {READY_TIMEOUT_S:.0f} s; see {self._core_log}"
            raise RunError(text) from None
        text = line.decode(errors="replace").strip()
        if text != "ready":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(core.wait(), 5)
            raise RunError(f"the {_CORE} did not start: {_last_line(self._core_log) or text or 'it printed nothing'}")

    async def _start_workload(self, server: _Server) -> None:
        launch = importlib.resources.files("eidolon_interposer") / launching.LAUNCH
        if not launch.is_file():
            raise RunError(f"this installation of eidolon is incomplete: {launch} is missing")
        command = [str(launch), "--dir", str(server.directory), *launching.rank_options(self._spec, server.index)]
        directory = self._spec.workload.working_dir
        server.workload = await processes.start(
            [*command, "--", *self._command],
            env=machine.workload_environment(self._spec, server.index, self._master_port, os.environ),
            cwd=Path(directory) if directory else None,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._started.append(server.workload)
        prefix = f"[server {server.index}] " if len(self._servers) > 1 else ""
        for stream, error in ((server.workload.stdout, False), (server.workload.stderr, True)):
            assert stream is not None
            server.output.append(asyncio.create_task(self._console.follow(stream, error=error, prefix=prefix)))

    # -- end -----------------------------------------------------------------------------------------------------

    async def _wait(self) -> Outcome:
        failure = await self._wait_for_workloads()
        code = self._code
        for server in self._servers:
            # A grandchild that escaped may hold the pipe open. What it writes is not waited for.
            await asyncio.wait(server.output, timeout=1.0)
        if self._null_core:
            return self._outcome(code)
        services = [self._core.wait()] if self._core is not None else []
        ended = await self._within(DRAIN_TIMEOUT_S if failure is None else GRACE_S, *services)
        summary = _read_summary(self._out)
        (self._out / launching.SUMMARY).with_suffix(".partial").unlink(missing_ok=True)  # of a core that was killed
        if summary is None and failure is None:
            failure = self._how_lost()
        if summary is not None and summary["state"] != "Succeeded":
            reason = summary.get("reason")
            late = reason if summary.get("cause") == "TimeLimitExceeded" else self._late  # the core says who waits
            failure = late or self._lost or reason or failure or "the simulation failed"
        elif failure is None and not ended:
            failure = f"the simulation did not end within {DRAIN_TIMEOUT_S:.0f} s after the workload; see {self._out}"
        ended_by_itself = not (self._interrupted or self._late or self._lost or code > processes.KILLED)
        if summary is not None and summary["ranks"] == 0 and ended_by_itself:
            environment = machine.workload_environment(self._spec, 0, self._master_port, os.environ)
            failure = diagnosis.no_rank(self._command, environment)
        return self._outcome(code, summary, failure)

    def _outcome(self, code: int, summary: Mapping[str, Any] | None = None, failure: str | None = None) -> Outcome:
        if self._interrupted:
            return Outcome(128 + self._interrupted, summary, f"ended by {self._interrupted.name}")
        return Outcome(code or (1 if failure else 0), summary, failure)

    async def _wait_for_workloads(self) -> str | None:
        """Waits until all workloads have ended, ending the rest when one has failed. Returns why the run cannot go on
        if the core has ended too early."""
        workloads = {asyncio.create_task(s.workload.wait()): s for s in self._servers if s.workload}
        core = None if self._core is None else asyncio.create_task(self._core.wait())
        failure: str | None = None
        running = set(workloads)
        hurry = asyncio.create_task(self._hurry.wait())
        limit_s = self._spec.time_limit_s
        late = asyncio.create_task(asyncio.sleep(limit_s if limit_s is not None else _FOR_EVER_S))
        timeout: float | None = None
        while running:
            watched: set[asyncio.Task[Any]] = set(running)
            if core is not None:
                watched.add(core)
            if failure is None:
                watched.add(late)
            if not hurry.done():
                watched.add(hurry)
            done, _ = await asyncio.wait(watched, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            running -= done
            for task in done & set(workloads):
                self._see_off(workloads[task])
            if core is not None and core in done:
                orderly = core.result() == 0
                core = None
                if not orderly and failure is None and not self._interrupted:
                    assert self._core is not None
                    failure = self._how_lost()
                    self._lost = failure if (self._core.returncode or 0) < 0 else None  # else it was told why
                    self._console.say(failure)
                    self._end(failure, self._servers)
            if late.done() and failure is None:
                failure = self._late = f"the run took longer than {limit_s:g} s (spec.timeLimit)"
            failed = failure is not None or any(t.done() and t.result() != 0 for t in workloads)
            if hurry.done() or (timeout is not None and not done):
                for task in running:
                    _kill_group(workloads[task].workload)
            elif (failed or self._interrupted) and timeout is None:
                timeout = GRACE_S
                if not self._interrupted:
                    why = failure or "the workload of another server has failed"
                    asyncio.get_running_loop().call_later(GRACE_S / 2, self._end, why, self._servers)
        hurry.cancel()
        late.cancel()
        return failure

    def _end(self, reason: str, servers: Iterable[_Server]) -> None:
        """Ends the workloads of servers by a signal. Their launchers are told the reason first, so that none takes the
        signal for one from outside."""
        for server in servers:
            tell_launcher(server.directory, reason, failed=True)
            _send(server.workload, signal.SIGTERM)

    def _see_off(self, server: _Server) -> None:
        """A workload is over. Its launcher states how, as the last thing that it does; for one that was killed we do
        it, since its agent waits for that, and end the processes that it has left behind."""
        assert server.workload is not None
        returncode = server.workload.returncode or 0
        self._code = self._code or processes.exit_code(returncode)
        if self._null_core or _ended(server):
            return
        how = f"its launcher {processes.ending(returncode)}"
        self._console.say(f"server {server.index}: {how}")
        write_exit(server.directory, processes.exit_code(returncode), how)
        for pid in processes.orphans([process.pid for process in self._started]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _how_lost(self) -> str:
        code = (self._core.returncode if self._core else None) or 0
        said = "" if code < 0 else f": {_last_line(self._core_log) or f'see {self._core_log}'}"
        return f"the {_CORE} {processes.ending(code)} too early{said}"

    async def _within(self, timeout_s: float, *waiting: Awaitable[object]) -> bool:
        """Whether all have ended within the time. A second Ctrl-C ends the wait too."""
        everything: asyncio.Future[list[object]] = asyncio.gather(*waiting)
        hurry = asyncio.create_task(self._hurry.wait())
        watched: set[asyncio.Future[Any]] = {everything, hurry}
        await asyncio.wait(watched, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if everything.done():
            return True
        everything.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await everything
        return False

    # -- progress ------------------------------------------------------------------------------------------------

    async def _tell_what_runs(self) -> None:
        """Names the interpreter and the torch of the workload, once the launcher of the first server has looked."""
        image = self._servers[0].directory / "image"
        while not image.exists():  # noqa: ASYNC110 (it is another process that makes it)
            await asyncio.sleep(0.05)
        try:
            lines = image.read_text("utf-8", "replace").splitlines()
        except OSError:  # the run has just ended
            return
        facts = {key: value for key, _, value in (line.partition("=") for line in lines)}
        if "executable" in facts:
            torch = f"torch {facts['torch']} in {facts.get('torch_in')}" if "torch" in facts else "no torch"
            self._console.say(f"Python {facts.get('python')} of {facts['executable']}, {torch}")

    async def _show_progress(self) -> None:
        """Shows steps as they become final, as a live view on a terminal and as lines of a log elsewhere."""
        clock = asyncio.get_running_loop().time
        spec, log = self._spec, live.PlainLog(self._spec.steps)
        folded = f" · {folding.counted(spec.placement.classes)} run" if spec.fold is not None else ""
        view = live.LiveView(f"{spec.name} on {spec.hardware}{folded}", spec.steps, self._plan.capacities, clock())
        async for steps in _tail(self._out / launching.PROGRESS):
            for step in steps:
                view.step(step, clock())
                if not self._console.terminal and (line := log.step(step, clock())) is not None:
                    self._console.say(line)
            if self._console.terminal:
                self._console.status(view.lines(clock(), self._console.columns))


async def _tail(path: Path) -> AsyncIterator[list[Mapping[str, Any]]]:
    """Yields the new lines of a JSON-lines file, which may be none, a few times a second."""
    offset, pending = 0, b""
    while True:
        await asyncio.sleep(0.25)
        data = b""
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        offset += len(data)
        *lines, pending = (pending + data).split(b"\n")
        yield [json.loads(line) for line in lines]


def _service_environment() -> dict[str, str]:
    hidden = (launching.VARIABLE_PREFIX, "LD_PRELOAD")
    return {key: value for key, value in os.environ.items() if not key.startswith(hidden)}


def _ended(server: _Server) -> bool:
    return (server.directory / "exit").exists()


def _send(process: asyncio.subprocess.Process | None, number: signal.Signals) -> None:
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


def _kill_group(process: asyncio.subprocess.Process | None) -> None:
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip().removeprefix("eidolon: ") for line in reversed(lines) if line.strip()), "")


def _read_summary(out: Path) -> Mapping[str, Any] | None:
    try:
        return summaries.summary(out / launching.SUMMARY)
    except (FileNotFoundError, summaries.UnreadableError):
        return None
