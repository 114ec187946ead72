"""Puts a Python process of an emulated server on the virtual clock, and marks its training steps.

Python imports this file at start-up because its directory is in front on ``PYTHONPATH``. It depends on nothing, runs in
whatever interpreter the user has (3.11 and later), and does nothing unless ``EIDOLON_DIR`` is set and ``libeidolon.so``
is loaded in the process. A ``sitecustomize`` that it hides is run after it. (``python -E``, ``-I`` and ``-S`` skip it.)

Clocks
------
``time.time``, ``time.monotonic``, ``time.perf_counter`` and their ``_ns`` forms answer the rank's virtual time to user
and framework code. They go on from what they showed when the process became a rank (created a CUDA context) and never
go back; before that, and in processes that never become one, they are the real clocks. A call is judged by the module
it comes from, however that module got hold of the function:

* The standard library keeps the real clock: its timeouts end waits that are real (locks, sockets, children).
  ``logging`` and ``timeit`` are the exceptions: what they show is for the user.
* So do the packages in :data:`REAL_CLOCK`: they wait for peers, or they time compilers. ``EIDOLON_REAL_CLOCK``, a
  comma-separated list, adds more.

``datetime.datetime.now()``, ``time.clock_gettime()`` and whatever C code reads by itself stay real.

``time.sleep`` on a thread that advances the clock (main, autograd) takes virtual time only. On another thread of a
rank it ends when the rank's clock has passed the target or the real duration is over, whichever is first. Called by
those who keep the real clock it is the real one. A loop that polls the outside world with ``sleep`` thus advances the
virtual clock by all it asked to sleep.

Timeouts
--------
Those of torch are adapted as its modules are imported (``eidolon_timeouts.py``).

Folded runs
-----------
Where a process stands for many ranks, it takes the place of one of them first (``eidolon_fold.py``).

Steps
-----
A step of any ``torch.optim`` optimizer is a step mark, unless it is part of another's (there are optimizers that hold
optimizers). With ``EIDOLON_STEP_RANGE=NAME`` the end of each NVTX range of that name (``torch.cuda.nvtx``) is one
instead; and once a program called ``eidolon.step()``, only those calls are.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as in typing, which would take longer to import than all that is done here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

REAL_CLOCK = (
    # Deadlines of rendezvous and stores, whose peers are real processes.
    "torch.distributed.distributed_c10d",
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.distributed.rendezvous",
    "torch.distributed.run",
    # Compilers time themselves thousands of times: a host activity that is not simulated.
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
    "torch.fx",
    "triton",
    # Network and file-lock clients compare these clocks with deadlines that C code or a peer keeps.
    "aiohttp",
    "anyio",
    "botocore",
    "filelock",
    "fsspec",
    "grpc",
    "httpcore",
    "httpx",
    "huggingface_hub",
    "ray",
    "redis",
    "requests",
    "tornado",
    "trio",
    "urllib3",
    "uvloop",
    "wandb",
    "zmq",
)
VIRTUAL_STDLIB = ("logging", "timeit")
POLL_S = 0.01  # how often a sleeping background thread looks at the clock: as often as it is published

_STDLIB = frozenset(sys.stdlib_module_names).difference(VIRTUAL_STDLIB)
_STDLIB_DIRECTORY = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120  # pathlib is slow to import
_getframe = sys._getframe


def complain(text: str) -> None:
    """One line on stderr: something that the simulation counts on is not as expected."""
    print(f"eidolon: {text}", file=sys.stderr, flush=True)


# ---- the clock -------------------------------------------------------------------------------------------------------


class Clock:
    """The rank's clock as ``libeidolon.so`` tells it."""

    def __init__(self, library: Any) -> None:
        import ctypes

        # Not PyDLL: the first two may wait for the core, or for room in the ring, and other threads go on meanwhile.
        self._now_ns = library.eidolon_clock_ns
        self._now_ns.restype, self._now_ns.argtypes = ctypes.c_int64, ()
        self.advance_ns = library.eidolon_sleep_ns  #: 1: done; 0: not on this thread
        self.advance_ns.restype, self.advance_ns.argtypes = ctypes.c_int, (ctypes.c_int64,)
        self._epoch_ns = library.eidolon_epoch_ns
        self._epoch_ns.restype, self._epoch_ns.argtypes = ctypes.c_int64, ()
        self._latest_ns = 0
        #: What each real clock showed at virtual time 0, by name; set when the process is first seen to be a rank.
        self.origin_ns: dict[str, int] = {}

    def now_ns(self) -> int:
        """Virtual time, the same or more than any thread saw before; -1 if the process is no rank."""
        now_ns: int = self._now_ns()
        if now_ns < 0:
            return now_ns
        if not self.origin_ns:
            self._set_origin()
        if now_ns < self._latest_ns:  # background threads read a published clock, which lags
            return self._latest_ns
        self._latest_ns = now_ns
        return now_ns

    def _set_origin(self) -> None:
        origin = {name: real() for name, real in REAL_NS.items()}
        age_ns = max(0, origin["time"] - self._epoch_ns())
        self.origin_ns = {name: value - age_ns for name, value in origin.items()}


