"""The books of a run: one of each thing that adds up what its ranks report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eidolon_simcore.fabric.network import Network
from eidolon_simcore.ledger.accounts import Accounts
from eidolon_simcore.ledger.labels import Labels
from eidolon_simcore.ledger.memory import MemoryView
from eidolon_simcore.ledger.sinks import Sink, Sinks
from eidolon_simcore.ledger.steps import Steps
from eidolon_simcore.ledger.tally import Tally

MakeSink = Callable[[Labels, Network], Sink]


class Books:
    """Sessions write into them; the simulation, its readers and the summary read them.

    Args:
        sinks: makers of further consumers of what is final (:mod:`.sinks`).
        account: False if the accounts are not told anything, to measure what they cost.
    """

    def __init__(self, network: Network, sinks: Sequence[MakeSink] = (), *, account: bool = True) -> None:
        self.labels = Labels()
        self.memory = MemoryView()
        self.steps = Steps()
        self.tally = Tally()
        self.accounts = Accounts(self.labels.names, self.labels.number("idle"), network)
        made = [make(self.labels, network) for make in sinks]
        self.sinks = Sinks((self.accounts, *made) if account else made)

    def host_waits(self) -> dict[str, tuple[int, int]]:
        """How often and how long (ns) hosts waited so far, by the call that they waited in."""
        return {self.labels.names[label] or "unknown": wait for label, wait in self.accounts.waits().items()}

    def unmodelled(self) -> dict[str, int]:
        """Calls of functions that are not modelled, by name, over all ranks."""
        return dict(self.tally.unmodelled)
