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

    @property
    def lock(self) -> Path:
        """Locked for as long as the cluster lives."""
        return self.root / "lock"

    @property
    def running(self) -> Path:
        """What `up` started: pid of the outermost process, port of the API server, cgroup."""
        return self.root / "running.json"

    @property
    def components(self) -> Path:
        """The components that the supervisor runs, with how often each was started."""
        return self.root / "components.json"

    @property
    def kubeconfig(self) -> Path:
        """For kubectl, helm and everything else outside."""
        return self.root / "kubeconfig"

    @property
    def etc(self) -> Path:
        """Settings, certificates and kubeconfigs of the components."""
        return self.root / "etc"

    @property
    def var(self) -> Path:
        """What the components write: images, volumes, pods' logs."""
        return self.root / "var"

    @property
    def logs(self) -> Path:
        """One file a component, and the API server's audit log. The one thing that `down` leaves."""
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        """Every request that the API server answered."""
        return self.logs / "audit.log"


def cache() -> Path:
    """Where built programs are kept, outside the checkout: `~/.cache/eidolon/cluster`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eidolon" / "cluster"
