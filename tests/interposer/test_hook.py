"""The Python hook, in processes of its own, on a clock that only the test moves."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "interposer/eidolon_interposer/hook"
LIMIT_S = 120

# What every snippet may use. `real` is the real monotonic clock.
PROLOGUE = """
import ctypes, sys, threading, time
fake = ctypes.CDLL(None)
fake.fake_become_rank.argtypes = (ctypes.c_int64,)
fake.fake_set_clock.argtypes = (ctypes.c_int64,)
fake.fake_log.restype = ctypes.c_char_p
real = getattr(time.monotonic, "real", time.monotonic)
real_ns = getattr(time.time_ns, "real", time.time_ns)

def become_rank():
    fake.fake_become_rank(real_ns())

def lasts(seconds, action, *arguments, **options):
    begin = real()
    result = action(*arguments, **options)
    took = real() - begin
    assert seconds <= took < seconds + 30, f"took {took} s, not {seconds} s"
    return result

def log():
    return fake.fake_log().decode().splitlines()
"""


def interpreters() -> list[str]:
    found = [sys.executable]
    for name in ("python3.11", "python3.12", "python3.13"):
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            found.append(path)
    return found


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lib") / "libeidolon.so"
    source = Path(__file__).with_name("fake_libeidolon.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, source], check=True)
    return path


class Python:
    """Runs snippets under the hook."""

    def __init__(self, executable: str, library: Path, directory: Path) -> None:
        self.executable = executable
        self.directory = directory
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("EIDOLON_", "TORCH_NCCL_"))},
            "EIDOLON_DIR": str(directory),
            "LD_PRELOAD": str(library),
            "PYTHONPATH": str(HOOK),
        }

    def __call__(self, code: str, *, prologue: bool = True) -> str:
        script = self.directory / "script.py"
        script.write_text((PROLOGUE if prologue else "") + textwrap.dedent(code))
        ran = subprocess.run(
            [self.executable, script], env=self.environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert ran.returncode == 0, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stdout


@pytest.fixture(params=interpreters())
def python(request: pytest.FixtureRequest, library: Path, tmp_path: Path) -> Python:
    return Python(request.param, library, tmp_path)


@pytest.fixture(params=["own", "2.14"])
def torch_python(request: pytest.FixtureRequest, library: Path, tmp_path: Path) -> Python:
    """With the torch of this environment, and with the other one that is supported (``make setup-torch214``)."""
    if request.param == "own":
        if importlib.util.find_spec("torch") is None:
            pytest.skip("torch is not installed")
        return Python(sys.executable, library, tmp_path)
    other = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eidolon/torch214/bin/python"
    if not other.exists():
        pytest.skip("no second torch (make setup-torch214)")
    return Python(str(other), library, tmp_path)


# ---- clocks ----------------------------------------------------------------------------------------------------------


def test_a_process_that_is_no_rank_keeps_the_real_clocks(python: Python) -> None:
    python("""
        assert abs(time.time() - real_ns() / 1e9) < 1
        assert abs(time.monotonic() - real()) < 1
        assert isinstance(time.time_ns(), int) and isinstance(time.perf_counter_ns(), int)
        lasts(0.2, time.sleep, 0.2)
        threading.Thread(target=lambda: lasts(0.1, time.sleep, 0.1)).start()
    """)


def test_clocks_go_on_from_where_they_were_and_then_stand(python: Python) -> None:
    python("""
        from time import monotonic, perf_counter, time as wall  # bound before
        names = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
        before = {name: getattr(time, name)() for name in names}
        become_rank()
        lasts(0.3, threading.Event().wait, 0.3)
        unit = lambda name: 1 if name.endswith("_ns") else 1e9
        start = {name: getattr(time, name)() for name in names}
        for name in names:
            assert 0 <= (start[name] - before[name]) * unit(name) < 0.2e9, name
            assert type(start[name]) is type(before[name])
        assert {name: getattr(time, name)() for name in names} == start
        fake.fake_set_clock(5_000_000_000)
        for name in names:
            assert abs((getattr(time, name)() - start[name]) * unit(name) - 5e9) < 1000, name
        assert (wall(), monotonic(), perf_counter()) == (time.time(), time.monotonic(), time.perf_counter())
        assert time.time_ns() == start["time_ns"] + 5_000_000_000
    """)


def test_clocks_of_a_rank_never_go_back(python: Python) -> None:
    python("""
        become_rank()
        fake.fake_set_clock(1000)
        first = time.monotonic_ns()
        fake.fake_set_clock(400)  # what a background thread sees, whose clock is the published one
        assert time.monotonic_ns() == first
        fake.fake_set_clock(1001)
        assert time.monotonic_ns() == first + 1
    """)


def test_waits_of_the_standard_library_last_real_time_on_a_frozen_clock(python: Python) -> None:
    python("""
        import asyncio, concurrent.futures, multiprocessing.pool, queue, sched, select, selectors, socket, subprocess
        become_rank()
        frozen = time.monotonic()

        def fails(seconds, error, action, *arguments, **options):
            def attempt():
                try:
                    action(*arguments, **options)
                except error:
                    return
                raise AssertionError(f"{action} did not time out")
            lasts(seconds, attempt)

        lasts(0.2, threading.Event().wait, 0.2)
        condition = threading.Condition()
        with condition:
            lasts(0.2, condition.wait_for, lambda: False, 0.2)
        lasts(0.2, threading.Semaphore(0).acquire, timeout=0.2)
        fails(0.2, threading.BrokenBarrierError, threading.Barrier(2).wait, 0.2)
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        lasts(0.2, thread.join, 0.2)
        fails(0.2, queue.Empty, queue.Queue().get, timeout=0.2)
        fails(0.2, queue.Empty, queue.SimpleQueue().get, timeout=0.2)
        full = queue.Queue(1)
        full.put(0)
        fails(0.2, queue.Full, full.put, 1, timeout=0.2)

        lasts(0.2, asyncio.run, asyncio.sleep(0.2))
        async def wait_for():
            await asyncio.wait_for(asyncio.Event().wait(), 0.2)
        fails(0.2, asyncio.TimeoutError, asyncio.run, wait_for())

        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], stdout=subprocess.PIPE)
        fails(0.3, subprocess.TimeoutExpired, child.wait, timeout=0.3)
        fails(0.3, subprocess.TimeoutExpired, child.communicate, timeout=0.3)
        child.kill()
        child.wait(timeout=10)

        left, right = socket.socketpair()
        left.settimeout(0.2)
        fails(0.2, TimeoutError, left.recv, 1)
        selector = selectors.DefaultSelector()
        selector.register(right, selectors.EVENT_READ)
        lasts(0.2, selector.select, 0.2)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            release = threading.Event()
            future = pool.submit(release.wait)
            lasts(0.2, concurrent.futures.wait, [future], timeout=0.2)
            fails(0.2, concurrent.futures.TimeoutError, future.result, timeout=0.2)
            fails(0.2, concurrent.futures.TimeoutError, list, concurrent.futures.as_completed([future], timeout=0.2))
            release.set()

        context = multiprocessing.get_context("fork")
        fails(0.2, queue.Empty, context.Queue().get, timeout=0.2)
        ends = context.Pipe()
        assert lasts(0.2, ends[0].poll, 0.2) is False
        release = threading.Event()
        with multiprocessing.pool.ThreadPool(1) as pool:
            fails(0.2, multiprocessing.TimeoutError, pool.apply_async(release.wait).get, timeout=0.2)
            release.set()

        scheduler = sched.scheduler()
        scheduler.enter(0.2, 1, lambda: None)
        lasts(0.2, scheduler.run)
        assert time.monotonic() == frozen
    """)


def test_logging_and_timeit_show_virtual_time(python: Python) -> None:
    python("""
        import logging, timeit
        become_rank()
        fake.fake_set_clock(7_000_000_000)
        created = logging.LogRecord("name", logging.INFO, "path", 1, "text", (), None).created
        assert abs(created - time.time()) < 1e-5
        threading.Event().wait(0.2)
        assert timeit.timeit("pass", number=1) == 0
        assert timeit.default_timer() == time.perf_counter()
    """)


def test_some_packages_keep_the_real_clock(python: Python) -> None:
    (python.directory / "grpc").mkdir()
    ask = "import time\ndef ask(): return time.monotonic()\ndef rest(): time.sleep(0.2)\n"
    for name in ("grpc/__init__", "grpc/deep", "waiter", "waiters", "code", "wave"):
        (python.directory / f"{name}.py").write_text(ask)
    python.environment["EIDOLON_REAL_CLOCK"] = "other, waiter"
    python("""
        become_rank()
        import importlib
        frozen = time.monotonic()
        threading.Event().wait(0.1)
        for name, is_real in (("grpc", True), ("grpc.deep", True), ("waiter", True), ("waiters", False)):
            module = importlib.import_module(name)
            assert (module.ask() != frozen) == is_real, name
        lasts(0.2, importlib.import_module("waiter").rest)
        for name in ("code", "wave"):  # the user's own, though the standard library has them too
            module = importlib.import_module(name)
            assert module.ask() == frozen, (name, module)
    """)


def test_code_without_a_module_sees_the_virtual_clock(python: Python) -> None:
    python("""
        become_rank()
        frozen = time.monotonic()
        threading.Event().wait(0.1)
        assert eval("monotonic()", {"monotonic": time.monotonic}) == frozen
        assert list(map(lambda f: f(), [time.monotonic])) == [frozen]
    """)


# ---- sleep -----------------------------------------------------------------------------------------------------------


def test_sleep_of_the_main_thread_takes_virtual_time_only(python: Python) -> None:
    python("""
        become_rank()
        begin, wall = real(), time.monotonic_ns()
        for _ in range(100):
            time.sleep(1)
        time.sleep(0.25)
        assert time.monotonic_ns() - wall == 100_250_000_000
        assert real() - begin < 5
    """)


def test_sleep_of_another_thread_lasts_real_time_or_until_the_clock_passes(python: Python) -> None:
    python("""
        become_rank()
        failed = []

        def run(action):
            def guarded():
                try:
                    action()
                except BaseException as error:
                    failed.append(error)
            thread = threading.Thread(target=guarded)
            thread.start()
            return thread

        run(lambda: lasts(0.3, time.sleep, 0.3)).join()
        assert not failed
        thread = run(lambda: time.sleep(1000))
        thread.join(0.2)
        assert thread.is_alive()
        fake.fake_set_clock(999_999_999_999)
        thread.join(0.2)
        assert thread.is_alive()
        fake.fake_set_clock(1_000_000_000_000)
        thread.join(10)
        assert not thread.is_alive() and not failed
    """)


def test_sleep_takes_and_refuses_what_the_builtin_does(python: Python) -> None:
    python("""
        import decimal, fractions
        original = time.sleep.real

        class Index:
            def __index__(self):
                return 0

        def outcome(function, value):
            try:
                return function(value)
            except Exception as error:
                return type(error), str(error)

        become_rank()
        for value in (-1, -0.5, "1", None, [], float("nan"), float("inf"), 1e300, 0, 0.0, False, Index(), 1e-12,
                      decimal.Decimal(0), fractions.Fraction(0), 2**70):
            assert outcome(time.sleep, value) == outcome(original, value), value
        time.sleep(True)
        assert fake.eidolon_clock_ns() == 1_000_000_000
        for arguments in ((), (1, 2)):
            try:
                time.sleep(*arguments)
            except TypeError:
                continue
            raise AssertionError(arguments)
    """)


def test_stand_ins_pass_for_builtins(python: Python) -> None:
    python("""
        import copy, inspect, pickle
        class Timer:
            clock = time.perf_counter
            pause = time.sleep
        assert isinstance(Timer().clock(), float)  # not bound to the instance
        Timer().pause(0)
        for name in ("time", "time_ns", "monotonic", "perf_counter", "sleep"):
            function = getattr(time, name)
            assert function is not function.real
            assert function.__name__ == function.__qualname__ == name
            assert function.__module__ == "time"
            assert function.__doc__ == function.real.__doc__
            assert repr(function) == f"<built-in function {name}>"
            assert callable(function) and not inspect.isfunction(function)
            assert copy.deepcopy(function) is pickle.loads(pickle.dumps(function)) is function
            assert inspect.getdoc(function)
    """)


# ---- installation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["EIDOLON_DIR", "LD_PRELOAD"])
def test_outside_a_simulation_nothing_is_touched(python: Python, missing: str) -> None:
    del python.environment[missing]
    before = python.environment.pop("PYTHONPATH")
    code = "import os, sys, time\nprint(time.time, time.sleep, len(sys.meta_path), sorted(os.environ))"
    plain = python(code, prologue=False)
    python.environment["PYTHONPATH"] = before
    assert python(code, prologue=False).replace("'PYTHONPATH', ", "") == plain
    assert "Function" not in plain


@pytest.mark.parametrize("inside", [True, False])
def test_a_hidden_sitecustomize_is_run(python: Python, inside: bool) -> None:
    other = python.directory / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import time\nhere = (__name__, __file__, hasattr(time.sleep, 'real'))\n")
    python.environment["PYTHONPATH"] = os.pathsep.join([str(HOOK), str(HOOK) + "/", str(other)])
    if not inside:
        del python.environment["EIDOLON_DIR"]
    code = "import sitecustomize as s\nprint(s.here)"
    expected = f"{('sitecustomize', str(other / 'sitecustomize.py'), inside)}\n"
    assert python(code, prologue=False) == expected
    assert python("import eidolon\neidolon.step()\nprint(len(log()))").strip() == str(int(inside))


def test_watchdogs_are_quiet_unless_told_otherwise(python: Python) -> None:
    python.environment["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = "5"
    out = python("import os\nprint({k: v for k, v in os.environ.items() if 'TORCH_NCCL' in k})", prologue=False)
    assert out.count("604800") == 1
    assert "'TORCH_NCCL_NONBLOCKING_TIMEOUT': '5'" in out


def test_a_bad_factor_is_named(python: Python) -> None:
    python.environment["EIDOLON_TIMEOUT_FACTOR"] = "fast"
    ran = subprocess.run([python.executable, "-c", ""], env=python.environment, capture_output=True, text=True)
    assert ran.stderr == "eidolon: EIDOLON_TIMEOUT_FACTOR=fast is ignored: a number from 1 to 1000000 is allowed\n"


def test_an_import_is_adapted_and_otherwise_untouched(python: Python) -> None:
    package = python.directory / "torch" / "optim"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("__version__ = '2.99'\n")
    (package / "__init__.py").write_text("from . import optimizer\n")
    (package / "optimizer.py").write_text(
        "hooks = []\nregister_optimizer_step_post_hook = hooks.append\nregister_optimizer_step_pre_hook = id\n"
    )
    python("""
        import importlib.util, inspect
        assert importlib.util.find_spec("torch.optim.optimizer").origin.endswith("optimizer.py")
        import torch.optim
        hook, = torch.optim.optimizer.hooks
        hook(None, (), {})
        assert log() == ["mark step 0"]
        assert "hooks = []" in inspect.getsource(torch.optim.optimizer)
        assert "exec_module" not in vars(torch.optim.optimizer.__loader__)
        import eidolon
        eidolon.step()
        hook(None, (), {})  # the program marks its steps itself
        assert log() == ["mark step 0", "mark step 0"]
    """)


def test_a_framework_that_cannot_be_adapted_is_named_and_works(python: Python) -> None:
    package = python.directory / "torch" / "optim"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("__version__ = '2.99'\n")
    (package / "__init__.py").write_text("")
    (package / "optimizer.py").write_text("value = 5\n")
    ran = subprocess.run(
        [python.executable, "-c", "import torch.optim.optimizer as o; print(o.value)"],
        env={**python.environment, "PYTHONPATH": f"{HOOK}{os.pathsep}{python.directory}"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "5\n"
    assert ran.stderr.startswith("eidolon: cannot adapt torch.optim.optimizer: AttributeError: ")
    assert ran.stderr.count("\n") == 1


# ---- eidolon.py ------------------------------------------------------------------------------------------------------


def test_steps_and_reports(python: Python) -> None:
    python("""
        import eidolon
        become_rank()
        eidolon.step()
        eidolon.report("tokens", 2**62)
        eidolon.report("räte", -1)
        assert log() == ["mark step 0", f"report tokens {2**62}", "report räte -1"]
    """)


@pytest.mark.parametrize("inside", [True, False])
def test_bad_reports_are_refused_everywhere(python: Python, inside: bool) -> None:
    if not inside:
        del python.environment["EIDOLON_DIR"]
    python("""
        import eidolon
        for name, value, expected in (
            ("tokens", 1.5, TypeError), ("tokens", "1", TypeError), ("tokens", 2**63, OverflowError),
            ("", 1, ValueError), ("a\\nb", 1, ValueError), (b"a", 1, ValueError), ("a\\0", 1, ValueError),
        ):
            try:
                eidolon.report(name, value)
            except expected:
                continue
            raise AssertionError((name, value))
        assert log() == []
        eidolon.step()
        eidolon.report("tokens", 1)
    """)


# ---- torch -----------------------------------------------------------------------------------------------------------


def test_process_groups_of_nccl_get_the_timeouts_that_the_program_gave(torch_python: Python) -> None:
    torch_python("""
        from datetime import timedelta
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = c10d.default_pg_nccl_timeout  # as torch hands on what it was given, or its default
        assert options._timeout == timedelta(minutes=10)
        assert c10d.default_pg_nccl_timeout == timedelta(minutes=600)
        assert log() == ["timeout nccl 600000"]
        options._timeout = timedelta(seconds=2.5)
        assert options._timeout == timedelta(seconds=2.5)
        assert log() == ["timeout nccl 600000", "timeout nccl 2500"]
    """)


def test_a_timeout_that_went_through_cpp_is_known_again(torch_python: Python) -> None:
    torch_python("""
        from datetime import timedelta
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        through = c10d._DistributedBackendOptions()
        through.timeout = c10d.default_pg_nccl_timeout  # torch 2.14 hands it on in there
        assert type(through.timeout) is timedelta
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = through.timeout
        assert options._timeout == timedelta(minutes=10)
    """)


def test_they_are_lengthened_where_they_would_hold_in_real_time(torch_python: Python) -> None:
    torch_python.environment["FAKE_REAL_TIME"] = "1"  # a torch whose watchdog looks elsewhere
    torch_python("""
        from datetime import timedelta
        from torch.distributed import distributed_c10d as c10d

        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = c10d.default_pg_nccl_timeout
        assert options._timeout == timedelta(minutes=600)
    """)


def test_timeouts_of_torch_and_torchrun_are_lengthened_once(torch_python: Python) -> None:
    torch_python.environment["EIDOLON_TIMEOUT_FACTOR"] = "10"
    torch_python("""
        import pickle
        from datetime import timedelta
        import torch
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        assert c10d.default_pg_timeout == dist.default_pg_timeout == timedelta(minutes=300)
        assert c10d.default_pg_nccl_timeout == timedelta(minutes=100)
        assert type(pickle.loads(pickle.dumps(c10d.default_pg_timeout))) is timedelta

        store = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=7))
        assert store.timeout == timedelta(seconds=70)
        assert dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=3)).timeout == timedelta(seconds=30)
        assert dist.TCPStore("127.0.0.1", store.port).timeout == timedelta(seconds=3000)
        try:
            lasts(0.2, store.wait, ["nobody sets this"], timedelta(seconds=0.2))  # a poll keeps its limit
        except dist.DistStoreError:
            pass

        def timeout(group):
            seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
            return timedelta(seconds=round(seconds))  # torch keeps it as a float

        address = f"tcp://127.0.0.1:{store.port + 1 if store.port < 65000 else 29511}"
        dist.init_process_group("gloo", address, timedelta(seconds=20), 1, 0)
        assert timeout(dist.group.WORLD) == timedelta(seconds=200)
        assert timeout(dist.new_group([0], timedelta(seconds=4))) == timedelta(seconds=40)
        assert timeout(dist.new_group([0], timeout=timedelta(seconds=4))) == timedelta(seconds=40)
        assert timeout(dist.new_group([0])) == timedelta(minutes=300)
        assert timeout(dist.new_subgroups(1, timeout=timedelta(seconds=5))[0]) == timedelta(seconds=50)
        assert timeout(dist.new_group([0], timeout=timedelta(days=3000))) == timedelta(days=3650)
        assert timeout(dist.new_group([0], timeout=timedelta(days=4000))) == timedelta(days=4000)
        try:
            dist.new_group([0], timeout=5)
        except TypeError:
            pass
        else:
            raise AssertionError("torch no longer checks timeouts")
        dist.destroy_process_group()

        # torchrun
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousSettings, RendezvousTimeout
        import inspect

        limits = RendezvousTimeout()
        assert (limits.join, limits.close) == (timedelta(seconds=6000), timedelta(seconds=300))
        assert (limits.heartbeat, limits.last_call) == (timedelta(seconds=50), timedelta(seconds=30))
        assert RendezvousTimeout(join=timedelta(seconds=1)).join == timedelta(seconds=1)
        settings = RendezvousSettings("id", 1, 2, limits, timedelta(seconds=5), 3)
        assert settings.keep_alive_max_attempt == 30
        assert inspect.signature(LocalElasticAgent.__init__).parameters["exit_barrier_timeout"].default == 3000
    """)


def test_optimizer_steps_are_marks(torch_python: Python) -> None:
    torch_python("""
        import torch
        parameter = torch.nn.Parameter(torch.zeros(2))
        for kind in (torch.optim.SGD, torch.optim.AdamW):
            optimizer = kind([parameter], lr=0.1)
            for _ in range(3):
                parameter.grad = torch.ones(2)
                optimizer.step()
        assert log() == ["mark step 0"] * 6

        class Both(torch.optim.Optimizer):  # as frameworks have it for many parts of a model
            def __init__(self, *parts):
                super().__init__([parameter], {})
                self.parts = parts

            def step(self):
                for part in self.parts:
                    part.step()

        both = Both(torch.optim.SGD([parameter], lr=0.1), torch.optim.AdamW([parameter], lr=0.1))
        both.step()
        assert log() == ["mark step 0"] * 7
        both.parts = (None,)
        try:
            both.step()
        except AttributeError:
            both.parts = ()
        both.step()
        assert log() == ["mark step 0"] * 8

        # Compiled code breaks at the stand-ins as it does at the builtins.
        @torch.compile(backend="eager")
        def f(x):
            begin = time.perf_counter()
            y = x + 1
            return y, time.perf_counter() - begin

        become_rank()
        y, took = f(torch.zeros(2))
        assert y.tolist() == [1, 1] and took == 0
    """)


def test_a_range_can_be_the_step_instead(torch_python: Python) -> None:
    torch_python.environment["EIDOLON_STEP_RANGE"] = "my step"
    torch_python("""
        import torch
        from torch.cuda import nvtx

        parameter = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.grad = torch.ones(2)
        with nvtx.range("my {}", "step"):
            with nvtx.range("forward"):
                optimizer.step()
            assert log() == []
        assert log() == ["mark step 0"]
        torch.cuda.nvtx.range_push("other")
        torch.cuda.nvtx.range_push("my step")
        torch.cuda.nvtx.range_pop()
        assert len(log()) == 2
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.range_pop()  # one too many
        assert len(log()) == 2
    """)
