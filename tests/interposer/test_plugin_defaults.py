"""The torch plugin: numbers that nobody computed get a stated default, and small operators go on from it.

Each test runs in a workload. ``given`` is what a read was counted with: 0 nothing, else the default's number
(``eidolon_simcore.ledger.unknown_reads.Origin``).
"""

from collections.abc import Callable
from typing import Any

import pytest

from eidolon_simcore.ledger.unknown_reads import Origin

Workload = Callable[[str], Any]

PRELUDE = """
import torch.nn.functional as F
def given(action):
    passed("read")
    answer = action()
    return [answer, [r["default"] for r in passed("read")]]
logits, targets = unknown(64, 1000), torch.zeros(64, dtype=torch.int64, device="cuda")
big = unknown(100, 100)
"""


def run(workload: Workload, expression: str) -> Any:
    return workload(PRELUDE + f"result = given(lambda: {expression})")


@pytest.mark.parametrize(
    ("expression", "value", "origin"),
    [
        ("F.cross_entropy(logits, targets).item()", 2.0, Origin.LOSS),
        ("F.cross_entropy(logits, targets, reduction='sum').item()", 128.0, Origin.LOSS),
        ("F.mse_loss(big, big.clone()).item()", 2.0, Origin.LOSS),
        ("(F.cross_entropy(logits, targets) / 4).item()", 0.5, Origin.LOSS),
        ("F.cross_entropy(logits, targets).detach().float().cpu().item()", 2.0, Origin.LOSS),
        ("F.cross_entropy(logits.bfloat16(), targets).item()", 2.0, Origin.LOSS),
        ("big.mean().item()", 2.0, Origin.REDUCTION),
        ("big.sum().item()", 20_000.0, Origin.REDUCTION),
        ("big.norm().item()", 1.0, Origin.NORM),
        ("torch.linalg.vector_norm(torch.stack([big.norm(), big.norm()])).item()", pytest.approx(2**0.5), Origin.NORM),
        ("torch._foreach_norm([big, big])[1].item()", 1.0, Origin.NORM),
        ("big.abs().max().item()", 1.0, Origin.NORM),
        ("torch.clamp(0.5 / (big.norm() + 1.0), max=1.0).item()", 0.25, Origin.NORM),
        ("torch.isfinite(big).all().item()", True, Origin.FINITE),
        ("torch.isnan(big).any().item()", False, Origin.FINITE),
        ("torch.isinf(big.norm()).item()", False, Origin.NORM),
        ("bool(torch.isfinite(unknown(1)))", True, Origin.FINITE),
        ("unknown(1).item()", 2.0, Origin.NUMBER),
        ("unknown(1).cpu().item()", 2.0, Origin.NUMBER),
        # Arithmetic on single numbers goes on from the loss, as it does for one that a compiled graph left.
        ("(unknown(1)[0] / 40).item()", pytest.approx(0.05), Origin.NUMBER),
        ("(gpu(0.0) + unknown(1)).item()", 2.0, Origin.NUMBER),
        ("torch.stack([unknown(1), unknown(1)]).mean().item()", 2.0, Origin.NUMBER),
        ("sum(unknown(1) for _ in range(3)).item()", 6.0, Origin.NUMBER),
        # A count lies between none and all.
        ("(logits.argmax(1) == targets).sum().item()", 32, Origin.REDUCTION),
        ("(logits.argmax(1) == targets).float().mean().item()", 0.5, Origin.REDUCTION),
        ("(unknown(9000, dtype=torch.int64) != -100).sum().item()", 9000, Origin.REDUCTION),
        ("torch.count_nonzero(unknown(9000) > 0).item()", 9000, Origin.REDUCTION),
        ("(F.cross_entropy(logits, targets, reduction='sum') / (unknown(64) != 0).sum()).item()", 2.0, Origin.LOSS),
        ("torch.isnan(big).sum().item()", 0, Origin.REDUCTION),
        ("(~torch.isfinite(big)).sum().item()", 0, Origin.REDUCTION),
        ("(logits.argmax(1) != targets).float().mean().item()", 0.5, Origin.REDUCTION),
    ],
)
def test_a_stated_default(workload: Workload, expression: str, value: Any, origin: Origin) -> None:
    assert run(workload, expression) == [value, [origin]]


@pytest.mark.parametrize(
    "expression",
    [
        "unknown(1, dtype=torch.int64).item()",
        "unknown(9000, dtype=torch.int64).sum().item()",
        "unknown(1, dtype=torch.bool).item()",
        "big.argmax().item()",
    ],
)
def test_sizes_counts_and_indices_have_none(workload: Workload, expression: str) -> None:
    answer, reads = run(workload, expression)
    assert (answer, reads) == (0, [Origin.NOTHING])


@pytest.mark.parametrize(("k", "percent"), [(1, 9.375), (5, 50.0)])
def test_the_accuracy_over_the_top_k_is_one(workload: Workload, k: int, percent: float) -> None:
    # As pytorch/examples computes it: five candidates are compared with one target each, so at most one of them fits.
    assert workload(
        PRELUDE
        + f"""
candidates = logits.topk(5).indices.t()
correct = candidates.eq(targets.view(1, -1).expand_as(candidates))
result = given(lambda: correct[:{k}].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / 64).item())
"""
    ) == [percent, [Origin.REDUCTION]]


