"""The directory that an emulated server's processes share: ``EIDOLON_DIR``.

::

    server.conf          what the shims need to know, "key=value" lines (agent)
    server.page          bell, heartbeat and memory accounts: ``ServerPage`` of abi.h (agent; shims write too)
    gauges.page          what NVML shows of each device: ``GaugesPage`` of gauges_page.h (agent)
    session              number of the last session that was given out (agent)
    ranks/<pid>-<n>.ring one ring per rank (its shim), made under another name and renamed when complete
    ranks/<pid>.status   how a rank's process ended, "status time" (its parent, by shim or launcher)
    go                   every server is there: a launcher that waits may start the workload (agent)
    stop                 "code reason": the run is over; the launcher ends what still runs (agent)
    image                what the launcher found in the image it runs in, "key=value" lines
    exit                 "code reason": how the workload ended (launcher)

In Kubernetes it is a memory volume shared by containers that may run under different users, hence the wide modes of
what both sides write; the volume itself belongs to one pod.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from eidolon_interposer import futex
from eidolon_interposer._ring import Ring, wait_for_news
from eidolon_interposer.abi import DEVICE_GAUGES, SERVER_MAGIC, SERVER_PAGE, offset_of, word_of
from eidolon_interposer.mapping import SharedMapping
from eidolon_interposer.vocabulary import ABI_VERSION, MAX_DEVICES
from eidolon_proto.v1 import simulation_pb2 as pb

POLL_NS = 5_000_000  #: how often rings are looked at for records that nobody rings for ...
HURRIED_POLL_NS = 1_000_000  #: ... and where a thread waits for an answer, which another rank's records may decide
_BELL, _LISTENING = word_of(SERVER_PAGE, "bell"), word_of(SERVER_PAGE, "listening")
_HEARTBEAT, _USED = word_of(SERVER_PAGE, "heartbeat_ns"), offset_of(SERVER_PAGE, "used_bytes") // 8


def write_server_conf(directory: Path, conf: Mapping[str, str], server: int) -> None:
    """Writes ``server.conf`` for emulated server number ``server``, all at once."""
    lines = []
    for key, value in {**conf, "server": str(server)}.items():
        if not key or "=" in key or "\n" in key or "\n" in value or key != key.strip():
            raise ValueError(f"server.conf cannot hold {key!r}={value!r}")
        lines.append(f"{key}={value}\n")
    _replace(directory / "server.conf", "".join(lines).encode(), 0o644)


def _replace(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.chmod(mode)
    temporary.replace(path)


def tell_launcher(directory: Path, reason: str, *, failed: bool) -> None:
    """Has the launcher end the workload, with 0 unless the run has failed. The first reason stands."""
    if not (directory / "stop").exists():
        text = f"{int(failed)} {' '.join(reason.split())}\n"
        _replace(directory / "stop", text.encode("utf-8", errors="replace"), 0o644)


def write_exit(directory: Path, code: int, reason: str) -> None:
    """States how the workload ended, for a launcher that was killed before it could. What it wrote stands."""
    if not (directory / "exit").exists():
        text = f"{code} {' '.join(reason.split())}\n"
        _replace(directory / "exit", text.encode("utf-8", errors="replace"), 0o644)


class ServerPage:
    """The page of ``server.page``. It outlives an agent, so that a restarted one finds the shims still mapping it."""

    def __init__(self, path: Path) -> None:
        self._mapping = SharedMapping(path)
        if self._mapping.size != SERVER_PAGE.itemsize:
            raise ValueError(f"{path} has {self._mapping.size} bytes, not {SERVER_PAGE.itemsize}")
        header = self._mapping.array(SERVER_PAGE, 1, 0)[0]
        if header["magic"] != SERVER_MAGIC:
            raise ValueError(f"{path} is no server page: its magic is {bytes(header['magic'])!r}, not {SERVER_MAGIC!r}")
        if header["abi_version"] != ABI_VERSION:
            theirs = header["abi_version"]
            raise ValueError(f"{path} is of ABI version {theirs}, this agent's is {ABI_VERSION}: use one release")

    @staticmethod
    def create(path: Path) -> None:
        """Makes an empty page unless there is one."""
        if path.exists():
            return
        page = bytearray(SERVER_PAGE.itemsize)
        page[: len(SERVER_MAGIC)] = SERVER_MAGIC
        at = offset_of(SERVER_PAGE, "abi_version")
        page[at : at + 4] = ABI_VERSION.to_bytes(4, "little")
        _replace(path, bytes(page), 0o666)

    @property
    def bell(self) -> int:
        """How often shims have rung, modulo 2^32."""
        return self._mapping.u32[_BELL]

    def wait_for_news(self, rings: Sequence[Ring], seen: int, limit_ns: int) -> int:
        """Listens and sleeps, for ``limit_ns`` at most, until the bell is another than ``seen`` or it is time to look
        at the rings and one has news. Nobody rings for news unless somebody waits, so they gather until then: each
        message costs far more than a record in it. Returns the bell."""
        poll_ns = HURRIED_POLL_NS if any(ring.awaits_answer() for ring in rings) else POLL_NS
        return wait_for_news(self._mapping.address(0), rings, seen, poll_ns, limit_ns)

    def ring(self) -> None:
        """Rings the bell as a shim does (which does it atomically)."""
        self._mapping.u32[_BELL] = (self._mapping.u32[_BELL] + 1) & 0xFFFF_FFFF
        if self._mapping.u32[_LISTENING]:
            futex.wake(self._mapping.address(_BELL * 4))

    def beat(self) -> None:
        """The agent's sign of life."""
        self._mapping.u64[_HEARTBEAT] = time.monotonic_ns()

    @property
    def heartbeat_ns(self) -> int:
        """When the agent last gave a sign of life, by CLOCK_MONOTONIC."""
        return self._mapping.u64[_HEARTBEAT]

    def used_bytes(self, device: int) -> int:
        """Memory in use on a device, by all processes of the server."""
        if not 0 <= device < MAX_DEVICES:
            raise ValueError(f"device {device} of {MAX_DEVICES}")
        return self._mapping.i64[_USED + device]

    def damage(self) -> str:
        """As :meth:`SharedMapping.damage`."""
        return self._mapping.damage()

    def take_back(self, used_bytes: Sequence[int]) -> None:
        """Returns the memory of a process that died with it, per device.

        Shims add atomically; this is a read and a write. An allocation by another process in the instant between the
        two would be lost.
        """
        for device, taken in enumerate(used_bytes[:MAX_DEVICES]):
            used = self._mapping.i64[_USED + device]
            if 0 < taken <= used:
                self._mapping.i64[_USED + device] = used - taken

    def close(self) -> None:
        """Unmaps the page."""
        self._mapping.close()


