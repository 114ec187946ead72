"""The place of a process in a folded run, where one process stands for a whole class of ranks.

torchrun, or whoever starts the processes, counts those that there are. Before a process imports anything it gets the
rank that it is in the emulated job: ``EIDOLON_FOLD`` says which, and ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and their
kin are set to it, once. Children of the process inherit them as they are.

``torch.distributed`` then asks a few things of ranks that are no processes, the *phantoms*:

* A communicator of NCCL is made with an id that the first member makes. If that is a phantom, the other members put an
  id in its place, which they compute alike. There is one such first member, however large the group is.
* The simulation core has to know which ranks are members of a communicator. Their list goes there with the options of
  the group, as the name of NCCL's network, which means nothing here.
* A store without torchrun waits for all ranks. It waits for the processes instead.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as typing has it, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

VARIABLE = "EIDOLON_FOLD"  #: WORLD/RANKS_PER_SERVER:RANKS_HERE:ALL_PROCESSES, the last two as lists of ranks
TAKEN = "EIDOLON_FOLD_RANK"  #: the rank of this process, which its children are not
MARK = "eidolon@"  #: before the members of a group (interposer/native/libs/nccl_comm.cpp)
ID_BYTES = 128  #: of ncclUniqueId
OWN_BYTES = 16  #: of those that say something; the rest are zeros


def listed(ranks: Sequence[int]) -> str:
    """Ranks as text: ``0+8x16,200`` for 0, 8, … (16 of them), and 200."""
    parts: list[str] = []
    at = 0
    while at < len(ranks):
        end = at + 1
        stride = ranks[end] - ranks[at] if end < len(ranks) else 0
        if stride > 0:
            while end < len(ranks) and ranks[end] - ranks[end - 1] == stride:
                end += 1
        count = end - at
        parts.append(f"{ranks[at]}+{stride}x{count}" if count > 1 else str(ranks[at]))
        at = end
    return ",".join(parts)


def unlisted(text: str) -> list[int]:
    """The ranks of a text that :func:`listed` gives."""
    found: list[int] = []
    for part in text.split(","):
        first, _, run = part.partition("+")
        stride, _, count = run.partition("x")
        found += [int(first) + int(stride or 0) * i for i in range(int(count or 1))]
    return found


class Fold:
    """The ranks of a folded run, as one of its processes sees them."""

    def __init__(self, text: str) -> None:
        shape, here, all_ = text.split(":")
        world, _, per_server = shape.partition("/")
        self.world, self.per_server = int(world), int(per_server)
        self._here = unlisted(here)
        self._processes = unlisted(all_)
        self._real = frozenset(self._processes)

    def place(self, local_rank: int) -> dict[str, str]:
        """The environment of the process that is started as ``local_rank`` on its server."""
        rank = self._here[local_rank]
        server, local = divmod(rank, self.per_server)
        world, servers = str(self.world), str(self.world // self.per_server)
        found = {TAKEN: rank, "RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": local, "GROUP_RANK": server}
        return {
            **{name: str(value) for name, value in found.items()},
            **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), world),
            "LOCAL_WORLD_SIZE": str(self.per_server),
            "GROUP_WORLD_SIZE": servers,
            "TORCH_NCCL_RANKS_PER_ROOT": world,  # one root, however large a group is
        }

    # ---- torch -----------------------------------------------------------------------------------------------------
    # Functions of this name cost the program nothing: the shim leaves them out.

    def groups(self, module: Any) -> None:
        """``torch.distributed.distributed_c10d``: what makes groups of NCCL."""
        make = module._new_process_group_helper

        def eidolon_uncounted(
            size: int,
            rank: int,
            ranks: Any,
            backend: Any,
            store: Any,
            name: str,
            backend_options: Any = None,
            **rest: Any,
        ) -> Any:
            members = list(ranks) or list(range(size))
            own = int(os.environ["RANK"])
            devices = module.BackendConfig(backend).get_device_backend_map()
            if own in members and module.Backend.NCCL in devices.values():
                backend_options = self._naming(module, backend_options, members)
                for device, of in devices.items():
                    if of == module.Backend.NCCL:
                        self._mint(module, store, f"{name}/", f"{device}/", members)
            return make(size, rank, ranks, backend, store, name, backend_options=backend_options, **rest)

        module._new_process_group_helper = eidolon_uncounted
        split = module.ProcessGroup.split_group

        def split_group(parent: Any, ranks: Any, *args: Any, **rest: Any) -> Any:
            if "opts" in rest:
                of_parent = list(parent._get_backend(_cuda()).options.global_ranks_in_group)
                members = [of_parent[rank] for rank in ranks] if of_parent else list(ranks)
                rest["opts"] = self._naming(module, rest["opts"], members)
            return split(parent, ranks, *args, **rest)

        split_group.__code__ = split_group.__code__.replace(co_name="eidolon_uncounted")
        module.ProcessGroup.split_group = split_group

    @staticmethod
    def _naming(module: Any, options: Any, members: Sequence[int]) -> Any:
        """Options of a group that say its members. Programs may use the same for several groups, so they are copied."""
        import copy

        if options is None:
            options = module.ProcessGroupNCCL.Options()
        elif isinstance(options, module.ProcessGroupNCCL.Options):
            options = copy.deepcopy(options)
        else:
            return options  # torch says what is wrong
        options.config.net_name = MARK + listed(members)
        return options

    def _mint(self, module: Any, store: Any, group: str, device: str, members: Sequence[int]) -> None:
        """Puts the id of a communicator where its first member would, if that is a phantom."""
        if members[0] in self._real:
            return
        import hashlib

        digest = hashlib.sha256(f"{group}{device}{listed(members)}".encode()).digest()[: OWN_BYTES - 1]
        made = (digest + b"\1").ljust(ID_BYTES, b"\0")
        module.PrefixStore(device, module.PrefixStore(group, store)).set("0", made)

    def stores(self, module: Any) -> None:
        """``torch.distributed.rendezvous``: stores that wait for all ranks."""
        create = module._create_c10d_store

        def eidolon_uncounted(host: str, port: int, rank: int, world: int, *args: Any, **rest: Any) -> Any:
            return create(host, port, rank, len(self._real), *args, **rest)

        module._create_c10d_store = eidolon_uncounted


def _cuda() -> Any:
    import torch

    return torch.device("cuda")


def fold_of(environment: Any) -> Fold | None:
    """The fold of this process, whose place it has then taken; None if the run is not folded, or the process is no
    rank."""
    text = environment.get(VARIABLE)
    if not text or "RANK" not in environment or "LOCAL_RANK" not in environment:
        return None
    fold = Fold(text)
    if TAKEN not in environment:
        environment.update(fold.place(int(environment["LOCAL_RANK"])))
    return fold
