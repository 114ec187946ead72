"""The bootstrap script: the ways of a new machine that this one does not have."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "bootstrap.py"


@pytest.fixture
def bootstrap() -> ModuleType:
    specification = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A package index on loopback; yields its address and its directory."""
    root = tmp_path / "index"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(root))  # type: ignore[arg-type]

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", root
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def publish(root: Path, files: dict[str, bytes], *, broken: str = "") -> None:
    page = root / "pip"
    page.mkdir()
    lines = []
    for name, content in files.items():
        (root / name).write_bytes(content)
        digest = hashlib.sha256(b"other" if name == broken else content).hexdigest()
        lines.append(f'<a href="../{name}#sha256={digest}">{name}</a>')
    (page / "index.html").write_text("<html>" + "".join(lines) + "</html>")


def test_the_newest_pure_wheel_is_fetched(
    bootstrap: ModuleType, index: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, root = index
    publish(
        root,
        {
            "pip-9.9-py3-none-any.whl": b"old",
            "pip-26.1-py3-none-any.whl": b"new",
            "pip-27.0b1-py3-none-any.whl": b"pre-release",
            "pip-28.0.tar.gz": b"source",
        },
    )
    monkeypatch.setenv("PIP_INDEX_URL", address + "/")
    wheel = bootstrap.fetch_wheel("pip", tmp_path)
    assert (wheel.name, wheel.read_bytes()) == ("pip-26.1-py3-none-any.whl", b"new")


def test_a_wheel_with_another_hash_is_refused(
    bootstrap: ModuleType, index: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, root = index
    publish(root, {"pip-26.1-py3-none-any.whl": b"new"}, broken="pip-26.1-py3-none-any.whl")
    monkeypatch.setenv("PIP_INDEX_URL", address)
    with pytest.raises(SystemExit, match="does not have the hash"):
        bootstrap.fetch_wheel("pip", tmp_path)
    assert not (tmp_path / "pip-26.1-py3-none-any.whl").exists()


def test_an_index_that_does_not_answer_is_named(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(SystemExit, match=r"cannot fetch http://127.0.0.1:1/simple/pip/"):
        bootstrap.fetch_wheel("pip", tmp_path)


def test_settings_of_pip_reach_uv(bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "UV_DEFAULT_INDEX",
        "UV_INDEX_URL",
        "UV_INDEX",
        "UV_FIND_LINKS",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://mirror.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://extra.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} {tmp_path / 'missing'}")
    environment = bootstrap.uv_environment()
    assert environment["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert environment["UV_INDEX"] == "https://extra.example/simple"
    assert environment["UV_FIND_LINKS"] == str(tmp_path)

    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://own.example/simple")
    assert bootstrap.uv_environment()["UV_DEFAULT_INDEX"] == "https://own.example/simple"


def test_an_old_python_starts_over_with_a_newer_one(tmp_path: Path) -> None:
    """The script under a Python that says it is 3.8, with a python3.11 on PATH."""
    newer = tmp_path / "python3.11"
    newer.write_text('#!/bin/sh\n[ "$1" = -c ] || echo started over with $2 $3\n')
    newer.chmod(0o755)
    program = (
        "import runpy, sys; sys.version_info = (3, 8, 1); sys.argv = ['bootstrap.py', 'VENV', 'x']; "
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert (result.returncode, result.stdout) == (0, "started over with VENV x\n")

    newer.unlink()
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert result.returncode == 1
    assert result.stderr.startswith("bootstrap: needs Python 3.11 to 3.14: ")


def test_an_environment_is_made_without_uv_and_without_ensurepip(index: tuple[str, Path], tmp_path: Path) -> None:
    """Debian without python3-venv: pip's wheel comes from the index, and pip installs uv. Both are stand-ins here."""
    import zipfile

    address, root = index
    program = (
        "import pathlib, sys\n"
        "assert sys.argv[1:] == ['install', '--quiet', 'uv'], sys.argv\n"
        "uv = pathlib.Path(sys.executable).with_name('uv')\n"
        "uv.write_text('#!/bin/sh\\necho uv \"$@\"\\n'); uv.chmod(0o755)\n"
    )
    wheel = tmp_path / "pip.zip"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pip/__main__.py", program)
    publish(root, {"pip-26.1-py3-none-any.whl": wheel.read_bytes()})

    without = tmp_path / "without"
    without.mkdir()
    (without / "ensurepip.py").write_text("raise ImportError('not packaged')\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "env"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    venv = tmp_path / "venv"
    result = subprocess.run(
        [sys.executable, str(SCRIPT), str(venv), "something"],
        capture_output=True,
        text=True,
        env={"PATH": str(tools), "PYTHONPATH": str(without), "PIP_INDEX_URL": address, "HOME": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"uv pip install --python {venv}/bin/python something\n"