class GaugesPage:
    """What NVML shows of each device. Shims and nvidia-smi only read it."""

    def __init__(self, path: Path) -> None:
        size = DEVICE_GAUGES.itemsize * MAX_DEVICES
        if not path.exists() or path.stat().st_size != size:
            _replace(path, bytes(size), 0o644)
        self._mapping = SharedMapping(path)

    def show(self, gauges: pb.Gauges) -> None:
        """Writes what the core says of a device. The time up to which the energy counts comes first, and readers take
        it last: what a reader finds in between is too little energy, never too much."""
        if gauges.device < MAX_DEVICES:
            first = gauges.device * DEVICE_GAUGES.itemsize // 8
            for number, name in enumerate(DEVICE_GAUGES.names or ()):
                self._mapping.i64[first + number] = getattr(gauges, name)

    def close(self) -> None:
        """Unmaps the page."""
        self._mapping.close()


class ServerDirectory:
    """One ``EIDOLON_DIR``. Made by the agent before any rank starts; an existing one is taken over as it is."""

    def __init__(self, path: Path, conf: Mapping[str, str], server: int) -> None:
        self.path = path
        self.ranks = path / "ranks"
        path.mkdir(parents=True, exist_ok=True)
        self.ranks.mkdir(exist_ok=True)
        self.ranks.chmod(0o1777)
        ServerPage.create(path / "server.page")
        self.page = ServerPage(path / "server.page")
        self.gauges = GaugesPage(path / "gauges.page")
        write_server_conf(path, conf, server)
        self._seen_ns = 0

    def changed(self) -> bool:
        """True if rings came or went since :meth:`rings` looked, as far as the file system's clock can tell."""
        return self.ranks.stat().st_mtime_ns != self._seen_ns

    def rings(self) -> list[str]:
        """Names of the complete rings."""
        self._seen_ns = self.ranks.stat().st_mtime_ns
        return [name for name in os.listdir(self.ranks) if name.endswith(".ring")]  # noqa: PTH208

    def end_of(self, ring: str) -> tuple[int, int] | None:
        """How and when the process of the ring of this name ended: its wait status, and nanoseconds of CLOCK_MONOTONIC.
        None if nobody has told it."""
        try:
            line = self._status_file(ring).read_text()
            status, at_ns = map(int, line.split())
        except (OSError, ValueError):
            return None
        return (status, at_ns) if line.endswith("\n") else None  # else it is still being written

    def remove_ring(self, name: str) -> None:
        """Removes a ring that nobody uses any more, and what was told of its process."""
        for path in (self.ranks / name, self._status_file(name)):
            path.unlink(missing_ok=True)

    def _status_file(self, ring: str) -> Path:
        return self.ranks / f"{ring.partition('-')[0]}.status"

    def last_session(self) -> int:
        """The last session number that was given out."""
        path = self.path / "session"
        return int(path.read_text()) if path.exists() else 0

    def next_session(self) -> int:
        """A session number that was never given out on this server, not even before a restart of the agent."""
        number = self.last_session() + 1
        _replace(self.path / "session", str(number).encode(), 0o644)
        return number

    def open_gate(self) -> None:
        """Lets a launcher that waits start the workload."""
        _replace(self.path / "go", b"\n", 0o644)

    def tell_launcher(self, reason: str, *, failed: bool) -> None:
        """As the function of this name does it."""
        tell_launcher(self.path, reason, failed=failed)

    def exit_state(self) -> tuple[int, str] | None:
        """Exit code and reason of the workload, once its launcher wrote them."""
        try:
            line = (self.path / "exit").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        if not line.endswith("\n"):  # still being written
            return None
        code, _, reason = line.strip().partition(" ")
        try:
            return int(code), reason
        except ValueError:
            return 1, f"unreadable exit state {line.strip()!r}"

    def remove(self) -> None:
        """Removes what this class and the others named above put there; anything else stays, with its directory."""
        self.page.close()
        self.gauges.close()
        remove_server_directory(self.path)


def remove_server_directory(path: Path) -> None:
    """Removes an ``EIDOLON_DIR`` that nobody uses any more."""
    for pattern in ("ranks/*.ring", "ranks/*.ring.tmp", "ranks/*.status"):
        for ring in path.glob(pattern):
            ring.unlink(missing_ok=True)
    for name in ("server.conf", "server.page", "gauges.page", "session", "go", "stop", "image", "exit"):
        (path / name).unlink(missing_ok=True)
        (path / f"{name}.tmp").unlink(missing_ok=True)
    for directory in (path / "ranks", path):
        with contextlib.suppress(OSError):  # gone, or not empty
            directory.rmdir()
