"""NVML's sensors follow what the core says of a device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import eidolon_interposer
from eidolon_interposer.serverdir import GaugesPage, ServerPage, write_server_conf
from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.ledger.power import IDLE_POWER

LIB = Path(eidolon_interposer.__file__).parent / "lib"
HOST = "10 20 30 1 2 3 4"
CONF = {"mode": "core", "devices": "2", "host.function": HOST, "host.operator": HOST, "host.ages": "1 2 3"}
SCRIPT = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0

class Field(ctypes.Structure):  # nvmlFieldValue_t
    _fields_ = [("id", ctypes.c_uint), ("scope", ctypes.c_uint), ("at", ctypes.c_longlong), ("took", ctypes.c_longlong),
                ("type", ctypes.c_int), ("status", ctypes.c_int), ("value", ctypes.c_ulonglong)]

for i in range(2):
    device, whole, pair = ctypes.c_void_p(), ctypes.c_ulonglong(), (ctypes.c_uint * 2)()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device)) == 0
    def ask(name, *arguments):
        value = ctypes.c_uint()
        assert getattr(nvml, name)(device, *arguments, ctypes.byref(value)) == 0, name
        return value.value
    assert nvml.nvmlDeviceGetUtilizationRates(device, pair) == 0
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(whole)) == 0
    field = Field(83)  # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
    assert nvml.nvmlDeviceGetFieldValues(device, 1, ctypes.byref(field)) == 0
    print(
        *pair, ask("nvmlDeviceGetPowerUsage"), whole.value, field.status, field.value,
        ask("nvmlDeviceGetPcieThroughput", 0), ask("nvmlDeviceGetPcieThroughput", 1),
        ask("nvmlDeviceGetClockInfo", 1), ask("nvmlDeviceGetTemperature", 0),
    )
"""


def test_utilisation_power_energy_and_throughput(tmp_path: Path) -> None:
    write_server_conf(tmp_path, CONF, server=0)
    ServerPage.create(tmp_path / "server.page")
    page = GaugesPage(tmp_path / "gauges.page")
    work = {"at_ns": 10**9, "energy_mj": 400_000, "power_mw": 612_340, "busy_percent": 97, "memory_percent": 41}
    rates = {"pcie_out_bytes_per_s": 3_000_000, "pcie_in_bytes_per_s": 12_000_000_000}
    page.show(pb.Gauges(device=1, sm_clock_mhz=1755, temperature_c=64, **work, **rates))
    page.close()
    environment = os.environ | {"EIDOLON_DIR": str(tmp_path), "LD_LIBRARY_PATH": str(LIB)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    idle, busy = done.stdout.splitlines()
    assert busy.split() == ["97", "41", "612340", "400000", "0", "400000", "3000", "12000000", "1755", "64"]
    resting = f"{IDLE_POWER * 700_000:.0f}"  # the core has said nothing of this device, but takes the same for it
    assert idle.split() == ["0", "0", resting, "0", "0", "0", "0", "0", "345", "35"]
