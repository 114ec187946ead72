"""How much operations do: what MFU and the tensor units' activity are made of."""

from __future__ import annotations

import pytest

from eidolon_simcore import catalogue
from eidolon_simcore.costs.work import per_launch
from eidolon_simcore.signature import Signature

H100 = catalogue.gpu("h100-sxm")
BF16, HALF = 15, 5  # c10::ScalarType
FORWARD = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>, false, true>()"
BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 64>>()"


def operator(name: str, first: int, *shapes: tuple[int, ...], **attributes: int) -> Signature:
    """An operator as the torch plugin tells it; its tensors from input ``first`` on have these shapes."""
    for number, shape in enumerate(shapes, first):
        attributes |= {f"in{number}_d{d}": size for d, size in enumerate(shape)} | {f"in{number}_dtype": BF16}
    return Signature("op", name, attributes)


def test_a_flash_kernel_does_what_its_operators_shapes_say() -> None:
    b, s, h, d = 2, 4096, 32, 128
    flash = operator("aten::_flash_attention_forward", 0, *[(b, s, h, d)] * 3)
    work = per_launch(Signature("kernel", FORWARD, {"op": 9}), H100, flash)
    assert work.flops == 2 * 2 * b * h * s * s * d  # scores, and their product with the values
    assert work.tensor_ns == pytest.approx(work.flops / H100.peak_flops("bf16") * 1e9)
    assert work.memory_bytes == 2 * 4 * b * h * s * d  # query, key, value, output


def test_a_causal_mask_halves_the_arithmetic_of_attention() -> None:
    shapes = [(2, 4096, 32, 128)] * 3
    full = per_launch(Signature("kernel", FORWARD, {}), H100, operator("aten::_flash_attention_forward", 0, *shapes))
    half = operator("aten::_flash_attention_forward", 0, *shapes, is_causal=1)
    assert per_launch(Signature("kernel", FORWARD, {}), H100, half).flops == full.flops / 2


def test_the_backward_pass_of_attention_is_five_products_for_the_two_of_the_forward_pass() -> None:
    """As PyTorch's own counter (torch.utils.flop_counter) has it: the scores are made again. Behind the gradient."""
    b, h, s, d = 2, 32, 4096, 128
    backward = operator("aten::_scaled_dot_product_flash_attention_backward", 1, *[(b, h, s, d)] * 3)
    work = per_launch(Signature("kernel", BACKWARD, {}), H100, backward)
    assert work.flops == 5 * 2 * b * h * s * s * d


def test_grouped_queries_share_keys_but_not_arithmetic() -> None:
    b, h, s, d = 1, 32, 2048, 128
    query, key = (b, h, s, d), (b, 8, s, d)
    grouped = operator("aten::_scaled_dot_product_flash_attention", 0, query, key, key)
    work = per_launch(Signature("kernel", FORWARD, {}), H100, grouped)
    assert work.flops == 4 * b * h * s * s * d
    assert work.memory_bytes == 2 * 2 * b * (h + 8) * s * d


@pytest.mark.parametrize("helper", ["flash_bwd_dot_do_o_kernel", "flash_bwd_convert_dq_kernel"])
def test_the_helpers_of_a_backward_pass_are_not_counted_again(helper: str) -> None:
    backward = operator("aten::_flash_attention_backward", 1, *[(2, 4096, 32, 128)] * 3)
    name = f"void pytorch_flash::{helper}<true>(Flash_bwd_params)"
    assert per_launch(Signature("kernel", name, {"gx": 8, "bx": 128}), H100, backward).flops == 0


def test_attention_whose_sizes_are_not_known_counts_no_arithmetic() -> None:
    unknown = Signature("op", "aten::_flash_attention_forward", {})
    assert per_launch(Signature("kernel", FORWARD, {}), H100, unknown).flops == 0
    assert per_launch(Signature("kernel", FORWARD, {}), H100).flops == 0
