"""From a spec to the plan: what the simulation core and the agents are told.

:func:`build` is a pure function. The plan is one JSON document with a section for each reader, so that the two need not
know each other: ``core`` for the simulation core, and ``server`` for every agent, whose ``conf`` becomes the
``server.conf`` that the shims read. All catalogue look-ups happen here, so agents and shims need no catalogue.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from eidolon_interposer.vocabulary import ConfKey
from eidolon_operator import topology
from eidolon_operator.schema import Problem
from eidolon_operator.spec import Spec, SpecError
from eidolon_operator.units import format_bytes
from eidolon_simcore import catalogue
from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs import hostcost
from eidolon_simcore.fabric import builders
from eidolon_simcore.fabric.settings import FabricError, Settings
from eidolon_simcore.fabric.settings import parse as parse_fabric
from eidolon_simcore.fabric.topology import Topology

#: Sizes of a rank's three rings. Records hold about 2 s of a host-bound rank, definitions its signatures and payloads.
RING_RECORDS: Final = 1 << 16
RING_DEFINITIONS_BYTES: Final = 4 << 20
RING_INBOX_BYTES: Final = 4 << 20
_RECORD_BYTES: Final = 32
_RING_PAGES_BYTES: Final = 20 << 10  # header and reply slots of abi.h, rounded up to pages

#: Largest copy to a device whose bytes the shim keeps, so that they can be read back.
KNOWN_LIMIT_BYTES: Final = 1 << 20
#: Real time that a rank waits for an answer before it gives its core up.
REPLY_TIMEOUT_MS: Final = 60_000

# Limits in real time that no field of the object sets.
#: A server whose stream to the core broke, because its agent was started anew, may come back for so long.
RECONNECT_TIMEOUT_S: Final = 30.0
#: A run is given up after so long if somebody waits for a rank that has left.
LEFT_TIMEOUT_S: Final = 10.0
#: A run in which nobody can go on is given up after so long, and not after ``missingAfter``, if some ranks sleep
#: outside all calls: they may be busy in other processes. Each time that one of them wakes counts as going on.
IDLE_TIMEOUT_S: Final = 300.0
#: The same if some rank computes outside all calls: it may tokenise a data set, for example.
BUSY_TIMEOUT_S: Final = 1_800.0

#: Fields of a group of servers in each of the two sections.
_OF_CORE: Final = ("servers", "gpu", "gpu_memory_bytes")
_OF_SERVER: Final = ("servers", "gpu", "conf")


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run; ``document`` is what ``plan.json`` holds."""

    spec: Spec
    document: dict[str, Any]

    @property
    def capacities(self) -> list[int]:
        """Memory of each GPU of a server, by server."""
        return capacities(self.document["core"])

    @property
    def ring_bytes(self) -> int:
        """Shared memory of one rank."""
        return ring_bytes()

    def with_core(self, **fields: Any) -> Plan:
        """The plan with other values of some of the core's fields: those of the machine it runs on."""
        return Plan(self.spec, {**self.document, "core": {**self.document["core"], **fields}})

    def with_server_conf(self, settings: Mapping[ConfKey, str]) -> Plan:
        """The plan with further settings in every ``server.conf``: those of the machine it runs on."""
        server = self.document["server"]
        return Plan(self.spec, {**self.document, "server": {**server, "conf": {**server["conf"], **settings}}})


def capacities(core: Mapping[str, Any]) -> list[int]:
    """Memory of each GPU of a server, by server, as a plan's section ``core`` has it."""
    groups = core.get("server_groups") or [core]
    return [group["gpu_memory_bytes"] for group in groups for _ in range(group["servers"])]


def ring_bytes() -> int:
    """Shared memory of one rank."""
    return RING_RECORDS * _RECORD_BYTES + RING_DEFINITIONS_BYTES + RING_INBOX_BYTES + _RING_PAGES_BYTES


