"""What an init container installs: the package's layout, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from launching import Site

from eidolon_interposer import install


@pytest.fixture
def package(tmp_path: Path, site: Site) -> Path:
    """A package as it is installed, with libraries for two versions of CUDA."""
    (site.lib / "plugins").mkdir()
    (site.lib / "plugins" / "torch-2.11.0+cu130.so").write_bytes(b"plugin")
    shutil.copytree(site.lib, site.root / "lib12")
    (site.hook / "sitecustomize.py").write_text("")
    (site.hook / "__pycache__").mkdir()
    (site.hook / "__pycache__" / "sitecustomize.pyc").write_text("")
    (site.root / "agent.py").write_text("")
    return site.root


def test_the_launcher_runs_from_where_it_was_installed(package: Path, tmp_path: Path) -> None:
    target, shared = tmp_path / "eidolon", tmp_path / "run"
    shared.mkdir()
    total = install.install(target, package)
    files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert files == [
        "bin/launch",
        "hook/sitecustomize.py",
        "lib/libeidolon.so",
        "lib/plugins/torch-2.11.0+cu130.so",
        "lib12/libeidolon.so",
        "lib12/plugins/torch-2.11.0+cu130.so",
        "probe.py",
    ]
    assert total == sum((target / name).stat().st_size for name in files)
    target.chmod(0o555)
    line = [target / "bin" / "launch", "--dir", shared, "--", "sh", "-c", "echo $LD_LIBRARY_PATH $PYTHONPATH"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[-2:] == [f"{target}/lib", f"{target}/hook"], done.stderr


def test_the_launcher_comes_last(package: Path) -> None:
    assert list(install.parts(package))[-1] == Path("bin/launch")


def test_what_cannot_be_installed_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match="installation of eidolon is incomplete"):
        install.install(tmp_path / "out", tmp_path)
    (tmp_path / "file").touch()
    assert install.main([str(tmp_path / "file" / "under")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
