"""The rules across fields of the CRD: its CEL expressions, evaluated as the API server evaluates them.

A structural schema covers one field at a time. Rules about several fields (ranks must fit devices) or about a change (a
field is immutable) are in the CRD as ``x-kubernetes-validations``. They are evaluated here from the CRD itself, so
there is no second copy of a rule that could come to differ.

A rule sees ``self``, the part of the object that it stands at, with defaults filled in, and ``oldSelf``, the same part
as it was; a rule that names ``oldSelf`` concerns updates only and is left aside when there is nothing older.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from eidolon_operator.schema import Problem, Schema

if TYPE_CHECKING:
    import cel

#: Functions that Kubernetes adds to CEL and that our rules use.
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {"sum": sum}


def problems(
    schema: Schema, value: Any, field: str = "", *, old: Any = None, without: Collection[str] = ()
) -> Iterator[Problem]:
    """Every rule that ``value`` breaks, outermost first.

    The value is one that the schema itself allows, defaults filled in; so is ``old``, what it was before an update
    (None: it is new). Rules in ``without`` are left aside.
    """
    for rule in schema.get("x-kubernetes-validations", ()):
        if rule["rule"] not in without and not _holds(rule["rule"], value, old):
            yield Problem(_place(field, rule), _message(rule, value, old))
    if isinstance(value, dict):
        prefix = f"{field}." if field else ""
        before = old if isinstance(old, dict) else {}
        for name, child in schema.get("properties", {}).items():
            if value.get(name) is not None:
                yield from problems(child, value[name], prefix + name, old=before.get(name), without=without)
        if isinstance(entries := schema.get("additionalProperties"), Mapping):
            for name, item in value.items():
                yield from problems(entries, item, f"{field}[{name}]", old=before.get(name), without=without)
    elif isinstance(value, list) and "items" in schema:
        # As for the API server, entries of a list without keys are never compared with older ones.
        for index, item in enumerate(value):
            yield from problems(schema["items"], item, f"{field}[{index}]", without=without)


def _place(field: str, rule: Mapping[str, Any]) -> str:
    return (field + rule.get("fieldPath", "")).removeprefix(".") or "object"


def _holds(rule: str, value: Any, old: Any) -> bool:
    program = _compiled(rule)
    if "oldSelf" in program.variables() and old is None:
        return True
    return _evaluated(program, value, old) is True


def _message(rule: Mapping[str, Any], value: Any, old: Any) -> str:
    if "messageExpression" in rule:
        return str(_evaluated(_compiled(rule["messageExpression"]), value, old))
    return " ".join(str(rule.get("message", f"must hold: {rule['rule']}")).split())


def _evaluated(program: cel.Program, value: Any, old: Any) -> Any:
    from cel import Context

    return program.execute(Context({"self": _pruned(value), "oldSelf": _pruned(old)}, dict(_FUNCTIONS)))


@functools.cache
def _compiled(expression: str) -> cel.Program:
    from cel import compile as compile_cel  # it imports much that `eidolon --help` does not need

    return compile_cel(expression)


def _pruned(value: Any) -> Any:
    """The value without fields that are null, which the API server treats as absent."""
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return value
