"""Groups of Gloo in a folded run: what a process gets that stands for others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
HOOK = Path(__file__).parents[2] / "interposer/eidolon_interposer/hook"


@pytest.fixture(scope="module")
def gloo() -> Iterator[ModuleType]:
    sys.path.insert(0, str(HOOK))
    import eidolon_gloo

    yield eidolon_gloo
    sys.path.remove(str(HOOK))


class Work:
    def wait(self) -> None:
        pass


class Processes:
    """The processes of a group of eight, ranks 0 and 7: rank 0 stands for ranks 0 to 6. What one of them calls goes to
    a group in which the other sends ``other``."""

    def __init__(self, gloo: ModuleType, own: int, other: float) -> None:
        self.mirror = gloo.Mirror(list(range(8)), [0] * 7 + [7], own)
        self._calls = gloo.CALLS
        self._other = other

    def _values(self, own: Any) -> list[Any]:
        found = [torch.full_like(own, self._other)] * 2
        found[self.mirror.rank] = own
        return found

    def call(self, name: str, *arguments: Any) -> None:
        self._calls[name](self.mirror, getattr(self, name), *arguments)

    # What the group of two processes does.

    def allreduce(self, tensors: Any, options: Any) -> Work:
        tensors[0].copy_(sum(self._values(tensors[0].clone())))
        return Work()

    def reduce(self, tensors: Any, options: Any) -> Work:
        if options.rootRank == self.mirror.rank:
            tensors[0].copy_(sum(self._values(tensors[0].clone())))
        return Work()

    def allgather(self, outputs: Any, inputs: Any) -> Work:
        for output, value in zip(outputs[0], self._values(inputs[0]), strict=True):
            output.copy_(value)
        return Work()

    def _allgather_base(self, output: Any, one: Any) -> Work:
        output.copy_(torch.stack(self._values(one)))
        return Work()

    def gather(self, outputs: Any, inputs: Any, options: Any) -> Work:
        assert bool(outputs) == (options.rootRank == self.mirror.rank)
        return self.allgather(outputs, inputs) if outputs else Work()

    def scatter(self, outputs: Any, inputs: Any, options: Any) -> Work:
        outputs[0].copy_(inputs[0][self.mirror.rank])
        return Work()

    def alltoall(self, outputs: Any, inputs: Any) -> Work:
        for output, value in zip(outputs, self._values(inputs[self.mirror.rank]), strict=True):
            output.copy_(value)
        return Work()


def total(op: str, root: int = 0) -> Any:
    options = torch.distributed.ReduceOptions()  # as torch hands them on: its operations have no names
    options.reduceOp, options.rootRank = getattr(torch.distributed.ReduceOp, op), root
    return options


def test_a_sum_counts_each_member(gloo: ModuleType) -> None:
    value = torch.tensor([2.0])
    Processes(gloo, own=0, other=5.0).call("allreduce", [value], total("SUM"))
    assert value.item() == 7 * 2 + 5


def test_the_greatest_is_that_of_the_processes(gloo: ModuleType) -> None:
    tensor = torch.tensor([2.0])
    seen: list[float] = []
    processes = Processes(gloo, own=0, other=5.0)
    processes.allreduce = lambda tensors, options: seen.append(tensors[0].item())  # type: ignore[assignment,method-assign]
    processes.call("allreduce", [tensor], total("MAX"))
    assert seen == [2.0]


@pytest.mark.parametrize(("root", "gets"), [(0, 7 * 2 + 5), (3, 2)], ids=["the process", "a phantom"])
def test_a_reduction_comes_to_its_root(gloo: ModuleType, root: int, gets: float) -> None:
    value = torch.tensor([2.0])
    Processes(gloo, own=0, other=5.0).call("reduce", [value], total("SUM", root))
    assert value.item() == gets


def test_a_gather_has_a_value_of_each_member(gloo: ModuleType) -> None:
    outputs = [torch.zeros(1) for _ in range(8)]
    Processes(gloo, own=0, other=5.0).call("allgather", [outputs], [torch.tensor([2.0])])
    assert [one.item() for one in outputs] == [2.0] * 7 + [5.0]
    output = torch.zeros(8)
    Processes(gloo, own=7, other=2.0).call("_allgather_base", output, torch.tensor([5.0]))
    assert output.tolist() == [2.0] * 7 + [5.0]


def test_a_gather_to_a_phantom_comes_to_nobody(gloo: ModuleType) -> None:
    outputs = [torch.zeros(1) for _ in range(8)]
    Processes(gloo, own=0, other=5.0).call("gather", [outputs], [torch.tensor([2.0])], total("SUM", 0))
    assert [one.item() for one in outputs] == [2.0] * 7 + [5.0]
    Processes(gloo, own=0, other=5.0).call("gather", [], [torch.tensor([2.0])], total("SUM", 3))
    Processes(gloo, own=7, other=2.0).call("gather", [], [torch.tensor([5.0])], total("SUM", 0))


def test_a_scatter_brings_a_process_its_own(gloo: ModuleType) -> None:
    output = torch.zeros(1)
    inputs = [[torch.tensor([float(i)]) for i in range(8)]]
    Processes(gloo, own=7, other=0.0).call("scatter", [output], inputs, total("SUM", 7))
    assert output.item() == 7
    with pytest.raises(RuntimeError, match="a scatter from a rank that is no process"):
        Processes(gloo, own=0, other=0.0).call("scatter", [output], inputs, total("SUM", 3))


def test_an_all_to_all_brings_what_the_class_sends(gloo: ModuleType) -> None:
    outputs, inputs = [torch.zeros(1) for _ in range(8)], [torch.tensor([float(i)]) for i in range(8)]
    Processes(gloo, own=0, other=9.0).call("alltoall", outputs, inputs)
    assert [one.item() for one in outputs] == [0.0] * 7 + [9.0]


def test_a_transfer_goes_from_process_to_process(gloo: ModuleType) -> None:
    seen: list[int] = []
    gloo.CALLS["send"](gloo.Mirror(range(8), [0] * 7 + [7], 0), lambda _, peer, tag: seen.append(peer), [], 7, 0)
    assert seen == [1]


def test_what_is_not_mirrored_is_refused(gloo: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="not done in a folded run"):
        gloo.CALLS["alltoall_base"](gloo.Mirror(range(8), [0] * 8, 0), None, torch.zeros(8), torch.zeros(8))
