"""The core's section of ``plan.json``, checked: a :class:`PlanError` names the field and what is allowed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eidolon_simcore import catalogue
from eidolon_simcore.catalogue import DeviceModel, Gpu
from eidolon_simcore.costs import hostcost
from eidolon_simcore.fabric import settings as fabric


class PlanError(Exception):
    """The plan cannot be run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the core is to simulate."""

    servers: int
    gpus_per_server: int
    ranks_per_server: int
    devices: tuple[DeviceModel, ...]  #: by server: what each of its GPUs is
    host_cost: str
    host_table: hostcost.Table
    time_sync: str
    steps: int | None
    tokens_per_step: int | None
    samples_per_step: int | None
    strict: bool
    unknown_limit: float
    network: fabric.Settings
    startup_timeout_s: float
    token: str
    name: str = ""  #: of the run
    attempt: int = 1  #: of the run, counted by whoever starts it
    recording_limit_bytes: int | None = None  #: of the recording; None: the run is not recorded
    time_limit_s: float | None = None  #: real time from when all servers are there; None: no limit
    stuck_timeout_s: float = 60.0  #: real time in which nobody can go on before the run is given up
    missing_virtual_s: float = 3_600.0  #: virtual time that a rank may go on without a collective another has reached
    idle_timeout_s: float = 1_800.0  #: the same where some ranks sleep outside all calls: they may be busy elsewhere
    left_timeout_s: float = 10.0  #: the same where somebody waits for a rank that has left
    reconnect_timeout_s: float = 30.0  #: a server whose stream broke may come back for so long

    @property
    def gpu(self) -> Gpu:
        """That of the first server: what stands for the whole where only one can."""
        return self.devices[0].gpu


def read(path: Path) -> Plan:
    """The plan in a file."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("core"), dict):
        raise PlanError(f"{path}: no section 'core'")
    return parse(document["core"], name=str(document.get("name", "")))


def parse(core: Mapping[str, Any], *, name: str = "") -> Plan:
    """The plan in the document's section ``core``."""
    servers = _positive(core, "servers")
    devices = tuple(_devices(core, servers))
    extra = {name: float(core[name]) for name in _LIMITS if core.get(name) is not None}
    return Plan(
        servers=servers,
        gpus_per_server=_positive(core, "gpus_per_server"),
        ranks_per_server=_positive(core, "ranks_per_server"),
        devices=devices,
        host_cost=_choice(core, "host_cost", ("table", "measured")),
        host_table=_host_table(core),
        time_sync=_choice(core, "time_sync", ("conservative", "optimistic")),
        steps=_positive(core, "steps") if core.get("steps") is not None else None,
        tokens_per_step=_positive(core, "tokens_per_step") if core.get("tokens_per_step") is not None else None,
        samples_per_step=_positive(core, "samples_per_step") if core.get("samples_per_step") is not None else None,
        strict=bool(core.get("strict", False)),
        unknown_limit=float(core.get("unknown_limit", 1.0)),
        network=_network(core, [device.gpu for device in devices]),
        startup_timeout_s=float(core.get("startup_timeout_s", 300)),
        token=_get(core, "token", str, ""),
        recording_limit_bytes=_recording(core),
        name=name,
        attempt=_positive(core, "attempt", 1),
        **extra,
    )


_LIMITS = (
    *("time_limit_s", "stuck_timeout_s", "missing_virtual_s", "idle_timeout_s"),
    *("left_timeout_s", "reconnect_timeout_s"),
)


def _devices(core: Mapping[str, Any], servers: int) -> Iterator[DeviceModel]:
    """By server. ``core.server_groups`` tells apart what ``core.gpu`` does not say of all."""
    groups = core.get("server_groups") or [{**core, "servers": servers}]
    if sum(_positive(group, "servers") for group in groups) != servers:
        raise PlanError(f"core.server_groups: their servers are not {servers}")
    for group in groups:
        try:
            gpu = catalogue.gpu(_get(group, "gpu", str))
        except ValueError as error:
            raise PlanError(f"core.gpu: {error}") from error
        memory_bytes = _positive(group, "gpu_memory_bytes", gpu.memory_bytes)
        yield from itertools.repeat(DeviceModel(gpu, memory_bytes), group["servers"])


def _host_table(core: Mapping[str, Any]) -> hostcost.Table:
    try:
        return hostcost.parse(_get(core, "host_table", dict) if core.get("host_table") is not None else None)
    except hostcost.HostTableError as error:
        raise PlanError(f"core.host_table.{error}") from error


def _recording(core: Mapping[str, Any]) -> int | None:
    if core.get("recording") is None:
        return None
    return _positive(_get(core, "recording", dict), "limit_bytes")


def _network(core: Mapping[str, Any], gpus: Sequence[Gpu]) -> fabric.Settings:
    section = _get(core, "network", dict)
    try:
        return fabric.parse(
            section.get("topology"),
            gpus=gpus,
            gpus_per_server=_positive(core, "gpus_per_server"),
            inter_bytes_per_s=_positive(section, "inter_bytes_per_s", gpus[0].nic_bytes_per_s),
            inter_latency_ns=_get(section, "inter_latency_ns", int, 2_000),
            intra_bytes_per_s=section.get("intra_bytes_per_s"),
        )
    except fabric.FabricError as error:
        raise PlanError(f"core.network.topology.{error}") from error


def _get(section: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = section.get(name)
    value = default if value is None else value
    if not isinstance(value, kind) or isinstance(value, bool):
        raise PlanError(f"core.{name}: {value!r} is not of type {kind.__name__}")
    return value


def _positive(section: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value: int = _get(section, name, int, default)
    if value <= 0:
        raise PlanError(f"core.{name}: {value} is not positive")
    return value


def _choice(section: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value: str = _get(section, name, str, allowed[0])
    if value not in allowed:
        raise PlanError(f"core.{name}: {value!r}: {', '.join(allowed)} are allowed")
    return value
