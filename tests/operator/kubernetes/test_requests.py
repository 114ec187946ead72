"""What an object costs the API server, request by request, from its creation to its end.

A look at the object is one request, so what is no news must not lead to one: the watches are played here, too.
"""

from __future__ import annotations

from collections import Counter

from kubernetes_lab import KEY, Lab

from eidolon_operator.kubernetes.client import objects_path

PODS = ("demo-core", "demo-server-0", "demo-server-1")
#: What is made for an object, each in one request.
MADE = Counter({"create services": 2, "create secrets": 1, "create pods": len(PODS)})
LOOK = Counter({"get simulatedclusters": 1})
TOLD = LOOK + Counter({"apply simulatedclusters/status": 1})


def created(lab: Lab) -> None:
    """A new object: its pods are made, and the watch tells of them."""
    lab.apply()
    lab.look()
    assert not any(lab.heard(name) for name in PODS), "their creation was answered with what the watch repeats"
    for name in PODS:
        lab.set_pod(name, phase="Pending", conditions=[{"type": "PodScheduled", "status": "True"}])
    assert not any(lab.heard(name) for name in PODS), "where they run changes nothing"


def up(lab: Lab) -> None:
    """The kubelets have started them; the queue makes one look of what is heard within a second."""
    lab.run_pod(*PODS)
    assert {name: lab.heard(name) for name in PODS} == dict.fromkeys(PODS, True)


def test_until_its_pods_run(lab: Lab) -> None:
    """On nodes that only say that they run pods no core answers; that is told once, after three times."""
    created(lab)
    assert lab.api.requests() == TOLD + MADE
    up(lab)
    lab.cores.says = None
    lab.cores.follow = lambda key, pod: None  # type: ignore[method-assign]
    lab.look(after_s=1)
    assert lab.api.requests() == TOLD
    del lab.cores.follow
    lab.look(after_s=15)
    assert lab.api.requests() == TOLD + Counter({"create events": 1})


def test_a_whole_run(lab: Lab) -> None:
    created(lab)
    up(lab)
    servers = {"expected": 2, "said_hello": [], "missing": [0, 1], "ended": {}}
    lab.core_says("Waiting", servers=servers)
    lab.look(after_s=1)
    assert lab.api.requests() == TOLD + MADE + TOLD
    lab.core_says("Running")
    lab.look(after_s=5)
    assert lab.api.requests() == TOLD + Counter({"create events": 1})
    lab.core_says("Running", step={"index": 1, "time_ns": 71_300_000})
    lab.look(after_s=5)
    assert lab.api.requests() == TOLD
    lab.complete_pod("demo-server-0", "demo-server-1")
    lab.core_says("Succeeded", reason="WorkloadsEnded")
    lab.look(after_s=5)
    assert lab.api.requests() == TOLD + Counter({"create events": 1})


def test_a_settled_object_costs_nothing(lab: Lab) -> None:
    """While it runs nothing is due but its limits; when it is over, the end of its time."""
    lab.start(timeLimit="1h")
    assert lab.look(after_s=10) == 3600 + 30 - 10
    assert lab.api.requests() == LOOK, "and if it is looked at it is only read"
    lab.complete_pod("demo-server-0", "demo-server-1")
    lab.core_says("Succeeded", reason="WorkloadsEnded")
    lab.look(after_s=5)
    lab.api.requests()
    assert lab.look(after_s=100) == 3600 - 100
    assert lab.api.requests() == LOOK


def test_an_object_that_waits_is_due_when_its_time_is_up(lab: Lab) -> None:
    created(lab)
    assert lab.look(after_s=10) == 600 + 30 - 10
    assert lab.look(after_s=620) is not None
    assert lab.condition("Failed")[:2] == ("True", "ServersNotReady")


def test_a_resync_knows_what_was_looked_at(lab: Lab) -> None:
    """What the operator has written itself is no reason to look again."""
    lab.start()
    assert lab.reconciler.versions == {KEY: lab.document["metadata"]["resourceVersion"]}
    lab.patch(suspend=True)
    lab.api.put(objects_path(*KEY), lab.document)
    assert lab.reconciler.versions[KEY] != lab.document["metadata"]["resourceVersion"]
    lab.look(after_s=1)
    assert lab.reconciler.versions == {KEY: lab.document["metadata"]["resourceVersion"]}
    del lab.api.objects[objects_path(*KEY)]
    lab.look()
    assert lab.reconciler.versions == {}
