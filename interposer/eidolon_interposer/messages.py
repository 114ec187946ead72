"""Rings of variable-length messages: the definitions (shim to agent) and the inbox (agent to shim).

A message is an 8-byte head (``MessageHead``) and a body, padded to 8 bytes. It never wraps: where it does not fit
before the end of the ring, a pad message fills the rest. Positions are free-running counters; what lies between the
consumer's and the producer's is valid. The other side's counter and every length are checked before use, and bodies
are copied before they are looked at, since the other side could still write to them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from eidolon_interposer.abi import MESSAGE_HEAD, aligned
from eidolon_interposer.mapping import SharedMapping
from eidolon_interposer.vocabulary import MessageType

HEAD_BYTES = MESSAGE_HEAD.itemsize
_head = struct.Struct("<IHH")


class RingError(Exception):
    """Something in shared memory is not as ``abi.h`` says; the text tells what."""


class MessageRing:
    """One ring of messages; ``head_word`` and ``tail_word`` index the mapping's 64-bit words."""

    def __init__(
        self, mapping: SharedMapping, name: str, offset: int, capacity: int, head_word: int, tail_word: int
    ) -> None:
        self._words = mapping.u64
        self._data = mapping.data
        self._name = name
        self._offset = offset
        self.capacity = capacity
        self._head_word = head_word
        self._tail_word = tail_word

    def counters(self) -> tuple[int, int]:
        """Head and tail as they lie in the header, checked against each other."""
        head, tail = self._words[self._head_word], self._words[self._tail_word]
        self._check(head, tail)
        return head, tail

    def _check(self, head: int, tail: int) -> None:
        if not 0 <= head - tail <= self.capacity or head & 7 or tail & 7:
            raise RingError(f"{self._name}: head {head} and tail {tail} do not fit a capacity of {self.capacity} bytes")


class MessageConsumer(MessageRing):
    """The reading end. ``tail`` is its own count; the one in the header is for the producer (and for a restart).

    Reading is apart from freeing: :meth:`pass_by` moves ``tail`` only, :meth:`free` tells the producer too.
    """

    def __init__(
        self, mapping: SharedMapping, name: str, offset: int, capacity: int, head_word: int, tail_word: int
    ) -> None:
        super().__init__(mapping, name, offset, capacity, head_word, tail_word)
        self.tail = self.counters()[1]

    @property
    def head(self) -> int:
        """Bytes that the producer has written so far. Raises :class:`RingError` if that does not fit the capacity."""
        head = self._words[self._head_word]
        self._check(head, self.tail)
        return head

    def messages(self, head: int) -> Iterator[tuple[int, bytes, int]]:
        """(type, body, position behind it) of the messages from the tail to ``head``, pads included; frees nothing."""
        position = self.tail
        while position < head:
            at = position % self.capacity
            begin = self._offset + at
            size, kind, _ = _head.unpack_from(self._data, begin)
            room = self.capacity - at
            if kind == MessageType.PAD:
                position += room
                if position > head:
                    raise RingError(f"{self._name}: a pad at {position - room} reaches beyond the head {head}")
                yield kind, b"", position
                continue
            total = aligned(HEAD_BYTES + size)
            if total > room or position + total > head:
                raise RingError(
                    f"{self._name}: a message of {size} bytes at {position} reaches beyond "
                    + ("the ring" if total > room else f"the head {head}")
                )
            position += total
            yield kind, bytes(self._data[begin + HEAD_BYTES : begin + HEAD_BYTES + size]), position

    def pass_by(self, position: int) -> None:
        """What lies before ``position`` has been read."""
        self.tail = position

    def free(self, position: int) -> None:
        """Gives the room before ``position``, which was passed by, back to the producer. From any thread."""
        self._words[self._tail_word] = position


class MessageProducer(MessageRing):
    """The writing end. ``head`` is its own count; the one in the header is for the consumer (and for a restart)."""

    def __init__(
        self, mapping: SharedMapping, name: str, offset: int, capacity: int, head_word: int, tail_word: int
    ) -> None:
        super().__init__(mapping, name, offset, capacity, head_word, tail_word)
        self.head = self.counters()[0]

    def offer(self, kind: MessageType, *parts: bytes) -> bool:
        """Writes and publishes a message of these parts; False while there is no room for it."""
        size = sum(map(len, parts))
        total = aligned(HEAD_BYTES + size)
        if total > self.capacity:
            raise RingError(f"{self._name}: a message of {size} bytes does not fit {self.capacity} bytes")
        tail = self._words[self._tail_word]
        self._check(self.head, tail)
        free = self.capacity - (self.head - tail)
        room = self.capacity - self.head % self.capacity
        if total > room:
            # The pad is published at once: a message may need the room that the pad's consumption makes.
            if room > free:
                return False
            self._write(MessageType.PAD, room - HEAD_BYTES, ())
            self._publish(room)
            free -= room
        if total > free:
            return False
        self._write(kind, size, parts)
        self._publish(total)
        return True

    def _write(self, kind: MessageType, size: int, parts: tuple[bytes, ...]) -> None:
        at = self._offset + self.head % self.capacity
        _head.pack_into(self._data, at, size, kind, 0)
        at += HEAD_BYTES
        for part in parts:
            self._data[at : at + len(part)] = part
            at += len(part)

    def _publish(self, total: int) -> None:
        self.head += total
        self._words[self._head_word] = self.head