REAL_NS: dict[str, Callable[[], int]] = {
    "time": time.time_ns,
    "monotonic": time.monotonic_ns,
    "perf_counter": time.perf_counter_ns,
}


class Callers:
    """Which modules see the virtual clock; decided once per module name."""

    def __init__(self, real: tuple[str, ...]) -> None:
        self._real = real
        self._decided: dict[str | None, bool] = {}

    def virtual(self, namespace: dict[str, Any]) -> bool:
        """True if code with these globals sees the virtual clock."""
        name = namespace.get("__name__")
        try:
            return self._decided[name]
        except KeyError:
            decision = self._decided[name] = self._decide(name, namespace.get("__file__"))
            return decision

    def _decide(self, name: str | None, file: str | None) -> bool:
        if name is None:
            return True
        if name.partition(".")[0] in _STDLIB and (file is None or file.startswith(_STDLIB_DIRECTORY)):
            return False
        return not any(name == real or name.startswith(real + ".") for real in self._real)


class Function:
    """Stands for a function of ``time``. Not a Python function: as a class attribute that would become a method."""

    def __init__(self, name: str) -> None:
        self.real = getattr(time, name)
        self.__name__ = self.__qualname__ = name
        self.__module__ = "time"
        self.__doc__ = self.real.__doc__

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<built-in function {self.__name__}>"


def clock_function(name: str, clock: Clock, callers: Callers) -> Function:
    """The stand-in for ``time.<name>``."""
    real = getattr(time, name)
    base = name.removesuffix("_ns")
    in_ns = base != name
    virtual, now_ns = callers.virtual, clock.now_ns

    def read(self: Function) -> int | float:
        if virtual(_getframe(1).f_globals):
            ns = now_ns()
            if ns >= 0:
                ns += clock.origin_ns[base]
                return ns if in_ns else ns / 1_000_000_000
        value: int | float = real()
        return value

    read._torchdynamo_disable = True  # type: ignore[attr-defined]  # traced code breaks here, as at the builtin
    return type("Clock", (Function,), {"__call__": read})(name)  # type: ignore[no-any-return]


def sleep_function(clock: Clock, callers: Callers) -> Function:
    """The stand-in for ``time.sleep``."""
    real, monotonic = time.sleep, time.monotonic

    def sleep(self: Function, seconds: Any, /) -> None:
        if not callers.virtual(_getframe(1).f_globals):
            return real(seconds)
        try:
            ns = int((seconds if isinstance(seconds, float) else seconds.__index__()) * 1_000_000_000)
        except (AttributeError, TypeError, ValueError, OverflowError):
            return real(seconds)  # it knows what to raise
        if ns <= 0 or ns >= 2**63:  # 0 only lets others run
            return real(seconds)
        if clock.advance_ns(ns):
            return None
        begin_ns = clock.now_ns()
        if begin_ns < 0:
            return real(seconds)
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0 and clock.now_ns() < begin_ns + ns:
            real(min(left, POLL_S))
        return None

    sleep._torchdynamo_disable = True  # type: ignore[attr-defined]
    return type("Sleep", (Function,), {"__call__": sleep})("sleep")  # type: ignore[no-any-return]


