"""The supervisor: the first process of the cluster's namespaces. It ends, and everything in there ends.

    python -m e2e.cluster.inside STATE_DIRECTORY LISTENING_DESCRIPTOR CGROUP...

`lifecycle` starts it with `unshare`. It gives the cluster mounts and a network of its own, starts the components in
order, starts again what ends, reaps what is orphaned, and forwards the connections of a socket that was opened outside,
before the namespaces, to the API server inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from . import binaries
from .components import API_PORT, BRIDGE, NODE_ADDRESS, Component, components
from .layout import Layout

READY_TIMEOUT_S = 180.0
RESTART_AFTER_S = 1.0
#: Written by containerd, kubelet and the network plugins whatever they are told: a file system of the cluster's own.
PRIVATE_DIRECTORIES = ("/run", "/var/lib/cni", "/var/log/containers", "/etc/cni")


def main() -> None:
    """Runs until SIGTERM, or until the namespaces are destroyed."""
    layout = Layout(Path(sys.argv[1]))
    listener = socket.socket(fileno=int(sys.argv[2]))
    listener.set_inheritable(False)
    for cgroup in sys.argv[3:]:
        Path(cgroup, "cgroup.procs").write_text("0")  # this process, and what it will start
    isolate_mounts()
    make_network()
    supervisor = Supervisor(layout)
    # As PID 1 it gets no signal for which it has no handler. Its end is the end of every process in here.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.Thread(target=forward, args=(listener, (NODE_ADDRESS, API_PORT)), daemon=True).start()
    threading.Thread(target=supervisor.start_all, args=(components(layout, binaries.program),), daemon=True).start()
    supervisor.reap()


def isolate_mounts() -> None:
    """Nothing that is mounted from here on is seen outside, and nothing is written below shared directories."""
    for directory in PRIVATE_DIRECTORIES:
        Path(directory).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", "mode=0755", "eidolon-e2e", directory)
    Path("/run/lock").mkdir()  # of iptables


def make_network() -> None:
    """A bridge, made before anything listens on its address, and the loopback interface."""
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    # Services are reached by a default route that leads nowhere: kube-proxy rewrites their addresses on the way.
    _run("ip", "route", "add", "default", "dev", BRIDGE)
    for name in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        with contextlib.suppress(FileNotFoundError):  # the second where the kernel has it built in differently
            Path("/proc/sys", name).write_text("1")


@dataclass
class Supervisor:
    """Keeps the components running and is the parent of all that is orphaned."""

    layout: Layout
    _running: dict[int, Component] = field(default_factory=dict)
    _starts: dict[str, int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def start_all(self, parts: tuple[Component, ...]) -> None:
        """Starts each component once what it needs is there."""
        for part in parts:
            if part.after is not None:
                wait_for(part.after, self.layout.etc / "pki")
            self.start(part)

    def start(self, part: Component) -> None:
        """Starts a component; its output is appended to its log."""
        with self._changed, (self.layout.logs / f"{part.name}.log").open("ab") as log:
            path = ":".join(binaries.SEARCHED)
            # Children keep no descriptor of ours, so the lock and the listening socket are never theirs.
            process = subprocess.Popen(
                part.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": path, "HOME": "/root", **part.environment},
                start_new_session=True,
            )
            process.returncode = 0  # `reap` waits for it, not this object
            self._running[process.pid] = part
            self._starts[part.name] = self._starts.get(part.name, 0) + 1
            self._write()
            self._changed.notify()

    def reap(self) -> None:
        """Waits for processes for ever: those of ours are started again, orphans are only buried."""
        while True:
            try:
                pid, _ = os.wait()
            except ChildProcessError:
                with self._changed:
                    self._changed.wait(timeout=1.0)
                continue
            with self._changed:
                part = self._running.pop(pid, None)
                self._write()
            if part is not None:
                timer = threading.Timer(RESTART_AFTER_S, self.start, (part,))
                timer.daemon = True
                timer.start()

    def _write(self) -> None:
        running = {part.name: pid for pid, part in self._running.items()}
        parts = {name: {"pid": running.get(name), "starts": starts} for name, starts in self._starts.items()}
        partial = self.layout.components.with_suffix(".part")
        partial.write_text(json.dumps(parts, indent=2))
        partial.replace(self.layout.components)


def wait_for(address: str, pki: Path, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Waits until an address takes connections or, with https, answers 200; after the limit, goes on all the same.

    Going on is right: what is started too early ends, is started again and says in its log what it lacks.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not _answers(address, pki):
        time.sleep(0.1)


def _answers(address: str, pki: Path) -> bool:
    url = urllib.parse.urlsplit(address)
    try:
        if url.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(url.path)
        elif url.scheme == "tcp":
            with socket.create_connection((url.hostname or "", url.port or 0), timeout=1):
                pass
        else:
            context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
            context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
            with urllib.request.urlopen(address, timeout=2, context=context):
                pass
    except OSError:
        return False
    return True


def forward(listener: socket.socket, target: tuple[str, int]) -> None:
    """Connects everyone who connects to the listener with the target, for ever."""
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_connect, args=(client, target), daemon=True).start()


def _connect(client: socket.socket, target: tuple[str, int]) -> None:
    # The target may not be up yet, or be restarting.
    with contextlib.suppress(OSError), client, socket.create_connection(target, timeout=5) as server:
        server.settimeout(None)
        answers = threading.Thread(target=_copy, args=(server, client), daemon=True)
        answers.start()
        _copy(client, server)
        answers.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _run(name: str, *arguments: str) -> None:
    subprocess.run([binaries.program(name), *arguments], check=True)


if __name__ == "__main__":
    main()
