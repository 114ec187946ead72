"""Groups of Gloo in a folded run: their members that are processes form one, which moves bytes for all.

Gloo connects all members of a group in its constructor, so here it gets the processes among them only. What a program
calls on the group is mirrored (:mod:`.eidolon_fold` says what a phantom is): a phantom sends what the process sends
that stands for it, or the first process of the group if that one is no member. Sums count a process once for each
member that it stands for.

Only calls on tensors of the host come here, those of Python. Calls are over when they return.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from eidolon_interposer.hook.eidolon_fold import between, uncounted
else:
    from eidolon_fold import between, uncounted  # beside this file


class Mirror:
    """A group with phantoms, as its processes see it.

    Args:
        members: its ranks.
        of: the representative of every rank of the run.
        own: the rank of this process.
    """

    def __init__(self, members: Sequence[int], of: Sequence[int], own: int) -> None:
        self.processes = [rank for rank in members if of[rank] == rank]
        inner = {rank: at for at, rank in enumerate(self.processes)}
        self.sources = [inner.get(of[rank], 0) for rank in members]  #: by member, the process whose bytes are its
        self.places = [members.index(rank) for rank in self.processes]  #: of the processes among the members
        self.rank = inner[own]  #: of this process among the processes
        self.place = members.index(own)
        self.count = self.sources.count(self.rank)  #: for how many members this process stands


class Gloo:
    """Makes groups of Gloo in a folded run (:class:`.eidolon_fold.Fold`)."""

    def __init__(self, fold: Any) -> None:
        self._fold = fold
        self._mirrors: dict[str, Mirror] = {}  # by the name of the group

    def groups(self, module: Any) -> None:
        """``torch.distributed.distributed_c10d``."""
        import os

        group, own = module.ProcessGroupGloo, int(os.environ["RANK"])
        construct = group.__init__

        @between
        def built(self_: Any, store: Any, rank: int, size: int, *args: Any, **rest: Any) -> None:
            construct(self_, store, *inner(rank, size), *args, **rest)

        @uncounted
        def inner(rank: int, size: int) -> tuple[int, int]:
            if not self._fold.making:
                return rank, size
            mirror = Mirror(self._fold.making, self._fold.of, own)
            return mirror.rank, len(mirror.processes)

        group.__init__ = built
        for name in CALLS:
            self._wrap(module.ProcessGroup, name, own)

    def _wrap(self, of_all: Any, name: str, own: int) -> None:
        """A call of groups, which is mirrored where it is one on the host and the group has phantoms."""
        call, mirrored = getattr(of_all, name), CALLS[name]

        @between
        def called(self_: Any, *args: Any, **rest: Any) -> Any:
            mirror = of_call(self_, args)
            return call(self_, *args, **rest) if mirror is None else instead(self_, mirror, args, rest)

        @uncounted
        def of_call(self_: Any, args: Any) -> Mirror | None:
            members = self._fold.members.get(self_.group_name) if on_host(args) else None
            if members is None:
                return None
            mirror = self._mirrors.get(self_.group_name)
            if mirror is None:
                mirror = self._mirrors[self_.group_name] = Mirror(members, self._fold.of, own)
            return mirror

        @uncounted
        def instead(self_: Any, mirror: Mirror, args: Any, rest: Any) -> Any:
            return mirrored(mirror, lambda *inner: call(self_, *inner, **rest), *args)

        setattr(of_all, name, called)


def on_host(args: Any) -> bool:
    """Whether the first tensor that a call has is one of the host."""
    for value in args:
        first = value
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        device = getattr(first, "device", None)
        if device is not None:
            return bool(device.type == "cpu")
    return False


# ---- calls -----------------------------------------------------------------------------------------------------------
# Each gets the group, the call among the processes, and the arguments of the program.


def _repeat(tensor: Any, op: Any, count: int) -> None:
    """Reduces a tensor with itself, so that it stands for so many members."""
    from torch.distributed import ReduceOp

    if op == ReduceOp.SUM:
        tensor.mul_(count)
    elif op == ReduceOp.PRODUCT:
        tensor.pow_(count)


def _all_reduce(mirror: Mirror, call: Callable[..., Any], tensors: Any, options: Any, *rest: Any) -> Any:
    for tensor in tensors:
        _repeat(tensor, options.reduceOp, mirror.count)
    return call(tensors, options, *rest)


def _reduce(mirror: Mirror, call: Callable[..., Any], tensors: Any, options: Any, *rest: Any) -> Any:
    root = options.rootRank
    options.rootRank = mirror.sources[root]
    own = [tensor.clone() for tensor in tensors]
    for tensor in own:
        _repeat(tensor, options.reduceOp, mirror.count)
    work = call(own, options, *rest)
    work.wait()
    if root == mirror.place:
        for tensor, total in zip(tensors, own, strict=True):
            tensor.copy_(total)
    return work


def _broadcast(mirror: Mirror, call: Callable[..., Any], tensors: Any, options: Any, *rest: Any) -> Any:
    options.rootRank = mirror.sources[options.rootRank]
    return call(tensors, options, *rest)


def _all_gather(mirror: Mirror, call: Callable[..., Any], outputs: Any, inputs: Any, *rest: Any) -> Any:
    inner = [[one.new_empty(one.shape) for _ in mirror.processes] for one in inputs]
    work = call(inner, inputs, *rest)
    work.wait()
    for members, processes in zip(outputs, inner, strict=True):
        for output, source in zip(members, mirror.sources, strict=True):
            output.copy_(processes[source])
    return work


def _all_gather_base(mirror: Mirror, call: Callable[..., Any], output: Any, one: Any, *rest: Any) -> Any:
    inner = one.new_empty((len(mirror.processes), *one.shape))
    work = call(inner, one, *rest)
    work.wait()
    output.view(-1).copy_(inner[mirror.sources].view(-1))
    return work


def _gather(mirror: Mirror, call: Callable[..., Any], outputs: Any, inputs: Any, options: Any, *rest: Any) -> Any:
    root = options.rootRank
    options.rootRank = mirror.sources[root]
    receives = mirror.rank == options.rootRank
    inner = [[one.new_empty(one.shape) for _ in mirror.processes] for one in inputs] if receives else []
    work = call(inner, inputs, options, *rest)
    work.wait()
    if root == mirror.place:
        for members, processes in zip(outputs, inner, strict=True):
            for output, source in zip(members, mirror.sources, strict=True):
                output.copy_(processes[source])
    return work


def _scatter(mirror: Mirror, call: Callable[..., Any], outputs: Any, inputs: Any, options: Any, *rest: Any) -> Any:
    if mirror.places[mirror.sources[options.rootRank]] != options.rootRank:
        raise RuntimeError(
            "a scatter from a rank that is no process of the folded run; keep that rank (spec.fold.keep)"
        )
    options.rootRank = mirror.sources[options.rootRank]
    return call(outputs, [[of[place] for place in mirror.places] for of in inputs], options, *rest)


def _all_to_all(mirror: Mirror, call: Callable[..., Any], outputs: Any, inputs: Any, *rest: Any) -> Any:
    inner = [outputs[place].new_empty(outputs[place].shape) for place in mirror.places]
    work = call(inner, [inputs[place] for place in mirror.places], *rest)
    work.wait()
    for output, source in zip(outputs, mirror.sources, strict=True):
        output.copy_(inner[source])
    return work


def _transfer(mirror: Mirror, call: Callable[..., Any], tensors: Any, peer: int, *rest: Any) -> Any:
    return call(tensors, mirror.places.index(peer), *rest)  # a process: the fold has refused any other


def _refused(mirror: Mirror, call: Callable[..., Any], *args: Any) -> Any:
    raise RuntimeError(
        "this call of a Gloo group is not done in a folded run, where some of its members are no processes"
    )


CALLS: dict[str, Callable[..., Any]] = {
    "allreduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "allgather": _all_gather,
    "_allgather_base": _all_gather_base,
    "gather": _gather,
    "scatter": _scatter,
    "alltoall": _all_to_all,
    **dict.fromkeys(("send", "recv"), _transfer),
    **dict.fromkeys(("alltoall_base", "reduce_scatter", "_reduce_scatter_base", "recv_anysource"), _refused),
}
