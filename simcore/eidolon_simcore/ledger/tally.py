"""What is counted over all ranks of a run and stands in its summary, beside the accounts of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from eidolon_simcore.ledger.unknown_reads import Reads


@dataclass(slots=True)
class Tally:
    """What is counted over all ranks for the summary."""

    unmodelled: dict[tuple[int, str], int] = field(default_factory=dict)  #: by rank and name: the last count
    reads: Reads = field(default_factory=Reads)
