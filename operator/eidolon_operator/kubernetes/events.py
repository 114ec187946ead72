"""Events of an object, for people: they follow from its status before and after a change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from eidolon_operator import spec as specs
from eidolon_operator.kubernetes.naming import MANAGER
from eidolon_operator.kubernetes.status import FINAL, Kind, Phase, Reason, cut
from eidolon_operator.kubernetes.world import timestamp

#: Reasons of a condition that need somebody to act.
_TROUBLE = {
    *(Reason.UNSCHEDULABLE, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_FAILED, Reason.QUOTA_EXCEEDED),
    *(Reason.FORBIDDEN, Reason.NAME_TAKEN, Reason.CREATE_FAILED, Reason.UNREACHABLE),
}


class Note(NamedTuple):
    """One Event."""

    warning: bool
    reason: str
    message: str


def notes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Note]:
    """The Events about the change from one status to another."""
    attempt = new.get("attempt")
    if attempt != old.get("attempt") and attempt:
        if new.get("restarts", 0) > old.get("restarts", 0):
            yield Note(True, "Restarting", _condition(new, Kind.RUNNING).get("message", ""))
        if attempt > 1:  # the first attempt of a new object is no news
            yield Note(False, "AttemptStarted", f"attempt {attempt} begins")
    phase = new.get("phase")
    if phase != old.get("phase"):
        if phase == Phase.RUNNING:
            yield Note(False, "Running", "all servers are there: the workload starts")
        elif phase == Phase.SUSPENDED:
            yield Note(False, "Suspended", "pods are deleted; a new attempt begins when spec.suspend is false")
        elif phase in FINAL:
            condition = _condition(new, Kind(phase))
            yield Note(phase == Phase.FAILED, phase, f"{condition['reason']}: {condition['message']}".rstrip(": "))
    for line in new.get("notes", ()):
        if line not in old.get("notes", ()):
            yield Note(True, "LessExact", line)
    for kind in (Kind.CORE_READY, Kind.SERVERS_READY):
        before, after = _condition(old, kind), _condition(new, kind)
        if after.get("reason") in _TROUBLE and after.get("reason") != before.get("reason"):
            yield Note(True, after["reason"], after["message"])


def build_event(document: Mapping[str, Any], note: Note, now: float) -> dict[str, Any]:
    """The manifest of an Event. The same Event twice in a second has the same name."""
    metadata, at = document["metadata"], timestamp(now)
    digest = hashlib.sha256(f"{metadata['uid']} {note} {at}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": specs.API_VERSION,
            "kind": specs.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning" if note.warning else "Normal",
        "reason": note.reason,
        "message": cut(note.message, 1024),
        "source": {"component": MANAGER},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _condition(status: Mapping[str, Any], kind: Kind) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((c for c in status.get("conditions", ()) if c["type"] == kind), {})
    return found
