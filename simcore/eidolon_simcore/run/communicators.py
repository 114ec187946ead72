"""Communicators: how they are made, divided and left.

A communicator is made by ``kCommInit`` records, one from each member, whose "comm" signatures say its id, rank and
size. Its members may divide it: each says a color and a key in a "split" signature, and is told its place in the new
communicator. Making and dividing are collectives of the engine, which complete with the last member.

In a folded run some members are no processes (:mod:`.folding`). They have joined from the start, and every list of
callers, answers and participants is that of the processes alone.

A group of symmetric memory is a communicator too. Its "symmetric" signature names all its members, so it is complete as
soon as one of them has named it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from eidolon_simcore.engine.interface import Engine
from eidolon_simcore.fabric import siblings, tuner
from eidolon_simcore.fabric.network import Network, Team
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.run.folding import MEMBERS_MARK, Folding, members
from eidolon_simcore.signature import Signature

HANDLES_KEPT = 20_000  #: how many descriptions of collectives are kept


class CollectiveError(Exception):
    """Two members' calls contradict each other; the message names both."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a communicator: the rank that made it and the device it is on."""

    rank: int
    port: Port


@dataclass(slots=True)
class Communicator:
    """A communicator, which is complete when all its members have joined. Members are known by their rank in it."""

    id: int
    name: str
    size: int
    handle: int
    members: dict[int, Member] = field(default_factory=dict)
    places: dict[tuple[int, Port], int] = field(default_factory=dict)
    records: dict[int, tuple[int, int]] = field(default_factory=dict)  #: rank and seq of each member's joining
    destroyed: int = 0
    wanted: tuner.Options = field(default_factory=tuner.Options)  #: what the environment of its rank 0 says
    team: Team | None = None  #: its members as the fabric sees them, once it is complete
    phantoms: frozenset[int] = frozenset()  #: members that are no processes
    stand_ins: tuple[int, ...] = ()  #: by member: the one whose bytes are its, if there are phantoms
    siblings: Sequence[Sequence[Port]] = ()  #: groups for whose calls its calls stand, by their members' devices
    within: tuple[int, ...] = ()  #: the group of which it is a pair, in a folded run
    _pairs: dict[tuple[int, int], Sequence[Sequence[Port]]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all members have joined."""
        return len(self.members) == self.size

    @property
    def gone(self) -> bool:
        """Whether all members have left it."""
        return self.destroyed == self.processes

    @property
    def processes(self) -> int:
        """How many members are processes."""
        return self.size - len(self.phantoms)

    def missing(self) -> list[int]:
        """Members that have not joined."""
        return [rank for rank in range(self.size) if rank not in self.members]

    def ports(self) -> list[Port]:
        """Devices of the members, in their order."""
        return [self.members[rank].port for rank in range(self.size)]

    def ranks(self) -> tuple[int, ...]:
        """Ranks of the run that the members are, in their order, without phantoms."""
        return tuple(self.members[at].rank for at in range(self.size) if at not in self.phantoms)

    def sharing(self) -> dict[int, int]:
        """Members that are on the device of another, with the first such other."""
        on: dict[Port, list[int]] = {}
        for at, port in enumerate(self.ports()):
            if at not in self.phantoms:
                on.setdefault(port, []).append(at)
        return {at: all_[at == all_[0]] for all_ in on.values() if len(all_) > 1 for at in all_}

    def pairs(self, source: int, target: int) -> Sequence[Sequence[Port]]:
        """The pairs for whose transfers one between two members stands: those at their places in its siblings."""
        found = self._pairs.get((source, target))
        if found is None:
            found = self._pairs[source, target] = siblings.at((source, target), self.siblings)
        return found

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"communicator {short(self.name)}"

    def rank_in(self, rank: int, port: Port) -> int:
        """The place in it that a rank has on a device. Raises :class:`CollectiveError`."""
        at = self.places.get((rank, port))
        if at is None:
            raise CollectiveError(f"rank {rank} is not a member of {self.title} on device {port.device}")
        return at


@dataclass(slots=True)
class Split:
    """The members of a communicator divide it. What each chose is known by its rank in the communicator."""

    calls: int  #: that it takes, one from each member that is a process
    handle: int
    chosen: dict[int, tuple[int, int]] = field(default_factory=dict)  #: color, key
    callers: dict[int, tuple[int, int]] = field(default_factory=dict)  #: rank, sequence number of its record
    stated: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  #: place and size that a folded member knows itself

    def places(self) -> dict[tuple[int, int], int]:
        """The answer to each caller: ``its rank in the new communicator << 32 | the size of that one``, or -1 if it is
        in none."""
        out = {}
        for at, (color, _) in self.chosen.items():
            if at in self.stated:
                place, size = self.stated[at]
                out[self.callers[at]] = place << 32 | size
                continue
            members = sorted((key, other) for other, (c, key) in self.chosen.items() if c == color)
            position = [other for _, other in members].index(at)
            out[self.callers[at]] = -1 if color < 0 else position << 32 | len(members)
        return out


class Descriptions:
    """What the engine's handles of collectives stand for, in words. Only the latest are kept: messages that say who
    waits for whom need no others."""

    def __init__(self) -> None:
        self._texts: OrderedDict[int, Callable[[], str]] = OrderedDict()

    def add(self, handle: int, text: Callable[[], str]) -> None:
        """Describes a handle by what ``text`` says when it is asked for."""
        self._texts[handle] = text
        if len(self._texts) > HANDLES_KEPT:
            self._texts.popitem(last=False)

    def of(self, handle: int) -> str:
        """What a handle stands for."""
        text = self._texts.get(handle)
        return f"collective {handle}" if text is None else text()


class Communicators:
    """All communicators of a run."""

    def __init__(
        self, engine: Engine, network: Network, descriptions: Descriptions, folding: Folding | None = None
    ) -> None:
        self._engine = engine
        self._network = network
        self._folding = folding
        self._descriptions = descriptions
        self._communicators: dict[int, Communicator] = {}  # by id
        self._splits: dict[tuple[int, int], Split] = {}  # by the id of the divided communicator, and position
        self._answers: dict[tuple[int, int], int] = {}  # to splits and to what cannot be made: by rank and seq
        self._placed: set[tuple[int, Port]] = set()  # devices whose links the engine knows

    def get(self, identity: int) -> Communicator | None:
        """The communicator with this id."""
        return self._communicators.get(identity)

    def join(self, rank: int, seq: int, port: Port, signature: Signature) -> int:
        """One member joins with its ``kCommInit``. Returns the handle of the collective that completes once all have
        joined. If two members are on one device, there is no communicator then: NCCL refuses that, and the members are
        told so (:meth:`answer`)."""
        identity, at, size = signature.values("id", "rank", "size")
        found = self._communicators.get(identity)
        if found is None:
            found = self._made(rank, at, size, signature)
            self._communicators[identity] = found
            self._descriptions.add(found.handle, partial(str, f"the making of {found.title} of {size}"))
        if size != found.size or not 0 <= at < size:
            raise CollectiveError(
                f"{found.title}: rank {rank} joins as {at} of {size}, others as members of {found.size}"
            )
        if at in found.members:
            other = found.members[at].rank
            raise CollectiveError(f"{found.title}: rank {rank} joins as {at}, which rank {other} is already")
        found.members[at] = Member(rank, port)
        found.places[rank, port] = at
        found.records[at] = rank, seq
        if at == 0:
            found.wanted = tuner.unpacked(signature)
        if found.complete and (sharing := found.sharing()):
            del self._communicators[identity]
            for member, record in found.records.items():
                self._answers[record] = -2 - sharing[member] if member in sharing else -1
            self._engine.define(found.handle, found.ranks(), self._network.init_ns, ())
        elif found.complete:
            if found.within and self._folding is not None:
                places = [found.within.index(member) for member in found.ranks()]
                found.siblings = siblings.at(places, self._folding.siblings(found.within))
            found.team = self._network.team(found.ports(), found.wanted, found.siblings)
            self._engine.define(found.handle, found.ranks(), self._network.init_ns, ())
            self._place(found)
        return found.handle

    def _made(self, rank: int, at: int, size: int, signature: Signature) -> Communicator:
        """A communicator that one member is the first to join."""
        made = Communicator(signature.get("id"), signature.name, size, self._engine.reserve())
        if self._folding is None or size == 1:
            return made
        made.name, ranks = self._members(rank, signature.name)
        if size == 2 < len(ranks):  # torch has a communicator for each pair of a group that sends by itself
            made.within = ranks
            return made
        if len(ranks) != size or not 0 <= at < size or ranks[at] != rank:
            raise CollectiveError(f"{made.title}: rank {rank} joins as {at} of {size}, its group is {_listed(ranks)}")
        phantoms = [other for other, member in enumerate(ranks) if self._folding.phantom(member)]
        made.members = {other: Member(ranks[other], self._folding.port(ranks[other])) for other in phantoms}
        made.phantoms = frozenset(phantoms)
        made.stand_ins = self._folding.stand_ins(ranks) if phantoms else ()
        made.siblings = self._folding.siblings(ranks)
        return made

    def _members(self, rank: int, name: str) -> tuple[str, tuple[int, ...]]:
        """The name of a communicator in a folded run without its members, and the ranks that they are."""
        assert self._folding is not None
        own, mark, text = name.rpartition(MEMBERS_MARK)
        if not mark:
            raise CollectiveError(
                f"rank {rank} makes communicator {short(name)} by itself, and a folded run does not know its members; "
                "groups of torch.distributed can be folded"
            )
        try:
            return own, members(text, self._folding.world)
        except ValueError as error:
            raise CollectiveError(f"rank {rank}: the members of communicator {short(own)}: {error}") from None

    def share(self, server: int, signature: Signature, rank_of: Callable[[int, int], int | None]) -> None:
        """A member names a group of symmetric memory on its server: ``PID:DEVICE:NUMBER`` of each member. ``rank_of``
        gives the rank that a process of a server is."""
        identity = signature.get("id")
        if identity in self._communicators:
            return
        members = dict(enumerate(_sharing(server, signature.name, rank_of)))
        found = Communicator(identity, signature.name, len(members), -1, members)
        found.places = {(member.rank, member.port): at for at, member in members.items()}
        found.team = self._network.team(found.ports(), found.wanted)
        self._communicators[identity] = found
        self._place(found)

    def _place(self, communicator: Communicator) -> None:
        """Tells the engine at which links the members are: collectives get what the members' kernels leave of them."""
        for at, member in communicator.members.items() if communicator.size > 1 else ():
            if at in communicator.phantoms or (member.rank, member.port) in self._placed:
                continue
            self._placed.add((member.rank, member.port))
            beside = self._folding.beside(member.rank) if self._folding is not None else ()
            self._engine.set_ports(member.rank, member.port.device, self._network.ports(member.port, *beside))

    def split(self, rank: int, seq: int, signature: Signature) -> int:
        """One member's part in dividing a communicator. Returns the handle of the collective that completes with the
        last member's part."""
        parent, position, at, size = signature.values("parent", "position", "rank", "size")
        communicator = self._communicators.get(parent)
        if communicator is None or size != communicator.size or not 0 <= at < size:
            raise CollectiveError(f"rank {rank} splits {short(signature.name)}, of which it is no member")
        found = self._splits.get((parent, position))
        if found is None:
            found = self._splits[parent, position] = Split(communicator.processes, self._engine.reserve())
            self._descriptions.add(found.handle, partial(str, f"the splitting of {communicator.title} of {size}"))
        if at in found.chosen:
            raise CollectiveError(f"{short(signature.name)}: rank {rank} splits as {at} twice")
        found.chosen[at] = signature.get("color"), signature.get("key")
        found.callers[at] = rank, seq
        if communicator.phantoms and signature.get("color") >= 0:
            _, ranks = self._members(rank, signature.name)
            if rank not in ranks:
                raise CollectiveError(f"{communicator.title}: rank {rank} splits off {_listed(ranks)}")
            found.stated[at] = ranks.index(rank), len(ranks)
        if len(found.chosen) == found.calls:
            del self._splits[parent, position]
            self._answers.update(found.places())
            self._engine.define(found.handle, tuple(found.callers[at][0] for at in sorted(found.callers)), 0, ())
        return found.handle

    def answer(self, rank: int, seq: int) -> int | None:
        """The answer to the record ``seq``, once; None where the engine's own holds. For a split it says the place in
        the new communicator (:meth:`Split.places`). For a member of a communicator that cannot be made it is -2 - r if
        member r is on the same device, else -1."""
        return self._answers.pop((rank, seq), None)

    def leave(self, identity: int) -> None:
        """One member's ``kCommDestroy``."""
        found = self._communicators.get(identity)
        if found is not None:
            found.destroyed += 1
            if found.gone:
                del self._communicators[identity]

    def incomplete(self) -> list[Communicator]:
        """Communicators that some member waits for."""
        return [communicator for communicator in self._communicators.values() if not communicator.complete]


def _sharing(server: int, name: str, rank_of: Callable[[int, int], int | None]) -> Iterator[Member]:
    for text in name.split(","):
        try:
            pid, device, _ = map(int, text.split(":"))
        except ValueError:
            raise CollectiveError(f"symmetric memory of {name!r}: PID:DEVICE:NUMBER of each member is needed") from None
        rank = rank_of(server, pid)
        if rank is None:
            raise CollectiveError(f"symmetric memory of process {pid}, which is no rank of server {server}")
        yield Member(rank, Port(server, device))


def _listed(ranks: Sequence[int]) -> str:
    return (
        ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]}, {ranks[1]}, … {ranks[-1]} ({len(ranks)} ranks)"
    )


def short(name: str) -> str:
    """A name as messages show it: the middle of a long one is left out."""
    return name if len(name) <= 24 else f"{name[:16]}...{name[-6:]}"
