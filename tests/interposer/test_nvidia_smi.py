"""The emulated nvidia-smi, compiled here from its one source, against a directory as the agent makes it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from eidolon_interposer.abi import SERVER_PAGE, offset_of
from eidolon_interposer.mapping import SharedMapping
from eidolon_interposer.serverdir import GaugesPage, ServerPage, write_server_conf
from eidolon_proto.v1 import simulation_pb2 as pb

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
    GaugesPage(tmp_path / "gauges.page").close()
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


WORK = pb.Gauges(
    device=1,
    at_ns=10**9,
    energy_mj=400_000,
    power_mw=612_340,
    busy_percent=97,
    memory_percent=41,
    sm_clock_mhz=1755,
    temperature_c=64,
    pcie_out_bytes_per_s=3_000_000,
    pcie_in_bytes_per_s=12_000_000_000,
)


@pytest.fixture
def working(smi: Smi, tmp_path: Path) -> Smi:
    """Device 1 works, and of device 0 the core has said nothing."""
    page = GaugesPage(tmp_path / "gauges.page")
    page.show(WORK)
    page.close()
    return smi


def test_utilisation_power_and_clock_follow_the_work(working: Smi) -> None:
    asked = "--query-gpu=utilization.gpu,utilization.memory,power.draw,clocks.sm,temperature.gpu"
    lines = working(asked, "--format=csv").stdout.splitlines()
    assert lines[0].startswith("utilization.gpu [%], utilization.memory [%], power.draw [W], clocks.sm [MHz], temp")
    assert lines[1:] == ["0 %, 0 %, 84.00 W, 345 MHz, 35", "97 %, 41 %, 612.34 W, 1755 MHz, 64"]
    shown = working().stdout
    assert "612W / 700W" in shown
    assert "97%      Default" in shown
    assert len({len(line) for line in shown.splitlines()[1:]}) == 1


def test_what_a_device_lacks_has_no_unit(smi: Smi) -> None:
    assert smi("--query-gpu=fan.speed", "--format=csv,noheader", "-i", "0").stdout == "[N/A]\n"


def test_details_of_one_device(working: Smi) -> None:
    whole = working("-q", "-i", "1").stdout
    assert "Attached GPUs                             : 2\nGPU 00000000:11:00.0\n" in whole
    for name, value in (
        ("Used", "10240 MiB"),
        ("GPU", "97 %"),
        ("Average Power Draw", "612.34 W"),
        ("GPU Current Temp", "64 C"),
        ("SM", "1755 MHz"),
        ("Rx Throughput", "12000000 KB/s"),
    ):
        assert f"        {name:<34}: {value}\n" in whole
    power = working("-q", "-d", "POWER,CLOCK", "-i", "1").stdout
    assert "Power Draw" in power
    assert "Max Clocks" in power
    assert "FB Memory Usage" not in power


def test_device_monitoring(working: Smi) -> None:
    lines = working("dmon", "-c", "1").stdout.splitlines()
    assert lines[0].split() == [
        "#",
        "gpu",
        "pwr",
        "gtemp",
        "mtemp",
        "sm",
        "mem",
        "enc",
        "dec",
        "jpg",
        "ofa",
        "mclk",
        "pclk",
    ]
    assert lines[3].split() == ["1", "612", "64", "64", "97", "41", "0", "0", "0", "0", "2619", "1755"]
    lines = working("dmon", "-s", "mt", "-c", "1", "-i", "1").stdout.splitlines()
    assert lines[2].split() == ["1", "10240", "0", "12000", "3"]


def test_speed_of_the_links(smi: Smi) -> None:
    lines = smi("nvlink", "--status", "-i", "1").stdout.splitlines()
    assert lines[0].startswith("GPU 1: NVIDIA Test 1 (UUID: GPU-")
    assert lines[1:] == [f"\t Link {link}: 26.562 GB/s" for link in range(18)]


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
        (("--gibberish",), 2, "Invalid combination of input arguments: --gibberish"),
        (("dmon", "--gibberish"), 2, "Invalid combination of input arguments: --gibberish"),
        (("nvlink",), 2, "nvlink without -s"),
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
