"""The launcher as a container's first process: the gate, the end of a run, what image it finds itself in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from launching import PROBE, Site, until

from eidolon_interposer.serverdir import ServerDirectory

# ---- the gate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(site: Site) -> ServerDirectory:
    """The agent's hand in the shared directory."""
    return ServerDirectory(site.dir, {}, 0)


def test_a_workload_starts_once_the_gate_is_open(site: Site, directory: ServerDirectory) -> None:
    line = site.command("sh", "-c", f"echo 1 >{site.root}/started", options=["--wait", "60"])
    with subprocess.Popen(line) as process:
        time.sleep(0.5)
        assert not (site.root / "started").exists()
        directory.open_gate()
        assert process.wait(20) == 0
    assert until(site.root / "started") == "1\n"
    assert site.exit == "0 completed\n"


def test_a_gate_that_stays_shut_is_one_clear_line(site: Site) -> None:
    done = site.run("true", options=["--wait", "1"])
    assert done.returncode == 125
    assert done.stderr == (
        "eidolon launch: after 1 s not every emulated server is there (the simulation core says which)\n"
    )
    assert site.exit.startswith("125 after 1 s")


@pytest.mark.parametrize(("failed", "code"), [(True, 125), (False, 0)])
def test_a_run_that_is_over_before_it_began(site: Site, directory: ServerDirectory, failed: bool, code: int) -> None:
    directory.tell_launcher("server 1 did not connect within 600 s", failed=failed)
    done = site.run("true", options=["--wait", "60"])
    assert done.returncode == code
    assert "the run ended before it began: server 1 did not connect within 600 s" in done.stderr


def test_a_pod_that_is_deleted_at_the_gate(site: Site) -> None:
    with subprocess.Popen(site.command("true", options=["--wait", "60"])) as process:
        until(site.dir / "image")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    assert site.exit == "143 interrupted by SIGTERM before the workload began\n"


# A network and a name server of its own, for `resolve`. The answer comes to the third question.
RESOLVE = r"""
import fcntl, os, socket, struct, subprocess, sys, threading
launch, directory, resolv, name = sys.argv[1:]
open(resolv, "w").write("nameserver 127.0.0.1\nsearch ns.svc.cluster.local\noptions ndots:5\n")
subprocess.run(["mount", "--bind", resolv, "/etc/resolv.conf"], check=True)
lo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(lo, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
asked = []

def serve():
    while True:
        query, client = server.recvfrom(512)
        end = query.index(b"\0", 12)
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        asked.append(".".join(labels))
        known = asked[-1] == "run-server-0.run.ns.svc.cluster.local" and asked.count(asked[-1]) > 2
        question = query[12 : end + 5]
        flags = 0x8180 if known else 0x8183
        answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + bytes([10, 0, 0, 1]) if known else b""
        server.sendto(query[:2] + struct.pack(">HHHHH", flags, 1, int(known), 0, 0) + question + answer, client)

threading.Thread(target=serve, daemon=True).start()
code = subprocess.run([launch, "--dir", directory, "--wait", "20", "--resolve", "localhost", "--resolve", name, "--",
                       "echo", "started"]).returncode
assert "run-server-0.run.ns.svc.cluster.local" in asked or name != "run-server-0.run", asked
sys.exit(code)
"""


def resolve(site: Site, name: str) -> subprocess.CompletedProcess[str]:
    resolv = site.root / "resolv.conf"
    command = ["unshare", "--map-root-user", "--net", "--mount", sys.executable, "-c", RESOLVE]
    line = [*command, str(site.launch), str(site.dir), str(resolv), name]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def test_a_workload_starts_once_a_name_resolves(site: Site, directory: ServerDirectory) -> None:
    directory.open_gate()
    done = resolve(site, "run-server-0.run")
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


def test_a_name_that_never_resolves_is_one_clear_line(site: Site, directory: ServerDirectory) -> None:
    directory.open_gate()
    done = resolve(site, "other.run")
    assert done.returncode == 125
    assert done.stderr == "eidolon launch: other.run does not resolve after 20 s\n"


