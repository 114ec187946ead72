"""Images of users are run as they are: what they set in their environment comes after ours, and stays."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from e2e.cluster import lifecycle
from e2e.cluster.layout import REPOSITORY
from e2e.kubernetes.conftest import Cluster, Namespace, simulated_cluster

OURS = "eidolon.test/with-its-own-environment:1"
#: A library that Debian's libc6 brings, and two folders that need not be there.
ENVIRONMENT = {
    "LD_PRELOAD": "/lib/x86_64-linux-gnu/libutil.so.1",
    "LD_LIBRARY_PATH": "/opt/theirs/lib",
    "PYTHONPATH": "/opt/theirs/python",
}
SCRIPT = """
import ctypes, json, os, sys
must = lambda code: code and sys.exit(f"CUDA error {code}")
memory = ctypes.c_void_p()
must(ctypes.CDLL("libcudart.so.13").cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(1 << 20)))
values = json.dumps({name: os.environ[name].split(":") for name in sys.argv[1:]})
loaded = "theirs is loaded" if "libutil.so.1" in open("/proc/self/maps").read() else "theirs is not loaded"
os.write(1, f"{values}\\n{loaded}\\n".encode())  # at once: the ranks of a server share its log
"""


def derived(archive: Path, out: Path, *, name: str, environment: Mapping[str, str]) -> None:
    """Writes an archive of the same image, as `docker save` does, under another name and with an ENV more."""
    with tarfile.open(archive) as source, tarfile.open(out, "w") as target:

        def read(member: str) -> bytes:
            file = source.extractfile(member)
            assert file is not None
            return file.read()

        def add(member: str, content: bytes) -> None:
            info = tarfile.TarInfo(member)
            info.size = len(content)
            target.addfile(info, io.BytesIO(content))

        [entry] = json.loads(read("manifest.json"))
        config = json.loads(read(entry["Config"]))
        config["config"]["Env"] = [
            *(config["config"].get("Env") or ()),
            *(f"{key}={value}" for key, value in environment.items()),
        ]
        text = json.dumps(config).encode()
        config_name = f"{hashlib.sha256(text).hexdigest()}.json"
        for layer in dict.fromkeys(entry["Layers"]):
            add(layer, read(layer))
        add(config_name, text)
        add("manifest.json", json.dumps([{**entry, "Config": config_name, "RepoTags": [name]}]).encode())


@pytest.fixture(scope="module")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The example's image with an environment of its own, on the node."""
    assert cluster.layout is not None
    archive = tmp_path_factory.mktemp("images") / "own.tar"
    derived(REPOSITORY / "build" / "images" / "eidolon-example.tar", archive, name=OURS, environment=ENVIRONMENT)
    lifecycle.load(cluster.layout, archive)
    return OURS


@pytest.mark.own_node
def test_an_image_that_sets_what_we_set(namespace: Namespace, image: str) -> None:
    workload = {"image": image, "command": ["python3", "-c", SCRIPT, *ENVIRONMENT]}
    namespace.apply(simulated_cluster("theirs", servers=1, workload=workload))
    namespace.wait_for_phase("theirs", "Succeeded", timeout_s=120)
    values, loaded = namespace.finished_log("theirs-server-0").splitlines()[-2:]
    found = json.loads(values)
    assert found["LD_PRELOAD"] == ["/eidolon/lib/libeidolon.so", ENVIRONMENT["LD_PRELOAD"]]
    assert found["LD_LIBRARY_PATH"] == ["/eidolon/lib", ENVIRONMENT["LD_LIBRARY_PATH"]]
    assert found["PYTHONPATH"] == ["/eidolon/hook", ENVIRONMENT["PYTHONPATH"]]
    assert loaded == "theirs is loaded"


@pytest.mark.skipif(
    not (REPOSITORY / "build" / "native12").is_dir(),
    reason="the images hold the shim for CUDA 12 after `make native-cuda12`",
)
def test_an_image_with_cuda_12(namespace: Namespace) -> None:
    """Which libraries a workload gets is decided by the CUDA runtime that it brings: here a file of that name."""
    folder = "/opt/site/nvidia/cuda_runtime/lib"
    runtime = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "runtime"},
        "data": {"libcudart.so.12": ""},
    }
    namespace.apply(runtime)
    workload = {
        "command": ["python3", "-c", SCRIPT.replace("libcudart.so.13", "libcudart.so.12"), "LD_LIBRARY_PATH"],
        "env": [{"name": "PYTHONPATH", "value": "/opt/site"}],
        "volumes": [{"name": "runtime", "configMap": {"name": "runtime"}}],
        "volumeMounts": [{"name": "runtime", "mountPath": folder}],
        "workingDir": "/",
    }
    namespace.apply(simulated_cluster("twelve", servers=1, workload=workload))
    namespace.wait_for_phase("twelve", "Succeeded", timeout_s=120)
    assert '"/eidolon/lib12"' in namespace.finished_log("twelve-server-0")


def test_a_plain_command_is_started_once_a_rank(namespace: Namespace) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
    workload = {"launcher": "plain", "command": ["python3", "-c", SCRIPT, *names], "ranksPerServer": 2}
    namespace.apply(simulated_cluster("plain", workload=workload, gpusPerServer=2))
    namespace.wait_for_phase("plain", "Succeeded", timeout_s=120)
    logs = [namespace.finished_log(f"plain-server-{number}") for number in range(2)]
    lines = [line for log in logs for line in log.splitlines() if line.startswith("{")]
    found = sorted((json.loads(line) for line in lines), key=lambda values: int(values["RANK"][0]))
    assert [tuple(values[name][0] for name in names) for values in found] == [
        (str(rank), str(rank % 2), "4", "plain-server-0.plain") for rank in range(4)
    ]