def virtualise_time(clock: Clock) -> None:
    """Puts the stand-ins into the ``time`` module."""
    added = os.environ.get("EIDOLON_REAL_CLOCK", "")
    callers = Callers(REAL_CLOCK + tuple(name.strip() for name in added.split(",") if name.strip()))
    functions = [clock_function(base + form, clock, callers) for base in REAL_NS for form in ("", "_ns")]
    for function in (*functions, sleep_function(clock, callers)):
        setattr(time, function.__name__, function)


# ---- steps -----------------------------------------------------------------------------------------------------------


class Steps:
    """Step marks and reported metrics."""

    def __init__(self, library: Any) -> None:
        import ctypes

        self._mark = library.eidolon_mark
        self._mark.restype, self._mark.argtypes = ctypes.c_int, (ctypes.c_char_p,)
        self._report = library.eidolon_report
        self._report.restype, self._report.argtypes = ctypes.c_int, (ctypes.c_char_p, ctypes.c_int64)
        self._explicit = False

    def explicit(self) -> None:
        """``eidolon.step()``: from now on optimizers mark nothing."""
        self._explicit = True
        self._mark(b"step")

    def report(self, name: str, value: int) -> None:
        """Reports one metric of the run, such as a number of tokens."""
        self._report(name.encode(), value)

    def follow_optimizers(self, module: Any) -> None:
        """Marks a step after each step of an optimizer that is no part of another's (``torch.optim.optimizer`` was
        imported)."""
        import threading

        local = threading.local()

        def under_way(optimizer: object) -> list[int]:
            """Of this thread: the optimizers whose step encloses this one's. Its own, if it failed, is over."""
            if not hasattr(local, "steps"):
                local.steps = []
            steps: list[int] = local.steps
            if id(optimizer) in steps:
                del steps[steps.index(id(optimizer)) :]
            return steps

        def begin(optimizer: object, args: object, kwargs: object) -> None:
            under_way(optimizer).append(id(optimizer))

        def mark(optimizer: object, args: object, kwargs: object) -> None:
            if not under_way(optimizer) and not self._explicit:
                self._mark(b"step")

        begin._torchdynamo_disable = mark._torchdynamo_disable = True  # type: ignore[attr-defined]
        module.register_optimizer_step_pre_hook(begin)
        module.register_optimizer_step_post_hook(mark)

    def follow_ranges(self, module: Any, wanted: str) -> None:
        """Marks a step at the end of each NVTX range of a name (``torch.cuda.nvtx`` was imported)."""
        import functools
        import threading

        push, pop, start, end = module.range_push, module.range_pop, module.range_start, module.range_end
        local = threading.local()
        started: set[int] = set()

        @functools.wraps(push)
        def range_push(msg: str) -> Any:
            if not hasattr(local, "names"):
                local.names = []
            local.names.append(msg)
            return push(msg)

        @functools.wraps(pop)
        def range_pop() -> Any:
            result = pop()
            if getattr(local, "names", None) and local.names.pop() == wanted:
                self._mark(b"step")
            return result

        @functools.wraps(start)
        def range_start(msg: str) -> Any:
            number = start(msg)
            if msg == wanted:
                started.add(number)
            return number

        @functools.wraps(end)
        def range_end(range_id: int) -> None:
            end(range_id)
            if range_id in started:
                started.remove(range_id)
                self._mark(b"step")

        module.range_push, module.range_pop = range_push, range_pop
        module.range_start, module.range_end = range_start, range_end


# ---- the torch plugin ------------------------------------------------------------------------------------------------


