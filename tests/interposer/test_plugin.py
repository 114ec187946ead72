"""The torch plugin: what it says about operators, how it is built and found.

A workload under the shim without a core (`mode=null`) is started once per torch; each test sends it a few lines and
gets `result` back. A spy in front of the shim keeps the signatures that pass, so a test reads what costs would see.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eidolon_interposer
from eidolon_interposer import plugin

Workload = Callable[[str], Any]


# ---- operators: what costs see ---------------------------------------------------------------------------------------


def input_attributes(prefix: str, **values: int) -> dict[str, int]:
    return {f"{prefix}_{key}": value for key, value in values.items()}


def test_a_kernel_names_its_operator_with_shapes(workload: Workload) -> None:
    kernels = workload(
        """
        a, b = torch.ones(3, 5, device="cuda"), torch.ones(4, 5, 1, device="cuda", dtype=torch.bfloat16)
        passed("kernel")
        torch.mul(a, b.squeeze(2)[:3])
        result = [(k["n"], operator(k["op"])) for k in passed("kernel")]
        """
    )
    (n, op) = kernels[-1]
    assert n == 15
    assert op == {
        "kind": "op",
        "name": "aten::mul",
        "present": 0b11,
        "bytes": 15 * 4 + 15 * 2,
        "written": 0,
        **input_attributes("in0", numel=15, itemsize=4, dtype=6, layout=1, dims=2, d0=3, d1=5),
        **input_attributes("in1", numel=15, itemsize=2, dtype=15, layout=1, dims=2, d0=3, d1=5),
    }


def test_integers_of_a_call_are_attributes_by_their_names(workload: Workload) -> None:
    op = workload(
        """
        x = torch.ones(6, 7, device="cuda")
        passed("op")
        x.sum(dim=(1,), keepdim=True)
        result = passed("op")[0]
        """
    )
    assert (op["name"], op["dim_0"], op["keepdim"]) == ("aten::sum", 1, 1)


@pytest.mark.parametrize(
    ("make", "layout"),
    [
        ("torch.ones(2, 3, 4, 5, device='cuda')", 1),
        ("torch.ones(2, 3, 4, 5, device='cuda').to(memory_format=torch.channels_last)", 2),
        ("torch.ones(2, 3, 4, device='cuda').transpose(0, 2)", 3),
        ("torch.ones(2, 3, 4, device='cuda')[:, 1:]", 0),
    ],
)
def test_layouts(workload: Workload, make: str, layout: int) -> None:
    assert workload(f"x = {make}; passed('op'); x.neg(); result = passed('op')[0]['in0_layout']") == layout


def test_lists_of_tensors_are_summed(workload: Workload) -> None:
    op = workload(
        """
        tensors = [torch.ones(n, device="cuda") for n in (10, 20, 31)]
        passed("op")
        torch._foreach_add_(tensors, 1.0)
        result = [op for op in passed("op") if op["name"] == "aten::_foreach_add_"][0]
        """
    )
    assert (op["tensors"], op["tensors_numel"], op["tensors_bytes"], op["written"]) == (3, 61, 244, 244)


def test_the_same_shapes_are_one_signature(workload: Workload) -> None:
    assert (
        workload(
            """
            def sigs(*sizes):
                torch.ones(*sizes, device="cuda").neg()
                return [op["name"] for op in passed("op")]
            sigs(4, 9), sigs(9, 4)
            result = sigs(4, 9) + sigs(9, 4)
            """
        )
        == []
    )


def test_absent_inputs_do_not_shift_the_others(workload: Workload) -> None:
    with_bias, without = workload(
        """
        x, w = torch.ones(2, 8, device="cuda"), torch.ones(8, device="cuda")
        passed("op")
        torch.layer_norm(x, (8,), w, None)
        torch.layer_norm(x, (8,), None, w)
        result = [op for op in passed("op") if op["name"] == "aten::native_layer_norm"]
        """
    )
    assert with_bias["present"] & 0b111 == 0b011
    assert without["present"] & 0b111 == 0b101
    assert without["in2_numel"] == 8
    assert "in1_numel" not in without


def test_backward_kernels_have_operators_on_autograds_thread(workload: Workload) -> None:
    names = workload(
        """
        x = torch.ones(7, 11, device="cuda", requires_grad=True)
        y = x.exp().sum()
        passed("kernel")
        y.backward()
        result = [(operator(k["op"]) or {}).get("name") for k in passed("kernel")]
        """
    )
    assert "aten::mul" in names
    assert None not in names


def test_no_operator_is_left_behind(workload: Workload) -> None:
    after, failed = workload(
        """
        a = torch.ones(2, 3, device="cuda")
        a + a
        result = [current_operator()]
        try:
            a @ a
        except RuntimeError:
            result.append(current_operator())
        """
    )
    assert (after, failed) == (0, 0)


def test_attaching_again_does_nothing(workload: Workload) -> None:
    assert workload(
        """
        a = torch.ones(2, device="cuda")
        again = [plugin.eidolon_plugin_attach(), plugin.eidolon_plugin_attach()]
        spy.spy_switches()
        a.neg_()
        result = [*again, spy.spy_switches()]
        """
    ) == [1, 1, 2]


def test_wrapper_tensors_pass(workload: Workload) -> None:
    assert workload(
        """
        from torch._subclasses.fake_tensor import FakeTensorMode
        x = gpu(1.0, 2.0)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = mode.from_tensor(x)
            fake.add_(1)
            shape = list((fake + fake).shape)
        s = torch.eye(2).to_sparse().cuda()
        n = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).cuda() * 2
        result = [shape, s.is_sparse, n.is_nested, x.tolist()]
        """
    ) == [[2], True, True, [1, 2]]


def test_a_forked_child_runs_on_the_host(workload: Workload) -> None:
    assert (
        workload(
            """
            torch.ones(2, device="cuda") + 1
            pid = os.fork()
            if pid == 0:
                os._exit(7 if torch.ones(3).sum().item() == 3 else 1)
            result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            """
        )
        == 7
    )


# ---- building and finding --------------------------------------------------------------------------------------------


def fake_torch(site: Path, version: str) -> Path:
    (site / "torch" / "lib").mkdir(parents=True)
    (site / "torch" / "lib" / "libc10_cuda.so").touch()
    (site / "torch" / "version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\ncuda = None\n")
    return site


def test_the_version_is_read_without_importing_torch(tmp_path: Path) -> None:
    assert plugin.torch_version(fake_torch(tmp_path, "2.99.1+cu130")) == "2.99.1+cu130"


def test_a_site_is_found_in_an_environment(tmp_path: Path) -> None:
    site = fake_torch(tmp_path / "lib" / "python3.11" / "site-packages", "2.99")
    assert plugin.site_of(tmp_path) == plugin.site_of(site) == site


def test_without_torch_the_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(plugin.PluginError, match=f"no torch in {tmp_path}"):
        plugin.site_of(tmp_path)


def test_a_version_cannot_leave_the_directory() -> None:
    with pytest.raises(plugin.PluginError, match="is no torch version"):
        plugin.file_name("../2.0")


def test_a_torch_without_cuda_is_refused(tmp_path: Path) -> None:
    site = fake_torch(tmp_path / "site", "2.99+cpu")
    (site / "torch" / "lib" / "libc10_cuda.so").unlink()
    with pytest.raises(plugin.PluginError, match=r"torch 2.99\+cpu .* is built without CUDA"):
        plugin.build(site, tmp_path / "out")


def test_a_failed_build_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, out = fake_torch(tmp_path / "site", "2.99"), tmp_path / "out"
    with pytest.raises(plugin.PluginError, match=r"no cuda_runtime_api\.h"):
        plugin.build(site, out)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    (tmp_path / "cuda" / "include").mkdir(parents=True)
    (tmp_path / "cuda" / "include" / "cuda_runtime_api.h").touch()
    with pytest.raises(plugin.PluginError, match=r"torch 2.99 does not compile:\n(.|\n)*record_function\.h"):
        plugin.build(site, out)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(plugin.PluginError, match="no compiler: no-such-compiler"):
        plugin.build(site, out)
    assert list(out.iterdir()) == []


def test_a_shipped_plugin_comes_before_a_cached_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert plugin.locate("2.99") is None
    for directory in (plugin.cache(), plugin.SHIPPED):
        directory.mkdir(parents=True)
        (directory / "torch-2.99.so").touch()
        assert plugin.locate("2.99") == directory / "torch-2.99.so"


def test_ensure_builds_once_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "SHIPPED", tmp_path / "shipped")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    script = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from eidolon_interposer import plugin
        plugin.SHIPPED = Path({str(plugin.SHIPPED)!r})
        sys.exit(plugin.main(["ensure", "--torch-from", sys.prefix]))
    """)
    path = os.pathsep.join(p for p in sys.path if p)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script], env={**environment, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    made = {run.communicate(timeout=120)[0].strip() for run in runs}
    (only,) = made
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(only).parent == plugin.cache()
    assert sorted(file.suffix for file in plugin.cache().iterdir()) == [".lock", ".so"]


# ---- the hook loads it -----------------------------------------------------------------------------------------------


class Site:
    """An installation with the real hook, a torch that is only a version, and a shim that notes what it is told."""

    VERSION = "2.99+cu990"

    def __init__(self, root: Path) -> None:
        self.package = root / "eidolon_interposer"
        shutil.copytree(Path(eidolon_interposer.__file__).parent / "hook", self.package / "hook")
        fake_torch(root / "site", self.VERSION)
        (root / "site" / "torch" / "__init__.py").write_text("from .version import __version__\n")
        self.shim = root / "libeidolon.so"
        compile_c(Path(__file__).parent / "fake_libeidolon.c", self.shim)
        self._root = root

    def add_plugin(self, directory: Path) -> Path:
        source, library = self._root / "plugin.c", directory / plugin.file_name(self.VERSION)
        source.write_text('#include <stdio.h>\nint eidolon_plugin_attach(void) { return puts("attached"), 1; }\n')
        directory.mkdir(parents=True)
        compile_c(source, library)
        return library

    def import_torch(self, **environment: str) -> "subprocess.CompletedProcess[str]":
        code = (
            "import ctypes, torch; told = ctypes.CDLL(None).fake_unmodelled; told.restype = ctypes.c_char_p;"
            "print(told().decode())"
        )
        return subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "EIDOLON_DIR": str(self._root),
                "LD_PRELOAD": str(self.shim),
                "PYTHONPATH": f"{self.package / 'hook'}{os.pathsep}{self._root / 'site'}",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )


