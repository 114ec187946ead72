"""Reads of values that were never computed: counted by call site, and judged.

Emulated kernels compute nothing, so a host that reads a number off the device may read one that nobody knows. The shim
reports each such read with its size and with what it was given instead (``interposer/torch/defaults.h``):

* It gave a *stated default* for a loss, a norm, a finite check, the tokens that a router sent to each expert, or what
  was computed from one of them. Training goes on as it would, and the summary says how often this happened.
* It gave nothing for a read in *bulk*, of more than :data:`BULK_BYTES` at once, such as a checkpoint makes. The bytes
  are zeros that no program steers by.
* It gave nothing for any other read: zeros stand in place of a size, a count, or a number that has no default. Under
  ``--strict`` the run fails.
"""

from __future__ import annotations

from typing import Any

from eidolon_simcore.vocabulary import Origin

BULK_BYTES = 64 << 10  #: reads of more unknown bytes than this are bulk


class Reads:
    """Counts reads by their site, by what they were given, and by whether they were in bulk."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Origin, bool], list[int]] = {}

    def add(self, site: str, origin: int, size_bytes: int) -> None:
        """Counts one read. An origin that only a newer shim knows counts as nothing, so that it is not overlooked."""
        known = Origin(origin) if 0 <= origin <= max(Origin) else Origin.NOTHING
        key = (site, known, known == Origin.NOTHING and size_bytes > BULK_BYTES)
        entry = self._counts.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += size_bytes

    def entries(self) -> list[dict[str, Any]]:
        """Entries of the summary, in the order of their sites."""
        return [
            {
                "site": site,
                "default": None if origin == Origin.NOTHING else origin.name.lower(),
                "bulk": bulk,
                "count": count,
                "bytes": size_bytes,
            }
            for (site, origin, bulk), (count, size_bytes) in sorted(self._counts.items())
        ]

    def by_site(self) -> dict[str, tuple[int, int]]:
        """Count and bytes of each site, whatever was given."""
        found: dict[str, tuple[int, int]] = {}
        for (site, _, _), (count, size_bytes) in self._counts.items():
            before = found.get(site, (0, 0))
            found[site] = (before[0] + count, before[1] + size_bytes)
        return found

    def unstated(self) -> str:
        """Why these reads fail a strict run, in one line; empty if they do not."""
        found = {
            site: count
            for (site, origin, bulk), (count, _) in sorted(self._counts.items())
            if origin == Origin.NOTHING and not bulk
        }
        if not found:
            return ""
        worst = max(found, key=lambda site: found[site])
        return f"{sum(found.values())} reads of values that were never computed and have no default, most by {worst}"
