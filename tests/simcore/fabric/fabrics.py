"""Fabrics for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eidolon_simcore import catalogue
from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.fabric import builders, settings
from eidolon_simcore.fabric.network import Network
from eidolon_simcore.fabric.settings import Settings
from eidolon_simcore.fabric.topology import Port, Topology

NIC = 50_000_000_000


def make(
    gpu: str = "h100-sxm", servers: int = 2, gpus: int = 8, gpus_by_server: Sequence[Gpu] = (), **fields: Any
) -> Settings:
    return settings.parse(
        fields or None,
        gpus=gpus_by_server or [catalogue.gpu(gpu)] * servers,
        gpus_per_server=gpus,
        inter_bytes_per_s=catalogue.gpu(gpu).nic_bytes_per_s,
        inter_latency_ns=2_000,
    )


def build(gpu: str = "h100-sxm", servers: int = 2, gpus: int = 8, **fields: Any) -> Topology:
    return builders.build(make(gpu, servers, gpus, **fields))


def network(gpu: str = "h100-sxm", servers: int = 2, gpus: int = 8, *, folded: bool = False, **fields: Any) -> Network:
    return Network(NativeEngine(), catalogue.gpu(gpu), make(gpu, servers, gpus, **fields), folded=folded)


def ports(count: int, per_server: int = 8) -> list[Port]:
    return [Port(i // per_server, i % per_server) for i in range(count)]
