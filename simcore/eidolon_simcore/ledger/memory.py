"""Device memory as the ranks report it: what is allocated now, the peak of each step, and refused allocations.

Every record states what its rank has allocated on a device now, so only the ranks that share a device have to be added
up. The peak of a step on a shared device is the sum of its ranks' peaks. That is exact where each device has one rank,
and an upper bound otherwise, since the ranks may reach their peaks at different times.
"""

from __future__ import annotations

from dataclasses import dataclass

from eidolon_simcore.fabric.network import Port


@dataclass(slots=True)
class Refusal:
    """An allocation that was refused, and what the device held at that time. It is ``cured`` if its rank got as much at
    its next try. A caching allocator tries once more when it has given back what it had cached; a second refusal is
    final."""

    port: Port
    step: int
    requested_bytes: int
    allocated_bytes: int
    cured: bool = False


class MemoryView:
    """How much memory is allocated on each device."""

    def __init__(self) -> None:
        self._present: dict[Port, dict[int, int]] = {}  # device -> rank -> bytes
        self._interval: dict[int, dict[Port, int]] = {}  # rank -> device -> peak since the rank's last mark
        self._peak: dict[Port, int] = {}
        self._retried: dict[tuple[int, Port], Refusal] = {}  # rank, device -> a refusal after which it may try again
        self.refusals: list[Refusal] = []

    def update(self, rank: int, port: Port, allocated_bytes: int) -> None:
        """``rank`` now has this much on the device."""
        shares = self._present.setdefault(port, {})
        refusal = self._retried.get((rank, port))
        if refusal is not None and allocated_bytes - shares.get(rank, 0) >= refusal.requested_bytes:
            refusal.cured = True
            del self._retried[rank, port]
        shares[rank] = allocated_bytes
        self._peak[port] = max(self._peak.get(port, 0), sum(shares.values()))
        peaks = self._interval.setdefault(rank, {})
        peaks[port] = max(peaks.get(port, 0), allocated_bytes)

    def refused(self, rank: int, port: Port, requested_bytes: int, step: int) -> None:
        """An allocation of this size found no room, in the rank's step of this number."""
        refusal = Refusal(port, step, requested_bytes, self.allocated(port))
        before = self._retried.pop((rank, port), None)
        if before is None or before.requested_bytes != requested_bytes:
            self._retried[rank, port] = refusal
        self.refusals.append(refusal)

    def allocated(self, port: Port) -> int:
        """What all ranks of the device have allocated now, in bytes."""
        return sum(self._present.get(port, {}).values())

    def peak(self, port: Port) -> int:
        """The greatest sum over the ranks of the device, in the order in which its server's records came."""
        return self._peak.get(port, 0)

    def peaks(self) -> dict[Port, int]:
        """The peak of each device that was used, over the whole run."""
        return dict(self._peak)

    def highest(self) -> int:
        """The greatest peak of any device."""
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
        """The rank is gone, and what it had allocated is free."""
        for shares in self._present.values():
            shares.pop(rank, None)
        self._interval.pop(rank, None)
