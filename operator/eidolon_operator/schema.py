"""The structural schema of the CRD, applied to a YAML object.

The API server does two things with an object: it fills in defaults and it validates. This module does the same, so
that a file means the same to ``eidolon run`` and to ``kubectl apply``. It reads the subset of OpenAPI v3 that our CRD
uses and refuses any keyword that it does not know, so that the schema never promises a check that is not made.

Unlike the API server, which drops unknown fields, an unknown field is an error here (as with ``kubectl``'s own
strict validation), since it is nearly always a typing error.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

Schema = Mapping[str, Any]

#: Keywords that this module acts on, or that say nothing about validity.
_KNOWN: Final = frozenset(
    {"type", "format", "enum", "default", "description", "example"}
    | {"properties", "required", "additionalProperties", "maxProperties", "items", "minItems", "maxItems"}
    | {"minimum", "maximum", "minLength", "maxLength", "pattern"}
    | {"x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"}
    | {"x-kubernetes-int-or-string"}
)
_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_BITS: Final = {"int32": 32, "int64": 64}


class Problem(NamedTuple):
    """One thing wrong with one field."""

    field: str  #: path as one would write it, e.g. ``spec.workload.env[2].name``
    message: str

    def __str__(self) -> str:
        field = self.field if self.field.isprintable() else ascii(self.field)  # the keys in it are the user's
        return f"{field}: {self.message}"


def with_defaults(schema: Schema, value: Any) -> Any:
    """A copy of ``value`` with the defaults of the schema filled in, as the API server would."""
    if isinstance(value, dict):
        filled = {key: copy.deepcopy(item) for key, item in value.items()}
        for name, child in schema.get("properties", {}).items():
            # A null is taken as absent where there is a default: the API server prunes it before defaulting.
            if filled.get(name) is None and "default" in child:
                filled[name] = copy.deepcopy(child["default"])
            if name in filled:
                filled[name] = with_defaults(child, filled[name])
        if "additionalProperties" in schema:
            filled = {key: with_defaults(schema["additionalProperties"], item) for key, item in filled.items()}
        return filled
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], item) for item in value]
    return copy.deepcopy(value)


def pruned(schema: Schema, value: Any, field: str = "") -> tuple[Any, list[str]]:
    """A copy of ``value`` without the fields that the schema does not know, as an API server would keep it, and their
    paths. So an object of a newer schema is reduced to what this version understands."""
    unknown: list[str] = []

    def copied(schema: Schema, value: Any, field: str) -> Any:
        if isinstance(value, dict) and (children := schema.get("properties")):
            prefix = f"{field}." if field else ""
            unknown.extend(prefix + name for name in value if name not in children)
            return {
                name: copied(children[name], item, prefix + name) for name, item in value.items() if name in children
            }
        if isinstance(value, list) and "items" in schema:
            return [copied(schema["items"], item, f"{field}[{index}]") for index, item in enumerate(value)]
        return copy.deepcopy(value)

    return copied(schema, value, field), unknown


def problems(schema: Schema, value: Any, field: str = "") -> Iterator[Problem]:
    """Everything in ``value`` that the schema does not allow, each with the field, the value and what is allowed."""
    if unknown := set(schema) - _KNOWN:
        raise ValueError(f"schema of {field or 'the object'}: unsupported keywords {sorted(unknown)}")
    if schema.get("x-kubernetes-int-or-string"):
        kind = "integer" if isinstance(value, int) else "string"
    else:
        kind = schema["type"]
    if not isinstance(value, _PYTHON_TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield Problem(field, f"{shown(value)} is not {_article(kind)} {kind}{_example(schema)}")
        return
    if "enum" in schema and value not in schema["enum"]:
        yield Problem(field, f"{shown(value)} is not one of {', '.join(map(str, schema['enum']))}")
    match value:
        case dict():
            yield from _object_problems(schema, value, field)
        case list():
            yield from _array_problems(schema, value, field)
        case str():
            yield from _string_problems(schema, value, field)
        case bool():
            pass
        case int() | float():
            yield from _number_problems(schema, value, field)


def _object_problems(schema: Schema, value: dict[Any, Any], field: str) -> Iterator[Problem]:
    prefix = f"{field}." if field else ""
    if "additionalProperties" in schema:  # a map whose keys are the user's
        high = schema.get("maxProperties")
        if high is not None and len(value) > high:
            yield Problem(field, f"has {len(value)} entries; allowed: {_bounds(0, high)}")
        for name, item in value.items():
            if not isinstance(name, str) or not _is_text(name):
                yield Problem(field, f"the key {shown(name)} is not text")
            yield from problems(schema["additionalProperties"], item, f"{field}[{name}]")
        return
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if not properties:  # an object such as metadata, whose fields we do not define
        return
    for name in schema.get("required", ()):
        if value.get(name) is None:
            yield Problem(prefix + name, "is required")
    for name, item in value.items():
        if name in properties:
            if item is not None:
                yield from problems(properties[name], item, prefix + name)
            elif name not in schema.get("required", ()):
                yield Problem(prefix + name, "has no value; remove the field or give it one")
        else:
            close = difflib.get_close_matches(str(name), properties, n=1)
            hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(properties)}"
            yield Problem(f"{prefix}{name}", f"there is no such field; {hint}")


def _array_problems(schema: Schema, value: list[Any], field: str) -> Iterator[Problem]:
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < low or (high is not None and len(value) > high):
        yield Problem(field, f"has {len(value)} items; allowed: {_bounds(low, high)}")
    for index, item in enumerate(value):
        yield from problems(schema["items"], item, f"{field}[{index}]")
    if keys := schema.get("x-kubernetes-list-map-keys"):
        seen: set[str] = set()
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                continue
            key = repr([item.get(name) for name in keys])  # values of a wrong type need not be hashable
            if key in seen:
                yield Problem(f"{field}[{index}]", f"{shown(item.get(keys[0]))} is given twice")
            seen.add(key)
    if schema.get("x-kubernetes-list-type") == "set":
        before: set[str] = set()
        for index, item in enumerate(value):
            if repr(item) in before:  # values of a wrong type need not be hashable
                yield Problem(f"{field}[{index}]", f"{shown(item)} is given twice")
            before.add(repr(item))


def _string_problems(schema: Schema, value: str, field: str) -> Iterator[Problem]:
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if not _is_text(value):  # an API server takes it, and the pod then cannot start
        yield Problem(field, f"{shown(value)} holds a character that no program can be given, such as NUL")
    elif len(value) < low or (high is not None and len(value) > high):
        yield Problem(field, f"has {len(value)} characters; allowed: {_bounds(low, high)}")
    elif "pattern" in schema and not _matches(schema["pattern"], value):
        yield Problem(field, f"{shown(value)} does not match {schema['pattern']}{_example(schema)}")


def _matches(pattern: str, value: str) -> bool:
    """As an API server does it: there a ``$`` is the end of the text, and not a line break before it too."""
    return re.search(pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern, value) is not None


def _number_problems(schema: Schema, value: float, field: str) -> Iterator[Problem]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if bits := _BITS.get(schema.get("format", "")):
        high = min(high, 2 ** (bits - 1) - 1) if high is not None else 2 ** (bits - 1) - 1
    # Written so that NaN is out of bounds.
    if not (low is None or value >= low) or not (high is None or value <= high):
        yield Problem(field, f"{shown(value)} is out of bounds; allowed: {_bounds(low, high)}")


def _bounds(low: float | None, high: float | None) -> str:
    if high is None:
        return f"{low} or more"
    return f"{low} to {high}" if low is not None else f"{high} or less"


def shown(value: Any) -> str:
    """A value as messages have it: on one line, and not too long."""
    try:
        text = "null" if value is None else repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        text = f"a number of {value.bit_length()} bits"
    return text if len(text) <= 60 else text[:57] + "..."


def _is_text(value: str) -> bool:
    """Whether a program can be given this text, and a message can show it: it holds no NUL and no half of a pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _example(schema: Schema) -> str:
    return f"; write for example {schema['example']}" if "example" in schema else ""
