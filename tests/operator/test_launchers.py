"""What the words of a command say of the ranks that it starts. What torchrun is told itself is in test_spec.py."""

from __future__ import annotations

from typing import Any

import pytest

from eidolon_operator import spec as specs

SIZE = "spec.servers, gpusPerServer and workload.ranksPerServer are the emulated size"


def complaints(words: str, *, fold: dict[str, Any] | None = None, **workload: Any) -> list[str]:
    """What is said of a command of 128 servers of 8 GPUs, of which rank 0 stands for all."""
    document = {
        "apiVersion": specs.API_VERSION,
        "kind": specs.KIND,
        "metadata": {"name": "demo"},
        "spec": {
            "servers": 128,
            "gpusPerServer": 8,
            "fold": fold or {"mode": "replica"},
            "workload": {"command": words.split(), **workload},
        },
    }
    try:
        specs.parse(document, source="test")
    except specs.SpecError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "words",
    [
        "torchrun train.py --nnodes 3",
        "torchrun --master-port 29400 -m titan.train --nproc-per-node 2",
        "/venv/bin/torchrun train.py",
        "python -m torch.distributed.run train.py",
        "bash run.sh",
        "./run.sh",
    ],
)
def test_commands_that_start_what_a_folded_run_says(words: str) -> None:
    assert complaints(words) == []


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("torchrun --nproc-per-node 8 train.py", "--nproc-per-node"),
        ("torchrun --nproc_per_node=8 train.py", "--nproc-per-node"),
        ("torchrun --nnodes=128 train.py", "--nnodes"),
        ("torchrun --node_rank 3 train.py", "--node-rank"),
        ("torchrun --standalone train.py", "--standalone"),
        ("torchrun --virtual-local-rank train.py", "--virtual-local-rank"),
        ("python -m torch.distributed.run --nnodes 2 -m titan.train", "--nnodes"),
    ],
)
def test_options_that_outdo_the_environment_are_refused(words: str, option: str) -> None:
    text = f"spec.workload.command: {option} of torchrun outdoes the fold, which starts fewer; remove it: {SIZE}"
    assert text in complaints(words)


def test_each_of_several_options_is_named() -> None:
    found = complaints("torchrun --nnodes 128 --nproc-per-node 8 train.py")
    assert [line.split()[1] for line in found] == ["--nnodes", "--nproc-per-node"]


def test_the_launcher_torchrun_takes_options_in_front_of_the_script() -> None:
    found = complaints("--nproc-per-node 8 train.py --nnodes 2", launcher="torchrun")
    assert [line.split()[1] for line in found] == ["--nproc-per-node"]
    assert complaints("train.py --nnodes 2", launcher="torchrun") == []


def test_a_command_that_starts_one_process_is_refused() -> None:
    assert complaints("python train.py") == [
        "spec.workload.command: 'python' starts no ranks, which a folded run needs: put torchrun in front of the "
        "script, or give spec.workload.launcher: torchrun or plain"
    ]
    assert complaints("python train.py", launcher="plain") == []


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("accelerate launch train.py", "accelerate launch"),
        ("python -m accelerate.commands.launch train.py", "accelerate launch"),
        ("deepspeed train.py", "deepspeed"),
    ],
)
def test_launchers_that_count_gpus_start_as_many_processes_as_a_server_has(words: str, program: str) -> None:
    own = f"spec.workload.command: {program} starts a process for each of the 8 GPUs of one server, and this fold needs"
    assert complaints(words) == [f"{own} 1 on 1 server: start the script with torchrun"]
    assert complaints(words, fold={"mode": "replica", "keep": [9]}) == [
        f"{own} 2 on 2 servers: start the script with torchrun"
    ]
    mesh = [{"axis": "dp", "size": 128}, {"axis": "tp", "size": 8}]
    assert complaints(words, fold={"mode": "replica", "parallel": mesh}) == []


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("accelerate launch --num_processes 1024 --num-machines 128 train.py", ["--num-processes", "--num-machines"]),
        ("deepspeed --num_gpus 8 --num_nodes=128 train.py", ["--num-gpus", "--num-nodes"]),
    ],
)
def test_their_numbers_are_refused_too(words: str, options: list[str]) -> None:
    mesh = [{"axis": "dp", "size": 128}, {"axis": "tp", "size": 8}]
    found = complaints(words, fold={"mode": "replica", "parallel": mesh})
    assert [line.split()[1] for line in found] == options


def test_variables_that_count_processes_are_refused() -> None:
    env = [{"name": "PET_NNODES", "value": "128"}, {"name": "OTHER", "value": "1"}]
    assert complaints("torchrun train.py", env=env) == [
        "spec.workload.env: PET_NNODES counts processes, which a folded run does itself; remove it"
    ]
    assert complaints("torchrun train.py", env=env, fold={"mode": "none"}) == []


def test_without_folding_a_command_may_say_what_it_likes() -> None:
    for words in ("torchrun --nproc-per-node 8 --nnodes 128 train.py", "python train.py", "deepspeed train.py"):
        assert complaints(words, fold={"mode": "none"}) == []
