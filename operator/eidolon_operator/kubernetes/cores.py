"""Asks simulation cores for their status: the third watch, beside those of objects and of pods.

The API server reports changes by itself, but a core has to be asked. :class:`CoreWatch` asks each core that a reconcile
has named in a task of its own, and puts the object into the queue when the answer differs from the last. So a run in
which nothing changes costs the API server nothing, and a core that does not answer delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from eidolon_operator.kubernetes.naming import HTTP_PORT
from eidolon_operator.kubernetes.world import CoreReading, Key, PodState

#: Interval between two questions to a core.
POLL_S: Final = 5.0
TIMEOUT_S: Final = 3.0
#: Number of answers in a row that must be missing before it counts. On a busy node one may be late.
PATIENCE: Final = 3

#: Fields of a core's status that decisions use. The rest, such as its virtual time, changes all the time.
_WORDS: Final = ("state", "reason", "message", "attempt", "servers", "step", "peak_bytes", "cost_share", "notes")
_OVER: Final = ("Succeeded", "Failed")


class Cores:
    """Reads ``/status`` of simulation cores."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def read(self, address: str) -> CoreReading:
        """What the core at an address says. Never raises, since a missing answer is a reading too."""
        if self._session is None:
            # There is no limit on connections, or a hundred cores that do not answer would hold up the others.
            connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=TIMEOUT_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{HTTP_PORT}/status"
        try:
            async with self._session.get(url) as response:
                document = await response.json(content_type=None)
                if response.status != 200 or not isinstance(document, dict) or "state" not in document:
                    return CoreReading(error=f"{url} answers {response.status}")
                return CoreReading({word: document[word] for word in _WORDS if word in document})
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return CoreReading(error=f"{url}: {str(error) or type(error).__name__}")

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()


@dataclass(slots=True)
class _Followed:
    """A core that is being asked, or was."""

    uid: str  #: of its pod
    reading: CoreReading | None = None
    asking: asyncio.Task[None] | None = None


class CoreWatch:
    """Follows the cores of runs.

    ``read`` asks the core at an address. ``changed`` is called with objects whose core says something new.
    """

    def __init__(
        self,
        read: Callable[[str], Awaitable[CoreReading]],
        changed: Callable[[Key], None],
        *,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self._read = read
        self._changed = changed
        self._sleep = sleep
        self._followed: dict[Key, _Followed] = {}

    def follow(self, key: Key, pod: PodState | None) -> CoreReading | None:
        """What the core in this pod said last, if anything.

        From now on the core is asked for as long as its pod is ready. None ends that.
        """
        found = self._followed.get(key)
        if pod is None or (found is not None and found.uid != pod.uid):
            self._end(key)
            found = None
        if pod is None:
            return None
        if found is None:
            found = self._followed[key] = _Followed(pod.uid)
        if pod.ready and pod.address:
            if found.asking is None:
                found.asking = asyncio.create_task(self._ask(key, found, pod.address), name=f"core of {key}")
        elif found.asking is not None:
            found.asking.cancel()
            found.asking = None
        return found.reading

    def _end(self, key: Key) -> None:
        found = self._followed.pop(key, None)
        if found is not None and found.asking is not None:
            found.asking.cancel()

    async def _ask(self, key: Key, followed: _Followed, address: str) -> None:
        """Asks until cancelled, or until the core has said how the run ended."""
        missing = 0
        while True:
            reading = await self._read(address)
            missing = missing + 1 if reading.document is None else 0
            if missing in (0, PATIENCE) and reading != followed.reading:
                followed.reading = reading
                self._changed(key)
            if reading.document is not None and reading.document["state"] in _OVER:
                return
            await self._sleep(POLL_S)

    async def close(self) -> None:
        """Ends all questions."""
        tasks = [found.asking for found in self._followed.values() if found.asking is not None]
        for key in list(self._followed):
            self._end(key)
        await asyncio.gather(*tasks, return_exceptions=True)
