"""Communicators and the matching of their calls.

A communicator is made by ``kCommInit`` records, one from each member, whose "comm" signatures say its id, rank and
size. Its calls are matched by position: the nth call of every member is the same collective. Sends and receives are
matched by the position in their pair and direction. Where calls do not fit, NCCL would hang or corrupt memory; here
the run ends with a :class:`CollectiveError` that names both sides.

A matched call is a collective of the engine; :mod:`.fabric.network` says what it puts on the wire. Where payloads are
small, it is also an exchange of bytes (:mod:`.payloads`), which happens as soon as every sender's bytes have come.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from eidolon_simcore.costs.model import Signature
from eidolon_simcore.engine.interface import Blocked, Engine
from eidolon_simcore.fabric import tuner
from eidolon_simcore.fabric.network import Network, Pattern, Team
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.ledger.sinks import CollectiveCall
from eidolon_simcore.run import payloads

HANDLES_KEPT = 20_000  #: how many descriptions of collectives are kept, for messages that say who waits for whom


class CollectiveError(Exception):
    """Two members' calls contradict each other; the message names both."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a communicator: the rank that made it and the device it is on."""

    rank: int
    port: Port


@dataclass(slots=True)
class Call:
    """One member's call of a collective."""

    rank: int
    seq: int
    payload: bool  #: whether its bytes are moved
    scale: float | None = None  #: factor of its bytes in a scaled sum; None if it states none


@dataclass(slots=True)
class Communicator:
    """A communicator, which is complete when all its members have joined. Members are known by their rank in it."""

    id: int
    name: str
    size: int
    handle: int
    members: dict[int, Member] = field(default_factory=dict)
    places: dict[tuple[int, Port], int] = field(default_factory=dict)
    destroyed: int = 0
    wanted: tuner.Options = field(default_factory=tuner.Options)  #: what the environment of its rank 0 says
    team: Team | None = None  #: its members as the fabric sees them, once it is complete

    @property
    def complete(self) -> bool:
        """Whether all members have joined."""
        return len(self.members) == self.size

    def missing(self) -> list[int]:
        """Members that have not joined."""
        return [rank for rank in range(self.size) if rank not in self.members]

    def ports(self) -> list[Port]:
        """Devices of the members, in their order."""
        return [self.members[rank].port for rank in range(self.size)]

    def ranks(self) -> tuple[int, ...]:
        """Ranks of the run that the members are, in their order."""
        return tuple(self.members[rank].rank for rank in range(self.size))


@dataclass(slots=True)
class Split:
    """The members of a communicator divide it. What each chose is known by its rank in the communicator."""

    size: int
    handle: int
    chosen: dict[int, tuple[int, int]] = field(default_factory=dict)  #: color, key
    callers: dict[int, tuple[int, int]] = field(default_factory=dict)  #: rank, sequence number of its record

    def places(self) -> dict[tuple[int, int], int]:
        """The answer to each caller: ``its rank in the new communicator << 32 | the size of that one``, or -1 if it is
        in none."""
        out = {}
        for at, (color, _) in self.chosen.items():
            members = sorted((key, other) for other, (c, key) in self.chosen.items() if c == color)
            position = [other for _, other in members].index(at)
            out[self.callers[at]] = -1 if color < 0 else position << 32 | len(members)
        return out


@dataclass(slots=True)
class Match:
    """A collective at one position of a communicator, and the members that have reached it."""

    key: tuple[int, ...]
    communicator: Communicator
    signature: Signature
    handle: int
    size: int
    pattern: Pattern
    position: int
    calls: dict[int, Call] = field(default_factory=dict)
    first: str = ""  #: the first caller, for messages
    since_ns: int | None = None  #: its clock when somebody first looked for who is missing

    @property
    def pair(self) -> bool:
        """Whether it is a send and its receive."""
        return self.signature.name in ("send", "recv")


@dataclass(frozen=True, slots=True)
class Receivers:
    """Who is told what becomes of calls."""

    #: Bytes have come: (rank, sequence number of its record, the bytes, which are empty if they are not known).
    deliver: Callable[[int, int, bytes], None]
    #: A call is matched whose bytes have not come: (rank, sequence number, the engine's handle of the collective).
    awaited: Callable[[int, int, int], None]
    matched: Callable[[CollectiveCall], None] = lambda _: None  #: every member has made its call


