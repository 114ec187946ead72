"""Counts what the shim counts in a run (``interposer/native/core/interpreter.cpp``), but in a process without the shim.

The cost of an entered function or a called operator depends on its age, which is what the same thread has fetched since
it last ran the same one. Of this, code that was not warm itself counts one, a launch :data:`LAUNCH_AGE`, a library call
:data:`LIBRARY_AGE`, and a wait for a whole device :data:`DEVICE_WAIT_AGE`. Entries of functions are seen by
``sys.monitoring`` from Python 3.12 on. In 3.11 ``sys.setprofile`` sees them, but only in the calling thread and not in
the one in which autograd calls Python. A generator that goes on is one more entry, and what an import does is not
counted. Operators, launches and copies are those of PyTorch's profiler. Both are put into one order by their times.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig

#: The greatest ages that are warm, cold and rare; greater ones are far. Everything ages by one with each function or
#: operator that was not warm.
FUNCTION_AGES, OPERATOR_AGES = (64, 512, 8192), (64, 512, 8192)
LAUNCH_AGE = 5  #: by how much a launch or a copy ages everything
LIBRARY_AGE = 60  #: by how much a library call does
DEVICE_WAIT_AGE = 10_000  #: by how much a wait for a whole device does
#: Operators that are one call of cuBLAS, cuBLASLt or cuDNN. What they launch is part of the call.
LIBRARY = {
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation"), 1),
    **dict.fromkeys(("aten::cudnn_convolution", "aten::_scaled_dot_product_cudnn_attention"), 1),
    "aten::_scaled_dot_product_cudnn_attention_backward": 1,
    "aten::convolution_backward": 2,  # of the input and of the weight
}
LAUNCHES = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel"),
    *("cuLaunchKernel", "cuLaunchKernelEx"),
    *("cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync", "cudaMemset", "cudaMemcpy2DAsync"),
)
_MARK = "eidolon: mark"
_MARKS = 16  #: how often both clocks are read to compare them
_SCHEMA = re.compile(r"(?!autograd::)\w+::\w+$")  #: not "autograd::engine::evaluate_function: MmBackward0"
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Ages:
    """Runs of functions or of operators by age: ``warm``, ``cold``, ``rare`` and ``far``."""

    def __init__(self, functions: Sequence[int] = FUNCTION_AGES, operators: Sequence[int] = OPERATOR_AGES) -> None:
        self._bounds = functions, operators
        self._threads: dict[int, tuple[dict[Any, int], list[int]]] = {}
        self._counts = self._none()

    def _none(self) -> tuple[list[int], list[int]]:
        functions, operators = self._bounds
        return [0] * (len(functions) + 1), [0] * (len(operators) + 1)

    def function(self, thread: int, code: Any, *, counts: bool = True) -> None:
        """A function is entered. ``counts`` says whether it is one of those that are asked for."""
        self._run(0, thread, code, counts)

    def operator(self, thread: int, name: Any) -> None:
        """An operator is called."""
        self._run(1, thread, name, True)

    def launch(self, thread: int) -> None:
        """A kernel, copy or set is launched."""
        self._thread(thread)[1][0] += LAUNCH_AGE

    def library(self, thread: int, calls: int) -> None:
        """Libraries are called this number of times."""
        self._thread(thread)[1][0] += LIBRARY_AGE * calls

    def device_wait(self, thread: int) -> None:
        """The thread waits for a whole device."""
        self._thread(thread)[1][0] += DEVICE_WAIT_AGE

    def take(self) -> tuple[list[int], list[int]]:
        """Functions and operators by age since the last time."""
        counts, self._counts = self._counts, self._none()
        return counts

    def _thread(self, thread: int) -> tuple[dict[Any, int], list[int]]:
        return self._threads.setdefault(thread, ({}, [0]))

    def _run(self, kind: int, thread: int, what: Any, counts: bool) -> None:
        last, clock = self._thread(thread)
        bounds = self._bounds[kind]
        now = clock[0]
        ago = now - last.get((kind, what), now - bounds[-1] - 1)
        last[kind, what] = now
        clock[0] += ago > bounds[0]
        self._counts[kind][bisect_left(bounds, ago)] += counts


class Entry(NamedTuple):
    """A function is entered."""

    ns: int  #: of ``time.perf_counter_ns``
    thread: int
    code: int
    counts: bool


class Functions:
    """The Python functions that are entered while :meth:`during` runs something, in their order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._held: dict[int, CodeType] = {}  # so that no address is used twice
        self._importing: dict[int, int] = {}  # how deep, by thread
        self._begins: dict[CodeType, int] = {}  # where code starts

    def during(self, work: Callable[[], Any]) -> None:
        """Notes the functions that are entered while this runs."""
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            self._profiled(work)
            return
        events, tool = monitoring.events, monitoring.PROFILER_ID
        enter = [events.PY_START, events.PY_RESUME, events.PY_THROW]
        leave = [events.PY_RETURN, events.PY_UNWIND]
        monitoring.use_tool_id(tool, "eidolon")
        try:
            monitoring.register_callback(tool, events.PY_START, lambda code, *_: self._start(code))
            for event in enter[1:]:
                monitoring.register_callback(tool, event, lambda code, *_: self._enter(code))
            for event in leave:
                monitoring.register_callback(tool, event, lambda code, *_: self._leave(code))
            monitoring.set_events(tool, sum(enter) + sum(leave))
            work()
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

    def _profiled(self, work: Callable[[], Any]) -> None:
        def seen(frame: Any, event: str, _: object) -> None:
            if event == "call":
                code = frame.f_code
                starts = frame.f_lasti == self._begins.setdefault(code, frame.f_lasti)  # not a generator that goes on
                (self._start if starts else self._enter)(code)
            elif event == "return":
                self._leave(frame.f_code)

        sys.setprofile(seen)
        try:
            work()
        finally:
            sys.setprofile(None)

    def _start(self, code: CodeType) -> None:
        if code.co_flags & _GENERATORS:  # to make one enters its code before its first value does
            self._enter(code)
        self._enter(code)

    def _enter(self, code: CodeType) -> None:
        thread = threading.get_ident()
        if _imports(code):
            self._importing[thread] = self._importing.get(thread, 0) + 1
            if self._importing[thread] == 1:
                self._run(thread, code, counts=False)
        elif not self._importing.get(thread):
            self._run(thread, code, counts=True)

    def _leave(self, code: CodeType) -> None:
        thread = threading.get_ident()
        if _imports(code) and self._importing.get(thread):
            self._importing[thread] -= 1

    def _run(self, thread: int, code: CodeType, *, counts: bool) -> None:
        self._held[id(code)] = code
        self.entries.append(Entry(time.perf_counter_ns(), thread, id(code), counts))