MASKED = """
labels = torch.zeros(8, 1024, dtype=torch.int64)
labels[:, 600:] = -100
labels = labels.cuda()
kept = labels != -100
right = unknown(8, 1024, dtype=torch.int64) == labels
each = unknown(8, 1024)
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        # Losses of tokens that a mask keeps: however many it keeps, their mean is the loss.
        ("(each * kept).sum() / kept.sum()", 2.0),
        ("(each * kept.float()).sum() / kept.float().sum()", 2.0),
        ("(each * kept).sum(1).sum() / kept.sum()", 2.0),
        ("each.masked_fill(~kept, 0.0).sum() / kept.sum()", 2.0),
        ("torch.where(kept, each, 0.0).sum() / kept.sum()", 2.0),
        ("each.new_zeros(kept.shape).masked_scatter(kept, unknown(4800)).sum() / kept.sum()", 2.0),
        ("each[kept].mean()", 2.0),
        # An accuracy over what a mask keeps is one.
        ("(right & kept).sum() / kept.sum()", 0.5),
        ("(right.float() * kept.float()).sum() / kept.float().sum()", 0.5),
        ("right[kept].float().mean()", 0.5),
        ("right.new_zeros(kept.shape).masked_scatter(kept, unknown(4800) > 0).sum() / kept.sum()", 1.0),
        # Logarithms of probabilities are negative, and weights of a row sum to one.
        ("-logits.log_softmax(1).gather(1, targets[:, None]).mean()", 2.0),
        ("(-logits.log_softmax(1).gather(1, targets[:, None])).mean()", 2.0),
        ("-(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()", 2.0),
        ("-((p := logits.softmax(1)) * p.log()).sum(1).mean()", 2.0),
        ("-((p := logits.log_softmax(1)).exp() * p).sum(1).mean()", 2.0),
        ("(-unknown(64, 1000) * logits.log_softmax(1)).sum(1).mean()", 2.0),
    ],
)
def test_what_a_mask_keeps_has_the_mean_of_the_whole(workload: Workload, expression: str, value: float) -> None:
    assert workload(PRELUDE + MASKED + f"result = ({expression}).item()") == pytest.approx(value)


def test_a_block_of_booleans_does_not_leak_their_level(workload: Workload) -> None:
    assert workload(
        PRELUDE
        + """
x = torch.isnan(big)
at = x.data_ptr()
del x
y = torch.empty(10000, dtype=torch.bool, device="cuda")
result = [y.data_ptr() == at, y.sum().item()]
"""
    ) == [True, 10000]


def test_what_is_known_is_true_and_not_counted(workload: Workload) -> None:
    assert run(workload, "gpu(3.0, 4.0).norm().item()") == [5.0, []]
    assert run(workload, "torch.isfinite(gpu(1.0, float('inf'))).all().item()") == [False, []]


def test_a_sum_in_a_backward_pass_is_a_gradient_and_has_none(workload: Workload) -> None:
    assert workload(
        PRELUDE
        + """
bias, weight = unknown(100).requires_grad_(), unknown(100, 100)
torch.addmm(bias, weight, big).backward(unknown(100, 100))  # the gradient of the bias is a sum over rows
result = [known(bias.grad), known(big.sum(0))]
"""
    ) == [False, True]


def test_a_default_is_gone_with_what_overwrites_it(workload: Workload) -> None:
    assert run(workload, "(x := big.norm(), x.fill_(7.0), x.item())[2]") == [7.0, []]


def test_a_block_that_held_a_default_does_not_leak_it(workload: Workload) -> None:
    assert workload(
        PRELUDE
        + """
        x = big.norm()
        at = x.data_ptr()
        del x
        y = torch.empty(1, dtype=torch.int32, device="cuda")
        result = [y.data_ptr() == at, *given(y.item)]
        """.replace("\n        ", "\n")
    ) == [True, 0, [Origin.NOTHING]]


def test_tokens_are_spread_evenly_over_experts(workload: Workload) -> None:
    counts = "torch.histc(unknown(1000).float(), bins=3, min=0, max=3).tolist()"
    assert run(workload, counts) == [[334.0, 333.0, 333.0], [Origin.ROUTING]]
    assert run(workload, "unknown(1000, dtype=torch.int64).bincount(minlength=4).tolist()") == [
        [250] * 4,
        [Origin.NOTHING, Origin.NOTHING, Origin.ROUTING],  # bincount reads the least and the greatest itself
    ]


def test_the_sum_of_a_routing_map_has_each_tokens_choices(workload: Workload) -> None:
    assert workload(
        PRELUDE
        + """
scores = unknown(512, 8)
chosen = scores.topk(2).indices
routing = torch.zeros(512, 8, dtype=torch.int32, device="cuda").scatter(1, chosen, 1).bool()
result = given(lambda: routing.sum(dim=0).tolist())
"""
    ) == [[128] * 8, [Origin.ROUTING]]
