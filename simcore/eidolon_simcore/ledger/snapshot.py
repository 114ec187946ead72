"""What readers on other threads see of a run: an immutable snapshot, which the simulation replaces regularly.

A reader takes the reference once and works on it for as long as it likes. It cannot delay the simulation, and all
figures in a snapshot belong together. What is counted by steps is *final*: it is as of the end of the last step that
cannot change any more. The first step ("startup") counts as a step, but is left out of all sums.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eidolon_simcore.catalogue import DeviceModel
from eidolon_simcore.costs.sm_clock import Pace
from eidolon_simcore.fabric.network import Link, Port
from eidolon_simcore.ledger.accounts import Ledger, empty_ledger
from eidolon_simcore.ledger.steps import STARTUP, Step

#: Upper bounds of the buckets for step times, s.
BUCKETS_S = (*(float(f"{digit}e{power}") for power in range(-3, 3) for digit in (1, 2, 3, 5, 7)), 1000.0)


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Sums over the final steps, without the first."""

    steps: int = 0
    time_ns: int = 0
    tokens: int = 0
    samples: int = 0
    flops: float = 0.0
    buckets: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)  #: number of steps by their time; the last has no bound

    def plus(self, step: Step, entry: Mapping[str, Any]) -> StepTotals:
        """The sums with another step; ``entry`` is its line of the report."""
        if step.name == STARTUP:
            return self
        buckets = list(self.buckets)
        buckets[bisect.bisect_left(BUCKETS_S, step.time_ns / 1e9)] += 1
        return StepTotals(
            self.steps + 1,
            self.time_ns + step.time_ns,
            self.tokens + (entry["tokens"] or 0),
            self.samples + (entry["samples"] or 0),
            self.flops + entry["flops"],
            tuple(buckets),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of the final steps: their sums, and the last of them."""

    count: int = 0
    startup_ns: int | None = None
    step: Mapping[str, Any] | None = None  #: entry of the last final step in the report; None before the second step
    totals: StepTotals = field(default_factory=StepTotals)
    allocated_bytes: Mapping[Port, int] = field(default_factory=dict)  #: at the end of the last step
    step_peak_bytes: Mapping[Port, int] = field(default_factory=dict)  #: greatest within the last step
    peak_bytes: Mapping[Port, int] = field(default_factory=dict)  #: greatest so far
    energy_j: Mapping[Port, float] = field(default_factory=dict)  #: taken in all final steps but the first

    def plus(self, step: Step, entry: Mapping[str, Any], energy_j: Mapping[Port, float]) -> Progress:
        """The progress with another step. ``entry`` is its line of the report, ``energy_j`` the energy of each device
        in it."""
        startup = step.name == STARTUP
        highest = {port: max(peak, self.peak_bytes.get(port, 0)) for port, peak in step.peak_bytes.items()}
        return Progress(
            self.count + 1,
            step.time_ns if startup else self.startup_ns,
            None if startup else entry,
            self.totals.plus(step, entry),
            step.allocated_bytes,
            step.peak_bytes,
            {**self.peak_bytes, **highest},
            self.energy_j
            if startup
            else {**self.energy_j, **{port: self.energy_j.get(port, 0.0) + j for port, j in energy_j.items()}},
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """See the module's docstring."""

    run: str
    devices: tuple[DeviceModel, ...]  #: what the GPUs of each server are
    gpus_per_server: int
    state: str = "Waiting"  #: Waiting, Running, Succeeded, Failed
    ranks: Mapping[str, int] = field(default_factory=dict)  #: how many are expected, have joined, have left
    class_sizes: Mapping[int, int] = field(default_factory=dict)  #: for how many ranks a rank stands in a folded run
    progress: Progress = field(default_factory=Progress)
    last: Ledger = field(default_factory=empty_ledger)  #: of the last final step
    total: Ledger = field(default_factory=empty_ledger)  #: of all final steps but the first
    links: tuple[Link, ...] = ()
    paces: Mapping[Port, Pace] = field(default_factory=dict)  #: clock and power of the step that is issued now
    #: by device, of the ranks on it: the latest clock, and the work that they have issued, both in ns
    issued: Mapping[Port, tuple[int, int]] = field(default_factory=dict)
    out_of_memory: Mapping[Port, int] = field(default_factory=dict)  #: refused allocations so far
    source_ns: Mapping[str, int] = field(default_factory=dict)  #: device time of the steps, by the source of its cost
    startup_source_ns: Mapping[str, int] = field(default_factory=dict)  #: the same before the first step's end
    unmodelled: Mapping[str, int] = field(default_factory=dict)  #: calls by name
    unknown_reads: Mapping[str, tuple[int, int]] = field(default_factory=dict)  #: by site: count, bytes
    waits: Mapping[str, tuple[int, int]] = field(default_factory=dict)  #: host waits by site: count, ns
    engine: Mapping[str, int] = field(default_factory=dict)  #: the engine's counters
    horizon_ns: int = 0
    wall_s: float = 0.0

    def model(self, port: Port) -> DeviceModel:
        """The model and the memory of a device."""
        return self.devices[port.server]
