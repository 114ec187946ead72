"""Counts what the shim counts in a run (``interposer/native/core/interpreter.cpp``), in a process without it.

A function entered and an operator called cost by how lately the same one ran: how many entries, or calls, of any ago,
in the same thread. Entries of functions are seen by ``sys.monitoring`` (Python 3.12 on) or ``sys.setprofile`` (3.11,
where it sees the calling thread alone: not the one in which autograd calls Python); a generator that goes on is one
more entry, and what an import does counts nothing. Operators, launches and copies are those of PyTorch's profiler.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig

#: At most so many runs ago: warm, cold; longer ago: rare.
FUNCTION_AGES, OPERATOR_AGES = (256, 1024), (64, 512)
#: Operators that are one call of cuBLAS, cuBLASLt or cuDNN; what they launch is part of it.
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
_SCHEMA = re.compile(r"(?!autograd::)\w+::\w+$")  #: not "autograd::engine::evaluate_function: MmBackward0"
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Ages:
    """Runs of any code by age: ``warm``, ``cold``, ``rare`` since the last :meth:`take`."""

    def __init__(self, ages: tuple[int, int]) -> None:
        self._ages = ages
        self._threads: dict[int, tuple[dict[Any, int], list[int]]] = {}
        self._counts = [0, 0, 0]

    def run(self, thread: int, what: Any, *, counts: bool = True) -> None:
        last, clock = self._threads.setdefault(thread, ({}, [0]))
        before = last.get(what)
        now = last[what] = clock[0]
        clock[0] += 1
        warm, cold = self._ages
        ago = cold + 1 if before is None else now - before
        self._counts[0 if ago <= warm else 1 if ago <= cold else 2] += counts

    def take(self) -> list[int]:
        counts, self._counts = self._counts, [0, 0, 0]
        return counts


class Functions:
    """Python functions that are entered while :meth:`during` runs something; ages go on from one time to the next."""

    def __init__(self) -> None:
        self.ages = Ages(FUNCTION_AGES)
        self._held: dict[int, CodeType] = {}  # so that no address is used twice
        self._importing: dict[int, int] = {}  # how deep, by thread
        self._begins: dict[CodeType, int] = {}  # where code starts

    def during(self, work: Callable[[], Any]) -> None:
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
        if code.co_flags & _GENERATORS:  # making one enters its code before its first value does
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
        self.ages.run(thread, id(code), counts=counts)


def _imports(code: CodeType) -> bool:
    return code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>"


class Calls:
    """Operators by age, launches (copies and sets are some, too) and library calls, of what :meth:`during` runs."""

    def __init__(self) -> None:
        self.ages = Ages(OPERATOR_AGES)
        self.launches = self.library = 0

    def during(self, work: Callable[[], Any]) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        options: dict[str, Any] = {"activities": activities, "acc_events": True}
        with contextlib.suppress(TypeError):  # PyTorch before 2.8: all overloads of a name are one
            options["experimental_config"] = _ExperimentalConfig(capture_overload_names=True)  # type: ignore[call-arg]
        with torch.profiler.profile(**options) as seen:
            work()
        self.add(seen.events())

    def add(self, events: Iterable[Any]) -> None:
        """Events of a profile, in any order."""
        on_host = [event for event in events if event.device_type == DeviceType.CPU]
        for event in sorted(on_host, key=lambda one: one.time_range.start):
            if event.name in LAUNCHES:
                self.launches += not _within_library(event)
            elif event.scope == 0 and _SCHEMA.match(event.name):
                self.ages.run(event.thread, (event.name, getattr(event, "overload_name", "")))
                self.library += LIBRARY.get(event.name, 0) if torch.cuda.is_available() else 0

    def take(self) -> tuple[list[int], int, int]:
        """Operators by age, launches and library calls since the last time."""
        found = self.ages.take(), self.launches, self.library
        self.launches = self.library = 0
        return found


def _within_library(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if parent.name in LIBRARY:
            return True
        parent = parent.cpu_parent
    return False
