"""Phantoms: ranks that are no processes, as members of communicators.

In a folded run (:class:`~eidolon_simcore.core_plan.Fold`) a process, the *representative* of its class, stands for all
ranks of the class. The core supplies what the others, the *phantoms*, would do:

* **Members.** The name of a communicator says the ranks of the run that are its members (:func:`members`). Phantoms
  among them have joined when it is made. Each is on the device that has its place on its server.
* **Calls.** A phantom makes each call of a communicator when its representative does. So a call is complete once all
  members that are processes have made it, and the network carries the bytes of all.
* **Bytes.** A phantom sends what its representative sends in the same call (:meth:`Folding.stand_ins`). This is the
  *mirror rule*. A sum counts a representative's bytes once for each member that it stands for.
* **Siblings.** One call of a group stands for the same call of the groups beside it, whose members are all phantoms of
  this group's members, position by position (:mod:`eidolon_simcore.fabric.siblings`). Their flows load the network too.

A phantom has no host, no memory and no steps of its own: those of its representative are its.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from eidolon_simcore.core_plan import Fold
from eidolon_simcore.fabric.siblings import siblings
from eidolon_simcore.fabric.topology import Port

MEMBERS_MARK = "@"  #: in the name of a communicator, before its members
_RUN = re.compile(r"(\d{1,7})(?:\+(\d{1,7})x(\d{1,7}))?")


class Folding:
    """The ranks of a folded run."""

    def __init__(self, fold: Fold, ranks_per_server: int) -> None:
        self._fold = fold
        self._ranks_per_server = ranks_per_server

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self._fold.of)

    def phantom(self, rank: int) -> bool:
        """Whether a rank is no process."""
        return self._fold.phantom(rank)

    def port(self, rank: int) -> Port:
        """The device that a rank has by its place on its server."""
        return Port(*divmod(rank, self._ranks_per_server))

    def beside(self, rank: int) -> list[Port]:
        """The devices of the phantoms for which a process stands."""
        return [self.port(other) for other, of in enumerate(self._fold.of) if of == rank and other != rank]

    def siblings(self, ranks: Sequence[int]) -> list[list[Port]]:
        """The groups for whose calls a call of a group stands, by their devices."""
        return [[self.port(rank) for rank in group] for group in siblings(ranks, self._fold.of)]

    def stand_ins(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """By place in a group: the place of the member whose bytes are its. For a phantom that is its representative,
        or the first process of the group if the representative is no member."""
        places = {rank: at for at, rank in enumerate(ranks) if not self.phantom(rank)}
        first = min(places.values())
        return tuple(places.get(self._fold.of[rank], first) for rank in ranks)


def members(text: str, world: int) -> tuple[int, ...]:
    """The ranks of a list such as ``0+8x16,200``: 0, 8, … (16 of them), and 200. Raises :class:`ValueError`."""
    found: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is no rank and no FIRST+STRIDExCOUNT")
        first, stride, count = (int(number or 1) for number in match.groups())
        if first + stride * (count - 1) >= world or len(found) + count > world:
            raise ValueError(f"{part!r} is beyond the {world} ranks of the run")
        found += range(first, first + stride * count, stride) if stride else [first] * count
    if len(set(found)) < len(found):
        raise ValueError(f"{text!r} names a rank twice")
    return tuple(found)
