"""What the machine of a local run gives to the workload. Whole runs are in e2e/local."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eidolon_operator import launching, machine
from eidolon_operator import plan as planning
from eidolon_operator import spec as specs


def make(**workload: Any) -> specs.Spec:
    document = {
        "apiVersion": "eidolon.dev/v1alpha1",
        "kind": "SimulatedCluster",
        "metadata": {"name": "demo"},
        "spec": {"servers": 2, "gpusPerServer": 4, "workload": {"command": ["torchrun", "train.py"], **workload}},
    }
    return specs.parse(document, source="test")


def environment(spec: specs.Spec, server: int = 1, **inherited: str) -> dict[str, str]:
    return machine.workload_environment(spec, server, 29500, {"PATH": "/bin", "VIRTUAL_ENV": "/v", **inherited})


def test_torchrun_finds_its_environment() -> None:
    assert environment(make()) == {
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
        "EIDOLON_PLUGIN_BUILD": "1",
        "VIRTUAL_ENV": "/v",
        "PATH": f"/bin:{Path(sys.executable).parent}",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "29500",
    }


def test_plain_ranks_get_what_torch_distributed_reads() -> None:
    found = environment(make(launcher="plain", ranksPerServer=2))
    assert {key: found[key] for key in found if not key.startswith(("P", "GLOO", "VIRTUAL", "EIDOLON_"))} == {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def folded(**fields: Any) -> specs.Spec:
    """Two servers of four GPUs, of which ranks 0, 1 and 7 run."""
    spec = {
        "servers": 2,
        "gpusPerServer": 4,
        "fold": {
            "mode": "replica",
            "parallel": [{"axis": "dp", "size": 4}, {"axis": "tp", "size": 2}],
            "keep": [7],
        },
        "workload": {"command": ["torchrun", "train.py"]},
    }
    document = {
        "apiVersion": "eidolon.dev/v1alpha1",
        "kind": "SimulatedCluster",
        "metadata": {"name": "demo"},
        "spec": {**spec, **fields},
    }
    return specs.parse(document, source="test")


OF = "0+1x2,0+1x2,0+1x2,0+7x2"  # by rank, the one whose process stands for it


def test_torchrun_starts_the_ranks_of_a_folded_run_that_run() -> None:
    def given(server: int) -> list[str]:
        found = environment(folded(), server)
        keys = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "EIDOLON_FOLD")
        return [found[key] for key in keys]

    assert given(0) == ["2", "0", "2", "8/4:0+1x2:" + OF]
    assert given(1) == ["2", "1", "1", "8/4:7:" + OF]


def test_servers_with_phantoms_only_are_not_counted() -> None:
    spec = folded(servers=128, gpusPerServer=8, fold={"mode": "replica", "keep": [1023]})
    assert spec.placement.servers == [0, 127]
    found = environment(spec, 127)
    assert (found["PET_NNODES"], found["PET_NODE_RANK"], found["PET_NPROC_PER_NODE"]) == ("2", "1", "1")
    assert found["EIDOLON_FOLD"] == "1024/8:1023:0+0x1023,1023"


def test_plain_ranks_of_a_folded_run_count_processes() -> None:
    spec = folded(workload={"command": ["train"], "launcher": "plain"})
    found = environment(spec, 1)
    keys = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "EIDOLON_FOLD")
    assert [found[key] for key in keys] == ["3", "1", "1", "8/4:7:" + OF]
    assert launching.rank_options(spec, 0) == ["--ranks", "2", "--first-rank", "0"]
    assert launching.rank_options(spec, 1) == ["--ranks", "1", "--first-rank", "2"]


def test_what_a_folded_run_needs_is_told_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.fold_needs(make()) == []
    monkeypatch.setattr(machine, "machine_memory", lambda: 16 << 30)
    assert machine.fold_needs(folded()) == [
        "fold replica: rank 0 stands for 4 ranks, rank 1 for 3 ranks, rank 7 for itself",
        "3 of 8 ranks need about 1.2 GiB of memory (0.4 GiB for each process is assumed); this machine has 16.0 GiB",
    ]
    monkeypatch.setattr(machine, "machine_memory", lambda: 1 << 30)
    with pytest.raises(machine.RunError, match=r"spec.fold: 3 of 8 ranks need about 1.2 GiB .* has 1.0 GiB. Fold more"):
        machine.fold_needs(folded())


def test_who_wins() -> None:
    """The object over the plan's variables, those over what is inherited, that over our defaults."""
    spec = make(env=[{"name": "PET_NNODES", "value": "1"}, {"name": "PATH", "value": "/own"}])
    found = environment(spec, GLOO_SOCKET_IFNAME="eth0", PET_NODE_RANK="7", EIDOLON_DIR="/old", OTHER="kept")
    assert (found["PET_NNODES"], found["PET_NODE_RANK"]) == ("1", "1")
    assert (found["GLOO_SOCKET_IFNAME"], found["OTHER"]) == ("eth0", "kept")
    assert found["PATH"].startswith("/own:")
    assert "EIDOLON_DIR" not in found


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_programs_are_those_that_a_shell_would_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own environment has a torch, but hides nothing: it comes last."""
    ours = str(Path(sys.executable).parent / "python")
    theirs, other = program(tmp_path / "a" / "python"), program(tmp_path / "b" / "python")
    monkeypatch.setenv("PATH", str(tmp_path / "a"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)

    def found(**workload: Any) -> str:
        return machine.workload_command(make(command=["python", "t.py"], **workload).workload)[0]

    assert found() == str(theirs)
    assert found(env=[{"name": "PATH", "value": str(tmp_path / "b")}]) == str(other)
    theirs.unlink()
    assert found() == ours


def test_the_torchrun_launcher_runs_the_python_of_the_torchrun_that_a_shell_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system's python in front of it, which has no torch, does not count."""
    program(tmp_path / "bin" / "python")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def found() -> str:
        return machine.workload_command(make(command=["t.py"], launcher="torchrun").workload)[0]

    assert found() == sys.executable
    theirs = program(tmp_path / "env" / "python3.12")
    program(tmp_path / "bin" / "torchrun", f"#!{theirs}\n")
    assert found() == str(theirs)


def test_the_torchrun_launcher_wraps_the_command() -> None:
    command = machine.workload_command(make(command=["train.py", "--x"], launcher="torchrun").workload)
    assert command[1:] == ["-m", "torch.distributed.run", "train.py", "--x"]


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(machine.RunError, match="workload: 'trainx' is not found") as caught:
        machine.workload_command(make(command=["trainx"]).workload)
    assert caught.value.exit_code == 127
    file = tmp_path / "train.sh"
    file.touch()
    with pytest.raises(machine.RunError, match=r"train.sh' is not executable"):
        machine.workload_command(make(command=[str(file)]).workload)


def test_rings_that_do_not_fit_are_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(machine.RunError, match=r"the rings of 8 ranks need \d+ MiB in "):
        machine.check_space(tmp_path, planning.build(make(), source="test"))
    with pytest.raises(machine.RunError, match=r"the rings of 3 ranks need"):
        machine.check_space(tmp_path, planning.build(folded(), source="test"))


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    with machine.server_directory(tmp_path, 0) as used:
        stale = tmp_path / "eidolon-stale-0"
        (stale / "ranks").mkdir(parents=True)
        (stale / "owner").touch()
        foreign = tmp_path / "eidolon-foreign"
        foreign.mkdir()
        machine.remove_stale(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([used, foreign])
    assert list(tmp_path.iterdir()) == [foreign]
