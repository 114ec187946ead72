"""CUDA_VISIBLE_DEVICES is read when CUDA is first asked about devices, as the driver reads it in cuInit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import eidolon_interposer

LIB = Path(eidolon_interposer.__file__).parent / "lib"
SCRIPT = """
import os, torch
os.environ["CUDA_VISIBLE_DEVICES"] = "{}"
print(torch.cuda.device_count(), *(torch.cuda.get_device_properties(d).uuid for d in range(torch.cuda.device_count())))
"""


def seen(directory: Path, visible: str) -> list[str]:
    """The number and the unique ids of the devices that a script sees which sets the variable after its imports."""
    directory.mkdir()
    (directory / "server.conf").write_text("mode=null\nserver=0\ndevices=3\n")
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    environment |= {
        "EIDOLON_DIR": str(directory),
        "LD_PRELOAD": str(LIB / "libeidolon.so"),
        "LD_LIBRARY_PATH": str(LIB),
    }
    command = [sys.executable, "-c", SCRIPT.format(visible)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(("visible", "devices"), [("1", [1]), ("2,0", [2, 0]), ("-1", []), ("", [])])
def test_the_variable_may_be_set_after_torch_is_imported(tmp_path: Path, visible: str, devices: list[int]) -> None:
    count, *everyone = seen(tmp_path / "all", "0,1,2")
    assert count == "3"
    assert seen(tmp_path / "some", visible) == [str(len(devices)), *(everyone[d] for d in devices)]
