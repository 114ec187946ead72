"""What power each device draws and how fast it is clocked, for the metrics pages that show it.

The clock is the one that the power model (:mod:`.costs.sm_clock`) gives the step that is being issued. While SMs are
active, a device draws the power that this model gives its work; for the rest of the last final step it draws
:data:`IDLE_POWER`, a round figure. All SMs are active while something computes; a collective alone occupies
:data:`COLLECTIVE_SMS` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eidolon_simcore.catalogue import DeviceModel, Gpu
from eidolon_simcore.costs.sm_clock import FULL, Pace
from eidolon_simcore.fabric.network import Port
from eidolon_simcore.ledger.accounts import Ledger
from eidolon_simcore.ledger.snapshot import Snapshot
from eidolon_simcore.ledger.steps import Step

COLLECTIVE_SMS = 16
IDLE_POWER = 0.12  #: share of the power limit


@dataclass(frozen=True, slots=True)
class Draw:
    """Clock and power of one device."""

    clock_hz: float
    watts: float


def active_sms(devices: Sequence[DeviceModel], ledger: Ledger) -> dict[Port, float]:
    """The mean share of each device's SMs that had work in the ledger's time. The shares of ranks on the same device
    are added up, to at most 1."""
    window = ledger.column("window").clip(1)
    compute, communication = ledger.column("compute") / window, ledger.column("communication") / window
    found: dict[Port, float] = {}
    for port, computing, waiting in zip(ledger.ports, compute.tolist(), communication.tolist(), strict=True):
        share = computing + waiting * min(1.0, COLLECTIVE_SMS / devices[port.server].gpu.sm_count)
        found[port] = min(1.0, found.get(port, 0.0) + share)
    return found


def draw(s: Snapshot, port: Port, active: float) -> Draw:
    """Clock and power of a device with this share of its SMs active."""
    gpu, pace = s.model(port).gpu, s.paces.get(port, FULL)
    return Draw(pace.clock * gpu.clock_khz * 1e3, _watts(gpu, pace, active))


def energy_j(devices: Sequence[DeviceModel], ledger: Ledger, step: Step) -> dict[Port, float]:
    """The energy in joules that each device takes in a step, at the pace of its work in it. ``ledger`` is that of the
    step."""
    active = active_sms(devices, ledger)
    paces = {port: step.paces.get(rank, FULL) for rank, port in zip(ledger.ranks, ledger.ports, strict=True)}
    return {
        port: _watts(devices[port.server].gpu, paces[port], share) * step.time_ns / 1e9
        for port, share in active.items()
    }


def _watts(gpu: Gpu, pace: Pace, active: float) -> float:
    return (IDLE_POWER + (pace.power - IDLE_POWER) * active) * gpu.power_limit_mw / 1e3
