"""Device memory as the ranks report it: present, peak of each step, and refusals.

Every record states what its rank has allocated on a device now, so nothing has to be added up but the ranks that
share a device. The peak of a step on a shared device is the sum of its ranks' peaks: exact for one rank a device, an
upper bound otherwise (their clocks are not the same).
"""

from __future__ import annotations

from dataclasses import dataclass

from eidolon_simcore.fabric.network import Port


@dataclass(frozen=True, slots=True)
class Refusal:
    """An allocation that was refused, with what the device held then."""

    port: Port
    step: int
    requested_bytes: int
    allocated_bytes: int


class MemoryView:
    """What is allocated where."""

    def __init__(self) -> None:
        self._present: dict[Port, dict[int, int]] = {}  # device -> rank -> bytes
        self._interval: dict[int, dict[Port, int]] = {}  # rank -> device -> peak since its last mark
        self._peak: dict[Port, int] = {}
        self.refusals: list[Refusal] = []

    def update(self, rank: int, port: Port, allocated_bytes: int) -> None:
        """``rank`` now has this much on the device."""
        shares = self._present.setdefault(port, {})
        shares[rank] = allocated_bytes
        self._peak[port] = max(self._peak.get(port, 0), sum(shares.values()))
        peaks = self._interval.setdefault(rank, {})
        peaks[port] = max(peaks.get(port, 0), allocated_bytes)

    def refused(self, port: Port, requested_bytes: int, step: int) -> None:
        self.refusals.append(Refusal(port, step, requested_bytes, self.allocated(port)))

    def allocated(self, port: Port) -> int:
        return sum(self._present.get(port, {}).values())

    def peak(self, port: Port) -> int:
        """Greatest sum over the ranks of the device, in the order in which its server's records came."""
        return self._peak.get(port, 0)

    def highest(self) -> int:
        """Greatest peak of any device."""
        return max(self._peak.values(), default=0)

    def interval(self, rank: int) -> dict[Port, int]:
        """The rank's peaks since the last call; the next interval begins with what is allocated now."""
        peaks = self._interval.get(rank, {})
        self._interval[rank] = {port: self._present[port][rank] for port in peaks}
        return peaks

    def of(self, rank: int) -> dict[Port, int]:
        """What the rank has allocated now."""
        return {port: shares[rank] for port, shares in self._present.items() if rank in shares}

    def left(self, rank: int) -> None:
        """The rank is gone, and what it had with it."""
        for shares in self._present.values():
            shares.pop(rank, None)
        self._interval.pop(rank, None)
