"""What the ranks of a run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs.model import CostModel
from eidolon_simcore.engine.interface import NetworkEngine
from eidolon_simcore.ledger.books import Books
from eidolon_simcore.run.collectives import Collectives
from eidolon_simcore.run.host_times import HostCost


@dataclass(frozen=True, slots=True)
class World:
    """What a session shares with the others: ``gpu`` and ``costs`` with those on servers of the same GPU, all else with
    every session of the run. ``rank_of`` is the rank that a process of a server is, given both numbers; None if it is
    none."""

    engine: NetworkEngine
    collectives: Collectives
    books: Books
    host_cost: HostCost
    gpu: Gpu
    costs: CostModel
    rank_of: Callable[[int, int], int | None] = lambda _server, _pid: None
