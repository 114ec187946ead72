"""Counts over all ranks that stand in the summary beside the accounts of the steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from eidolon_simcore.ledger.unknown_reads import Reads


@dataclass(slots=True)
class Tally:
    """See the module's docstring."""

    unmodelled: dict[tuple[int, str], int] = field(default_factory=dict)  #: last count by rank and name
    reads: Reads = field(default_factory=Reads)
