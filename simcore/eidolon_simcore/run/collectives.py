"""The matching of calls: what several ranks call becomes one collective of the engine.

Calls of a communicator (:mod:`.communicators`) are matched by position: the nth call of every member is the same
collective. Sends and receives are matched by the position in their pair and direction. Where calls do not fit, NCCL
would hang or corrupt memory; here the run ends with a :class:`~.communicators.CollectiveError` that names both sides.

:mod:`.fabric.network` says what a matched call puts on the wire. Where payloads are small, the call is also an exchange
of bytes (:mod:`.exchanges`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

from eidolon_simcore.engine.interface import Blocked, Engine
from eidolon_simcore.fabric.network import Network, Pattern
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.ledger.sinks import CollectiveCall
from eidolon_simcore.run import payloads
from eidolon_simcore.run.calls import Call, Form, Match
from eidolon_simcore.run.communicators import CollectiveError, Communicator, Communicators, Descriptions
from eidolon_simcore.run.exchanges import Exchanges
from eidolon_simcore.run.folding import Folding
from eidolon_simcore.signature import Signature

ROOTED = ("broadcast", "reduce", "gather", "scatter")  #: collectives in which one member has a part of its own


class Collectives:
    """All collectives of a run.

    Args:
        matched: is told of each call once every member has made it.
        folding: of a folded run.
    """

    def __init__(
        self,
        engine: Engine,
        network: Network,
        exchanges: Exchanges,
        matched: Callable[[CollectiveCall], None] = lambda _: None,
        folding: Folding | None = None,
    ) -> None:
        self._engine = engine
        self._network = network
        self._matched = matched
        self._descriptions = Descriptions()
        self._matches: dict[tuple[int, ...], Match] = {}  # calls that some member has not made
        self.communicators = Communicators(engine, network, self._descriptions, folding)
        self.exchanges = exchanges

    # ---- calls ----------------------------------------------------------------------------------------------------

    def form(self, rank: int, port: Port, signature: Signature) -> Form:
        """What all calls of a signature by a rank on a device have in common."""
        communicator = self.communicators.get(signature.get("comm"))
        if communicator is None or not communicator.complete:
            raise CollectiveError(
                f"rank {rank} calls {signature.name} on a communicator that "
                + ("does not exist" if communicator is None else "is not complete")
            )
        at = communicator.rank_in(rank, port)
        if signature.name in ("send", "recv"):
            return self._pair(communicator, at, rank, signature)
        return Form(
            signature,
            communicator,
            at,
            key=(communicator.id,),
            ranks=communicator.ranks(),
            agreed=(signature.name, *signature.values("count", "dtype", "root", "redop", "shots")),
            pattern=self._pattern(communicator, signature),
            scale=_scale(signature),
        )

    def call(self, form: Form, rank: int, seq: int, position: int, payload: bool) -> int:
        """One member's call; returns the engine's handle."""
        key = (*form.key, position)
        match = self._matches.get(key)
        if match is None:
            pattern = form.pattern
            handle = self._engine.reserve()
            self._engine.define_as(handle, form.ranks, pattern.latency_ns, pattern.number)
            match = self._matches[key] = Match(form, handle, position, rank)
            self._descriptions.add(handle, partial(form.text, position))
        elif match.form.agreed != form.agreed:
            raise _contradiction(match, form, rank)
        calls = match.calls
        if form.at in calls:
            text = f"rank {rank} makes the same call twice ({_text(form.signature)})"
            raise CollectiveError(f"{form.communicator.title}: {text}")
        calls[form.at] = Call(rank, seq, payload, form.scale)
        match.payload |= payload
        if len(calls) == len(form.ranks):
            del self._matches[key]
            self._matched(_call_of(match))
            self.exchanges.matched(match)
        return match.handle

    def pattern(self, rank: int, port: Port, signature: Signature) -> Pattern | None:
        """What a call puts on the wire, and its time alone; None for one that :meth:`call` will refuse."""
        communicator = self.communicators.get(signature.get("comm"))
        if communicator is None or communicator.team is None or (rank, port) not in communicator.places:
            return None
        if signature.name not in ("send", "recv"):
            return self._pattern(communicator, signature)
        if signature.get("peer") not in communicator.members:
            return None
        at = communicator.places[rank, port]
        places = (at, signature.get("peer")) if signature.name == "send" else (signature.get("peer"), at)
        source, target = (communicator.members[place].port for place in places)
        beside = communicator.pairs(*places)
        return self._network.pair(source, target, signature.get("bytes"), communicator.wanted, beside)

    def _pattern(self, communicator: Communicator, signature: Signature) -> Pattern:
        assert communicator.team is not None
        if signature.name in ROOTED and not 0 <= signature.get("root") < communicator.size:
            where = f"{communicator.title} of {communicator.size}"
            raise CollectiveError(f"{signature.name} with root {signature.get('root')} in {where}")
        return self._network.collective(
            signature.name,
            signature.get("bytes"),
            communicator.team,
            signature.get("root"),
            in_switch=payloads.wider_than_a_byte(signature.get("dtype")),
            shots=signature.get("shots"),
        )

    def _pair(self, communicator: Communicator, at: int, rank: int, signature: Signature) -> Form:
        peer = signature.get("peer")
        if not 0 <= peer < communicator.size:
            where = f"{communicator.title} of {communicator.size}"
            raise CollectiveError(f"rank {rank}: {signature.name} with peer {peer} in {where}")
        sends = signature.name == "send"
        source, target = (at, peer) if sends else (peer, at)
        if peer in communicator.phantoms:
            other = communicator.members[peer].rank
            raise CollectiveError(
                f"rank {rank} {'sends to' if sends else 'receives from'} rank {other}, which is no process of this "
                "folded run; name the axis of this group in spec.fold.parallel as one that is not folded, such as pp"
            )
        ends = communicator.members[source], communicator.members[target]
        beside = communicator.pairs(source, target)
        return Form(
            signature,
            communicator,
            0 if sends else 1,
            key=(communicator.id, source, target),
            ranks=(ends[0].rank, ends[1].rank),
            agreed=("pair", signature.get("bytes")),
            pattern=self._network.pair(ends[0].port, ends[1].port, signature.get("bytes"), communicator.wanted, beside),
            scale=None,
        )

    # ---- who waits ------------------------------------------------------------------------------------------------

    def describe(self, handle: int) -> str:
        """What a handle of the engine stands for, in words."""
        return self._descriptions.of(handle)

    def waiting_for_members(self) -> list[str]:
        """Communicators that are not complete, and who is missing, in words."""
        return [
            f"{c.title} lacks its ranks {', '.join(map(str, c.missing()))} of {c.size}"
            for c in self.communicators.incomplete()
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
            missing = [r for r in set(match.form.ranks) - waiting if clock_ns(r) - match.since_ns > limit_ns]
            if missing:
                names = ", ".join(map(str, sorted(missing)))
                return (
                    f"rank {names} is missing in {self.describe(match.handle)} ({_text(match.form.signature)}), which "
                    f"rank {match.first} reached {limit_ns / 1e9:g} s of virtual time ago"
                )
        return None

    def incomplete(self, ranks: set[int]) -> list[Blocked]:
        """Calls that these ranks have made and other members have not."""
        found = []
        for match in self._matches.values():
            made = {call.rank: call.seq for call in match.calls.values()}
            missing = tuple(sorted(set(match.form.ranks) - made.keys()))
            if missing:
                found += [Blocked(rank, made[rank], match.handle, missing) for rank in sorted(ranks & made.keys())]
        return found


def _contradiction(match: Match, form: Form, rank: int) -> CollectiveError:
    where = f"{form.communicator.title}, call {match.position}"
    both = f"rank {match.first} calls {_text(match.form.signature)}, rank {rank} calls {_text(form.signature)}"
    return CollectiveError(f"{where}: {both}")


def _call_of(match: Match) -> CollectiveCall:
    form, calls = match.form, match.calls
    return CollectiveCall(
        handle=match.handle,
        op="send" if form.pair else form.signature.name,
        bytes=form.signature.get("bytes"),
        communicator=form.communicator.name,
        position=match.position,
        ranks=form.ranks,
        seqs=tuple([calls[at].seq for at in sorted(calls)]),
        pattern=form.pattern,
    )


def _scale(signature: Signature) -> float | None:
    """The factor of a scaled sum. The attribute holds the bits of a double; -1 stands for a factor that is not known,
    or for none."""
    bits = signature.get("scale", -1)
    return None if bits == -1 else float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _text(s: Signature) -> str:
    parts = [f"count {s.get('count')}", payloads.dtype_name(s.get("dtype"))]
    if s.name in ROOTED:
        parts.append(f"root {s.get('root')}")
    if s.name in ("all_reduce", "reduce", "reduce_scatter"):
        parts.append(f"operation {s.get('redop')}")
    return f"{s.name}({', '.join(parts)})"
