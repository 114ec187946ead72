"""From a spec to the plan: what the simulation core and the agents are told.

A pure function. The plan is one JSON document with a section for each reader, so that the two need not know each other:
``core`` for the simulation core; ``server`` for every agent, whose ``conf`` becomes the ``server.conf`` that the shims
read. All catalogue look-ups happen here: who gets the plan needs no catalogue to emulate a device.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from eidolon_operator import topology
from eidolon_operator.schema import Problem
from eidolon_operator.spec import Spec, SpecError
from eidolon_operator.units import format_bytes
from eidolon_simcore import catalogue
from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.fabric import builders
from eidolon_simcore.fabric.settings import FabricError, Settings
from eidolon_simcore.fabric.settings import parse as parse_fabric
from eidolon_simcore.fabric.topology import Topology

#: Sizes of a rank's three rings. Records hold about 2 s of a host-bound rank, definitions its signatures and payloads.
RING_RECORDS: Final = 1 << 16
RING_DEFINITIONS_BYTES: Final = 4 << 20
RING_INBOX_BYTES: Final = 4 << 20
_RECORD_BYTES: Final = 32
_RING_PAGES_BYTES: Final = 160 << 10  # header, reply slots and stream pages of abi.h, rounded up

KNOWN_LIMIT_BYTES: Final = 1 << 20
REPLY_TIMEOUT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run; ``document`` is what ``plan.json`` holds."""

    spec: Spec
    document: dict[str, Any]

    @property
    def ring_bytes(self) -> int:
        """Shared memory of one rank."""
        return ring_bytes()

    def with_server_conf(self, settings: Mapping[str, str]) -> Plan:
        """The plan with further settings in every ``server.conf``: those of the machine it runs on."""
        server = self.document["server"]
        return Plan(self.spec, {**self.document, "server": {**server, "conf": {**server["conf"], **settings}}})


def ring_bytes() -> int:
    """Shared memory of one rank."""
    return RING_RECORDS * _RECORD_BYTES + RING_DEFINITIONS_BYTES + RING_INBOX_BYTES + _RING_PAGES_BYTES


def build(spec: Spec, *, source: str, token: str | None = None, attempt: int = 1) -> Plan:
    """The plan of a spec. ``token`` is the shared secret of the run; by default a new one."""
    gpu = gpu_of(spec, source)
    if any((group.gpu, group.gpu_memory_bytes) != (spec.gpu, spec.gpu_memory_bytes) for group in spec.server_groups):
        message = "groups of servers with another GPU than spec.gpu are not simulated yet"
        raise SpecError(source, [Problem("spec.serverGroups", message)])
    work, network = spec.workload, spec.network
    memory_bytes = spec.gpu_memory_bytes or gpu.memory_bytes
    context_bytes = spec.context_bytes if spec.context_bytes is not None else gpu.context_bytes
    if context_bytes >= memory_bytes:
        message = f"{format_bytes(memory_bytes)} does not hold the context of a process ({format_bytes(context_bytes)})"
        raise SpecError(source, [Problem("spec.gpu.memory", f"{message}; see spec.gpu.contextMemory")])
    fabric(spec, gpu, source)
    document = {
        "name": spec.name,
        "core": {
            "servers": spec.servers,
            "gpus_per_server": spec.gpus_per_server,
            "ranks_per_server": work.ranks_per_server,
            "gpu": spec.gpu,
            "gpu_memory_bytes": memory_bytes,
            "host_cost": spec.host_cost,
            "time_sync": spec.time_sync,
            "steps": spec.steps,
            "tokens_per_step": work.tokens_per_step,
            "samples_per_step": work.samples_per_step,
            "strict": spec.strict,
            "unknown_limit": spec.unknown_limit,
            "recording": {"limit_bytes": spec.recording.limit_bytes} if spec.recording.enabled else None,
            "network": {
                "inter_bytes_per_s": network.inter_bytes_per_s or gpu.nic_bytes_per_s,
                "inter_latency_ns": network.inter_latency_ns,
                "intra_bytes_per_s": network.intra_bytes_per_s,
                "topology": dict(network.topology) if network.topology is not None else None,
            },
            "startup_timeout_s": spec.startup_timeout_s,
            "stuck_timeout_s": network.nccl.missing_after_s,
            "missing_virtual_s": network.nccl.missing_after_virtual_s,
            "time_limit_s": spec.time_limit_s,
            "attempt": attempt,
            "token": token if token is not None else secrets.token_hex(16),
        },
        "server": {
            "devices": spec.gpus_per_server,
            "ranks": work.ranks_per_server,
            "world": spec.world,
            "gpu": spec.gpu,
            "conf": {
                "mode": "core",
                "host_cost": spec.host_cost,
                "devices": str(spec.gpus_per_server),
                **gpu.server_conf(memory_bytes=memory_bytes, context_bytes=context_bytes),
                "payload_limit": str(network.nccl.payload_bytes),
                "nccl.kernel_bytes": str(network.nccl.kernel_bytes),
                "nccl.comm_bytes": str(network.nccl.communicator_bytes),
                "nccl.peer_bytes": str(network.nccl.peer_bytes),
                "known_limit": str(KNOWN_LIMIT_BYTES),
                "values.loss": spec.values.loss,
                "values.routing": spec.values.routing,
                "reply_timeout_ms": str(REPLY_TIMEOUT_MS),
                "ring.records": str(RING_RECORDS),
                "ring.defs_bytes": str(RING_DEFINITIONS_BYTES),
                "ring.inbox_bytes": str(RING_INBOX_BYTES),
            },
        },
    }
    return Plan(spec, document)


def fabric(spec: Spec, gpu: Gpu, source: str) -> tuple[Settings, Topology]:
    """The fabric of a spec, as the core will build it. Raises :class:`SpecError`."""
    network = spec.network
    try:
        settings = parse_fabric(
            network.topology,
            gpu=gpu,
            servers=spec.servers,
            gpus_per_server=spec.gpus_per_server,
            inter_bytes_per_s=network.inter_bytes_per_s or gpu.nic_bytes_per_s,
            inter_latency_ns=network.inter_latency_ns,
            intra_bytes_per_s=network.intra_bytes_per_s,
        )
        return settings, builders.build(settings)
    except FabricError as error:
        where = ".".join(filter(None, ("spec.network.topology", topology.spec_name(error.field))))
        raise SpecError(source, [Problem(where, error.message)]) from error


def catalogue_lines() -> Iterator[str]:
    """The GPU catalogue, one model a line."""
    for name in catalogue.names():
        gpu = catalogue.gpu(name)
        yield f"{name:<16} {format_bytes(gpu.memory_bytes):>9}  sm_{gpu.cc.replace('.', '')}  {gpu.name}"


def gpu_of(spec: Spec, source: str) -> Gpu:
    """The catalogue's entry of the spec's GPU. Raises :class:`SpecError`."""
    names = list(catalogue.names())
    if spec.gpu not in names:
        close = difflib.get_close_matches(spec.gpu, names, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        problem = Problem(
            "spec.gpu.model", f"{spec.gpu!r} is not in the GPU catalogue; {hint}allowed: {', '.join(names)}"
        )
        raise SpecError(source, [problem])
    return catalogue.gpu(spec.gpu)