class Collectives:
    """All communicators of a run."""

    def __init__(self, engine: Engine, network: Network, receivers: Receivers) -> None:
        self._engine = engine
        self._network = network
        self._receivers = receivers
        self._communicators: dict[int, Communicator] = {}
        self._matches: dict[tuple[int, ...], Match] = {}
        self._payloads: dict[tuple[int, int], bytes] = {}
        self._exchanges: dict[tuple[int, int], Match] = {}
        self._described: OrderedDict[int, str] = OrderedDict()
        self._splits: dict[tuple[int, int], Split] = {}
        self._places: dict[tuple[int, int], int] = {}
        self._placed: set[tuple[int, Port]] = set()  # devices whose links the engine knows
        #: time of all collectives on the devices of all members, by the source of the time; waits are not counted
        self.device_ns: Counter[str] = Counter()

    # ---- communicators --------------------------------------------------------------------------------------------

    def join(self, rank: int, port: Port, signature: Signature) -> int:
        """One member joins with its ``kCommInit``. Returns the handle of the collective that completes once all have
        joined."""
        identity, at, size = (signature.get(key) for key in ("id", "rank", "size"))
        found = self._communicators.get(identity)
        if found is None:
            found = Communicator(identity, signature.name, size, self._engine.reserve())
            self._communicators[identity] = found
            self._describe(found.handle, f"the making of communicator {_short(found.name)} of {size}")
        if size != found.size or not 0 <= at < size:
            where = f"communicator {_short(found.name)}"
            raise CollectiveError(f"{where}: rank {rank} joins as {at} of {size}, others as members of {found.size}")
        if at in found.members:
            where, other = f"communicator {_short(found.name)}", found.members[at].rank
            raise CollectiveError(f"{where}: rank {rank} joins as {at}, which rank {other} is already")
        found.members[at] = Member(rank, port)
        found.places[rank, port] = at
        if at == 0:
            found.wanted = tuner.unpacked(signature.attributes)
        if found.complete:
            found.team = self._network.team(found.ports(), found.wanted)
            self._engine.define(found.handle, found.ranks(), self._network.init_ns, ())
            self._place(found)
        return found.handle

    def _place(self, communicator: Communicator) -> None:
        """Tells the engine at which links the members are: collectives get what the members' kernels leave of them."""
        for member in communicator.members.values() if communicator.size > 1 else ():
            if (member.rank, member.port) not in self._placed:
                self._placed.add((member.rank, member.port))
                self._engine.set_ports(member.rank, member.port.device, self._network.ports(member.port))

    def split(self, rank: int, seq: int, signature: Signature) -> int:
        """One member's part in dividing a communicator. Returns the handle of the collective that completes with the
        last member's part."""
        parent, position, at, size = (signature.get(key) for key in ("parent", "position", "rank", "size"))
        communicator = self._communicators.get(parent)
        if communicator is None or size != communicator.size or not 0 <= at < size:
            raise CollectiveError(f"rank {rank} splits {_short(signature.name)}, of which it is no member")
        found = self._splits.get((parent, position))
        if found is None:
            found = self._splits[parent, position] = Split(size, self._engine.reserve())
            self._describe(found.handle, f"the splitting of communicator {_short(communicator.name)} of {size}")
        if at in found.chosen:
            raise CollectiveError(f"{_short(signature.name)}: rank {rank} splits as {at} twice")
        found.chosen[at] = signature.get("color"), signature.get("key")
        found.callers[at] = rank, seq
        if len(found.chosen) == size:
            del self._splits[parent, position]
            self._places.update(found.places())
            self._engine.define(found.handle, tuple(found.callers[at][0] for at in range(size)), 0, ())
        return found.handle

    def place(self, rank: int, seq: int) -> int | None:
        """The answer to the split whose record was ``seq``, once; None if it was something else."""
        return self._places.pop((rank, seq), None)

    def leave(self, identity: int) -> None:
        """One member's ``kCommDestroy``."""
        found = self._communicators.get(identity)
        if found is not None:
            found.destroyed += 1
            if found.destroyed == found.size:
                del self._communicators[identity]

    # ---- calls ----------------------------------------------------------------------------------------------------

    def call(self, rank: int, port: Port, seq: int, signature: Signature, position: int, payload: bool) -> int:
        """One member's call; returns the engine's handle."""
        communicator = self._communicators.get(signature.get("comm"))
        if communicator is None or not communicator.complete:
            raise CollectiveError(
                f"rank {rank} calls {signature.name} on a communicator that "
                + ("does not exist" if communicator is None else "is not complete")
            )
        at = self._rank_in(communicator, rank, port)
        if signature.name in ("send", "recv"):
            return self._pair(communicator, at, rank, seq, signature, position, payload)
        key = (communicator.id, position)
        match = self._matches.get(key)
        if match is None:
            pattern = self._pattern(communicator, signature)
            handle = self._begin(communicator.ranks(), pattern)
            self.device_ns[pattern.source] += pattern.alone_ns * communicator.size
            match = self._matches[key] = Match(
                key, communicator, signature, handle, communicator.size, pattern, position
            )
            match.first = f"rank {rank}"
            self._describe(handle, f"{signature.name}, call {position} of communicator {_short(communicator.name)}")
        else:
            self._compare(match, signature, position, rank, ("count", "dtype", "root", "redop"))
        self._arrive(match, at, Call(rank, seq, payload, _scale(signature)))
        return match.handle

    def alone_ns(self, rank: int, port: Port, signature: Signature) -> int:
        """The time of a call if nobody waits and nothing runs beside it; 0 for one that :meth:`call` will refuse."""
        communicator = self._communicators.get(signature.get("comm"))
        if communicator is None or communicator.team is None or (rank, port) not in communicator.places:
            return 0
        if signature.name not in ("send", "recv"):
            return self._pattern(communicator, signature).alone_ns
        peer = communicator.members.get(signature.get("peer"))
        if peer is None:
            return 0
        ends = (port, peer.port) if signature.name == "send" else (peer.port, port)
        return self._network.pair(*ends, signature.get("bytes"), communicator.wanted).alone_ns

    def _pattern(self, communicator: Communicator, signature: Signature) -> Pattern:
        assert communicator.team is not None
        return self._network.collective(
            signature.name,
            signature.get("bytes"),
            communicator.team,
            signature.get("root"),
            in_switch=payloads.wider_than_a_byte(signature.get("dtype")),
        )

    def _pair(
        self,
        communicator: Communicator,
        at: int,
        rank: int,
        seq: int,
        signature: Signature,
        position: int,
        payload: bool,
    ) -> int:
        peer = signature.get("peer")
        if not 0 <= peer < communicator.size:
            where = f"communicator {_short(communicator.name)} of {communicator.size}"
            raise CollectiveError(f"rank {rank}: {signature.name} with peer {peer} in {where}")
        sends = signature.name == "send"
        source, target = (at, peer) if sends else (peer, at)
        key = (communicator.id, source, target, position)
        match = self._matches.get(key)
        if match is None:
            ends = communicator.members[source], communicator.members[target]
            pattern = self._network.pair(ends[0].port, ends[1].port, signature.get("bytes"), communicator.wanted)
            ranks = ends[0].rank, ends[1].rank
            handle = self._begin(ranks, pattern)
            self.device_ns[pattern.source] += pattern.alone_ns * 2
            match = self._matches[key] = Match(key, communicator, signature, handle, 2, pattern, position)
            match.first = f"rank {rank}"
            text = f"transfer {position} from rank {ranks[0]} to rank {ranks[1]}"
            self._describe(match.handle, f"{text} in communicator {_short(communicator.name)}")
        else:
            self._compare(match, signature, position, rank, ("bytes",))
        self._arrive(match, 0 if sends else 1, Call(rank, seq, payload))
        return match.handle

    def _begin(self, ranks: tuple[int, ...], pattern: Pattern) -> int:
        handle = self._engine.reserve()
        self._engine.define_as(handle, ranks, pattern.latency_ns, pattern.number)
        return handle

    @staticmethod
    def _rank_in(communicator: Communicator, rank: int, port: Port) -> int:
        at = communicator.places.get((rank, port))
        if at is None:
            name = _short(communicator.name)
            raise CollectiveError(f"rank {rank} is not a member of communicator {name} on device {port.device}")
        return at

    @staticmethod
    def _compare(match: Match, signature: Signature, position: int, rank: int, keys: tuple[str, ...]) -> None:
        same_op = match.pair or match.signature.name == signature.name
        if same_op and all(match.signature.get(key) == signature.get(key) for key in keys):
            return
        where = f"communicator {_short(match.communicator.name)}, call {position}"
        both = f"{match.first} calls {_text(match.signature)}, rank {rank} calls {_text(signature)}"
        raise CollectiveError(f"{where}: {both}")

    def _arrive(self, match: Match, at: int, call: Call) -> None:
        if at in match.calls:
            where = f"communicator {_short(match.communicator.name)}"
            raise CollectiveError(f"{where}: rank {call.rank} makes the same call twice ({_text(match.signature)})")
        match.calls[at] = call
        if len(match.calls) == match.size:
            del self._matches[match.key]
            self._receivers.matched(_call_of(match))
            self._try_exchange(match)

    # ---- payloads -------------------------------------------------------------------------------------------------

    def payload(self, rank: int, seq: int, data: bytes) -> None:
        """The bytes that a member's call sends, which are empty if the member does not know them."""
        self._payloads[rank, seq] = data
        match = self._exchanges.pop((rank, seq), None)
        if match is not None:
            self._try_exchange(match)

    def _try_exchange(self, match: Match) -> None:
        op, root = match.signature.name, match.signature.get("root")
        if match.pair:
            op, root = "broadcast", 0  # the sender is call 0
        receive = [at for at in payloads.receivers(op, match.size, root) if match.calls[at].payload]
        if match.pair:
            receive = [at for at in receive if at == 1]
        send = [at for at in payloads.senders(op, match.size, root) if match.calls[at].payload]
        for at in send:
            call = match.calls[at]
            if (call.rank, call.seq) not in self._payloads:
                self._exchanges[call.rank, call.seq] = match
                for to in receive:
                    self._receivers.awaited(match.calls[to].rank, match.calls[to].seq, match.handle)
                return
        sent: list[payloads.Bytes] = [None] * match.size
        for at in send:
            sent[at] = self._payloads.pop((match.calls[at].rank, match.calls[at].seq)) or None
        if not receive:
            return
        length = match.signature.get("bytes") if match.pair else self._sent_bytes(match)
        scales = [match.calls[at].scale for at in range(match.size)]
        dtype, redop = match.signature.get("dtype"), match.signature.get("redop")
        results = payloads.exchange(op, sent, root, dtype, redop, length, scales)
        for at in receive:
            call = match.calls[at]
            self._receivers.deliver(call.rank, call.seq, results[at] or b"")

    @staticmethod
    def _sent_bytes(match: Match) -> int:
        s = match.signature
        return payloads.sent_bytes(s.name, s.get("count"), s.get("dtype"), match.size)

    # ---- who waits ------------------------------------------------------------------------------------------------

    def describe(self, handle: int) -> str:
        """What a handle of the engine stands for, in words."""
        return self._described.get(handle, f"collective {handle}")

    def waiting_for_members(self) -> list[str]:
        """Communicators that are not complete, and who is missing, in words."""
        return [
            f"communicator {_short(c.name)} lacks its ranks {', '.join(map(str, c.missing()))} of {c.size}"
            for c in self._communicators.values()
            if not c.complete
        ]

    def overdue(self, clock_ns: Callable[[int], int], limit_ns: int) -> str | None:
        """A collective that a member has skipped, and which member, in words; None if there is none.

        A member has skipped a call if its clock is more than ``limit_ns`` of virtual time past that of the callers.
        ``clock_ns`` gives the clock of a rank.
        """
        for match in self._matches.values():
            waiting = {call.rank for call in match.calls.values()}
            if match.since_ns is None:
                match.since_ns = max(map(clock_ns, waiting))
            missing = [r for r in self._takers(match) - waiting if clock_ns(r) - match.since_ns > limit_ns]
            if missing:
                names = ", ".join(map(str, sorted(missing)))
                return (
                    f"rank {names} is missing in {self.describe(match.handle)} ({_text(match.signature)}), which "
                    f"{match.first} reached {limit_ns / 1e9:g} s of virtual time ago"
                )
        return None

    def incomplete(self, ranks: set[int]) -> list[Blocked]:
        """Calls that these ranks have made and other members have not."""
        found = []
        for match in self._matches.values():
            made = {call.rank: call.seq for call in match.calls.values()}
            missing = tuple(sorted(self._takers(match) - made.keys()))
            if missing:
                found += [Blocked(rank, made[rank], match.handle, missing) for rank in sorted(ranks & made.keys())]
        return found

    @staticmethod
    def _takers(match: Match) -> set[int]:
        members = match.communicator.members
        return {members[at].rank for at in (match.key[1:3] if match.pair else range(match.communicator.size))}

    def _describe(self, handle: int, text: str) -> None:
        self._described[handle] = text
        if len(self._described) > HANDLES_KEPT:
            self._described.popitem(last=False)


def _call_of(match: Match) -> CollectiveCall:
    calls = [match.calls[at] for at in range(match.size)]
    return CollectiveCall(
        handle=match.handle,
        op="send" if match.pair else match.signature.name,
        bytes=match.signature.get("bytes"),
        communicator=match.communicator.name,
        position=match.position,
        ranks=tuple(call.rank for call in calls),
        seqs=tuple(call.seq for call in calls),
        pattern=match.pattern,
    )


def _scale(signature: Signature) -> float | None:
    """The factor of a scaled sum. The attribute holds the bits of a double; -1 stands for a factor that is not known,
    or for none."""
    bits = signature.get("scale", -1)
    return None if bits == -1 else float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:16]}...{name[-6:]}"


def _text(s: Signature) -> str:
    parts = [f"count {s.get('count')}", payloads.dtype_name(s.get("dtype"))]
    if s.name in ("broadcast", "reduce", "gather", "scatter"):
        parts.append(f"root {s.get('root')}")
    if s.name in ("all_reduce", "reduce", "reduce_scatter"):
        parts.append(f"operation {s.get('redop')}")
    return f"{s.name}({', '.join(parts)})"