def _imports(code: CodeType) -> bool:
    return code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>"


class Counter:
    """Counts functions and operators by age, launches (also copies and sets) and library calls of what :meth:`during`
    runs. Ages go on from one time to the next. Before each time the calling thread waits for the device.
    """

    def __init__(self) -> None:
        self._ages = Ages()
        self._functions = Functions()
        self._launches = self._library = 0

    def during(self, work: Callable[[], Any]) -> None:
        """Runs something and counts what it does, in the order of time."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        options: dict[str, Any] = {"activities": activities, "acc_events": True}
        with contextlib.suppress(TypeError):  # in PyTorch before 2.8 all overloads of a name are one
            options["experimental_config"] = _ExperimentalConfig(capture_overload_names=True)  # type: ignore[call-arg]
        entries = self._functions.entries = []
        waited = idle()
        read_ns = []
        with torch.profiler.profile(**options) as seen:
            for _ in range(_MARKS):
                with torch.profiler.record_function(_MARK):
                    read_ns.append(time.perf_counter_ns())
            self._functions.during(work)
        events = seen.events()
        marks = [event for event in events if event.name == _MARK and event.device_type == DeviceType.CPU]
        marks.sort(key=lambda event: event.time_range.start)
        after = [event for event in events if event.time_range.start > marks[-1].time_range.end]
        # The profiler numbers threads in its own way.
        threads = {threading.get_ident(): marks[0].thread}
        if waited:
            self._ages.device_wait(marks[0].thread)
        # The difference of the clocks. Our clock is read a little after the profiler notes a mark, and much later if
        # the machine runs something else in between, so the mark with the least delay counts.
        zero_us = min(ns / 1e3 - mark.time_range.start for ns, mark in zip(read_ns, marks, strict=True))
        self.add(
            after,
            [(one.ns / 1e3 - zero_us, one._replace(thread=threads.get(one.thread, one.thread))) for one in entries],
        )

    def add(self, events: Iterable[Any], entries: Iterable[tuple[float, Entry]] = ()) -> None:
        """Adds events of a profile, in any order, and entries of functions with their times on its clock
        (microseconds).
        """
        both: list[tuple[float, Any]] = [
            (event.time_range.start, event) for event in events if event.device_type == DeviceType.CPU
        ]
        for _, one in sorted([*both, *entries], key=lambda timed: timed[0]):
            if isinstance(one, Entry):
                self._ages.function(one.thread, one.code, counts=one.counts)
            elif one.name in LAUNCHES:
                if not _within_library(one):
                    self._launches += 1
                    self._ages.launch(one.thread)
            elif one.scope == 0 and _SCHEMA.match(one.name):
                self._ages.operator(one.thread, (one.name, getattr(one, "overload_name", "")))
                calls = LIBRARY.get(one.name, 0) if torch.cuda.is_available() else 0
                self._library += calls
                self._ages.library(one.thread, calls)

    def take(self) -> tuple[int, ...]:
        """Functions and operators by age, launches and library calls since the last time."""
        functions, operators = self._ages.take()
        found = *functions, *operators, self._launches, self._library
        self._launches = self._library = 0
        return found


def idle() -> bool:
    """Waits for the device. Returns whether there is one."""
    if there := torch.cuda.is_available():
        torch.cuda.synchronize()
    return there


def _within_library(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if parent.name in LIBRARY:
            return True
        parent = parent.cpu_parent
    return False
