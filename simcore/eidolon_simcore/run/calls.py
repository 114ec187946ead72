"""Calls of collectives: what one member calls, and the members' calls that are one collective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from eidolon_simcore.fabric.network import Pattern
from eidolon_simcore.run.communicators import Communicator
from eidolon_simcore.signature import Signature


@dataclass(frozen=True, slots=True)
class Form:
    """What all calls of one signature by one member have in common. It holds as long as the communicator exists."""

    signature: Signature
    communicator: Communicator
    at: int  #: the member's place: of a send and its receive, 0 is the sender
    key: tuple[int, ...]  #: of the matches, but for the position: communicator, and sender and receiver of a pair
    ranks: tuple[int, ...]  #: of the run, that take part: those that are processes
    agreed: tuple[object, ...]  #: what all members have to call alike
    pattern: Pattern
    scale: float | None  #: factor of the member's bytes in a scaled sum; None if it states none

    @property
    def pair(self) -> bool:
        """Whether it is a send and its receive."""
        return self.signature.name in ("send", "recv")

    def text(self, position: int) -> str:
        """What messages call the collective at a position."""
        title = self.communicator.title
        if self.pair:
            source, target = self.ranks
            return f"transfer {position} from rank {source} to rank {target} in {title}"
        return f"{self.signature.name}, call {position} of {title}"


class Call(NamedTuple):
    """One member's call of a collective."""

    rank: int
    seq: int
    payload: bool  #: whether its bytes are moved
    scale: float | None  #: as in its form


@dataclass(slots=True)
class Match:
    """A collective at one position of a communicator, and the members that have reached it."""

    form: Form  #: of the first caller
    handle: int
    position: int
    first: int  #: rank of the first caller
    calls: dict[int, Call] = field(default_factory=dict)  #: by the member's place
    payload: bool = False  #: whether bytes of any of them are moved
    since_ns: int | None = None  #: its clock when somebody first looked for who is missing
