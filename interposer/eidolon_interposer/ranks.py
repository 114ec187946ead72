"""The ranks of one emulated server, as its agent sees them: rings that appear, are read, and end.

Two threads use a :class:`RankTable`. The *sender* finds rings, takes batches and lets ranks go; it alone adds and
removes. The *receiver* hands over what the core answers. A rank's lock keeps its ring mapped while either writes.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eidolon_interposer.ring import RingError, RingReader, end_only
from eidolon_interposer.serverdir import ServerDirectory
from eidolon_interposer.vocabulary import ReplyStatus
from eidolon_proto.v1 import simulation_pb2 as pb

OUTBOX_LIMIT_BYTES = 256 << 20  #: payloads that may wait for room in one rank's inbox


@dataclass(slots=True)
class Rank:
    """One rank and what waits to be written to it.

    Answers and payloads keep the core's order: the shim counts on a payload being there before the answer to anything
    that depends on it. While its inbox is full they wait in ``outbox``; a shim that waits for an answer empties it.
    """

    name: str  #: of the ring file
    ring: RingReader
    session: int
    outbox: deque[pb.Reply | tuple[int, bytes, int]] = field(default_factory=deque)
    outbox_bytes: int = 0
    died_ns: int = 0  #: when it was first seen to be dead without having closed its ring
    leaving: bool = False  #: its leaving is on the way to the core
    lock: threading.Lock = field(default_factory=threading.Lock)
    open: bool = True

    def answer(self, replies: Iterable[pb.Reply]) -> None:
        """Wakes the threads that wait, once all payloads before the answers are in the inbox."""
        with self.lock:
            self.outbox.extend(replies)
            self._flush()

    def deliver(self, seq: int, data: bytes, number: int) -> None:
        """Queues a payload for record ``seq``. Raises :class:`RingError` if more than the outbox's limit wait."""
        with self.lock:
            if not self.outbox and self.open and self.ring.deliver(seq, data, number):
                return
            self.outbox.append((seq, data, number))
            self.outbox_bytes += len(data)
            self._flush()
            if self.outbox_bytes > OUTBOX_LIMIT_BYTES:
                raise RingError(f"{self.outbox_bytes} bytes of payloads wait for a rank that does not read its inbox")

    def flush(self) -> None:
        """Writes what waits, as far as the inbox has room."""
        with self.lock:
            self._flush()

    def _flush(self) -> None:
        while self.outbox and self.open:
            first = self.outbox[0]
            if isinstance(first, pb.Reply):
                self.ring.reply(first.thread, first.seq, first.clock_ns, first.value, ReplyStatus.OK)
            elif self.ring.deliver(*first):
                self.outbox_bytes -= len(first[1])
            else:
                waiting = next((item for item in self.outbox if isinstance(item, pb.Reply)), None)
                if waiting is not None:
                    self.ring.nudge(waiting.thread)
                return
            self.outbox.popleft()

    def publish_clock(self, clock_ns: int) -> None:
        """As :meth:`RingReader.publish_clock`, if the ring is open."""
        with self.lock:
            if self.open:
                self.ring.publish_clock(clock_ns)

    def overdue(self, seq: int, waited_ns: int) -> None:
        """As :meth:`RingReader.overdue`, if the ring is open."""
        with self.lock:
            if self.open:
                self.ring.overdue(seq, waited_ns)

    def taken(self, messages: int) -> None:
        """As :meth:`RingReader.taken`, if the ring is open."""
        with self.lock:
            if self.open:
                self.ring.taken(messages)

    def end(self, status: ReplyStatus, reason: str) -> None:
        """As :meth:`RingReader.end`, if the ring is open."""
        with self.lock:
            if self.open:
                self.ring.end(status, reason)

    def close(self) -> None:
        """Unmaps the ring; what comes later for this rank is dropped."""
        with self.lock:
            self.open = False
            self.ring.close()


class RankTable:
    """All ranks that have a ring now."""

    def __init__(self, directory: ServerDirectory) -> None:
        self._directory = directory
        self._known: set[str] = set()  # ring files that were looked at, good or bad
        self.by_session: dict[int, Rank] = {}
        self._end: tuple[ReplyStatus, str] | None = None

    def __iter__(self) -> Iterator[Rank]:
        return iter(list(self.by_session.values()))

    def __len__(self) -> int:
        return len(self.by_session)

    def discover(self) -> Iterator[Rank | str]:
        """New ranks; for a ring that cannot be read, one line that says why. Its process is ended."""
        names = set(self._directory.rings())
        self._known &= names
        for name in sorted(names - self._known):
            self._known.add(name)
            path = self._directory.ranks / name
            try:
                ring = RingReader(path)
            except RingError as error:
                end_unreadable(path, f"the agent cannot read this rank's ring: {error}")
                yield f"{name}: {error}"
                continue
            # A ring that a former agent knew keeps its session, if what it says can be true.
            session = ring.session
            if not 0 < session <= self._directory.last_session() or session in self.by_session:
                session = ring.session = self._directory.next_session()
            rank = Rank(name, ring, session)
            self.by_session[session] = rank
            if self._end is not None:
                rank.end(*self._end)
            yield rank

    def let_go(self, rank: Rank, *, died: bool, keep_file: bool = False) -> None:
        """Forgets a rank and removes its ring, after all it held was sent."""
        del self.by_session[rank.session]
        if died:
            self._directory.page.take_back(rank.ring.used_bytes())
        rank.close()
        if not keep_file:
            self._directory.remove_ring(rank.name)

    def end(self, status: ReplyStatus, reason: str) -> None:
        """Ends every rank, those that are still to come included."""
        if self._end is None:
            self._end = (status, reason)
        for rank in self:
            rank.end(status, reason)


def end_unreadable(path: Path, reason: str) -> None:
    """Ends the process behind a ring of which only the header's place is certain; does nothing if not even that is."""
    with contextlib.suppress(RingError):
        end_only(path, reason)
