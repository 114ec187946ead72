"""Brings the cluster up and down, says how it is, and reaches inside."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from . import binaries, certificates, components, images
from .layout import REPOSITORY, Layout

#: What a cluster itself needs, of all that can be built.
NEEDED = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
    "pause",
    "coredns",
)
UP_TIMEOUT_S = 240.0
DOWN_TIMEOUT_S = 60.0
CGROUPS = Path("/sys/fs/cgroup")
#: The cgroup of the components, below the cluster's.
COMPONENTS = "components"
#: As many processes outside the cluster get, together, as much time as it does.
CPU_WEIGHT = 16
#: What one process weighs, with cgroup v1 and v2.
_WEIGHTS = (("cpu.shares", 1024), ("cpu.weight", 100))


class ClusterError(Exception):
    """The cluster did not do what it should; the message says where to look."""


def up(layout: Layout) -> None:
    """Brings the cluster up unless it is; returns once the node is ready.

    Raises:
        binaries.MissingError: something is not on this machine.
        ClusterError: it was not ready in time.
    """
    binaries.check()
    binaries.build(NEEDED)
    layout.root.mkdir(parents=True, exist_ok=True)
    with _lock(layout) as lock:
        if lock is not None:
            _start(layout, lock)
    _wait(layout, "the API server", lambda: kubectl(layout, "get", "--raw=/readyz").returncode == 0)
    manifest = "---\n".join(map(yaml.safe_dump, components.objects()))
    if kubectl(layout, "apply", "-f", "-", stdin=manifest).returncode != 0:
        raise ClusterError(f"the first objects cannot be made: see {layout.logs / 'apiserver.log'}")
    _load_pause_image(layout)
    _wait(layout, f"node {components.NODE}", lambda: _node_ready(layout))


def down(layout: Layout) -> None:
    """Ends the cluster and removes all of it but its logs. Nothing happens if there is none.

    Raises:
        ClusterError: something of it outlived the limit.
    """
    started = read(layout)
    if running(layout):
        for child in _children(started["pid"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)  # the supervisor; its namespaces go with it
        deadline = time.monotonic() + DOWN_TIMEOUT_S
        while running(layout):
            if time.monotonic() > deadline:
                raise ClusterError(f"the cluster (pid {started['pid']}) did not end within {DOWN_TIMEOUT_S:.0f} s")
            time.sleep(0.1)
    if "cgroup" in started:
        _remove_cgroups(started["cgroup"])
    _clear(layout, keep={layout.logs})


def status(layout: Layout) -> list[str]:
    """A few lines for a person: what runs, since when, and what is not well."""
    if not running(layout):
        return ["no cluster is running; `python -m e2e.cluster up` starts one"]
    lines = [f"{layout.root}: running, KUBECONFIG={layout.kubeconfig}"]
    parts = json.loads(layout.components.read_text()) if layout.components.exists() else {}
    for name, part in parts.items():
        state = f"pid {part['pid']}" if part["pid"] else "not running"
        again = f", started {part['starts']} times: see {layout.logs / name}.log" if part["starts"] > 1 else ""
        lines.append(f"  {name:<20}{state}{again}")
    lines.append(f"  {components.NODE:<20}{'ready' if _node_ready(layout) else 'not ready'}")
    return lines


def running(layout: Layout) -> bool:
    """Whether a cluster runs with this state directory. The answer is a lock, so no stale file can make it wrong."""
    if not layout.lock.exists():
        return False
    with _lock(layout) as lock:
        return lock is None


def kubectl(layout: Layout, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs kubectl against the cluster."""
    command = [binaries.program("kubectl"), f"--kubeconfig={layout.kubeconfig}", "--request-timeout=20s", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def inside(layout: Layout, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in the namespaces of the cluster.

    Raises:
        ClusterError: there is no cluster.
    """
    if not running(layout):
        raise ClusterError("no cluster is running; `python -m e2e.cluster up` starts one")
    [supervisor] = _children(read(layout)["pid"])
    return [binaries.program("nsenter"), f"--target={supervisor}", "--mount", "--net", "--pid", *command]


def load(layout: Layout, archive: Path) -> None:
    """Makes the images of an archive (OCI layout or `docker save`) known to the node.

    Raises:
        ClusterError: it cannot be read.
    """
    arguments = ["--namespace=k8s.io", f"--address={components.CONTAINERD_SOCKET}", "images", "import"]
    command = inside(layout, [binaries.program("ctr"), *arguments, str(archive.absolute())])
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise ClusterError(f"{archive} cannot be loaded: {done.stderr.strip()}")


def read(layout: Layout) -> dict[str, Any]:
    """What `up` wrote: pid, port, cgroup; nothing if it never ran."""
    if not layout.running.exists():
        return {}
    content: dict[str, Any] = json.loads(layout.running.read_text())
    return content


def _start(layout: Layout, lock: IO[str]) -> None:
    """Starts the supervisor in namespaces of its own. It inherits the lock and holds it for life."""
    _clear(layout, keep=set())
    # Bound out here: whoever connects to it is forwarded by the supervisor, who is in there.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    cgroup = f"eidolon-e2e-{hashlib.sha256(str(layout.root).encode()).hexdigest()[:8]}"
    homes = [str(home) for home in _make_cgroups(cgroup)]
    for directory in (layout.etc / "cni", layout.var, layout.logs):
        directory.mkdir(parents=True)
    authority = certificates.Authority(layout.etc / "pki")
    for name, user, groups, hosts in components.IDENTITIES:
        authority.issue(name, user=user, groups=groups, hosts=hosts)
    certificates.write_service_account_keys(authority.directory)
    for name, content in components.files(layout, cni_directory=binaries.cni_directory(), cgroup=f"/{cgroup}").items():
        (layout.etc / name).write_text(content)
    layout.kubeconfig.touch(mode=0o600)
    layout.kubeconfig.write_text(components.kubeconfig(layout, "admin", f"https://127.0.0.1:{port}"))
    descriptors = (listener.fileno(), lock.fileno())
    supervisor = [sys.executable, "-m", "e2e.cluster.inside", str(layout.root), str(listener.fileno()), *homes]
    namespaces = ["--fork", "--kill-child", "--pid", "--net", "--mount", "--mount-proc"]
    with (layout.logs / "supervisor.log").open("wb") as log:
        process = subprocess.Popen(
            [binaries.program("unshare"), *namespaces, *supervisor],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=REPOSITORY,
            pass_fds=descriptors,
            start_new_session=True,
        )
    listener.close()
    process.returncode = 0  # it stays when we go
    layout.running.write_text(json.dumps({"pid": process.pid, "port": port, "cgroup": cgroup}))


@contextlib.contextmanager
def _lock(layout: Layout) -> Iterator[IO[str] | None]:
    """The lock, or None if someone has it. Who starts a process with its descriptor hands it on."""
    with layout.lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file


def _wait(layout: Layout, what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UP_TIMEOUT_S
    while not condition():
        if not running(layout):
            raise ClusterError(f"the supervisor ended: see {layout.logs / 'supervisor.log'}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} was not ready within {UP_TIMEOUT_S:.0f} s: see {layout.logs}")
        time.sleep(0.5)


def _node_ready(layout: Layout) -> bool:
    template = '-o=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    return kubectl(layout, "get", "node", components.NODE, template).stdout == "True"


def _load_pause_image(layout: Layout) -> None:
    archive = layout.var / "pause.tar"
    if not archive.exists():
        images.write_archive(archive, name=components.PAUSE_IMAGE, program=Path(binaries.program("pause")))
        load(layout, archive)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _clear(layout: Layout, keep: set[Path]) -> None:
    for entry in layout.root.iterdir() if layout.root.exists() else ():
        if entry in keep or entry == layout.lock:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _hierarchies() -> list[Path]:
    """One with cgroup v2, one a controller with v1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [entry for entry in CGROUPS.iterdir() if entry.is_dir() and not entry.is_symlink()]


def _make_cgroups(name: str) -> list[Path]:
    """Makes the cgroup under which the kubelet puts those of the pods. Returns one beside them, for the components.

    To the scheduler a cgroup is one competitor, however many pods are in it, and each process outside is another: on a
    machine that does something else besides, a cluster of usual weight would get next to nothing.
    """
    for hierarchy in _hierarchies():
        directory = hierarchy / name
        (directory / COMPONENTS).mkdir(parents=True, exist_ok=True)
        _set_weight(directory, CPU_WEIGHT)
        _set_weight(directory / COMPONENTS, 2)  # that of the pods is the node's number of cores
        for setting in ("cpuset.cpus", "cpuset.mems"):  # with v1, they start empty, and no process can be added
            file = directory / setting
            if file.exists() and not (hierarchy / "cgroup.controllers").exists():
                file.write_text((hierarchy / setting).read_text())
    return [home for hierarchy in _hierarchies() if _weighs(home := hierarchy / name / COMPONENTS)]


def _weighs(cgroup: Path) -> bool:
    return any((cgroup / setting).exists() for setting, _ in _WEIGHTS)


def _set_weight(cgroup: Path, processes: int) -> None:
    """Has a cgroup weigh as much as so many processes, where there is a hierarchy that shares out processor time."""
    for setting, one in _WEIGHTS:
        if (cgroup / setting).exists():
            (cgroup / setting).write_text(str(processes * one))


def _remove_cgroups(name: str) -> None:
    deadline = time.monotonic() + 10.0
    for hierarchy in _hierarchies():
        # The innermost first: only a cgroup without children can be removed, nor one whose processes are still ending.
        for directory, _, _ in os.walk(hierarchy / name, topdown=False):
            while True:
                try:
                    Path(directory).rmdir()
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise ClusterError(f"{directory} cannot be removed: {error}") from error
                    time.sleep(0.05)
