"""The core's section of ``plan.json``, checked. A :class:`PlanError` names the wrong field and what is allowed.

Whoever makes the plan says everything. A field that may be left open is null, and one that is missing is an error: a
default here would be a second one beside that of the CustomResourceDefinition. The token alone may be missing, since
in Kubernetes it is a file of its own.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
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
class Fold:
    """Which ranks are processes, and for whom they stand.

    Ranks that do the same are a *class*. One of them, its *representative*, is a process. The others are *phantoms*,
    whose part in every collective the core supplies.
    """

    of: tuple[int, ...]  #: the representative of each rank; a process stands for itself

    @property
    def representatives(self) -> tuple[int, ...]:
        """The ranks that are processes, in order."""
        return tuple(sorted(set(self.of)))

    def phantom(self, rank: int) -> bool:
        """Whether a rank is no process."""
        return self.of[rank] != rank

    def sizes(self) -> dict[int, int]:
        """How many ranks each class has, by its representative."""
        return dict(sorted(Counter(self.of).items()))


@dataclass(frozen=True, slots=True)
class Plan:
    """What the core is to simulate."""

    servers: int  #: that are emulated
    gpus_per_server: int
    ranks_per_server: int
    fold: Fold | None  #: None if every rank is a process
    devices: tuple[DeviceModel, ...]  #: what the GPUs of each server are
    host_cost: str
    host_table: hostcost.Table
    time_sync: str
    steps: int | None
    tokens_per_step: int | None
    samples_per_step: int | None
    strict: bool
    unknown_limit: float
    network: fabric.Settings
    token: str  #: that agents must bring; empty if it is a file of its own (``--tls``)
    name: str  #: of the run
    attempt: int  #: of the run, counted by whoever starts it
    recording_limit_bytes: int | None  #: the greatest size of the recording; None if the run is not recorded
    # Limits in real time, but for the one that says otherwise.
    startup_timeout_s: float  #: for all servers to report and all expected ranks to join
    time_limit_s: float | None  #: for the run, from when all servers are there; None: no limit
    stuck_timeout_s: float  #: in which nobody can go on before the run is given up
    idle_timeout_s: float  #: the same where some ranks sleep outside all calls, since they may yet wake
    busy_timeout_s: float  #: the same where some rank computes outside all calls
    left_timeout_s: float  #: the same where somebody waits for a rank that has left
    reconnect_timeout_s: float  #: for a server whose stream broke to come back
    missing_virtual_s: float  #: virtual time for which a rank may go on without a collective that another has reached

    @property
    def world(self) -> int:
        """How many ranks are emulated."""
        return self.servers * self.ranks_per_server

    @property
    def processes(self) -> Sequence[int]:
        """The ranks that are processes, in order."""
        return range(self.world) if self.fold is None else self.fold.representatives

    @property
    def class_sizes(self) -> dict[int, int]:
        """For how many ranks each process stands, where it stands for others; empty if every rank is a process."""
        return {} if self.fold is None else self.fold.sizes()

    @property
    def present(self) -> list[int]:
        """The servers on which there are processes, in order."""
        return sorted({rank // self.ranks_per_server for rank in self.processes})

    @property
    def gpu(self) -> Gpu:
        """The model of the first server, which stands for the whole run where only one can."""
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
    """The plan in the document's section ``core``. Raises :class:`PlanError`."""
    section = _Section(core, "core")
    servers = section.positive("servers")
    ranks_per_server = section.positive("ranks_per_server")
    devices = tuple(_devices(section, servers))
    recording = section.optional_section("recording")
    return Plan(
        servers=servers,
        gpus_per_server=section.positive("gpus_per_server"),
        ranks_per_server=ranks_per_server,
        fold=_fold(section, servers * ranks_per_server),
        devices=devices,
        host_cost=section.choice("host_cost", ("table", "measured")),
        host_table=_host_table(section),
        time_sync=section.choice("time_sync", ("conservative", "optimistic")),
        steps=section.optional_positive("steps"),
        tokens_per_step=section.optional_positive("tokens_per_step"),
        samples_per_step=section.optional_positive("samples_per_step"),
        strict=section.value("strict", bool),
        unknown_limit=section.number("unknown_limit"),
        network=_network(section, [device.gpu for device in devices]),
        token=section.value("token", str) if "token" in core else "",
        name=name,
        attempt=section.positive("attempt"),
        recording_limit_bytes=recording.positive("limit_bytes") if recording is not None else None,
        startup_timeout_s=section.number("startup_timeout_s"),
        time_limit_s=section.optional_number("time_limit_s"),
        stuck_timeout_s=section.number("stuck_timeout_s"),
        idle_timeout_s=section.number("idle_timeout_s"),
        busy_timeout_s=section.number("busy_timeout_s"),
        left_timeout_s=section.number("left_timeout_s"),
        reconnect_timeout_s=section.number("reconnect_timeout_s"),
        missing_virtual_s=section.number("missing_virtual_s"),
    )


