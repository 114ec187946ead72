"""From creation to deletion: what there is, what is left, what is not done twice."""

from __future__ import annotations

import contextlib
import json

from e2e.kubernetes.conftest import Namespace, Operator, simulated_cluster
from e2e.kubernetes.kubectl import RefusedError, condition, wait_for

OWNED = "pods,services,configmaps,secrets"
LABEL = "--selector=app.kubernetes.io/managed-by=eidolon-operator"


def left(namespace: Namespace) -> list[str]:
    """What the operator made in the namespace and is still there."""
    return namespace.run("get", OWNED, LABEL, "-o", "name").split()


def test_deletion_leaves_nothing(namespace: Namespace) -> None:
    namespace.apply(simulated_cluster("short", "busy.py", "--seconds", "1"))
    namespace.wait_for_phase("short", "Succeeded", timeout_s=90)
    assert left(namespace)
    namespace.run("delete", "simc", "short", "--timeout=60s")
    wait_for(lambda: not left(namespace), 60, lambda: left(namespace))


def test_deleted_while_its_children_are_being_made(namespace: Namespace, operator: Operator) -> None:
    """No orphan is left, and nobody goes on trying."""
    for number in range(5):
        namespace.apply(simulated_cluster(f"gone-{number}", "busy.py", servers=8))
        namespace.run("delete", "simc", f"gone-{number}", "--wait=false")
    wait_for(lambda: not namespace.run("get", "simc", "-o", "name"), 60)
    wait_for(lambda: not left(namespace), 60, lambda: left(namespace))
    position = namespace.cluster.audit_position()
    # Another object is dealt with from beginning to end meanwhile: time enough for a retry to be seen.
    namespace.apply(simulated_cluster("next", "busy.py", "--seconds", "1"))
    namespace.wait_for_phase("next", "Succeeded", timeout_s=90)
    tried = [
        request["requestURI"]
        for request in namespace.cluster.audit(position)
        if request["verb"] in ("create", "patch", "update") and "gone-" in request["requestURI"]
    ]
    assert tried == []


def test_suspended_and_resumed(namespace: Namespace) -> None:
    namespace.apply(simulated_cluster("pause", "busy.py", "--seconds", "1", suspend=True))
    seen = namespace.wait_for_phase("pause", "Suspended", timeout_s=30)
    assert condition(seen, "Suspended")["status"] == "True"
    assert namespace.pods() == {}
    namespace.run("patch", "simc", "pause", "--type=merge", '--patch={"spec":{"suspend":false}}')
    namespace.wait_for_phase("pause", "Succeeded", timeout_s=90)


def test_a_definition_newer_than_the_operator(namespace: Namespace) -> None:
    """What the operator does not know it leaves aside and says; the run is none the worse for it."""
    field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/later"
    # Without a default: the objects of other tests must not have it.
    shape = {"type": "string", "maxLength": 9, "description": "Of a later version."}
    ahead = simulated_cluster("ahead", "busy.py", "--seconds", "1", later="auto")

    def applied() -> bool:
        """The API server takes a moment until it goes by a new definition."""
        with contextlib.suppress(RefusedError):
            namespace.apply(ahead)
            return True
        return False

    _patch_definition(namespace, {"op": "add", "path": field, "value": shape})
    try:
        wait_for(applied, 30)
        seen = namespace.wait_for_phase("ahead", "Succeeded", timeout_s=90)
    finally:
        _patch_definition(namespace, {"op": "remove", "path": field})
    assert seen["spec"]["later"] == "auto"
    [note] = [line for line in seen["status"]["notes"] if "spec.later" in line]
    assert "left aside" in note
    assert note in namespace.run("get", "events", "-o", "jsonpath={.items[*].message}")


def _patch_definition(namespace: Namespace, change: dict[str, object]) -> None:
    patch = json.dumps([change])
    namespace.kubectl("patch", "crd", "simulatedclusters.eidolon.dev", "--type=json", f"--patch={patch}")


def test_every_container_is_restricted(namespace: Namespace) -> None:
    """The namespace enforces the standard, so that pods run is the proof; what they were given is looked at too."""
    namespace.apply(simulated_cluster("bare", "busy.py", "--seconds", "1"))
    namespace.wait_for_phase("bare", "Succeeded", timeout_s=90)
    for pod in namespace.pods().values():
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["enableServiceLinks"] is False
        assert not any("projected" in volume for volume in pod["spec"]["volumes"])
    namespace.run("wait", "--for=condition=Succeeded", "simc/bare", "--timeout=5s")


def test_a_settled_object_is_not_written(namespace: Namespace) -> None:
    """Reconciles of an object at which nothing happens only read."""
    namespace.apply(simulated_cluster("calm", "busy.py", "--seconds", "1"))
    namespace.wait_for_phase("calm", "Succeeded", timeout_s=90)
    wait_for(lambda: not _writes(namespace, 8), 60)


def _writes(namespace: Namespace, seconds: float) -> list[str]:
    import time

    position = namespace.cluster.audit_position()
    time.sleep(seconds)  # longer than the operator leaves an object alone
    return [
        f"{request['verb']} {request['requestURI']}"
        for request in namespace.cluster.audit(position)
        if request["verb"] not in ("get", "list", "watch")
        and f"/namespaces/{namespace.name}/" in request["requestURI"]
        and request["user"]["username"].startswith("system:serviceaccount:eidolon-system:")
    ]