def build(
    spec: Spec,
    *,
    source: str,
    token: str | None = None,
    attempt: int = 1,
    host_table: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of a spec.

    ``token``: the shared secret of the run; by default a new one. ``attempt``: of the run, counted from 1.
    ``host_table``: the document of a host cost table other than the package's. Raises :class:`SpecError` for what the
    catalogue or the fabric refuses, :class:`hostcost.HostTableError`.
    """
    groups = list(_groups(spec, source))
    _fabric(spec, groups, source)  # whether it can be built
    core = {
        **_core(spec, groups),
        "host_table": host_table,
        "attempt": attempt,
        "token": token if token is not None else secrets.token_hex(16),
    }
    server = _server(spec, groups)
    server["conf"] |= hostcost.parse(host_table).server_conf()
    return Plan(spec, {"name": spec.name, "core": core, "server": server})


def _core(spec: Spec, groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the simulation core is told of a spec. It has no defaults, so every field is here."""
    work, network, first = spec.workload, spec.network, groups[0]
    return {
        "servers": spec.servers,
        "gpus_per_server": spec.gpus_per_server,
        "ranks_per_server": work.ranks_per_server,
        "gpu": first["gpu"],
        "gpu_memory_bytes": first["gpu_memory_bytes"],
        "server_groups": [{key: group[key] for key in _OF_CORE} for group in groups] if len(groups) > 1 else None,
        "host_cost": spec.host_cost,
        "time_sync": spec.time_sync,
        "fold": {"of": list(spec.placement.of)} if spec.fold is not None else None,
        "steps": spec.steps,
        "tokens_per_step": work.tokens_per_step,
        "samples_per_step": work.samples_per_step,
        "strict": spec.strict,
        "unknown_limit": spec.unknown_limit,
        "recording": {"limit_bytes": spec.recording.limit_bytes} if spec.recording.enabled else None,
        "network": {
            "inter_bytes_per_s": network.inter_bytes_per_s or catalogue.gpu(first["gpu"]).nic_bytes_per_s,
            "inter_latency_ns": network.inter_latency_ns,
            "intra_bytes_per_s": network.intra_bytes_per_s,
            "topology": dict(network.topology) if network.topology is not None else None,
        },
        "startup_timeout_s": spec.startup_timeout_s,
        "time_limit_s": spec.time_limit_s,
        "stuck_timeout_s": network.nccl.missing_after_s,
        "idle_timeout_s": IDLE_TIMEOUT_S,
        "busy_timeout_s": BUSY_TIMEOUT_S,
        "left_timeout_s": LEFT_TIMEOUT_S,
        "reconnect_timeout_s": RECONNECT_TIMEOUT_S,
        "missing_virtual_s": network.nccl.missing_after_virtual_s,
    }


def _server(spec: Spec, groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What every agent is told of a spec: the shape of its server, and the settings of the shims."""
    first, nccl = groups[0], spec.network.nccl
    conf: dict[ConfKey, str] = {
        "mode": "core",
        "host_cost": spec.host_cost,
        "devices": str(spec.gpus_per_server),
        **first["conf"],
        "payload_limit": str(nccl.payload_bytes),
        "nccl.kernel_bytes": str(nccl.kernel_bytes),
        "nccl.comm_bytes": str(nccl.communicator_bytes),
        "nccl.peer_bytes": str(nccl.peer_bytes),
        "known_limit": str(KNOWN_LIMIT_BYTES),
        "values.loss": spec.values.loss,
        "values.routing": spec.values.routing,
        "reply_timeout_ms": str(REPLY_TIMEOUT_MS),
        "ring.records": str(RING_RECORDS),
        "ring.defs_bytes": str(RING_DEFINITIONS_BYTES),
        "ring.inbox_bytes": str(RING_INBOX_BYTES),
    }
    return {
        "devices": spec.gpus_per_server,
        "gpu": first["gpu"],
        "groups": [{key: group[key] for key in _OF_SERVER} for group in groups] if len(groups) > 1 else None,
        "conf": conf,
    }


def _groups(spec: Spec, source: str) -> Iterator[dict[str, Any]]:
    """What differs between groups of servers: the GPU, and the settings of the shims that follow from it."""
    for index, group in enumerate(spec.groups):
        where = f"spec.serverGroups.{index}.gpu" if spec.server_groups else "spec.gpu"
        gpu = gpu_of(group.gpu, f"{where}.model", source)
        memory_bytes = group.gpu_memory_bytes or gpu.memory_bytes
        context_bytes = group.context_bytes if group.context_bytes is not None else gpu.context_bytes
        if context_bytes >= memory_bytes:
            context = f"the context of a process ({format_bytes(context_bytes)})"
            message = f"{format_bytes(memory_bytes)} does not hold {context}; see {where}.contextMemory"
            raise SpecError(source, [Problem(f"{where}.memory", message)])
        yield {
            "servers": group.servers,
            "gpu": gpu.key,
            "gpu_memory_bytes": memory_bytes,
            "conf": gpu.server_conf(memory_bytes=memory_bytes, context_bytes=context_bytes),
        }


def fabric(spec: Spec, source: str) -> tuple[Settings, Topology]:
    """The fabric of a spec, as the core will build it. Raises :class:`SpecError`."""
    return _fabric(spec, list(_groups(spec, source)), source)


def _fabric(spec: Spec, groups: Sequence[Mapping[str, Any]], source: str) -> tuple[Settings, Topology]:
    network = spec.network
    gpus = [catalogue.gpu(group["gpu"]) for group in groups for _ in range(group["servers"])]
    try:
        settings = parse_fabric(
            network.topology,
            gpus=gpus,
            gpus_per_server=spec.gpus_per_server,
            inter_bytes_per_s=network.inter_bytes_per_s or gpus[0].nic_bytes_per_s,
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


def gpu_of(name: str, where: str, source: str) -> Gpu:
    """The catalogue's entry of a GPU that the spec's field ``where`` names. Raises :class:`SpecError`."""
    names = list(catalogue.names())
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        problem = Problem(where, f"{name!r} is not in the GPU catalogue; {hint}allowed: {', '.join(names)}")
        raise SpecError(source, [problem])
    return catalogue.gpu(name)
