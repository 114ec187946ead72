"""What the tests of the torch plugin share: a workload under the shim, one per torch version."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import compiled, site
from playing import core, server

import eidolon_interposer
from eidolon_interposer import plugin

__all__ = ["compiled", "core", "server", "site"]  # fixtures

LIB = Path(os.environ.get("EIDOLON_TEST_LIB", Path(eidolon_interposer.__file__).parent / "lib"))
TORCH_214 = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eidolon" / "torch214"

CHILD = r"""
import ctypes, json, os, sys, traceback, warnings
warnings.simplefilter("ignore")
import torch
plugin = ctypes.CDLL(sys.argv[1])
assert plugin.eidolon_plugin_attach() == 1
spy = ctypes.CDLL(sys.argv[2])
spy.spy_text.restype = spy.spy_passed.restype = ctypes.c_char_p
current_operator = spy.spy_current_operator

def parse(line):
    kind, name, *attributes = line.split("\t")
    return {"kind": kind, "name": name} | {k: int(v) for k, v in (a.split("=") for a in attributes)}

def passed(kind):  # the signatures of a kind since the last call
    return [s for s in map(parse, spy.spy_passed().decode().splitlines()) if s["kind"] == kind]

def operator(sig):
    return parse(spy.spy_text(sig).decode()) if sig else None

def known(tensor):  # not by reading: a zero may be either
    ask = spy.spy_value_known
    ask.argtypes, ask.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_size_t
    n = tensor.numel() * tensor.element_size()
    return ask(tensor.data_ptr(), n) == n

def gpu(*values, **options):
    return torch.tensor(values, **options).cuda()

def unknown(*sizes, dtype=torch.float32):
    x = torch.empty(*sizes, dtype=dtype, device="cuda")
    assert not known(x)
    return x

def reading(action):  # what an action returns, and how many of its reads are counted as unknown
    passed("read")
    answer = action()
    return [answer, len(passed("read"))]

print("ready", flush=True)
for line in sys.stdin:
    names = dict(globals())
    try:
        exec(json.loads(line), names)
        answer = {"result": names["result"]}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), flush=True)
"""


class Workload:
    """A Python under the shim that runs what a test sends."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, code: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(textwrap.dedent(code)), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["result"]


def environments() -> list[Any]:
    missing = pytest.mark.skipif(not TORCH_214.is_dir(), reason="no second torch (make setup-torch214)")
    return [pytest.param(Path(sys.prefix), id="own"), pytest.param(TORCH_214, id="2.14", marks=missing)]


@pytest.fixture(scope="session")
def spy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, library = Path(__file__).parent / "plugin_spy.cpp", tmp_path_factory.mktemp("spy") / "spy.so"
    subprocess.run(["g++", "-std=c++20", "-O1", "-fPIC", "-shared", source, "-o", library], check=True)
    return library


@pytest.fixture(scope="session", params=environments())
def workload(request: pytest.FixtureRequest, spy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    environment: Path = request.param
    directory = tmp_path_factory.mktemp("run")
    (directory / "server.conf").write_text("mode=null\nserver=0\ndevices=2\n")
    built = plugin.ship(plugin.site_of(environment), directory)
    process = subprocess.Popen(
        [environment / "bin" / "python", "-c", CHILD, built, spy],
        env={
            **os.environ,
            "EIDOLON_DIR": str(directory),
            "LD_PRELOAD": f"{spy}:{LIB / 'libeidolon.so'}",
            "LD_LIBRARY_PATH": str(LIB),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield Workload(process)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()