def _devices(section: _Section, servers: int) -> Iterator[DeviceModel]:
    """By server. ``core.server_groups`` tells apart what ``core.gpu`` does not say of all."""
    groups = section.sections("server_groups") or [section]
    if sum(group.positive("servers") for group in groups) != servers:
        raise PlanError(f"core.server_groups: their servers are not {servers}")
    for group in groups:
        try:
            gpu = catalogue.gpu(group.value("gpu", str))
        except ValueError as error:
            raise PlanError(f"{group.path}.gpu: {error}") from error
        device = DeviceModel(gpu, group.positive("gpu_memory_bytes"))
        yield from itertools.repeat(device, group.positive("servers"))


def _fold(section: _Section, world: int) -> Fold | None:
    fold = section.optional_section("fold")
    if fold is None:
        return None
    of = fold.value("of", list)
    if len(of) != world or not all(isinstance(rank, int) and 0 <= rank < world for rank in of):
        raise PlanError(f"{fold.path}.of: the representative of each of the {world} ranks is needed, a rank itself")
    other = next((rank for rank in of if of[rank] != rank), None)
    if other is not None:
        raise PlanError(f"{fold.path}.of: rank {other} stands for others, but not for itself")
    return Fold(tuple(of))


def _host_table(section: _Section) -> hostcost.Table:
    try:
        return hostcost.parse(section.optional("host_table", dict))
    except hostcost.HostTableError as error:
        raise PlanError(f"{section.path}.host_table.{error}") from error


def _network(section: _Section, gpus: Sequence[Gpu]) -> fabric.Settings:
    network = section.section("network")
    try:
        return fabric.parse(
            network.optional("topology", dict),
            gpus=gpus,
            gpus_per_server=section.positive("gpus_per_server"),
            inter_bytes_per_s=network.positive("inter_bytes_per_s"),
            inter_latency_ns=network.value("inter_latency_ns", int),
            intra_bytes_per_s=network.optional_positive("intra_bytes_per_s"),
        )
    except fabric.FabricError as error:
        raise PlanError(f"{network.path}.topology.{error}") from error


class _Section:
    """One object of the plan, whose fields are read by their type. All methods raise :class:`PlanError`."""

    def __init__(self, fields: Mapping[str, Any], path: str) -> None:
        self._fields = fields
        self.path = path  # for messages, such as core.network

    def optional(self, name: str, *kinds: type) -> Any:
        """A value of one of these types, or None where the plan says null."""
        if name not in self._fields:
            raise PlanError(f"{self.path}.{name}: is missing")
        value = self._fields[name]
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        if value is not None and wrong:
            raise PlanError(f"{self.path}.{name}: {value!r} is not of type {kinds[-1].__name__}")
        return value

    def value(self, name: str, *kinds: type) -> Any:
        """A value of one of these types."""
        value = self.optional(name, *kinds)
        if value is None:
            raise PlanError(f"{self.path}.{name}: None is not of type {kinds[-1].__name__}")
        return value

    def number(self, name: str) -> float:
        """A number, whole or not."""
        return float(self.value(name, int, float))

    def optional_number(self, name: str) -> float | None:
        """A number, or None where the plan says null."""
        return None if self.optional(name, int, float) is None else self.number(name)

    def positive(self, name: str) -> int:
        """A whole number from 1."""
        value: int = self.value(name, int)
        if value <= 0:
            raise PlanError(f"{self.path}.{name}: {value} is not positive")
        return value

    def optional_positive(self, name: str) -> int | None:
        """A whole number from 1, or None where the plan says null."""
        return None if self.optional(name, int) is None else self.positive(name)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of some words."""
        value: str = self.value(name, str)
        if value not in allowed:
            raise PlanError(f"{self.path}.{name}: {value!r}: {', '.join(allowed)} are allowed")
        return value

    def section(self, name: str) -> _Section:
        """An object in this one."""
        return _Section(self.value(name, dict), f"{self.path}.{name}")

    def optional_section(self, name: str) -> _Section | None:
        """An object in this one, or None where the plan says null."""
        return None if self.optional(name, dict) is None else self.section(name)

    def sections(self, name: str) -> list[_Section]:
        """A list of objects in this one; empty where the plan says null."""
        items = self.optional(name, list) or []
        if not all(isinstance(item, dict) for item in items):
            raise PlanError(f"{self.path}.{name}: {items!r} is not a list of objects")
        return [_Section(item, f"{self.path}.{name}[{index}]") for index, item in enumerate(items)]
