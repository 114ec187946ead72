"""The place of a process in a folded run, where one process stands for a whole class of ranks.

torchrun, or whoever starts the processes, counts those that there are. Before a process imports anything it gets the
rank that it is in the emulated job: ``EIDOLON_FOLD`` says which, and ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and their
kin are set to it, once. Children of the process inherit them as they are.

``torch.distributed`` then asks a few things of ranks that are no processes, the *phantoms*:

* A communicator of NCCL is made with an id that its first member makes. If that is a phantom, the other members put an
  id in its place, which they compute alike. There is one such first member, however large the group is.
* The simulation core has to know which ranks are members of a communicator. Their list goes there with the options of
  the group, as the name of NCCL's network, which means nothing here.
* A group of Gloo connects each member with each other, and moves bytes between them (``eidolon_gloo.py``).
* A store without torchrun waits for all ranks. It waits for the processes instead.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

VARIABLE = "EIDOLON_FOLD"  #: WORLD/RANKS_PER_SERVER:RANKS_HERE:OF, the last two as lists of ranks
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
        stride = ranks[end] - ranks[at] if end < len(ranks) else -1
        if stride >= 0:
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
        shape, here, of = text.split(":")
        world, _, per_server = shape.partition("/")
        self.world, self.per_server = int(world), int(per_server)
        self._here = unlisted(here)
        self.of = unlisted(of)  #: by rank, the rank whose process stands for it
        self.processes = len(set(self.of))
        self.members: dict[str, list[int]] = {}  #: of groups with phantoms, by their names
        self.making: list[int] = []  #: members of the group that is being made, if there are phantoms among them

    def phantom(self, rank: int) -> bool:
        """Whether a rank is no process."""
        return self.of[rank] != rank

    def place(self, local_rank: int) -> dict[str, str]:
        """The environment of the process that is started as ``local_rank`` on its server. One too many ends here."""
        if local_rank >= len(self._here):
            raise SystemExit(
                f"eidolon: LOCAL_RANK={local_rank}, but this server of the folded run has {len(self._here)} processes; "
                "whatever starts them must take their number from torchrun's environment (PET_NPROC_PER_NODE)"
            )
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
    # What stands between the program and torch here costs the program nothing (:func:`between`, :func:`uncounted`).

    def groups(self, module: Any) -> None:
        """``torch.distributed.distributed_c10d``: what makes groups, and what they cannot do."""
        import os

        helper, own = module._new_process_group_helper, int(os.environ["RANK"])

        @uncounted
        def remember(size: int, ranks: Any, name: Any) -> None:
            members = list(ranks) or list(range(size))
            if own in members and any(map(self.phantom, members)):
                self.members[str(name)] = self.making = members

        @between
        def made(size: int, rank: int, ranks: Any, backend: Any, store: Any, name: Any, *args: Any, **rest: Any) -> Any:
            remember(size, ranks, name)
            try:
                return helper(size, rank, ranks, backend, store, name, *args, **rest)
            finally:
                self.making = []

        module._new_process_group_helper = made
        if hasattr(module, "ProcessGroupNCCL"):
            self._nccl(module)
        if hasattr(module, "ProcessGroupGloo"):
            from eidolon_gloo import Gloo  # type: ignore[import-not-found]  # beside this file

            Gloo(self).groups(module)
        for name, does in (("send", "sends to"), ("recv", "receives from")):  # last, so that it is asked first
            self._check_peer(module.ProcessGroup, name, f"rank {own} {does}")

    def _check_peer(self, group: Any, name: str, does: str) -> None:
        """A transfer has two ends, and both have to be processes."""
        call = getattr(group, name)

        @uncounted
        def check(self_: Any, peer: int) -> None:
            members = self.members.get(self_.group_name)
            if members is not None and 0 <= peer < len(members) and self.phantom(members[peer]):
                raise RuntimeError(
                    f"{does} rank {members[peer]}, which is no process of this folded run; name the axis of this group "
                    "in spec.fold.parallel as one that is not folded, such as pp, or keep that rank (spec.fold.keep)"
                )

        @between
        def called(self_: Any, tensors: Any, peer: int, *args: Any, **rest: Any) -> Any:
            check(self_, peer)
            return call(self_, tensors, peer, *args, **rest)

        setattr(group, name, called)

    def _nccl(self, module: Any) -> None:
        group = module.ProcessGroupNCCL
        construct, split = group.__init__, module.ProcessGroup.split_group

        @between
        def made(self_: Any, store: Any, rank: int, size: int, options: Any, *args: Any, **rest: Any) -> None:
            construct(self_, store, rank, size, prepared(store, size, options), *args, **rest)

        @uncounted
        def prepared(store: Any, size: int, options: Any) -> Any:
            if not isinstance(options, group.Options):  # an older form, or a mistake: torch knows
                return options
            members = list(options.global_ranks_in_group) or list(range(size))
            self._mint(store, options.group_name, members)
            return named(options, members)

        @between
        def divided(parent: Any, ranks: Any, *args: Any, **rest: Any) -> Any:
            if rest.get("opts") is not None:
                rest["opts"] = of_part(parent, ranks, rest["opts"], rest.get("group_name"))
            return split(parent, ranks, *args, **rest)

        @uncounted
        def of_part(parent: Any, ranks: Any, options: Any, name: Any) -> Any:
            import torch

            of_parent = list(parent._get_backend(torch.device("cuda")).options.global_ranks_in_group)
            members = [of_parent[rank] for rank in ranks] if of_parent else list(ranks)
            if any(map(self.phantom, members)):
                self.members[str(name)] = members
            return named(options, members)

        def named(options: Any, members: Sequence[int]) -> Any:
            """Options that say the members. Programs may use theirs for several groups, so they are copied."""
            import copy

            options = copy.deepcopy(options)
            options.config.net_name = MARK + listed(members)
            return options

        group.__init__ = made
        module.ProcessGroup.split_group = divided

    def _mint(self, store: Any, name: str, members: Sequence[int]) -> None:
        """Puts the id of a group's communicator where its first member would, if that is a phantom."""
        if not self.phantom(members[0]):
            return
        import hashlib

        digest = hashlib.sha256(f"{name} {listed(members)}".encode()).digest()
        own = digest[: OWN_BYTES - 1] + b"\1"
        store.set("0", own.ljust(ID_BYTES, b"\0"))

    def stores(self, module: Any) -> None:
        """``torch.distributed.rendezvous``: stores that wait for all ranks."""
        create = module._create_c10d_store

        @between
        def made(host: str, port: int, rank: int, world: int, *args: Any, **rest: Any) -> Any:
            return create(host, port, rank, self.processes, *args, **rest)

        module._create_c10d_store = made


def uncounted(function: Any) -> Any:
    """The function, which costs the program nothing, nor does what it calls (``core/interpreter.cpp``)."""
    function.__code__ = function.__code__.replace(co_name="eidolon_uncounted")
    return function


def between(function: Any) -> Any:
    """The function, which costs the program nothing itself. What it calls does."""
    function.__code__ = function.__code__.replace(co_name="eidolon_between")
    return function


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
