"""What a decision looks at: an object, the world around it and the time, and what follows from them.

A :class:`Situation` holds facts and changes nothing. It is about the present attempt: where a look begins a new one,
everything here is already about that one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eidolon_operator.kubernetes.naming import core_name, server_name
from eidolon_operator.kubernetes.status import Phase
from eidolon_operator.kubernetes.world import PodState, World, seconds
from eidolon_operator.spec import Spec


@dataclass(frozen=True)
class Situation:
    """An object that can be run, as it is found at one look."""

    spec: Spec
    namespace: str
    generation: int  #: of the object, which counts changes of its spec
    old: Mapping[str, Any]  #: its status before this look
    world: World
    now: float  #: seconds since 1970
    runtime: Mapping[str, Any]  #: what a new attempt would be made with: ``status.runtime``
    aside: Sequence[str] = ()  #: notes on fields that this version does not know

    # -- the attempt -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def begins(self) -> bool:
        """Whether this look begins a new attempt: the first, or the one after a suspension."""
        return not self.old.get("attempt") or self.old.get("phase") == Phase.SUSPENDED

    @functools.cached_property
    def attempt(self) -> int:
        """Number of the present attempt, from 1."""
        return int(self.old.get("attempt", 0)) + self.begins

    @functools.cached_property
    def core(self) -> Mapping[str, Any] | None:
        """What the core of this attempt said last (its ``/status``), if it said anything."""
        reading = self.world.core
        if reading is None or reading.document is None:
            return None
        return reading.document if reading.document.get("attempt", self.attempt) == self.attempt else None

    @property
    def core_state(self) -> str:
        """``Waiting``, ``Running``, ``Succeeded`` or ``Failed`` in the core's word; empty if it said nothing."""
        return str(self.core["state"]) if self.core is not None else ""

    @property
    def core_reason(self) -> str:
        """The core's word for how the run ended; empty if there is none."""
        return str(self.core.get("reason") or "") if self.core is not None else ""

    @property
    def core_message(self) -> str:
        """The core's line about it, for people."""
        return str(self.core.get("message") or "") if self.core is not None else ""

    @functools.cached_property
    def started(self) -> float:
        """When the attempt began, in seconds since 1970."""
        since = None if self.begins else seconds(self.old.get("startTime"))
        return float(int(self.now)) if since is None else since  # a status keeps whole seconds

    @functools.cached_property
    def running_since(self) -> float | None:
        """When the workload was let go, in seconds since 1970; None if it was not yet.

        It is let go once all servers have said hello, which the core tells.
        """
        before = None if self.begins else seconds(self.old.get("runningTime"))
        if before is not None or self.core is None:
            return before
        missed = self.core_state == "Failed" and self.core.get("servers", {}).get("missing")
        return None if self.core_state == "Waiting" or missed else float(int(self.now))

    @property
    def running(self) -> bool:
        """Whether the workload was let go."""
        return self.running_since is not None

    # -- pods --------------------------------------------------------------------------------------------------------

    @property
    def core_name(self) -> str:
        """Name of the core's pod."""
        return core_name(self.spec.name)

    @functools.cached_property
    def server_names(self) -> list[str]:
        """Names of the servers' pods, by number. Servers that only have phantoms have none."""
        return [server_name(self.spec.name, index) for index in self.spec.placement.servers]

    @functools.cached_property
    def own(self) -> list[PodState]:
        """Pods of this attempt."""
        return [pod for pod in self.world.pods.values() if pod.attempt == self.attempt]

    @functools.cached_property
    def servers(self) -> list[PodState]:
        """Pods of this attempt but for the core's."""
        return [pod for pod in self.own if pod.server is not None]

    @property
    def at_work(self) -> list[PodState]:
        """Pods of servers that have not ended and were not told to."""
        return [pod for pod in self.servers if not pod.finished and not pod.terminating]

    @property
    def stale(self) -> list[PodState]:
        """Pods of other attempts that were not told to end. They hold the names that this attempt needs."""
        return [pod for pod in self.world.pods.values() if pod.attempt != self.attempt and not pod.terminating]

    @property
    def disrupted(self) -> list[PodState]:
        """Pods that the cluster took away before the run had begun: deleted, they are made again."""
        if self.running:
            return []
        core = self.pod(self.core_name)
        cores = [core] if core is not None and core.finished and core.disrupted else []
        return [*cores, *(pod for pod in self.servers if pod.failed and pod.disrupted and not pod.terminating)]

    @property
    def failed(self) -> list[PodState]:
        """Pods of servers in which a container ended with an error, through no fault of the cluster."""
        return [pod for pod in self.servers if pod.failed and not pod.disrupted]

    @functools.cached_property
    def lost(self) -> list[str]:
        """Names of servers that the cluster took away before their workload had ended."""
        ended = set((self.core or {}).get("servers", {}).get("ended", {}))
        found = []
        for index, name in zip(self.spec.placement.servers, self.server_names, strict=True):
            pod = self.pod(name)
            gone = pod is None or (not pod.finished and pod.terminating) or (pod.failed and pod.disrupted)
            if gone and str(index) not in ended:
                found.append(name)
        return found

    def pod(self, name: str) -> PodState | None:
        """The pod of this name, if there is one and it is of this attempt."""
        pod = self.world.pods.get(name)
        return pod if pod is not None and pod.attempt == self.attempt else None

    def is_ready(self, name: str) -> bool:
        """Whether the pod of this name is ready, or has ended with success."""
        pod = self.pod(name)
        return pod is not None and not pod.terminating and (pod.ready or pod.phase == "Succeeded")

    def trouble(self, name: str) -> str:
        """Why the pod of this name is not ready, as far as anybody says; empty if nobody does."""
        if name in self.world.refused:
            return self.world.refused[name].message
        pod = self.world.pods.get(name)
        return pod.message if pod is not None else ""