class Plugin:
    """Loads the library that tells the shim which operator runs (``plugin.py`` builds it, one per torch version)."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120

    def attach(self, torch: Any) -> None:
        """``torch`` was imported. Without a plugin for it the run goes on, and its summary says so."""
        import ctypes

        version = str(torch.__version__)
        path = f"{self._package}/lib/plugins/torch-{version}.so"
        if not os.path.exists(path):  # noqa: PTH110
            path = self._build(torch) if os.environ.get("EIDOLON_PLUGIN_BUILD") == "1" else ""
        if path:
            ctypes.CDLL(path).eidolon_plugin_attach()
        else:  # the run's summary says so once the process is a rank
            self._library.eidolon_unmodelled(b"torch", f"no plugin for torch {version}".encode())

    def _build(self, torch: Any) -> str:
        import subprocess

        site = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))  # noqa: PTH100, PTH120
        build = [sys.executable, "-I", f"{self._package}/plugin.py", "ensure", "--torch-from", site]
        outside = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "EIDOLON_DIR")}
        result = subprocess.run(build, env=outside, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            complain(f"no torch plugin: {result.stderr.strip().removeprefix('eidolon: ')}")
            return ""
        return result.stdout.strip()


# ---- installation ----------------------------------------------------------------------------------------------------


class AfterImport:
    """A finder that finds nothing itself, but calls back once a wanted module was imported by the others."""

    def __init__(self, wanted: dict[str, Callable[[Any], None]]) -> None:
        self._wanted = wanted

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The other finders' spec of a wanted module, set to call back once the module ran; None for any other."""
        callback = self._wanted.get(name)
        if callback is None:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._watch(spec.loader, name, callback)
                    return spec
        return None

    @staticmethod
    def _watch(loader: Any, name: str, callback: Callable[[Any], None]) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            execute(module)
            try:
                callback(module)
            except Exception as error:  # the user's import must not fail for our sake
                complain(f"cannot adapt {name}: {type(error).__name__}: {error}")

        loader.exec_module = exec_module  # on this loader only: it belongs to this module


def install() -> Steps | None:
    """Does what the module says, if this process has anything to do with a simulation."""
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "eidolon_clock_ns"):
        return None
    from eidolon_fold import fold_of  # type: ignore[import-not-found]  # these are beside this file
    from eidolon_timeouts import WATCHDOG_DEFAULTS, Timeouts  # type: ignore[import-not-found]

    for name, value in WATCHDOG_DEFAULTS.items():
        os.environ.setdefault(name, value)
    text = os.environ.get("EIDOLON_TIMEOUT_FACTOR", "60")
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= 1e6:
        complain(f"EIDOLON_TIMEOUT_FACTOR={text} is ignored: a number from 1 to 1000000 is allowed")
        factor = 60.0
    virtualise_time(Clock(library))
    ctypes.PyDLL(None).eidolon_follow_python()
    library.eidolon_timeout.argtypes, library.eidolon_timeout.restype = (ctypes.c_int64,), ctypes.c_int
    steps, timeouts = Steps(library), Timeouts(factor, library.eidolon_timeout)
    fold = fold_of(os.environ)

    def adapt_groups(module: Any) -> None:
        timeouts.groups(module)
        if fold is not None:
            fold.groups(module)

    wanted: dict[str, Callable[[Any], None]] = {
        "torch.distributed.constants": timeouts.constants,
        "torch.distributed.distributed_c10d": adapt_groups,
        "torch.distributed.elastic.rendezvous.dynamic_rendezvous": timeouts.rendezvous,
        "torch.distributed.elastic.agent.server.local_elastic_agent": timeouts.agent,
    }
    if fold is not None:
        wanted["torch.distributed.rendezvous"] = fold.stores
    wanted["torch"] = Plugin(library).attach
    step_range = os.environ.get("EIDOLON_STEP_RANGE")
    if step_range:
        wanted["torch.cuda.nvtx"] = lambda module: steps.follow_ranges(module, step_range)
    else:
        wanted["torch.optim.optimizer"] = steps.follow_optimizers
    sys.meta_path.insert(0, AfterImport(wanted))
    return steps


def run_hidden() -> None:
    """Runs the ``sitecustomize`` that this one hides, under its own name."""
    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120
    path = [entry for entry in sys.path if os.path.realpath(entry) != here]
    for finder in sys.meta_path:
        if isinstance(finder, AfterImport) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec("sitecustomize", path)
        if spec is not None and spec.loader is not None:
            from importlib.util import module_from_spec

            module = module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


if __name__ == "sitecustomize":
    if os.environ.get("EIDOLON_DIR") and "_eidolon_hook" not in sys.modules:
        sys.modules["_eidolon_hook"] = sys.modules[__name__]  # for eidolon.py, once another has our name
        try:
            steps = install()
        except Exception as error:
            complain(f"this process keeps the real clock: {type(error).__name__}: {error}")
    run_hidden()
