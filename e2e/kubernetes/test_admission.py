"""What the API server refuses, with words that help, before anything is made."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.kubernetes.conftest import Namespace, simulated_cluster
from e2e.kubernetes.kubectl import RefusedError


def test_a_name_too_long_for_the_names_of_its_pods(namespace: Namespace) -> None:
    with pytest.raises(RefusedError, match="at most 51"):
        namespace.apply(simulated_cluster("a" * 52, "busy.py"))
    namespace.run("apply", "--dry-run=server", "-f", "-", stdin=_text(simulated_cluster("a" * 51, "busy.py")))


def test_a_changed_image(namespace: Namespace) -> None:
    namespace.apply(simulated_cluster("fixed", "busy.py", suspend=True))
    patch = '{"spec":{"workload":{"image":"ghcr.io/eidolon-sim/eidolon-example:other"}}}'
    with pytest.raises(RefusedError, match="create a new object"):
        namespace.run("patch", "simc", "fixed", "--type=merge", f"--patch={patch}")
    namespace.run("patch", "simc", "fixed", "--type=merge", '--patch={"spec":{"ttlSecondsAfterFinished":60}}')


def test_bad_values(namespace: Namespace) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"servers": 0}, "servers"),
        ({"servers": 2049}, "servers"),
        ({"faults": [{}]}, "faults are reserved"),
        ({"workload": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}, "emulated GPUs need no device"),
        ({"workload": {"ranksPerServer": 2}}, "must not exceed gpusPerServer"),
    )
    for change, message in cases:
        with pytest.raises(RefusedError, match=message):
            namespace.apply(simulated_cluster("bad", "busy.py", **change))


def test_the_schema_explains_itself(namespace: Namespace) -> None:
    text = namespace.run("explain", "simc.spec", "--recursive")
    assert "workload" in text
    assert "<no description>" not in text


def _text(object_: object) -> str:
    import yaml

    return yaml.safe_dump(object_)
