"""The work queue: which objects to look at, and when.

:class:`Schedule` is the whole logic and has no clock of its own. A key is in it at most once, and adding it again can
only make it due earlier. A key that is added while it is being worked on is due again afterwards. A key that fails
comes back, with a longer delay each time. :class:`Workers` runs it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from eidolon_operator.kubernetes.world import ApiError, Key

_log = logging.getLogger(__name__)

BACKOFF_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
#: Least time between two reconciles of a key, so that a thousand pods that become ready are not a thousand reconciles.
SPACING_S: Final = 0.5


class Schedule:
    """Keys and the times at which they are due."""

    def __init__(self, *, spacing_s: float = SPACING_S) -> None:
        self._spacing_s = spacing_s
        self._due: dict[Key, float] = {}  # waiting keys
        self._heap: list[tuple[float, int, Key]] = []  # entries that no longer agree with _due are skipped
        self._count = itertools.count()
        self._again: dict[Key, float] = {}  # keys added while they are being worked on
        self._started: dict[Key, float] = {}  # keys being worked on, and since when
        self._ended: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}

    def add(self, key: Key, due: float) -> None:
        """Makes a key due at a time, or earlier if it already is."""
        if key in self._started:
            self._again[key] = min(due, self._again.get(key, due))
            return
        due = max(due, self._ended.get(key, due - self._spacing_s) + self._spacing_s)
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._count), key))

    def next_due(self) -> float | None:
        """When the next key is due."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> Key | None:
        """A key that is due, now being worked on; None if there is none."""
        due = self.next_due()
        if due is None or due > now:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._due[key]
        self._started[key] = now
        return key

    def succeeded(self, key: Key, now: float, again: float | None) -> None:
        """Ends the work on a key. It is due again at ``again``, if that is given."""
        self._failures.pop(key, None)
        self._end(key, now, again)

    def failed(self, key: Key, now: float) -> float:
        """Ends work on a key that failed. Returns in how many seconds it is due again."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = BACKOFF_S[min(count, len(BACKOFF_S) - 1)]
        self._again.pop(key, None)  # a new event does not shorten the delay
        self._end(key, now, now + delay)
        return delay

    def oldest(self, now: float) -> float:
        """The longest time, in seconds, that a key has been worked on or overdue."""
        due = self.next_due()
        waiting = [now - due] if due is not None else []
        return max([0.0, *waiting, *(now - since for since in self._started.values())])

    def __len__(self) -> int:
        return len(self._due) + len(self._started)

    def _end(self, key: Key, now: float, again: float | None) -> None:
        del self._started[key]
        self._ended[key] = now
        if len(self._ended) > 2 * len(self._due) + 1024:  # forget objects that are long gone
            self._ended = {other: end for other, end in self._ended.items() if end > now - self._spacing_s}
        asked = self._again.pop(key, None)
        times = [time for time in (again, asked) if time is not None]
        if times:
            self.add(key, min(times))


class Workers:
    """Works on the keys that are due, a few at a time. ``work`` returns in how many seconds to look again, or None."""

    def __init__(
        self, work: Callable[[Key], Awaitable[float | None]], *, most: int = 8, schedule: Schedule | None = None
    ) -> None:
        self._work = work
        self._most = most
        self.schedule = schedule or Schedule()
        self._wake = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Makes a key due after so many seconds, or earlier if it already is. Only within the event loop."""
        self.schedule.add(key, asyncio.get_running_loop().time() + after_s)
        self._wake.set()

    async def run(self) -> None:
        """Works until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._wake.clear()
                while len(self._running) < self._most and (key := self.schedule.take(loop.time())) is not None:
                    task = asyncio.create_task(self._one(key), name=f"reconcile {key}")
                    self._running.add(task)
                    task.add_done_callback(self._done)
                due = self.schedule.next_due() if len(self._running) < self._most else None
                timeout = None if due is None else max(0.0, due - loop.time())
                try:
                    await asyncio.wait_for(self._wake.wait(), timeout)
                except TimeoutError:
                    continue
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _one(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        try:
            again_s = await self._work(key)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # of whatever kind: trouble with one object must not stop the others
            delay = self.schedule.failed(key, loop.time())
            told, known = str(error) or type(error).__name__, isinstance(error, ApiError)
            _log.warning("%s: %s; again in %g s", key, told, delay, exc_info=not known)
        else:
            now = loop.time()
            self.schedule.succeeded(key, now, None if again_s is None else now + again_s)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wake.set()
