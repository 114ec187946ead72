"""Exchanges of bytes: what a matched collective brings its members where payloads are small.

An exchange happens as soon as every sender's bytes have come, which may be before or after the call is matched. What
each member gets is computed in :mod:`.payloads`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from eidolon_simcore.fabric.network import Pattern
from eidolon_simcore.run import payloads
from eidolon_simcore.run.communicators import Communicator
from eidolon_simcore.signature import Signature

MOST_BYTES = 16 << 20  #: that one member of an exchange sends; shims move 1 MiB at most


@dataclass(slots=True)
class Call:
    """One member's call of a collective."""

    rank: int
    seq: int
    payload: bool  #: whether its bytes are moved
    scale: float | None = None  #: factor of its bytes in a scaled sum; None if it states none


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


class Exchanges:
    """The bytes of all collectives of a run.

    Args:
        deliver: is told the bytes that came: (rank, sequence number of its record, the bytes, which are empty if they
            are not known).
        awaited: is told of a matched call whose bytes have not come: (rank, sequence number of its record, the engine's
            handle of the collective).
    """

    def __init__(self, deliver: Callable[[int, int, bytes], None], awaited: Callable[[int, int, int], None]) -> None:
        self._deliver = deliver
        self._awaited = awaited
        self._payloads: dict[tuple[int, int], bytes] = {}  # by rank and sequence number
        self._waiting: dict[tuple[int, int], Match] = {}  # by the sender's rank and sequence number

    def payload(self, rank: int, seq: int, data: bytes) -> None:
        """The bytes that a member's call sends, which are empty if the member does not know them."""
        self._payloads[rank, seq] = data
        match = self._waiting.pop((rank, seq), None)
        if match is not None:
            self.matched(match)

    def matched(self, match: Match) -> None:
        """Every member has made its call. Exchanges the bytes, or waits for the first sender that has none yet."""
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
                self._waiting[call.rank, call.seq] = match
                for to in receive:
                    self._awaited(match.calls[to].rank, match.calls[to].seq, match.handle)
                return
        sent: list[payloads.Bytes] = [None] * match.size
        for at in send:
            sent[at] = self._payloads.pop((match.calls[at].rank, match.calls[at].seq)) or None
        if not receive:
            return
        length = match.signature.get("bytes") if match.pair else self._sent_bytes(match)
        if not 0 <= length <= MOST_BYTES:
            raise ValueError(f"{match.first} moves {length} bytes in {op}; allowed: 0 to {MOST_BYTES}")
        scales = [match.calls[at].scale for at in range(match.size)]
        dtype, redop = match.signature.get("dtype"), match.signature.get("redop")
        results = payloads.exchange(op, sent, root, dtype, redop, length, scales)
        for at in receive:
            call = match.calls[at]
            self._deliver(call.rank, call.seq, results[at] or b"")

    @staticmethod
    def _sent_bytes(match: Match) -> int:
        s = match.signature
        return payloads.sent_bytes(s.name, s.get("count"), s.get("dtype"), match.size)
