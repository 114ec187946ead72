"""The GPU catalogue: every model that a run can emulate, as data. ``data/gpus.yaml`` states the source of each figure.

>>> gpu("h100-sxm").sm_count
132
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, get_args

import yaml

from eidolon_simcore.vocabulary import ConfKey


@dataclass(frozen=True, slots=True)
class Gpu:
    """One model of GPU. Rates are per second and for one direction."""

    key: str  #: name in the catalogue, e.g. ``h100-sxm``
    name: str  #: as the device reports itself
    source: str  #: where the figures come from
    cc: str
    sm_count: int
    memory_bytes: int
    context_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    l2_bytes: int
    smem_per_block: int
    smem_per_block_optin: int
    smem_per_sm: int
    reserved_smem_per_block: int
    regs_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    nvlinks: int
    power_limit_mw: int
    bandwidth_bytes_per_s: int
    nvlink_bytes_per_s: int  #: with 0 the GPUs of a server talk over PCIe
    pcie_bytes_per_s: int
    nic_bytes_per_s: int
    peak: Mapping[str, float]  #: floating-point operations per second, by the type of the operands

    @property
    def intra_bytes_per_s(self) -> int:
        """The rate at which a GPU can send to another one of its server."""
        return self.nvlink_bytes_per_s or self.pcie_bytes_per_s

    def peak_flops(self, dtype: str) -> float:
        """The matrix peak for operands of ``dtype``. A type that the model lacks runs as the nearest wider one."""
        for name in (dtype, *_WIDER.get(dtype, ())):
            if name in self.peak:
                return self.peak[name]
        raise KeyError(dtype)

    def server_conf(self, *, memory_bytes: int | None = None, context_bytes: int | None = None) -> dict[ConfKey, str]:
        """Keys of ``server.conf`` with which the shim answers as this device; the arguments replace the model's own."""
        conf = {key: str(getattr(self, key.removeprefix("gpu."))) for key in _CONF}
        if memory_bytes is not None:
            conf["gpu.memory_bytes"] = str(memory_bytes)
        if context_bytes is not None:
            conf["gpu.context_bytes"] = str(context_bytes)
        return conf


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A GPU as a server of the run has it. Its memory may differ from that of the model."""

    gpu: Gpu
    memory_bytes: int


_WIDER = {"fp4": ("fp8", "fp16"), "fp8": ("fp16",), "int8": ("fp16",), "bf16": ("fp16",), "tf32": ("fp32_simt",)}
#: Keys of server.conf that hold a field of the same name.
_CONF: tuple[ConfKey, ...] = tuple(key for key in get_args(ConfKey) if key.startswith("gpu."))


def names() -> tuple[str, ...]:
    """The keys of all models, in the catalogue's order."""
    return tuple(_catalogue())


def gpu(name: str) -> Gpu:
    """The model with this key. Raises :class:`ValueError`, which names the models that there are."""
    found = _catalogue().get(name)
    if found is None:
        raise ValueError(f"unknown GPU {name!r}: {', '.join(names())} are allowed")
    return found


@cache
def _catalogue() -> dict[str, Gpu]:
    document = yaml.safe_load((resources.files("eidolon_simcore") / "data" / "gpus.yaml").read_text("utf-8"))
    return {key: _gpu(key, {**document["defaults"], **entry}) for key, entry in document["gpus"].items()}


def _gpu(key: str, entry: dict[str, Any]) -> Gpu:
    entry = {"key": key, **entry}
    wanted = {field.name: field.type for field in fields(Gpu)}
    if set(entry) != set(wanted):
        raise ValueError(f"gpus.yaml: {key}: {sorted(set(entry) ^ set(wanted))} missing or unknown")
    # "50.0e9" is text to YAML 1.1
    numbers = {name: int(float(entry[name])) for name, kind in wanted.items() if kind == "int"}
    peak = {dtype: float(flops) for dtype, flops in entry["peak"].items()}
    return Gpu(**{**entry, **numbers, "peak": peak})
