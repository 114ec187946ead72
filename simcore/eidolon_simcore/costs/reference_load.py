"""A fixed load for one thread, in plain Python. Two machines are compared by how long their processors take for it.

It needs no PyTorch, since the core has none. It does what a training step does on the host, in many functions: calls,
attributes, dictionaries and small objects. Another minor version of Python takes another time for it."""

from __future__ import annotations

import time

FUNCTIONS, ROUNDS, TIMES = 400, 500, 3


class _Node:
    def __init__(self, value: int) -> None:
        self.value = value
        self.grad: int | None = None


def _load(functions: list[object], rounds: int) -> int:
    found: dict[str, _Node] = {}
    total = 0
    for at in range(rounds):
        for index, function in enumerate(functions):
            node = _Node(at + index)
            total += function(node, found, scale=2)  # type: ignore[operator]
        total &= 0xFFFF_FFFF
    return total


def _functions(count: int) -> list[object]:
    """Makes so many functions, each with code of its own, as in a framework."""
    made: dict[str, object] = {}
    for index in range(count):
        text = (
            f"def step{index}(node, found, *, scale):\n"
            f"    key = 'parameter{index % 50}'\n"
            "    last = found.get(key)\n"
            "    node.grad = node.value * scale\n"
            "    found[key] = node\n"
            "    return node.grad if last is None else last.value + len((node, last))\n"
        )
        exec(text, made)
    return [made[f"step{index}"] for index in range(count)]


def measure_ns(rounds: int = ROUNDS) -> int:
    """The CPU time that this thread takes for the load, in nanoseconds: the least of three."""
    functions = _functions(FUNCTIONS)
    _load(functions, max(1, rounds // 50))
    times = []
    for _ in range(TIMES):
        begin = time.thread_time_ns()
        _load(functions, rounds)
        times.append(time.thread_time_ns() - begin)
    return min(times)
