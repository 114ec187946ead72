"""Counts over all ranks that stand in the summary beside the accounts of the steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from eidolon_simcore.ledger.unknown_reads import Reads


@dataclass(slots=True)
class Tally:
    """See the module's docstring."""

    unmodelled: Counter[str] = field(default_factory=Counter)  #: calls that are not modelled, by name
    reads: Reads = field(default_factory=Reads)
