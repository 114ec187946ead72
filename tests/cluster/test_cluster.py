"""The parts of the cluster tool that need no cluster: settings, certificates, versions, images."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import tarfile
import threading
import time
from pathlib import Path

import pytest
import yaml

from e2e.cluster import binaries, certificates, components, images, inside, lifecycle
from e2e.cluster.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "cluster")


def test_components_start_in_the_order_of_their_needs(layout: Layout) -> None:
    parts = components.components(layout, lambda name: f"/programs/{name}")
    names = [part.name for part in parts]
    assert names.index("etcd") < names.index("apiserver") < names.index("scheduler")
    assert names.index("containerd") < names.index("kubelet")
    assert {part.command[0].removeprefix("/programs/") for part in parts} <= {*binaries.BUILT} | {
        packaged.name for packaged in binaries.PACKAGED
    }


def test_each_client_has_a_kubeconfig_and_nothing_is_named_that_is_not_made(layout: Layout) -> None:
    made = components.files(layout, cni_directory=Path("/usr/lib/cni"), cgroup="/pods")
    parts = components.components(layout, lambda name: name)
    named = {
        word.partition("=")[2] or word
        for part in parts
        for word in part.command
        if str(layout.etc) in word and not word.startswith(str(layout.etc / "pki"))
    }
    certified = {f"{name}.{kind}" for name, *_ in components.IDENTITIES for kind in ("crt", "key")}
    certified |= {"ca.crt", "ca.key", "sa.key", "sa.pub"}
    for path in map(Path, named):
        if path.parent.name == "pki":
            assert path.name in certified
        else:
            assert str(path.relative_to(layout.etc)) in made


def test_settings_are_what_their_readers_parse(layout: Layout) -> None:
    import tomllib

    made = components.files(layout, cni_directory=Path("/usr/lib/cni"), cgroup="/pods")
    containerd = tomllib.loads(made["containerd.toml"])
    assert containerd["plugins"]["io.containerd.grpc.v1.cri"]["restrict_oom_score_adj"] is True
    assert yaml.safe_load(made["kubelet.yaml"])["cgroupRoot"] == "/pods"
    assert yaml.safe_load(made["proxy.yaml"])["conntrack"]["maxPerCore"] == 0
    assert json.loads(made["cni/10-bridge.conflist"])["plugins"][0]["bridge"] == components.BRIDGE


def test_versions_are_those_of_the_go_modules() -> None:
    versions = {name: program.version for name, program in binaries.BUILT.items()}
    assert versions["kube-apiserver"] == versions["kubectl"]
    assert all(version.count(".") == 2 for name, version in versions.items() if name != "pause")
    assert "gitVersion=v" + versions["kubelet"] in binaries.BUILT["kubelet"].linker_flags


def test_what_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "SEARCHED", [])
    monkeypatch.setattr(binaries, "CNI_DIRECTORIES", (Path("/nowhere"),))
    with pytest.raises(binaries.MissingError) as caught:
        binaries.check()
    lines = str(caught.value).splitlines()
    assert "etcd is not on PATH (Debian: apt-get install etcd-server)" in lines
    assert any("containernetworking-plugins" in line for line in lines)


def test_certificates_hold_a_connection_both_ways(tmp_path: Path) -> None:
    authority = certificates.Authority(tmp_path)
    authority.issue("server", user="server", hosts=("127.0.0.1",))
    authority.issue("client", user="client", groups=("people",))
    assert (tmp_path / "client.key").stat().st_mode & 0o077 == 0
    ends = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))]
    for end, name in zip(ends, ("server", "client"), strict=True):
        end.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
    ends[0].load_verify_locations(tmp_path / "ca.crt")
    ends[0].verify_mode = ssl.CERT_REQUIRED
    left, right = socket.socketpair()
    peer: list[object] = []

    def serve() -> None:
        with ends[0].wrap_socket(left, server_side=True) as connection:
            peer.append(connection.getpeercert())
            connection.sendall(b"hello")

    server = threading.Thread(target=serve)
    server.start()
    with ends[1].wrap_socket(right, server_hostname="127.0.0.1") as connection:
        assert connection.recv(5) == b"hello"
    server.join(10)
    assert "people" in str(peer)


def test_an_image_archive_says_what_it_holds(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"a program")
    archive = tmp_path / "pause.tar"
    images.write_archive(archive, name="example.org/pause:1", program=program)
    with tarfile.open(archive) as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    for name, blob in content.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(blob).hexdigest() == name.rpartition("/")[2]
    [entry] = json.loads(content["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "example.org/pause:1"


def test_a_cluster_runs_as_long_as_its_lock_is_held(layout: Layout) -> None:
    layout.root.mkdir()
    assert not lifecycle.running(layout)
    with lifecycle._lock(layout) as lock:
        assert lock is not None
        assert lifecycle.running(layout)
    assert not lifecycle.running(layout)
    assert lifecycle.status(layout) == ["no cluster is running; `python -m e2e.cluster up` starts one"]


def test_down_without_a_cluster_clears_what_is_left_but_the_logs(layout: Layout) -> None:
    for directory in (layout.etc, layout.logs):
        directory.mkdir(parents=True)
    layout.running.write_text("{}")
    lifecycle.down(layout)
    assert [entry.name for entry in layout.root.iterdir()] == ["logs"]


def test_the_forwarder_connects_both_ends() -> None:
    target, listener = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=inside.forward, args=(listener, target.getsockname()), daemon=True).start()
    with socket.create_connection(listener.getsockname(), timeout=10) as client:
        server, _ = target.accept()
        with server, target:
            client.sendall(b"question")
            assert server.recv(8) == b"question"
            server.sendall(b"answer")
            assert client.recv(6) == b"answer"
        assert client.recv(1) == b""


def test_the_supervisor_starts_again_what_ends_and_buries_orphans(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "RESTART_AFTER_S", 0.0)
    layout.logs.mkdir(parents=True)
    supervisor = inside.Supervisor(layout)

    # In a process of its own: it waits for all children of the process that it is in.
    pid = os.fork()
    if pid == 0:
        part = components.Component("short", ("/bin/sh", "-c", "echo here"))
        threading.Thread(target=supervisor.start_all, args=((part,),), daemon=True).start()
        threading.Timer(20, os._exit, (1,)).start()
        threading.Thread(target=_end_when, args=(layout, 3), daemon=True).start()
        supervisor.reap()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert json.loads(layout.components.read_text())["short"]["starts"] >= 3


def _end_when(layout: Layout, starts: int) -> None:
    while not layout.components.exists() or json.loads(layout.components.read_text())["short"]["starts"] < starts:
        time.sleep(0.01)
    os._exit(0)
