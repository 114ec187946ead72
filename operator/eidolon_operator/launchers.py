"""How a command starts the ranks of a server, as far as its words say.

torchrun takes the number of processes from the environment that a run gives it, unless its command line says
otherwise. Most of this module is about folded runs. There the environment counts the processes that run, so a number
on the command line, which counts emulated ranks, would start processes that stand for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from eidolon_operator.folding import Placement
from eidolon_operator.schema import Problem

#: Launchers by the name of their program and of their module.
_LAUNCHERS: Final[Mapping[str, str]] = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "accelerate": "accelerate launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
#: Options of each that say which processes start. They outdo the environment.
_NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "torchrun": ("--nproc-per-node", "--nnodes", "--node-rank", "--standalone", "--virtual-local-rank"),
    "accelerate launch": ("--num-processes", "--num-machines", "--machine-rank"),
    "deepspeed": ("--num-gpus", "--num-nodes", "--node-rank", "--include", "--exclude", "--hostfile"),
}
#: Programs that may start a launcher which their words do not show.
_SHELLS: Final = frozenset(("sh", "bash", "dash", "zsh"))
#: Variables with the numbers of processes, which a run sets itself.
_VARIABLES: Final = frozenset(
    ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
)


class _Launch(NamedTuple):
    program: str  #: as users know it, such as ``accelerate launch``
    words: Sequence[str]  #: behind it


def torchrun_ranks(command: Sequence[str]) -> int | None:
    """The ranks per server that a torchrun command names itself, since that overrides PET_NPROC_PER_NODE. None if it
    is no such command, or names none."""
    launch = _find(command)
    if launch is None or launch.program != "torchrun":
        return None
    for option, value in _options(launch.words):
        if option == "--nproc-per-node":
            return int(value) if value.isdecimal() and int(value) > 0 else None
    return None


def fold_problems(
    command: Sequence[str], variables: Sequence[str], launcher: str, gpus_per_server: int, placement: Placement
) -> Iterator[Problem]:
    """Why a command cannot start the processes of a folded run. ``variables`` are the names that the object sets in the
    environment, ``launcher`` is ``spec.workload.launcher``."""
    for name in sorted(_VARIABLES.intersection(variables)):
        yield Problem("spec.workload.env", f"{name} counts processes, which a folded run does itself; remove it")
    field = "spec.workload.command"
    if launcher == "plain":
        return
    launch = _Launch("torchrun", command) if launcher == "torchrun" else _find(command)
    if launch is None:
        program = Path(command[0]).name
        if program not in _SHELLS and not program.endswith(".sh"):
            needed = "put torchrun in front of the script, or give spec.workload.launcher: torchrun or plain"
            yield Problem(field, f"{command[0]!r} starts no ranks, which a folded run needs: {needed}")
        return
    for option, _ in _options(launch.words):
        if option in _NUMBERS[launch.program]:
            size = "spec.servers, gpusPerServer and workload.ranksPerServer are the emulated size"
            yield Problem(
                field, f"{option} of {launch.program} outdoes the fold, which starts fewer; remove it: {size}"
            )
    if launch.program != "torchrun" and [len(ranks) for ranks in placement.ranks.values()] != [gpus_per_server]:
        here = f"{placement.processes} on {len(placement.servers)} server{'s' if len(placement.servers) > 1 else ''}"
        own = f"starts a process for each of the {gpus_per_server} GPUs of one server"
        yield Problem(field, f"{launch.program} {own}, and this fold needs {here}: start the script with torchrun")


def _find(command: Sequence[str]) -> _Launch | None:
    for index, word in enumerate(command):
        program = _LAUNCHERS.get(word) or _LAUNCHERS.get(Path(word).name)
        if program is not None:
            return _Launch(program, command[index + 1 :])
    return None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options with hyphens in their names, and what stands behind each, up to the script or the module."""
    for index, word in enumerate(words):
        if word in ("-m", "--module") or word.endswith(".py"):  # what follows belongs to the script
            return
        if word.startswith("--"):
            option, given, value = word.partition("=")
            following = words[index + 1] if index + 1 < len(words) else ""
            yield option.replace("_", "-"), value if given else following
