"""What is kept of a pod, and which word on it counts."""

from __future__ import annotations

from typing import Any

from eidolon_operator.kubernetes.world import Key, Pods, PodState, key_of, pod_state, seconds, timestamp

KEY = Key("lab", "demo")


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "demo-server-3",
            "namespace": "lab",
            "uid": "u",
            "resourceVersion": "42",
            "labels": {
                "eidolon.dev/simulatedcluster": "demo",
                "eidolon.dev/server": "3",
                "eidolon.dev/attempt": "2",
            },
            "ownerReferences": [{"uid": "other"}, {"uid": "owner", "controller": True}],
        },
        "status": status,
    }


def state(uid: str = "u", version: int = 1, **more: Any) -> PodState:
    return PodState(name="p", uid=uid, owner="o", attempt=1, server=0, phase="Running", version=version, **more)


def test_a_pod_in_a_few_words() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    found = pod_state(pod(phase="Running", podIP="10.0.0.7", conditions=ready))
    assert found == PodState(
        name="demo-server-3",
        uid="u",
        owner="owner",
        attempt=2,
        server=3,
        phase="Running",
        ready=True,
        address="10.0.0.7",
        version=42,
    )
    assert key_of(pod()) == KEY


def test_why_a_pod_does_not_get_on() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    found = pod_state(pod(phase="Pending", initContainerStatuses=[{"name": "install", "state": {"waiting": waiting}}]))
    assert (found.reason, found.message) == ("ImagePullFailed", "container install: no such image")
    found = pod_state(pod(phase="Failed", reason="Evicted", message="low on memory"))
    assert found.disrupted
    assert (found.reason, found.message) == ("Evicted", "low on memory")


def test_the_line_that_matters_is_the_last() -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": "one\n  two  \n\n", "finishedAt": "2026-01-01T00:00:00Z"}
    status = [{"name": "workload", "state": {"terminated": ended}}, {"name": "x", "state": {"terminated": {}}}]
    (found,) = pod_state(pod(phase="Failed", containerStatuses=status)).ended
    assert (found.container, found.exit_code, found.line) == ("workload", 1, "two")
    assert found.at == seconds("2026-01-01T00:00:00Z")


def test_an_older_word_does_not_count() -> None:
    pods = Pods()
    pods.put(KEY, state(version=5, ready=True))
    pods.put(KEY, state(version=4))
    assert pods.of(KEY)["p"].ready
    pods.put(KEY, state(version=6))
    assert not pods.of(KEY)["p"].ready


def test_what_says_nothing_new_is_no_news() -> None:
    pods = Pods()
    assert pods.put(KEY, state(version=5))
    assert not pods.put(KEY, state(version=6)), "the same in a newer version"
    assert pods.put(KEY, state(version=7, ready=True))
    assert not pods.put(KEY, state(version=6)), "older"
    assert pods.replace([(KEY, state(version=8, ready=True))], version=9) == set()
    assert pods.replace([], version=9) == {KEY}


def test_the_end_of_a_pod_is_not_that_of_its_successor() -> None:
    pods = Pods()
    pods.put(KEY, state(uid="first", version=5))
    pods.put(KEY, state(uid="second", version=9))
    pods.drop(KEY, "p", "first")
    assert pods.of(KEY)["p"].uid == "second"
    pods.drop(KEY, "p", "second")
    assert not pods.of(KEY)


def test_a_list_says_what_is_gone_but_not_of_what_is_newer() -> None:
    pods = Pods()
    pods.put(KEY, state(uid="gone", version=5))
    pods.put(Key("lab", "new"), state(uid="new", version=20))
    pods.replace([(Key("lab", "listed"), state(uid="listed", version=7))], version=10)
    assert list(pods.keys()) == [Key("lab", "new"), Key("lab", "listed")]


def test_times() -> None:
    assert timestamp(0.9) == "1970-01-01T00:00:00Z"
    assert seconds(timestamp(1_800_000_000.0)) == 1_800_000_000.0
    assert seconds(None) is None
