"""Where the programs of the cluster come from: Go modules, built once, and Debian's packages.

Each folder of `go/` is a module of its own, since their dependencies clash. Its go.mod fixes the version, its go.sum
what the sources are; a program is cached under its name and version, so a newer go.mod brings a new program and an
unchanged one costs nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .layout import cache

MODULES = Path(__file__).parent / "go"
SEARCHED = [*os.environ.get("PATH", "").split(":"), "/usr/local/sbin", "/usr/sbin", "/sbin"]


class MissingError(Exception):
    """Something that the cluster needs is not on this machine; the message says what to do."""


@dataclass(frozen=True)
class Built:
    """A program that is built from a Go module."""

    name: str
    module: str  # folder of go/
    package: str
    versioned_by: str = ""  # the module whose version in go.mod is the program's; without: it is ours

    @property
    def version(self) -> str:
        """As go.mod has it, without the v."""
        if not self.versioned_by:
            return "1"
        text = (MODULES / self.module / "go.mod").read_text()
        found = re.search(rf"^\s*(?:require )?{re.escape(self.versioned_by)} v(\S+)", text, re.MULTILINE)
        if found is None:
            raise MissingError(f"{MODULES / self.module / 'go.mod'} names no version of {self.versioned_by}")
        return found[1]

    @property
    def path(self) -> Path:
        """Where the built program is kept."""
        return cache() / "bin" / f"{self.name}-{self.version}"

    @property
    def linker_flags(self) -> str:
        """Kubernetes' programs tell their version only if they are told at link time."""
        if self.module != "kubernetes":
            return "-s -w"
        major, minor, *_ = self.version.split(".")
        version = "k8s.io/component-base/version"
        settings = {"gitVersion": f"v{self.version}", "gitMajor": major, "gitMinor": minor}
        return " ".join(["-s -w", *(f"-X {version}.{name}={value}" for name, value in settings.items())])


@dataclass(frozen=True)
class Packaged:
    """A program of a Debian package."""

    name: str
    package: str


def _kubernetes(name: str) -> Built:
    return Built(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes")


#: In the order in which they are built. What a cluster needs comes first.
BUILT = {
    program.name: program
    for program in (
        *map(_kubernetes, ("kube-apiserver", "kube-controller-manager", "kube-scheduler")),
        *map(_kubernetes, ("kubelet", "kube-proxy", "kubectl")),
        Built("pause", "pause", "."),
        Built("coredns", "coredns", ".", "github.com/coredns/coredns"),
        Built("helm", "helm", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4"),
        Built("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok"),
    )
}

PACKAGED = (
    Packaged("etcd", "etcd-server"),
    Packaged("containerd", "containerd"),
    Packaged("ctr", "containerd"),
    Packaged("runc", "runc"),
    Packaged("iptables", "iptables"),
    Packaged("conntrack", "conntrack"),
    Packaged("ip", "iproute2"),
    Packaged("unshare", "util-linux"),
    Packaged("nsenter", "util-linux"),
)

#: Where Debian and most others put the plugins of the container network interface.
CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")


def program(name: str) -> str:
    """The path of a program, built or packaged.

    Raises:
        MissingError: it is not there.
    """
    built = BUILT.get(name)
    if built is not None:
        if not built.path.exists():
            raise MissingError(f"{built.path} is not built: run `python -m e2e.cluster build`")
        return str(built.path)
    found = shutil.which(name, path=":".join(SEARCHED))
    if found is None:
        package = next((packaged.package for packaged in PACKAGED if packaged.name == name), name)
        raise MissingError(f"{name} is not on PATH (Debian: apt-get install {package})")
    return found


def cni_directory() -> Path:
    """The folder that holds all the network plugins.

    Raises:
        MissingError: there is none.
    """
    for directory in CNI_DIRECTORIES:
        if all((directory / plugin).exists() for plugin in CNI_PLUGINS):
            return directory
    raise MissingError(
        f"no CNI plugins ({', '.join(CNI_PLUGINS)}) in {' or '.join(map(str, CNI_DIRECTORIES))} "
        "(Debian: apt-get install containernetworking-plugins)"
    )


def check() -> None:
    """Looks for everything that is not built here.

    Raises:
        MissingError: with one line for each thing that is not there.
    """
    missing = []
    for packaged in PACKAGED:
        try:
            program(packaged.name)
        except MissingError as error:
            missing.append(str(error))
    try:
        cni_directory()
    except MissingError as error:
        missing.append(str(error))
    if os.geteuid() != 0:
        missing.append("root is needed: the cluster makes namespaces, bridges and mounts")
    if missing:
        raise MissingError("\n".join(missing))


def build(names: Iterable[str] = BUILT) -> None:
    """Builds those of the programs that are not in the cache. Two builds beside each other wait for each other.

    Raises:
        MissingError: there is no Go, or the build failed.
    """
    wanted = [BUILT[name] for name in names]
    if all(program.path.exists() for program in wanted):
        return
    go = shutil.which("go", path=":".join([*SEARCHED, "/usr/local/go/bin"]))
    if go is None:
        raise MissingError("go is not on PATH: it builds Kubernetes from its modules (Go 1.26 or later)")
    directory = cache() / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for program in wanted:
            if not program.path.exists():
                _build(go, program)


def _build(go: str, program: Built) -> None:
    print(f"building {program.name} {program.version} …", flush=True)
    started = time.monotonic()
    partial = program.path.with_suffix(".part")
    command = [go, "build", "-trimpath", "-ldflags", program.linker_flags, "-o", str(partial), program.package]
    done = subprocess.run(command, cwd=MODULES / program.module, env={**os.environ, "CGO_ENABLED": "0"}, check=False)
    if done.returncode:
        raise MissingError(f"building {program.name} failed with exit code {done.returncode}: {' '.join(command)}")
    partial.replace(program.path)
    print(f"built {program.name} {program.version} in {time.monotonic() - started:.0f} s", flush=True)


def module_directory(name: str) -> Path:
    """Where Go keeps the sources of a built program's module; brings them if need be."""
    built = BUILT[name]
    go = shutil.which("go", path=":".join([*SEARCHED, "/usr/local/go/bin"])) or "go"
    command = [go, "list", "-m", "-f", "{{.Dir}}", built.versioned_by]
    subprocess.run([go, "mod", "download", built.versioned_by], cwd=MODULES / built.module, check=True)
    done = subprocess.run(command, cwd=MODULES / built.module, check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())
