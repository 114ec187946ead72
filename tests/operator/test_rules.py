"""The CRD's rules across fields: each lets something pass and refuses something, with its message.

The rules are those of the CRD itself; e2e/kubernetes/test_rules.py holds the same cases against a real API server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from rule_cases import CASES, CHANGES, MUTABLE, RESERVED, Case, make

from eidolon_operator import rules, schema, spec


def broken(document: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """What the rules say of an object that the schema allows, as the API server sees it: defaults filled in."""
    whole = spec.object_schema()
    given, before = (schema.with_defaults(whole, each) if each else None for each in (document, old))
    assert list(schema.problems(whole, given)) == []
    return [str(problem) for problem in rules.problems(whole, given, old=before)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.complaint[:60])
def test_a_rule_lets_pass_what_is_right_and_refuses_what_is_wrong(case: Case) -> None:
    assert broken(make(case.field, case.accepted)) == []
    assert broken(make(case.field, case.refused)) == [case.complaint]


@pytest.mark.parametrize(("field", "complaint"), RESERVED.items())
def test_a_reserved_field_is_refused(field: str, complaint: str) -> None:
    assert broken(make()) == []
    assert complaint in broken(make(field, [{}]))


def _walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from node.get("x-kubernetes-validations", ())
    children = [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]
    for child in children:
        if isinstance(child, Mapping):
            yield from _walk(child)


def test_every_rule_of_the_crd_is_tried_here() -> None:
    tried = [case.complaint for case in CASES] + list(RESERVED.values())
    for rule in _walk(spec.object_schema()):
        if "oldSelf" not in rule["rule"]:
            message = " ".join(rule["message"].split())
            assert any(complaint.endswith(message) for complaint in tried), message


# -- changes -----------------------------------------------------------------------------------------------------------

IMMUTABLE = sorted(set(spec.object_schema()["properties"]["spec"]["properties"]) - MUTABLE - {"faults"})


def forbidden(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """What the rules about changes say of two specs, whatever else is wrong with them."""
    whole = spec.object_schema()["properties"]["spec"]
    about_changes = [rule for rule in whole["x-kubernetes-validations"] if "oldSelf" in rule["rule"]]
    return [str(p) for p in rules.problems({"x-kubernetes-validations": about_changes}, new, "spec", old=old)]


@pytest.mark.parametrize("field", IMMUTABLE)
def test_a_field_of_a_run_may_not_change_nor_come_nor_go(field: str) -> None:
    complaint = [f"spec.{field}: {field} is immutable: create a new object"]
    assert forbidden({field: "a"}, old={field: "b"}) == complaint
    assert forbidden({field: "a"}, old={"other": "b"}) == complaint
    assert forbidden({"other": "b"}, old={field: "a"}) == complaint
    assert forbidden({field: "a"}, old={field: "a"}) == []


@pytest.mark.parametrize("field", CHANGES)
def test_an_object_of_which_a_field_is_changed(field: str) -> None:
    before, after = (make(f"spec.{field}", value) for value in CHANGES[field])
    assert broken(before, old=before) == []
    assert broken(after, old=before) == [f"spec.{field}: {field} is immutable: create a new object"]


@pytest.mark.parametrize(("field", "value"), [("suspend", True), ("ttlSecondsAfterFinished", 5)])
def test_what_steers_a_run_may_change(field: str, value: Any) -> None:
    assert broken(make(f"spec.{field}", value), old=make()) == []


# -- the evaluation ----------------------------------------------------------------------------------------------------


def rule(expression: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "x-kubernetes-validations": [{"rule": expression, "message": "no", **more}]}


def test_a_null_is_as_good_as_absent() -> None:
    assert list(rules.problems(rule("!has(self.a)"), {"a": None})) == []


def test_a_message_may_be_computed() -> None:
    schema_ = rule("self.a < 3", messageExpression="string(self.a) + ' is too much'", fieldPath=".a")
    assert [str(problem) for problem in rules.problems(schema_, {"a": 5}, "spec")] == ["spec.a: 5 is too much"]


def test_rules_inside_maps_and_lists_name_their_place() -> None:
    inner = {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'x'", "message": "no x"}]}
    nested = {"type": "object", "properties": {"m": {"type": "object", "additionalProperties": inner}}}
    listed = {"type": "object", "properties": {"l": {"type": "array", "items": inner}}}
    assert [str(p) for p in rules.problems(nested, {"m": {"k": "x"}})] == ["m[k]: no x"]
    assert [str(p) for p in rules.problems(listed, {"l": ["y", "x"]})] == ["l[1]: no x"]


def test_a_rule_about_changes_needs_something_older() -> None:
    schema_ = rule("self == oldSelf")
    assert list(rules.problems(schema_, {"a": 1})) == []
    assert list(rules.problems(schema_, {"a": 1}, old={"a": 1})) == []
    assert len(list(rules.problems(schema_, {"a": 1}, old={"a": 2}))) == 1


def test_rules_can_be_left_aside() -> None:
    assert list(rules.problems(rule("false"), {}, without=["false"])) == []
