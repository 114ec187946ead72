"""The CRD's rules on a real API server: what `eidolon validate` refuses is refused there, in the same words.

The cases are those that tests/operator/test_rules.py holds against our own evaluation.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from rule_cases import CASES, CHANGES, RESERVED, Case, make

from e2e.kubernetes.conftest import Namespace
from e2e.kubernetes.kubectl import RefusedError


def dry_run(namespace: Namespace, verb: str, *documents: dict[str, Any]) -> None:
    """Raises :class:`RefusedError` if the API server would refuse one of them."""
    namespace.run(verb, "--dry-run=server", "-f", "-", stdin="\n---\n".join(map(json.dumps, documents)))


def refusal(namespace: Namespace, verb: str, document: dict[str, Any]) -> str:
    with pytest.raises(RefusedError) as refused:
        dry_run(namespace, verb, document)
    return str(refused.value)


def says(refused: str, complaint: str) -> bool:
    """Whether the API server says what we say, of the same field (it has no name for the whole object)."""
    field, message = complaint.split(": ", 1)
    return message in refused and (field == "object" or f"{field}: " in refused)


def test_new_objects(namespace: Namespace) -> None:
    dry_run(namespace, "create", *(make(case.field, case.accepted) for case in CASES))

    def agrees(case: Case) -> bool:
        return says(refusal(namespace, "create", make(case.field, case.refused)), case.complaint)

    assert [case.complaint for case in CASES if not agrees(case)] == []
    for field, complaint in RESERVED.items():
        assert says(refusal(namespace, "create", make(field, [{}])), complaint)


def test_changes(namespace: Namespace) -> None:
    """Objects that are suspended: nothing is made for them."""

    def suspended(field: str, value: Any) -> dict[str, Any]:
        document = make(f"spec.{field}", value)
        document["metadata"]["name"] = field.lower()
        document["spec"]["suspend"] = True
        return document

    before = [suspended(field, values[0]) for field, values in CHANGES.items()]
    namespace.apply(*before)
    for field, values in CHANGES.items():
        refused = refusal(namespace, "replace", suspended(field, values[1]))
        assert says(refused, f"spec.{field}: {field} is immutable: create a new object")
    for document in before:
        document["spec"] |= {"suspend": False, "ttlSecondsAfterFinished": 5}
    dry_run(namespace, "replace", *before)