# ---- the end of a run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failed", "code", "line"),
    [
        (False, 0, "0 stopped: 5 steps are done\n"),
        (True, 3, "3 ended with the run (failed): 5 steps are done\n"),
    ],
)
def test_a_workload_that_ends_when_the_run_is_over(
    site: Site, directory: ServerDirectory, failed: bool, code: int, line: str
) -> None:
    script = f"while ! test -e {site.dir}/stop; do sleep 0.05; done; sleep 0.5; exit 3"
    with subprocess.Popen(site.command("sh", "-c", script)) as process:
        until(site.dir / "image")
        directory.tell_launcher("5 steps\nare done", failed=failed)
        directory.tell_launcher("only the first reason counts", failed=not failed)
        assert process.wait(20) == code
    assert site.exit == line


@pytest.mark.parametrize(("failed", "code"), [(False, 0), (True, 137)])
def test_what_makes_no_call_when_the_run_is_over_is_ended(
    site: Site, directory: ServerDirectory, failed: bool, code: int
) -> None:
    script = f"trap 'echo 1 >>{site.root}/asked' TERM; echo 1 >{site.root}/up; while :; do sleep 0.05; done"
    with subprocess.Popen(site.command("sh", "-c", script, options=["--grace", "1"])) as process:
        until(site.root / "up")
        directory.tell_launcher("5 steps are done", failed=failed)
        assert process.wait(30) == code
    assert until(site.root / "asked") == "1\n"


# ---- what image it is ------------------------------------------------------------------------------------------------


def image(site: Site) -> dict[str, str]:
    return dict(line.split("=", 1) for line in until(site.dir / "image").splitlines())


def fake_torch(site: Site, version: str, cuda: str | None, extension: str = "cpython-311-x86_64-linux-gnu") -> str:
    """A site directory with what is looked at of a torch wheel; for PYTHONPATH."""
    torch = site.root / "site" / "torch"
    torch.mkdir(parents=True)
    text = f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n"
    (torch / "version.py").write_text("from typing import Optional\n" + text)
    (torch / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    (torch / f"_C.{extension}.so").touch()
    return str(torch.parent)


OURS = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-x86_64-linux-gnu"


def test_the_libraries_are_those_of_the_image_s_cuda(site: Site) -> None:
    shutil.copytree(site.lib, site.root / "lib12")
    path = fake_torch(site, "2.9.0+cu128", "12.8", OURS)
    script = "import os; print(os.environ['LD_LIBRARY_PATH'])"
    done = site.run(sys.executable, "-c", script, PYTHONPATH=path)
    assert done.stdout.strip() == f"{site.root}/lib12", done.stderr
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert image(site) == {
        "python": version,
        "executable": sys.executable,
        "torch": "2.9.0+cu128",
        "torch_in": f"{path}/torch",
        "cuda": "12.8",
        "libraries": "cuda12",
        "plugin": "none",
    }


def test_a_plugin_for_the_image_s_torch_is_noticed(site: Site) -> None:
    (site.lib / "plugins").mkdir()
    (site.lib / "plugins" / "torch-2.11.0+cu130.so").touch()
    path = fake_torch(site, "2.11.0+cu130", "13.0", OURS)
    assert site.run(sys.executable, "-c", "", PYTHONPATH=path).returncode == 0
    assert (image(site)["libraries"], image(site)["plugin"]) == ("cuda13", "torch-2.11.0+cu130.so")


def test_a_cuda_that_there_are_no_libraries_for(site: Site) -> None:
    done = site.run(sys.executable, "-c", "", PYTHONPATH=fake_torch(site, "2.3.0+cu118", "11.8", OURS))
    assert done.returncode == 125
    assert "torch 2.3.0+cu118 is built for CUDA 11; this installation of Eidolon has no libraries" in done.stderr


def test_a_torch_for_another_python_is_refused(site: Site) -> None:
    path = fake_torch(site, "2.11.0+cu130", "13.0", "cpython-39-x86_64-linux-gnu")
    done = site.run(sys.executable, "-c", "", PYTHONPATH=path)
    assert done.returncode == 125
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"torch 2.11.0+cu130 is a wheel for Python 3.9; the image's Python is {version}" in done.stderr


def test_the_python_of_a_script_is_asked(site: Site, tmp_path: Path) -> None:
    """What `torchrun` is: a script whose first line names an environment's Python."""
    path = fake_torch(site, "2.9.0+cu128", "12.8", OURS)
    script = tmp_path / "train"
    script.write_text(f"#!{sys.executable}\nprint('trained')\n")
    script.chmod(0o755)
    shutil.copytree(site.lib, site.root / "lib12")
    done = site.run(str(script), PYTHONPATH=path, PATH="/usr/bin:/bin")
    assert done.stdout == "trained\n", done.stderr
    assert image(site)["libraries"] == "cuda12"


def test_an_image_without_python_gets_the_libraries_of_cuda_13(site: Site, tmp_path: Path) -> None:
    assert site.run("/bin/true", PATH=str(tmp_path)).returncode == 0
    assert image(site) == {"libraries": "cuda13", "plugin": ""}


def test_torch_is_never_imported_by_the_probe(site: Site) -> None:
    path = fake_torch(site, "2.11.0+cu130", "13.0", OURS)
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, PROBE], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[1:] == [
        f"executable={sys.executable}",
        "torch=2.11.0+cu130",
        "cuda=13.0",
        f"torch_in={path}/torch",
    ], done.stderr


