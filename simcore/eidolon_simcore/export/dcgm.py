"""The emulated GPUs as NVIDIA's dcgm-exporter would show them. Dashboards, alerts and schedulers that know its metrics
work unchanged. The page is served on a port of its own, since DCGM's names and labels are not those of this project.

Every value follows the simulated work. Memory is what was allocated at the end of the last final step; everything else
is a mean over the virtual time of that step, for the ranks on the device. A device that no rank has used yet is idle.

Labels are those of dcgm-exporter. The server's name stands both in ``Hostname`` and in ``hostname``, since exporters of
2026 renamed the label. Where the core runs in Kubernetes, a server is a pod, and ``pod``, ``namespace`` and
``container`` name it, as the real exporter names the pod that uses a GPU. So scrape this port with ``honorLabels``.

Values are modelled like this:

* The tensor pipe is active for the time that the step's matrix arithmetic takes at the peak of its types, and DRAM for
  the time that its bytes take at full bandwidth.
* Active SMs, clock and power come from :mod:`.ledger.power`. Temperature follows power (:data:`TEMPERATURES_C`).
* No fault is simulated, so XID is 0.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from eidolon_simcore.catalogue import DeviceModel
from eidolon_simcore.fabric.network import Link, Port
from eidolon_simcore.ledger.accounts import Ledger
from eidolon_simcore.ledger.power import Draw, active_sms, draw
from eidolon_simcore.ledger.snapshot import Snapshot

TEMPERATURES_C = (30.0, 70.0)  #: without power, and at the power limit
DRIVER = "580.159.04"  #: the version that the shim's NVML states
_MIB = 1 << 20
# NVLink ports by the names that networks give their links
_OUT = re.compile(r"nvlink out (\d+)/(\d+)|server(\d+)/gpu(\d+)>.*")
_IN = re.compile(r"nvlink in (\d+)/(\d+)|.*>server(\d+)/gpu(\d+)(?:#\d+)?")


@dataclass(frozen=True, slots=True)
class Gauge:
    """State of one device. Shares are means over its last final step."""

    draw: Draw
    sm: float = 0.0
    busy: float = 0.0  #: a kernel runs, even if it is a collective's
    tensor: float = 0.0
    dram: float = 0.0
    to_device_bytes_per_s: float = 0.0
    from_device_bytes_per_s: float = 0.0
    nvlink_out_bytes_per_s: float = 0.0
    nvlink_in_bytes_per_s: float = 0.0
    used_bytes: int = 0
    energy_j: float = 0.0  #: taken in all final steps but the first


def gauges(s: Snapshot) -> dict[Port, Gauge]:
    """The state of every device of the run."""
    ports = (Port(server, device) for server in range(len(s.devices)) for device in range(s.gpus_per_server))
    found = {port: Gauge(draw(s, port, 0.0)) for port in ports}
    wire = _nvlink(s.links, s.last)
    step_s = s.progress.step["time_ns"] / 1e9 if s.progress.step else 0.0
    active, energy = active_sms(s.devices, s.last), s.progress.energy_j
    for port, (busy, tensor, dram, to_device, from_device) in _shares(s, s.last).items():
        out, into = (wire.get((way, port), 0.0) / step_s if step_s else 0.0 for way in ("out", "in"))
        used = s.progress.allocated_bytes.get(port, 0)
        rates = (to_device, from_device, out, into)
        sm = active[port]
        found[port] = Gauge(draw(s, port, sm), sm, busy, tensor, dram, *rates, used, energy.get(port, 0.0))
    return found


def temperature_c(drawn: Draw, device: DeviceModel) -> float:
    """The temperature at this power, in degrees Celsius."""
    coldest, hottest = TEMPERATURES_C
    return coldest + drawn.watts / (device.gpu.power_limit_mw / 1e3) * (hottest - coldest)


def _shares(s: Snapshot, ledger: Ledger) -> dict[Port, tuple[float, ...]]:
    """The fields of :class:`Gauge` from ``busy`` on, by device. Those of ranks on the same device are added up."""
    window = ledger.column("window").clip(1).astype(np.float64)
    busy = (ledger.column("compute") + ledger.column("communication")) / window
    tensor = ledger.working("tensor_ns") / window
    gpus = [s.model(port).gpu for port in ledger.ports]
    dram = ledger.working("memory_bytes") / (window * np.array([gpu.bandwidth_bytes_per_s / 1e9 for gpu in gpus]))
    columns = np.stack([busy, tensor, dram])
    copies = np.stack([ledger.working("to_device_bytes"), ledger.working("from_device_bytes")]) * 1e9 / window
    out: dict[Port, tuple[float, ...]] = {}
    for port, row in zip(ledger.ports, np.concatenate([columns, copies]).T.tolist(), strict=True):
        known = out.get(port, (0.0,) * len(row))
        both = [a + b for a, b in zip(known, row, strict=True)]
        out[port] = (*(min(1.0, share) for share in both[: len(columns)]), *both[len(columns) :])
    return out


def _nvlink(links: Iterable[Link], ledger: Ledger) -> dict[tuple[str, Port], float]:
    """Bytes that each device sent and received over NVLink."""
    out: dict[tuple[str, Port], float] = {}
    for link in links:
        if link.tier != "nvlink" or link.number >= len(ledger.link_bytes):
            continue
        for way, pattern in (("out", _OUT), ("in", _IN)):
            named = pattern.fullmatch(link.name)
            if named is not None:
                port = Port(*(int(part) for part in named.groups() if part is not None))
                out[way, port] = out.get((way, port), 0.0) + float(ledger.link_bytes[link.number])
    return out


@dataclass(frozen=True, slots=True)
class Field:
    """One metric of the page."""

    kind: str
    help: str
    value: Callable[[Gauge, DeviceModel], float]


_GAUGE, _COUNTER = "gauge", "counter"

#: The page, in dcgm-exporter's order of groups.
FIELDS: Mapping[str, Field] = {
    "DCGM_FI_DEV_SM_CLOCK": Field(
        _GAUGE,
        "SM clock frequency (in MHz), as power allows.",
        lambda g, _: round(g.draw.clock_hz / 1e6),
    ),
    "DCGM_FI_DEV_MEM_CLOCK": Field(_GAUGE, "Memory clock (in MHz).", lambda _, d: d.gpu.memory_clock_khz / 1e3),
    "DCGM_FI_DEV_GPU_TEMP": Field(
        _GAUGE,
        "GPU temperature (in C), follows power in a stated model.",
        lambda g, d: temperature_c(g.draw, d),
    ),
    "DCGM_FI_DEV_POWER_USAGE": Field(
        _GAUGE,
        "Power draw (in W), a stated model, mean over the last final step.",
        lambda g, _: g.draw.watts,
    ),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Field(
        _COUNTER, "Energy (in mJ) of the final steps but the first, in virtual time.", lambda g, _: g.energy_j * 1e3
    ),
    "DCGM_FI_DEV_GPU_UTIL": Field(
        _GAUGE, "GPU utilization (in %), mean over the last final step.", lambda g, _: round(g.busy * 100)
    ),
    "DCGM_FI_DEV_MEM_COPY_UTIL": Field(
        _GAUGE, "Memory utilization (in %), mean over the last final step.", lambda g, _: round(g.dram * 100)
    ),
    "DCGM_FI_DEV_XID_ERRORS": Field(
        _GAUGE, "Value of the last XID error encountered; none is simulated.", lambda *_: 0
    ),
    "DCGM_FI_DEV_FB_FREE": Field(
        _GAUGE,
        "Framebuffer memory free (in MiB), at the end of the last final step.",
        lambda g, d: (d.memory_bytes - g.used_bytes) // _MIB,
    ),
    "DCGM_FI_DEV_FB_USED": Field(
        _GAUGE,
        "Framebuffer memory used (in MiB), at the end of the last final step.",
        lambda g, _: g.used_bytes // _MIB,
    ),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": Field(
        _GAUGE,
        "NVLink bandwidth of both directions (in MB/s), mean over the last final step.",
        lambda g, _: (g.nvlink_out_bytes_per_s + g.nvlink_in_bytes_per_s) / 1e6,
    ),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Field(
        _GAUGE, "Ratio of time the graphics engine is active, over the last final step.", lambda g, _: g.busy
    ),
    "DCGM_FI_PROF_SM_ACTIVE": Field(_GAUGE, "Ratio of SMs with work, over the last final step.", lambda g, _: g.sm),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Field(
        _GAUGE, "Ratio of cycles the tensor (HMMA) pipe is active, over the last final step.", lambda g, _: g.tensor
    ),
    "DCGM_FI_PROF_DRAM_ACTIVE": Field(
        _GAUGE, "Ratio of cycles the device memory interface is active, over the last final step.", lambda g, _: g.dram
    ),
    "DCGM_FI_PROF_PCIE_TX_BYTES": Field(
        _GAUGE, "Bytes/s sent over PCIe, mean over the last final step.", lambda g, _: g.from_device_bytes_per_s
    ),
    "DCGM_FI_PROF_PCIE_RX_BYTES": Field(
        _GAUGE, "Bytes/s received over PCIe, mean over the last final step.", lambda g, _: g.to_device_bytes_per_s
    ),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": Field(
        _GAUGE, "Bytes/s sent over NVLink, mean over the last final step.", lambda g, _: g.nvlink_out_bytes_per_s
    ),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": Field(
        _GAUGE, "Bytes/s received over NVLink, mean over the last final step.", lambda g, _: g.nvlink_in_bytes_per_s
    ),
}


def page(snapshot: Snapshot, namespace: str | None = None) -> bytes:
    """The page, in Prometheus's text format. With a ``namespace``, servers are pods in it."""
    devices = gauges(snapshot)
    labels = {port: _labels(snapshot, port, namespace) for port in devices}
    lines = []
    for name, field in FIELDS.items():
        lines.append(f"# HELP {name} {field.help}\n# TYPE {name} {field.kind}\n")
        for port, gauge in devices.items():
            lines.append(f"{name}{labels[port]} {field.value(gauge, snapshot.model(port)):.12g}\n")
    return "".join(lines).encode()


def _labels(s: Snapshot, port: Port, namespace: str | None) -> str:
    host = f"{s.run}-server-{port.server}"
    # as the shim's: what CUDA and NVML tell the workload
    identity = uuid.UUID(bytes=bytes((i * 7 + port.device + 16 * port.server) % 256 for i in range(16)))
    labels = {
        "gpu": str(port.device),
        "UUID": f"GPU-{identity}",
        "pci_bus_id": f"00000000:{0x10 + port.device:02X}:00.0",
        "device": f"nvidia{port.device}",
        "modelName": s.model(port).gpu.name,
        "Hostname": host,
        "hostname": host,
        "DCGM_FI_DRIVER_VERSION": DRIVER,
    }
    if namespace:
        labels |= {"container": "workload", "namespace": namespace, "pod": host}
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
