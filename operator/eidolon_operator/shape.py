"""What a JSON document must look like: a few words for shapes, and what does not fit them, field by field.

A document that was edited, cut short or written by another version must not be found out in the middle of a report.
Shapes are plain values:

* a type, or None: a value of that type (``int`` takes no truth value);
* a ``range``: a whole number in it;
* :data:`NUMBER`: a number that is finite;
* a compiled pattern: text that matches as a whole;
* a tuple: any of these shapes;
* a list of one shape: a list of such values;
* ``Map(key, value)``: an object whose keys are not known beforehand;
* a dict: an object with these fields. A field whose name ends with ``?`` may be missing; others may come.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from eidolon_operator.schema import Problem, shown


class Map(NamedTuple):
    """An object whose keys match a pattern."""

    key: re.Pattern[str]
    value: Any


class _Number:
    """Any finite number that a double holds without running over."""


NUMBER: Final = _Number()
INTEGER: Final = range(-(1 << 63), 1 << 63)
COUNT: Final = range(1 << 63)
ANY_KEY: Final = re.compile(r"(?s).*")


def problems(value: Any, shape: Any, field: str = "") -> Iterator[Problem]:
    """Everything in a value that does not fit the shape."""
    if isinstance(shape, tuple) and not isinstance(shape, Map):
        if all(next(problems(value, each, field), None) for each in shape):
            yield from problems(value, shape[0], field)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield Problem(field, f"{shown(value)} is not a list")
            return
        for index, item in enumerate(value):
            yield from problems(item, shape[0], f"{field}[{index}]")
    elif isinstance(shape, (dict, Map)):
        if not isinstance(value, dict):
            yield Problem(field or "document", f"{shown(value)} is not an object")
        elif isinstance(shape, Map):
            yield from _of_map(value, shape, field)
        else:
            yield from _of_object(value, shape, field)
    elif not _fits(value, shape):
        yield Problem(field, f"{shown(value)} is not {_named(shape)}")


def _of_map(value: dict[str, Any], shape: Map, field: str) -> Iterator[Problem]:
    for key, item in value.items():
        if not shape.key.fullmatch(key):
            yield Problem(field, f"the key {shown(key)} does not match {shape.key.pattern}")
        yield from problems(item, shape.value, f"{field}[{key}]")


def _of_object(value: dict[str, Any], shape: dict[str, Any], field: str) -> Iterator[Problem]:
    prefix = f"{field}." if field else ""
    for key, item in shape.items():
        name = key.removesuffix("?")
        if name in value:
            yield from problems(value[name], item, prefix + name)
        elif not key.endswith("?"):
            yield Problem(prefix + name, "is missing")


def _fits(value: Any, shape: Any) -> bool:
    match shape:
        case None:
            return value is None
        case range():
            return isinstance(value, int) and not isinstance(value, bool) and value in shape
        case re.Pattern():
            return isinstance(value, str) and shape.fullmatch(value) is not None
        case _Number():
            whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 127
            return whole or (isinstance(value, float) and math.isfinite(value))
        case _:
            return isinstance(value, shape)


def _named(shape: Any) -> str:
    match shape:
        case None:
            return "null"
        case range():
            return f"a whole number from {shape[0]} to {shape[-1]}"
        case re.Pattern():
            return f"text that matches {shape.pattern}"
        case _Number():
            return "a finite number"
        case _:
            return {str: "text", bool: "true or false", dict: "an object", list: "a list"}.get(shape, str(shape))
