"""Which file of the cluster is where. One state directory holds everything but the binaries, which outlive it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Layout:
    """The files below one state directory."""

    root: Path

    @classmethod
    def default(cls) -> Layout:
        """``EIDOLON_CLUSTER_STATE``, else `build/cluster` of the checkout: a checkout has a cluster of its own."""
        return cls(Path(os.environ.get("EIDOLON_CLUSTER_STATE") or REPOSITORY / "build" / "cluster").absolute())

    #: Locked for as long as the cluster lives.
    @property
    def lock(self) -> Path:
        return self.root / "lock"

    #: What `up` started: pid of the outermost process, port of the API server, cgroup.
    @property
    def running(self) -> Path:
        return self.root / "running.json"

    #: The components that the supervisor runs, with how often each was started.
    @property
    def components(self) -> Path:
        return self.root / "components.json"

    #: For kubectl, helm and everything else outside.
    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    #: Settings, certificates and kubeconfigs of the components.
    @property
    def etc(self) -> Path:
        return self.root / "etc"

    #: What the components write: images, volumes, pods' logs.
    @property
    def var(self) -> Path:
        return self.root / "var"

    #: One file a component, and the API server's audit log. The one thing that `down` leaves.
    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"


def cache() -> Path:
    """Where built programs are kept, outside the checkout: `~/.cache/eidolon/cluster`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eidolon" / "cluster"
