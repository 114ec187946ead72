"""Exchanges of bytes: what a matched collective brings its members where payloads are small.

An exchange happens as soon as every sender's bytes have come, which may be before or after the call is matched. What
each member gets is computed in :mod:`.payloads`.
"""

from __future__ import annotations

from collections.abc import Callable

from eidolon_simcore.run import payloads
from eidolon_simcore.run.calls import Match

MOST_BYTES = 16 << 20  #: that one member of an exchange sends; shims move 1 MiB at most


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
        if not match.payload:
            return
        calls, signature, communicator = match.calls, match.form.signature, match.form.communicator
        pair = match.form.pair
        size = 2 if pair else communicator.size
        op, root = ("broadcast", 0) if pair else (signature.name, signature.get("root"))  # the sender is call 0
        moving = {at for at, call in calls.items() if call.payload}
        receive = [at for at in payloads.receivers(op, size, root) if at in moving and (at == 1 or not pair)]
        send = [at for at in payloads.senders(op, size, root) if at in moving]
        for at in send:
            call = calls[at]
            if (call.rank, call.seq) not in self._payloads:
                self._waiting[call.rank, call.seq] = match
                for to in receive:
                    self._awaited(calls[to].rank, calls[to].seq, match.handle)
                return
        sent: list[payloads.Bytes] = [None] * size
        for at in send:
            sent[at] = self._payloads.pop((calls[at].rank, calls[at].seq)) or None
        if not receive:
            return
        results: list[payloads.Bytes] = [None] * size
        length = signature.get("bytes") if pair else self._sent_bytes(match)
        if not 0 <= length <= MOST_BYTES:
            raise ValueError(f"rank {match.first} moves {length} bytes in {op}; allowed: 0 to {MOST_BYTES}")
        stand_ins = communicator.stand_ins if not pair else ()
        own = [sent[at] for at in stand_ins] if stand_ins else sent
        if payloads.any_known(op, own, root):
            scales = [calls[at].scale if at in calls else None for at in range(size)]
            dtype, redop = signature.values("dtype", "redop")
            results = payloads.exchange(op, sent, root, dtype, redop, length, scales, stand_ins)
        for at in receive:
            call = calls[at]
            self._deliver(call.rank, call.seq, results[at] or b"")

    @staticmethod
    def _sent_bytes(match: Match) -> int:
        s = match.form.signature
        return payloads.sent_bytes(s.name, s.get("count"), s.get("dtype"), match.form.communicator.size)
