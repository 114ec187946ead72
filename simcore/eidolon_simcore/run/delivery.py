"""What goes back to one rank: answers to its calls, and the bytes that collectives bring it.

An answer may wait for bytes. When a thread learns that a collective has ended, it may read what the collective brought,
so an answer that could depend on such bytes is held until they are on their way.

An agent may die with what it was sent. So payloads are kept until the rank's inbox has them, and each thread's last
answer is kept for good; :meth:`Delivery.resume` sends both again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from eidolon_simcore.engine.interface import Answer
from eidolon_simcore.run.event_records import DEPENDENT


class Line(Protocol):
    """The way back to one rank."""

    def reply(self, seq: int, thread: int, clock_ns: int, value: int) -> None:
        """Answers the record ``seq`` of a thread."""

    def payload(self, number: int, seq: int, data: bytes) -> None:
        """Sends the bytes that the collective of record ``seq`` brings; ``number`` counts payloads from 1."""


class Delivery:
    """Answers and payloads of one rank.

    Args:
        line: where they are sent.
        end_of: when a collective of the engine ends, by its handle; None while that is not known.
    """

    def __init__(self, line: Line, end_of: Callable[[int], int | None]) -> None:
        self._line = line
        self._end_of = end_of
        self._waiting: dict[int, tuple[int, int]] = {}  # seq -> thread, kind of record
        self._foreground: set[int] = set()  # the records among them that a foreground thread waits for
        self._awaited: dict[int, int] = {}  # collectives whose bytes have not come: seq -> the engine's handle
        self._held: list[tuple[Answer, int, int]] = []  # answer, thread, kind of record
        self._last: dict[int, tuple[int, int, int]] = {}  # thread -> seq, clock, value of its last answer
        self._payloads = 0  # how many there have been
        self._undelivered: deque[tuple[int, int, bytes]] = deque()  # number, seq, bytes: maybe not in its inbox yet

    # ---- answers --------------------------------------------------------------------------------------------------

    def expect(self, seq: int, thread: int, kind: int, foreground: bool) -> None:
        """A thread waits for the answer to its record ``seq``, which is of this kind."""
        self._waiting[seq] = thread, kind
        if foreground:
            self._foreground.add(seq)

    @property
    def waits(self) -> bool:
        """A foreground thread has not been answered."""
        return bool(self._foreground)

    @property
    def held(self) -> bool:
        """An answer is held until bytes have come that it may depend on."""
        return bool(self._held)

    def foreground(self, seq: int) -> bool:
        """A foreground thread waits for the answer to this record."""
        return seq in self._foreground

    def answer(self, answer: Answer) -> None:
        """Sends an answer, unless bytes that it may depend on have not come yet."""
        thread, kind = self._waiting.pop(answer.seq, (-1, 0))
        if thread >= 0:
            self._send_or_hold(answer, thread, kind)

    def _send_or_hold(self, answer: Answer, thread: int, kind: int) -> None:
        if kind in DEPENDENT and self._depends(answer):
            self._held.append((answer, thread, kind))
            return
        self._foreground.discard(answer.seq)
        self._last[thread] = (answer.seq, answer.clock_ns, answer.value)
        self._line.reply(answer.seq, thread, answer.clock_ns, answer.value)

    def _depends(self, answer: Answer) -> bool:
        ends = (self._end_of(handle) for handle in self._awaited.values())
        return any(end is not None and end <= answer.clock_ns for end in ends)

    # ---- payloads -------------------------------------------------------------------------------------------------

    def awaited(self, seq: int, handle: int) -> None:
        """The collective of record ``seq`` is matched, but the bytes that it brings are not known yet."""
        self._awaited.setdefault(seq, handle)

    def payload(self, seq: int, data: bytes) -> None:
        """Sends the bytes that a collective brings, and then the answers that were held for them."""
        self._payloads += 1
        self._undelivered.append((self._payloads, seq, data))
        self._line.payload(self._payloads, seq, data)
        if self._awaited.pop(seq, None) is not None:
            held, self._held = self._held, []
            for answer, thread, kind in held:
                self._send_or_hold(answer, thread, kind)

    def delivered(self, number: int) -> None:
        """The rank's inbox holds the payloads up to this number."""
        while self._undelivered and self._undelivered[0][0] <= number:
            self._undelivered.popleft()

    def resume(self, delivered: int) -> None:
        """The agent has come back: sends what it may not have. Answers come last, since they may depend on bytes."""
        self.delivered(delivered)
        for number, seq, data in self._undelivered:
            self._line.payload(number, seq, data)
        for thread, (seq, clock_ns, value) in self._last.items():
            self._line.reply(seq, thread, clock_ns, value)
