"""What a plan says of a fabric, checked. A :class:`FabricError` names the wrong field and what is allowed.

A fabric has a ``type`` and the fields that go with it. The CRD describes them, and ``data/fabrics.yaml`` has presets of
real systems. Field names here are those of the plan: lower case, with units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any

import yaml

from eidolon_simcore.catalogue import Gpu

TYPES = ("crossbar", "rail", "leaf-spine", "fat-tree", "torus", "dragonfly", "graph")
ROUTING = ("ecmp", "spray")

#: Latency of a cable inside a server, from a GPU to NVSwitch or PCIe. NCCL's own share of a hop is in its tables.
INSIDE_LATENCY_NS = 100


class FabricError(ValueError):
    """The fabric cannot be built; ``field`` is the field of ``network.topology`` that is to blame."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable of an explicit graph."""

    a: str
    b: str
    bytes_per_s: int
    latency_ns: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """A fabric. Rates are those of one direction."""

    servers: int
    gpus_per_server: int
    nvlink_bytes_per_s: int  #: of one GPU; with 0 the GPUs of a server talk over PCIe
    pcie_bytes_per_s: int  #: of one GPU
    nic_bytes_per_s: int
    type: str = "crossbar"
    nics_per_server: int = 0  #: 0 stands for one for each GPU
    nic_latency_ns: int = 1_000  #: latency of the cable from a NIC to its switch, together with the NIC's own
    servers_per_domain: int = 1  #: servers whose GPUs share one NVLink domain
    link_bytes_per_s: int = 0  #: rate of a cable between switches; 0 stands for that of a NIC
    link_latency_ns: int = 500
    oversubscription: float = 1.0  #: capacity down over capacity up, at the leaves
    servers_per_pod: int = 32  #: in fabrics of rails: servers that share one set of leaves
    servers_per_leaf: int = 4
    leaves_per_pod: int = 8  #: of a fat tree
    spines: int | None = None  #: None stands for as many as a leaf has uplinks; with 0 nothing joins the rails
    dimensions: tuple[int, ...] = ()  #: of a torus of servers
    routers_per_group: int = 4  #: of a dragonfly
    servers_per_router: int = 2
    cables_between_groups: int = 1
    switches: tuple[str, ...] = ()  #: of an explicit graph
    cables: tuple[Cable, ...] = ()
    server_xml: str = ""  #: NCCL's topology file of one server, instead of the shape above
    graph_xml: str = ""  #: NCCL's graph file: the order of GPUs on its rings
    routing: str = "ecmp"
    seed: int = 0
    pxn: bool = True  #: whether GPUs send through another GPU of their server to keep to the receiver's rail
    failed: tuple[str, ...] = ()
    inside: tuple[tuple[int, int], ...] = ()  #: NVLink and PCIe rates of one GPU, by server; if empty, as above

    def inside_of(self, server: int) -> tuple[int, int]:
        """Bytes/s of NVLink (0 if it has none) and of PCIe, for one GPU of this server."""
        return self.inside[server] if self.inside else (self.nvlink_bytes_per_s, self.pcie_bytes_per_s)

    @property
    def nics(self) -> int:
        """How many NICs each server has."""
        return self.nics_per_server or self.gpus_per_server

    @property
    def cable_bytes_per_s(self) -> int:
        """The rate of a cable between switches."""
        return self.link_bytes_per_s or self.nic_bytes_per_s


