"""The installed chart: rights as the API server sees them, and network policies where the network enforces them."""

from __future__ import annotations

import os
import textwrap

import pytest

from e2e.kubernetes.conftest import RELEASE, SYSTEM_NAMESPACE, Namespace, Operator, example_image, simulated_cluster
from e2e.kubernetes.kubectl import RefusedError, wait_for

OPERATOR = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{RELEASE}-operator"


def may(namespace: Namespace, who: str, verb: str, resource: str) -> bool:
    """Whether an account may do something in the namespace; ``resource`` is RESOURCE or RESOURCE/SUBRESOURCE."""
    name, _, subresource = resource.partition("/")
    options = [f"--subresource={subresource}"] if subresource else []
    try:
        answer = namespace.run("auth", "can-i", verb, name, *options, f"--as={who}")
    except RefusedError:  # kubectl says "no" and fails
        return False
    return answer.split()[0] == "yes"


#: What the operator may do in a namespace, and some of what it may not.
RIGHTS = {
    ("create", "pods"): True,
    ("get", "secrets"): True,
    ("patch", "simulatedclusters.eidolon.dev/status"): True,
    ("update", "simulatedclusters.eidolon.dev/finalizers"): True,
    ("get", "pods/log"): False,
    ("create", "pods/exec"): False,
    ("patch", "pods"): False,
    ("list", "secrets"): False,
    ("get", "configmaps"): False,
    ("update", "simulatedclusters.eidolon.dev"): False,
    ("create", "serviceaccounts"): False,
    ("create", "rolebindings.rbac.authorization.k8s.io"): False,
}


def test_the_operators_rights(namespace: Namespace) -> None:
    assert {right: may(namespace, OPERATOR, *right) for right in RIGHTS} == RIGHTS


def test_users_have_theirs_through_the_built_in_roles(namespace: Namespace) -> None:
    """The roles are aggregated by a controller, soon after they are made."""
    for role in ("edit", "view"):
        namespace.run("create", "serviceaccount", role)
        namespace.run(
            "create", "rolebinding", role, f"--clusterrole={role}", f"--serviceaccount={namespace.name}:{role}"
        )
    editor, viewer = (f"system:serviceaccount:{namespace.name}:{role}" for role in ("edit", "view"))
    wait_for(lambda: may(namespace, editor, "create", "simulatedclusters.eidolon.dev"), 30)
    wait_for(lambda: may(namespace, viewer, "get", "simulatedclusters.eidolon.dev"), 30)
    assert not may(namespace, viewer, "create", "simulatedclusters.eidolon.dev")
    assert not may(namespace, editor, "patch", "simulatedclusters.eidolon.dev/status")


@pytest.mark.skipif(
    os.environ.get("EIDOLON_E2E_NETWORK_POLICY") != "1",
    reason="a bridge enforces no policies; EIDOLON_E2E_NETWORK_POLICY=1 says that the network does",
)
def test_only_servers_reach_the_ingest_port(namespace: Namespace, operator: Operator) -> None:
    operator.install(
        "--reuse-values", "--set=networkPolicy.enabled=true", f"--set=networkPolicy.namespaces={{{namespace.name}}}"
    )
    try:
        namespace.apply(simulated_cluster("closed", "busy.py", "--seconds", "60"))
        namespace.wait_for_phase("closed", "Running")  # its own servers reach it
        assert reaches(namespace, "closed-core", 8080)
        assert not reaches(namespace, "closed-core", 50051)
    finally:
        operator.install("--reset-values")


def reaches(namespace: Namespace, host: str, port: int) -> bool:
    """Whether a pod that is no part of a run connects within 5 s."""
    script = f"""
        import socket, sys
        try:
            socket.create_connection(("{host}", {port}), timeout=5)
        except TimeoutError:
            sys.exit(3)
    """
    name = f"stranger-{port}"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "stranger",
                    "image": example_image(),
                    "command": ["python3", "-c", textwrap.dedent(script)],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }
    namespace.apply(pod)

    def ended() -> tuple[int] | None:
        found = namespace.kubectl.get("pods", name, namespace.name) or {}
        state = found.get("status", {}).get("containerStatuses", [{}])[0].get("state", {})
        code: int | None = state.get("terminated", {}).get("exitCode")
        return None if code is None else (code,)

    (code,) = wait_for(ended, 60)
    assert code in (0, 3), namespace.run("logs", name)
    return code == 0
