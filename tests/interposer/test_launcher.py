"""The static launcher: what it injects, forwards, reaps and leaves behind. Compiled here from its one source."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import Site, until

SHOW_ENVIRONMENT = "import os; print(os.getpid(), *[os.environ.get(n) for n in os.environ['SHOW'].split()], sep='\\n')"


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # ended; whoever inherited it has yet to reap it
            return True
        time.sleep(0.02)
    return False


def test_it_is_static(compiled: Path) -> None:
    headers = subprocess.run(["readelf", "-lW", str(compiled)], capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in headers


def test_injects_into_an_empty_environment(site: Site) -> None:
    shown = site.run(sys.executable, "-c", SHOW_ENVIRONMENT, SHOW="LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH EIDOLON_DIR")
    assert shown.stdout.splitlines()[1:] == [
        f"{site.lib}/libeidolon.so",
        str(site.lib),
        str(site.hook),
        str(site.dir),
    ]


def test_prepends_to_what_is_there(site: Site) -> None:
    present = str(site.lib / "libeidolon.so")  # any loadable library
    shown = site.run(
        sys.executable,
        "-c",
        SHOW_ENVIRONMENT,
        SHOW="LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH",
        LD_PRELOAD=present,
        LD_LIBRARY_PATH="/opt/mine",
        PYTHONPATH="/opt/python",
    )
    assert shown.stdout.splitlines()[1:] == [
        f"{site.lib}/libeidolon.so:{present}",
        f"{site.lib}:/opt/mine",
        f"{site.hook}:/opt/python",
    ]


def test_explicit_directories(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(site.lib, other)
    command = [str(site.launch), "--lib", str(other), "--hook", str(other), "--dir", str(site.dir), "--"]
    shown = subprocess.run(
        [*command, sys.executable, "-c", SHOW_ENVIRONMENT],
        env={"SHOW": "LD_LIBRARY_PATH PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert shown.stdout.splitlines()[1:] == [str(other), str(other)]


@pytest.mark.parametrize(("code", "line"), [(0, "0 completed\n"), (3, "3 failed\n")])
def test_exit_code_follows_the_command(site: Site, code: int, line: str) -> None:
    assert site.run("sh", "-c", f"exit {code}").returncode == code
    assert site.exit == line
    assert sorted(p.name for p in site.dir.iterdir()) == ["exit", "image"]


def test_a_killed_command(site: Site) -> None:
    assert site.run("sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL
    assert site.exit == "137 killed by signal 9 (SIGKILL)\n"


def test_command_not_found(site: Site) -> None:
    done = site.run("no-such-command", "argument")
    assert done.returncode == 127
    assert done.stderr == "eidolon launch: command not found: no-such-command\n"
    assert site.exit == "127 command not found: no-such-command\n"


def test_command_that_cannot_run(site: Site) -> None:
    done = site.run(str(site.dir))
    assert done.returncode == 126
    assert done.stderr == f"eidolon launch: cannot run {site.dir}: Permission denied\n"
    assert site.exit.startswith("126 cannot run")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "true"], "usage: launch --dir DIR"),
        (["--dir", "."], "usage: launch --dir DIR"),
        (["--dir", ".", "--"], "usage: launch --dir DIR"),
        (["--directory", ".", "--", "true"], "unknown or incomplete option --directory"),
        (["--dir", "missing", "--", "true"], "shared directory missing: No such file"),
        (["--dir", ".", "--lib", ".", "--", "true"], "libeidolon.so: No such file"),
        (["--dir", ".", "--hook", "missing", "--", "true"], "hook directory missing: No such file"),
    ],
)
def test_bad_usage_is_one_line(site: Site, arguments: list[str], said: str) -> None:
    done = subprocess.run([str(site.launch), *arguments], cwd=site.dir, capture_output=True, text=True, timeout=30)
    assert done.returncode == 125
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_path_that_cannot_be_preloaded(site: Site, tmp_path: Path) -> None:
    spaced = tmp_path / "with space"
    shutil.copytree(site.lib, spaced)
    done = subprocess.run(
        [str(site.launch), "--dir", str(site.dir), "--lib", str(spaced), "--", "true"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 125
    assert "cannot be preloaded" in done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"])
def test_forwards_signals(site: Site, name: str) -> None:
    number = getattr(signal, name)
    script = f"import signal,sys\nsignal.signal({int(number)}, lambda *_: sys.exit(40))\n"
    script += f"open({str(site.root / 'ready')!r}, 'w').write('1')\nsignal.pause()"
    with subprocess.Popen(site.command(sys.executable, "-c", script)) as process:
        until(site.root / "ready")
        process.send_signal(number)
        assert process.wait(timeout=20) == 40
    told = "" if name.startswith("SIGUSR") else f"interrupted by {name}: "
    assert site.exit == f"40 {told}failed\n"


def test_a_signal_that_ends_the_command(site: Site) -> None:
    script = f"echo 1 >{site.root}/ready; exec sleep 60"
    with subprocess.Popen(site.command("sh", "-c", script)) as process:
        until(site.root / "ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM
    assert site.exit == "143 interrupted by SIGTERM: killed by signal 15 (SIGTERM)\n"


def test_reaps_orphans_while_the_command_runs(site: Site) -> None:
    # The inner shell leaves a child that ends after it: an orphan, which becomes the launcher's.
    orphan = site.root / "orphan"
    script = f"(sleep 0.1 & echo $! >{orphan}); sleep 0.6; test ! -d /proc/$(cat {orphan})"
    assert site.run("sh", "-c", script).returncode == 0


def test_what_the_command_leaves_running_ends_with_it(site: Site) -> None:
    left = site.root / "left"
    script = (
        f"(setsid sh -c 'sleep 60 & echo $! >{left}; wait' &) ; while ! test -s {left}; do sleep 0.05; done; exit 5"
    )
    assert site.run("sh", "-c", script).returncode == 5
    assert gone(int(until(left)))
    assert site.exit == "5 failed\n"


def test_the_command_does_not_outlive_a_killed_launcher(site: Site) -> None:
    script = f"echo $$ >{site.root}/pid; exec sleep 60"
    with subprocess.Popen(site.command("sh", "-c", script)) as process:
        pid = int(until(site.root / "pid"))
        process.kill()
        process.wait(timeout=20)
    assert gone(pid)


# -- --ranks: the launcher `plain` of a spec ---------------------------------------------------------------------------


def start_ranks(site: Site, *arguments: str, script: str) -> subprocess.CompletedProcess[str]:
    command = [str(site.launch), "--dir", str(site.dir), *arguments, "--", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_each_rank_is_a_process_with_its_numbers(site: Site) -> None:
    result = start_ranks(site, "--ranks", "3", "--first-rank", "6", script="echo $RANK $LOCAL_RANK")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["6 0", "7 1", "8 2"]
    assert site.exit == "0 completed\n"


def test_the_first_rank_that_fails_ends_the_others_and_decides_the_exit_code(site: Site) -> None:
    started = time.monotonic()
    result = start_ranks(site, "--ranks", "3", script="[ $RANK != 1 ] || exit 5; exec sleep 60")
    assert result.returncode == 5, result.stderr
    assert time.monotonic() - started < 9
    assert site.exit == "5 failed\n"


def test_a_signal_reaches_every_rank(site: Site) -> None:
    script = "trap 'echo 1 > $0/got-$RANK; exit 0' TERM; echo 1 > $0/up-$RANK; while :; do sleep 0.05; done"
    command = [str(site.launch), "--dir", str(site.dir), "--ranks", "2", "--", "sh", "-c", script, str(site.root)]
    process = subprocess.Popen(command)
    for rank in range(2):
        until(site.root / f"up-{rank}")
    process.terminate()
    assert process.wait(20) == 0
    assert all((site.root / f"got-{rank}").exists() for rank in range(2))


@pytest.mark.parametrize("ranks", ["0", "-1", "1025", "two", ""])
def test_a_number_of_ranks_that_is_none(site: Site, ranks: str) -> None:
    result = start_ranks(site, "--ranks", ranks, script="true")
    assert result.returncode == 125
    assert f"--ranks {ranks}: 1 to 1024 is allowed" in result.stderr
