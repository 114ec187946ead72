"""What NVML and nvidia-smi show in a workload: utilisation, power, energy, clock, temperature and throughput of each
device, as the core tells the servers' agents.

From the second step on these are the figures of the page that dcgm-exporter would give (:mod:`.dcgm`): means over the
last final step. Until then, and in a run without steps, a device is busy for the share of the time since the reading
before for which its ranks have issued work. Energy is a counter since the start of the run, so it counts all steps. The
energy of the start-up is that of the power at this share.
"""

from __future__ import annotations

from dataclasses import dataclass

from eidolon_simcore.export.dcgm import Gauge, gauges, temperature_c
from eidolon_simcore.fabric.network import Port
from eidolon_simcore.ledger.power import draw
from eidolon_simcore.ledger.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one device. Names are those of the protocol's message and of ``DeviceGauges`` in the shim."""

    at_ns: int  #: virtual time up to which the energy counts
    energy_mj: int
    power_mw: int
    busy_percent: int
    memory_percent: int  #: the device memory's interface is busy
    sm_clock_mhz: int
    temperature_c: int
    pcie_out_bytes_per_s: int
    pcie_in_bytes_per_s: int
    nvlink_out_bytes_per_s: int
    nvlink_in_bytes_per_s: int


@dataclass(frozen=True, slots=True)
class _Startup:
    """What was read last before the second step ended."""

    clock_ns: int = 0
    done_ns: int = 0  #: of the work that was issued, what had time to be done by then
    energy_j: float = 0.0
    busy: float = 0.0


class DeviceGauges:
    """Reads the devices of one run. It remembers the energy of the start-up, in which no step is booked."""

    def __init__(self) -> None:
        self._startup: dict[Port, _Startup] = {}

    def read(self, s: Snapshot) -> dict[Port, Reading]:
        """A reading of each device that some rank works on."""
        done = s.progress
        if done.step is None:
            return {port: self._starting(s, port, clock_ns, work_ns) for port, (clock_ns, work_ns) in s.issued.items()}
        startup_ns = done.startup_ns or 0
        found = {}
        for port, gauge in gauges(s).items():
            if port in s.issued:
                energy_j = self._startup_j(port, startup_ns) + gauge.energy_j
                found[port] = _reading(s, port, gauge, startup_ns + done.totals.time_ns, energy_j)
        return found

    def _starting(self, s: Snapshot, port: Port, clock_ns: int, work_ns: int) -> Reading:
        before = self._startup.get(port, _Startup())
        passed_ns = clock_ns - before.clock_ns
        done_ns = min(passed_ns, work_ns - before.done_ns)
        busy = done_ns / passed_ns if passed_ns > 0 else before.busy
        gauge = Gauge(draw(s, port, busy), sm=busy, busy=busy)
        energy_j = before.energy_j + gauge.draw.watts * passed_ns / 1e9
        self._startup[port] = _Startup(clock_ns, before.done_ns + done_ns, energy_j, busy)
        return _reading(s, port, gauge, clock_ns, energy_j)

    def _startup_j(self, port: Port, startup_ns: int) -> float:
        """What was read last before the second step's end also holds a part of that step, which is taken off."""
        last = self._startup.get(port, _Startup())
        return last.energy_j * min(1.0, startup_ns / last.clock_ns) if last.clock_ns else 0.0


def _reading(s: Snapshot, port: Port, gauge: Gauge, at_ns: int, energy_j: float) -> Reading:
    return Reading(
        at_ns=at_ns,
        energy_mj=round(energy_j * 1e3),
        power_mw=round(gauge.draw.watts * 1e3),
        busy_percent=round(gauge.busy * 100),
        memory_percent=round(gauge.dram * 100),
        sm_clock_mhz=round(gauge.draw.clock_hz / 1e6),
        temperature_c=round(temperature_c(gauge.draw, s.model(port))),
        pcie_out_bytes_per_s=round(gauge.from_device_bytes_per_s),
        pcie_in_bytes_per_s=round(gauge.to_device_bytes_per_s),
        nvlink_out_bytes_per_s=round(gauge.nvlink_out_bytes_per_s),
        nvlink_in_bytes_per_s=round(gauge.nvlink_in_bytes_per_s),
    )