def program(tmp_path: Path, loader: str) -> Path:
    """A program that asks for another dynamic loader. It cannot run here, and is never run."""
    source, out = tmp_path / "program.c", tmp_path / "program"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", source, f"-Wl,--dynamic-linker={loader}", "-o", out], check=True)
    return out


def test_musl_is_one_clear_line(site: Site, tmp_path: Path) -> None:
    alpine = program(tmp_path, "/lib/ld-musl-x86_64.so.1")
    done = site.run(str(alpine))
    assert done.returncode == 125
    assert done.stderr == (
        f"eidolon launch: {alpine} uses the C library musl (Alpine?); Eidolon needs an image with glibc "
        "(Debian, Ubuntu, RHEL)\n"
    )


def test_a_glibc_that_is_too_old_is_one_clear_line(site: Site, tmp_path: Path) -> None:
    """Judged by symbol versions: those that libc defines, and those that our libraries ask for."""
    old = tmp_path / "old"
    old.mkdir()
    (old / "ld-linux-x86-64.so.2").touch()
    (old / "libc.so.6").write_bytes(b"GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_PRIVATE\0")
    command = str(program(tmp_path, str(old / "ld-linux-x86-64.so.2")))
    (site.lib / "libcudart.so.13").write_bytes(b"\x7fELF\0GLIBC_2.34\0GLIBC_2.4\0")
    done = site.run(command)
    assert done.returncode == 125
    assert done.stderr == "eidolon launch: this image has glibc 2.17; Eidolon needs 2.34 or newer\n"
    (site.lib / "libcudart.so.13").write_bytes(b"\x7fELF\0GLIBC_2.17\0")
    assert site.run(command).returncode == 126, "new enough: it is started (and has no loader)"


# ---- a user that the image does not know -----------------------------------------------------------------------------

SHOW = ["sh", "-c", 'echo "$USER $HOME $TMPDIR $TORCHINDUCTOR_CACHE_DIR $TRITON_CACHE_DIR"']


def test_scratch_gives_a_home_and_caches_where_there_are_none(site: Site, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    line = ["env", "-i", f"PATH={os.environ['PATH']}", "HOME=/nonexistent"]
    command = [*line, *site.command(*SHOW, options=["--scratch", str(scratch)])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [
        "eidolon",
        *(f"{scratch}/{name}" for name in ("home", "tmp", "torchinductor", "triton")),
    ]
    assert all((scratch / name).is_dir() for name in ("home", "tmp", "torchinductor", "triton"))


def test_scratch_leaves_what_the_image_has(site: Site, tmp_path: Path) -> None:
    scratch, home = tmp_path / "scratch", tmp_path / "home"
    scratch.mkdir()
    home.mkdir()
    own = {"USER": "ann", "HOME": str(home), "TMPDIR": "/t", "TORCHINDUCTOR_CACHE_DIR": "/i", "TRITON_CACHE_DIR": "/c"}
    done = site.run(*SHOW, options=["--scratch", str(scratch)], **own)
    assert done.stdout == f"ann {home} /t /i /c\n"
    assert not list(scratch.iterdir())


# ---- its own PID namespace -------------------------------------------------------------------------------------------


def test_as_the_first_process_of_a_pid_namespace(site: Site) -> None:
    """What a container runtime starts: signals reach the workload, orphans are reaped, nothing is left."""
    script = textwrap.dedent(f"""
        test $PPID = 1 || exit 8
        (sleep 0.1 & )
        trap 'exit 40' TERM
        echo 1 >{site.root}/up
        while :; do sleep 0.05; done
    """)
    line = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", *site.command("sh", "-c", script)]
    with subprocess.Popen(line) as process:
        until(site.root / "up")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert process.wait(20) == 40
    assert site.exit == "40 interrupted by SIGTERM: failed\n"