def parse(
    section: Mapping[str, Any] | None,
    *,
    gpus: Sequence[Gpu],
    gpus_per_server: int,
    inter_bytes_per_s: int,
    inter_latency_ns: int,
    intra_bytes_per_s: int | None = None,
) -> Settings:
    """The fabric of a run. The plan's ``network.topology`` overrides the preset that it names, and this overrides what
    the GPU and the run's network say.

    ``gpus`` has the model in each server. What the preset and the topology say of links inside a server holds for
    servers with the first one's model. In the others these links are as fast as their own model's.
    """
    nvlink, pcie = _inside(gpus[0], intra_bytes_per_s)
    base: dict[str, Any] = {
        "servers": len(gpus),
        "gpus_per_server": gpus_per_server,
        "nvlink_bytes_per_s": nvlink,
        "pcie_bytes_per_s": pcie,
        "nic_bytes_per_s": inter_bytes_per_s,
        "nic_latency_ns": inter_latency_ns // 2,
    }
    given = dict(section or {})
    name = given.pop("preset", None)
    if name is not None:
        found = presets().get(name)
        if found is None:
            raise FabricError("preset", f"{name!r}: {', '.join(presets())} are allowed")
        base |= {key: value for key, value in found.items() if key not in ("gpu", "source")}
    given = {key: value for key, value in given.items() if value is not None}
    unknown = set(given) - {f.name for f in fields(Settings)}
    if unknown:
        raise FabricError(min(unknown), "is not known")
    merged = base | given
    for key in ("dimensions", "switches", "failed"):
        if key in merged:
            merged[key] = tuple(merged[key])
    if "cables" in merged:
        merged["cables"] = tuple(c if isinstance(c, Cable) else Cable(**c) for c in merged["cables"])
    settings = Settings(**merged)
    if any(gpu != gpus[0] for gpu in gpus):
        own = (settings.nvlink_bytes_per_s, settings.pcie_bytes_per_s)
        inside = tuple(own if gpu == gpus[0] else _inside(gpu, intra_bytes_per_s) for gpu in gpus)
        settings = replace(settings, inside=inside)
    _check(settings)
    return settings


def _inside(gpu: Gpu, given: int | None) -> tuple[int, int]:
    """Rates of NVLink and PCIe of one GPU. ``given`` replaces that of the two over which the GPUs of a server talk."""
    if gpu.nvlink_bytes_per_s:
        return given or gpu.nvlink_bytes_per_s, gpu.pcie_bytes_per_s
    return 0, given or gpu.pcie_bytes_per_s


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Servers and fabrics that exist, by name. Numbers are written as in the catalogue of GPUs."""
    text = (resources.files("eidolon_simcore") / "data" / "fabrics.yaml").read_text("utf-8")
    document: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return {name: {key: _number(key, value) for key, value in entry.items()} for name, entry in document.items()}


def _number(key: str, value: Any) -> Any:
    return int(float(value)) if key.endswith(("_per_s", "_ns")) else value


def _check(s: Settings) -> None:
    _one_of("type", s.type, TYPES)
    _one_of("routing", s.routing, ROUTING)
    for name, least in (("servers_per_domain", 1), ("servers_per_pod", 1), ("servers_per_leaf", 1)):
        _at_least(name, getattr(s, name), least)
    for name, least in (("leaves_per_pod", 1), ("routers_per_group", 1), ("servers_per_router", 1)):
        _at_least(name, getattr(s, name), least)
    _at_least("nics_per_server", s.nics_per_server, 0)
    _at_least("nic_bytes_per_s", s.nic_bytes_per_s, 1)
    _at_least("oversubscription", s.oversubscription, 0.01)
    if s.type == "torus":
        size = 1
        for dimension in s.dimensions:
            _at_least("dimensions", dimension, 1)
            size *= dimension
        if not 1 <= len(s.dimensions) <= 3 or size != s.servers:
            shape = "x".join(map(str, s.dimensions)) or "none"
            raise FabricError("dimensions", f"{shape} is not one to three numbers whose product is {s.servers} servers")
    if s.spines == 0 and s.type != "rail":
        raise FabricError("spines", f"0 leaves the leaves of a {s.type} fabric apart; allowed: at least 1")
    if s.type == "graph" and not s.switches and s.servers > 1:
        raise FabricError("switches", "a graph needs at least one switch")


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise FabricError(name, f"{value!r}: {', '.join(allowed)} are allowed")


def _at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise FabricError(name, f"{value} is less than {least}")
