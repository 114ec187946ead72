"""The processes of a run, as both backends start them: modules, files, and how ranks find each other.

A local run and a run in Kubernetes start the same core, agents and launcher, with other addresses and paths. What they
share is here.
"""

from __future__ import annotations

from typing import Final

from eidolon_interposer.hook.eidolon_fold import VARIABLE, listed
from eidolon_operator.spec import Spec, Workload

# What is started with ``python -m``.
CORE_MODULE: Final = "eidolon_simcore"
AGENT_MODULE: Final = "eidolon_interposer.agent"
ONE_HOST_MODULE: Final = "eidolon_operator.one_host"
INSTALL_MODULE: Final = "eidolon_interposer.install"
_TORCHRUN_MODULE: Final = "torch.distributed.run"

# Files of a run's directory.
PLAN: Final = "plan.json"  #: what core and agents are told, written by whoever starts them
SUMMARY: Final = "summary.json"  #: written by the core when the run has ended
PROGRESS: Final = "progress.jsonl"  #: written by the core, a line for each step that is final
CORE_LOG: Final = "core.log"

#: Prefix of Eidolon's own environment variables. None of them is passed on from the surroundings.
VARIABLE_PREFIX: Final = "EIDOLON_"

#: Of a folded run, ``WORLD/RANKS_PER_SERVER:RANKS_HERE:OF``: the size of the whole job and how many of its ranks each
#: emulated server has; which ranks the processes of this server are, in the order of the ``LOCAL_RANK`` that torchrun
#: or the launcher gives them; and by rank the rank whose process stands for it. The hook reads these lists of ranks.
FOLD: Final = VARIABLE

#: The launcher, below the directory that the shim is installed in.
LAUNCH: Final = "bin/launch"


def workload_command(workload: Workload, python: str) -> list[str]:
    """The command of one emulated server, under torchrun if the spec asks for it; ``python`` is the interpreter."""
    command = list(workload.command)
    return [python, "-m", _TORCHRUN_MODULE, *command] if workload.launcher == "torchrun" else command


def rank_options(spec: Spec, server: int) -> list[str]:
    """The launcher's options that make it start every rank of a server by itself, if the spec asks for that."""
    if spec.workload.launcher != "plain":
        return []
    ranks = spec.placement.ranks[server]
    return ["--ranks", str(len(ranks)), "--first-rank", str(spec.placement.before(server))]


def rendezvous(spec: Spec, server: int, master: str, port: int) -> dict[str, str]:
    """Environment variables by which the ranks of a server find the others; server 0 listens at ``master:port``.

    ``PET_*`` is what torchrun reads. Ranks that the launcher starts get the variables of ``torch.distributed``; the
    launcher adds ``LOCAL_RANK`` and ``RANK`` to each.

    All of these count the processes that run, and the servers on which they do. Where that is not every rank of the
    run, :data:`FOLD` tells the hook in each process which rank the process is.
    """
    placement = spec.placement
    number, ranks = str(placement.servers.index(server)), placement.ranks[server]
    found = {
        "PET_NNODES": str(len(placement.servers)),
        "PET_NODE_RANK": number,
        "PET_NPROC_PER_NODE": str(len(ranks)),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(port),
    }
    if spec.workload.launcher == "plain":
        found |= {
            "WORLD_SIZE": str(placement.processes),
            "LOCAL_WORLD_SIZE": str(len(ranks)),
            "GROUP_RANK": number,
            "MASTER_ADDR": master,
            "MASTER_PORT": str(port),
        }
    if spec.fold is not None:
        here, of = listed(ranks), listed(placement.of)
        found[FOLD] = f"{spec.world}/{spec.workload.ranks_per_server}:{here}:{of}"
    return found