def compile_c(source: Path, library: Path) -> None:
    subprocess.run(["gcc", "-O1", "-fPIC", "-shared", source, "-o", library], check=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_importing_torch_attaches_its_plugin(site: Site) -> None:
    site.add_plugin(site.package / "lib" / "plugins")
    ran = site.import_torch()
    assert sorted(ran.stdout.split()) == ["attached"]
    assert ran.stderr == ""


def test_without_a_plugin_the_summary_will_say_so(site: Site) -> None:
    ran = site.import_torch()
    assert ran.stdout == "torch: no plugin for torch 2.99+cu990\n"
    assert ran.stderr == ""


def test_a_missing_plugin_is_built_where_that_is_allowed(site: Site, tmp_path: Path) -> None:
    made = site.add_plugin(tmp_path / "cache")
    (site.package / "plugin.py").write_text(
        "import os, sys\n"
        f"assert sys.argv[1:] == ['ensure', '--torch-from', {str(tmp_path / 'site')!r}], sys.argv\n"
        "assert 'LD_PRELOAD' not in os.environ\n"
        f"print({str(made)!r})\n"
    )
    ran = site.import_torch(EIDOLON_PLUGIN_BUILD="1")
    assert ran.stderr == ""
    assert ran.stdout.split() == ["attached"]


def test_a_plugin_that_does_not_build_is_named_and_torch_works(site: Site) -> None:
    (site.package / "plugin.py").write_text("import sys; sys.exit('eidolon: no compiler: g++ (set CXX)')\n")
    ran = site.import_torch(EIDOLON_PLUGIN_BUILD="1")
    assert ran.stderr == "eidolon: no torch plugin: no compiler: g++ (set CXX)\n"
    assert ran.stdout == "torch: no plugin for torch 2.99+cu990\n"
