"""The emulated nvidia-smi, compiled here from its one source, against a directory as the agent makes it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from eidolon_interposer.abi import SERVER_PAGE, offset_of
from eidolon_interposer.mapping import SharedMapping
from eidolon_interposer.serverdir import ServerPage, write_server_conf

NATIVE = Path(__file__).parents[2] / "interposer" / "native"
Smi = Callable[..., subprocess.CompletedProcess[str]]
CONF = {"devices": "2", "gpu.name": "NVIDIA Test 1", "gpu.cc": "9.0", "gpu.memory_bytes": str(80 << 30)}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or pytest.skip("no C++ compiler")
    out = tmp_path_factory.mktemp("smi") / "nvidia-smi"
    source = NATIVE / "smi" / "nvidia_smi.cpp"
    subprocess.run([compiler, "-std=c++20", "-static", "-I", NATIVE / "core", source, "-o", out], check=True)
    return out


@pytest.fixture
def smi(program: Path, tmp_path: Path) -> Smi:
    write_server_conf(tmp_path, CONF, server=3)
    ServerPage.create(tmp_path / "server.page")
    SharedMapping(tmp_path / "server.page").i64[offset_of(SERVER_PAGE, "used_bytes") // 8 + 1] = 10 << 30

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = {"EIDOLON_DIR": str(tmp_path), **environment}
        return subprocess.run([program, *arguments], env=given, capture_output=True, text=True)

    return run


def test_the_list_names_devices_as_the_shim_does(smi: Smi) -> None:
    lines = smi("-L").stdout.splitlines()
    assert lines[0] == "GPU 0: NVIDIA Test 1 (UUID: GPU-30373e45-4c53-5a61-686f-767d848b9299)"
    assert len(lines) == 2


def test_query_in_the_forms_that_scripts_use(smi: Smi) -> None:
    asked = "--query-gpu=index,name,memory.total,memory.used"
    whole = smi(asked, "--format=csv").stdout.splitlines()
    assert whole[0] == "index, name, memory.total [MiB], memory.used [MiB]"
    assert whole[2] == "1, NVIDIA Test 1, 81920 MiB, 10240 MiB"
    bare = smi(asked, "--format=csv,noheader,nounits", "-i", "1").stdout
    assert bare == "1, NVIDIA Test 1, 81920, 10240\n"


def test_what_is_not_measured_is_not_invented(smi: Smi) -> None:
    assert smi("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits").stdout == "[N/A]\n[N/A]\n"


def test_the_table_shows_memory_in_use(smi: Smi) -> None:
    shown = smi()
    assert shown.returncode == 0
    assert "10240MiB / 81920MiB" in shown.stdout
    assert len({len(line) for line in shown.stdout.splitlines()[1:]}) == 1


def test_topology_of_nvlinks(smi: Smi) -> None:
    assert smi("topo", "-m").stdout.splitlines()[1] == "GPU0\t X \tNV18\t"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--query-gpu=nonsense", "--format=csv"), 2, 'Field "nonsense" is not a valid field to query.'),
        (("--query-gpu=index",), 2, "--format=csv is needed"),
        (("-q",), 2, "Invalid combination of input arguments: -q"),
    ],
)
def test_wrong_use_is_told(smi: Smi, arguments: tuple[str, ...], code: int, says: str) -> None:
    shown = smi(*arguments)
    assert shown.returncode == code
    assert says in shown.stderr


def test_without_an_agent_there_is_no_driver(smi: Smi) -> None:
    shown = smi(EIDOLON_DIR="/nowhere")
    assert shown.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in shown.stderr
