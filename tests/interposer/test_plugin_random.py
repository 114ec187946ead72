"""The torch plugin: random numbers of small tensors are those that torch draws on a real device.

Expected numbers were read from an H200 with torch 2.11.0+cu130, after ``torch.manual_seed(7)`` and a draw of five
numbers that moves the generator on: the first six elements, the last three, and the sum of all, each multiplied by its
place.
"""

from collections.abc import Callable
from typing import Any

import pytest

Workload = Callable[[str], Any]

DRAWN = """
def empty(*sizes, dtype=torch.float32):
    return torch.empty(*sizes, dtype=dtype, device="cuda")
def drawn(draw):
    torch.manual_seed(7)
    empty(5).uniform_()
    host = torch.get_rng_state()
    made = draw()
    assert torch.equal(host, torch.get_rng_state())  # the host's generator is not drawn from
    assert known(made)
    x = made.double().cpu().flatten()
    return [*x[:6].tolist(), *x[-3:].tolist(), float((x * torch.arange(len(x))).sum())]
"""

# fmt: off
EXACT = {
    "torch.rand(1000, device='cuda')":
        [0.4069603979587555, 0.887346625328064, 0.9298859238624573, 0.587394654750824, 0.30863985419273376,
         0.5777696371078491, 0.463013231754303, 0.6090560555458069, 0.7612031698226929, 250355.54395038146],
    "empty(9, dtype=torch.float64).uniform_()":
        [0.795284230833619, 0.8498383670313938, 0.22238981756528825, 0.4598726879302946, 0.1881654462996884,
         0.06844576803787278, 0.988692793757231, 0.2375904402170605, 0.3110942031979365, 13.853170160987272],
    "empty(9, dtype=torch.float16).uniform_()":
        [0.406982421875, 0.88720703125, 0.9296875, 0.58740234375, 0.30859375, 0.57763671875, 0.1904296875,
         0.810546875, 0.98388671875, 23.31884765625],
    "empty(9, dtype=torch.bfloat16).uniform_()":
        [0.40625, 0.88671875, 0.9296875, 0.5859375, 0.30859375, 0.578125, 0.1904296875, 0.80859375, 0.984375,
         23.306640625],
    "empty(9).uniform_(-3, 5)":
        [0.25568318367004395, 4.098773002624512, 4.439087390899658, 1.6991572380065918, -0.5308811664581299,
         1.622157096862793, -1.4766477346420288, 3.482712745666504, 4.869962215423584, 78.54048085212708],
    "torch.randint(10, (3, 3), device='cuda')": [7, 9, 1, 2, 7, 8, 0, 9, 8, 212],
    "torch.randint(-2**40, 2**40, (9,), device='cuda')":
        [-430375977965, 1030147212992, -475786211983, -212773227560, 408830058030, -661130990096, 279124310283,
         -604569944999, -101743076998, -5601267981293],
    "torch.randint(-5, 100, (9,), device='cuda', dtype=torch.int32)": [67, 89, 61, 2, 27, 43, 90, 34, 68, 1862],
    "torch.randint(0, 256, (9,), device='cuda', dtype=torch.uint8)":
        [155, 239, 145, 206, 95, 102, 64, 115, 232, 5082],
    "empty(9).random_()":
        [3051059, 2696460, 851875, 6258232, 197904, 15250899, 12537104, 7496100, 14072301, 340494749],
    "empty(9, dtype=torch.int16).random_()": [3739, 9711, 145, 32462, 1375, 13926, 19776, 25203, 15080, 598234],
    "empty(9, dtype=torch.bool).random_()": [1, 1, 1, 0, 1, 0, 0, 1, 0, 14],
    "empty(9).bernoulli_(0.3)": [0, 0, 0, 0, 0, 0, 1, 0, 0, 6],
    "torch.bernoulli(torch.tensor([i / 8 for i in range(9)]).cuda())": [0, 0, 1, 0, 0, 0, 0, 1, 1, 17],
    "torch.bernoulli(torch.full((4000,), 0.5, device='cuda'))": [1, 0, 1, 0, 0, 0, 1, 1, 0, 3990531],
    "torch.randperm(9, device='cuda')": [2, 6, 5, 8, 3, 0, 1, 7, 4, 139],
    "torch.randperm(4096, device='cuda')": [999, 880, 2215, 213, 28, 3309, 1525, 2570, 2234, 17210940921],
    # Forty permutations: in some of them two keys are the same. What they draw moves the generator on.
    "sum(torch.randperm(64, device='cuda') for _ in range(40))":
        [1306, 1120, 1160, 1053, 1325, 1354, 1325, 1369, 1244, 2560699],
    # The order is that of addresses.
    "empty(3, 3).t().uniform_()":
        [0.4069603979587555, 0.587394654750824, 0.1904190331697464, 0.887346625328064, 0.30863985419273376,
         0.810339093208313, 0.9298859238624573, 0.5777696371078491, 0.983745276927948, 26.41019269824028],
    "empty(3, 4)[:, :3].uniform_().contiguous()":
        [0.4069603979587555, 0.887346625328064, 0.9298859238624573, 0.587394654750824, 0.30863985419273376,
         0.5777696371078491, 0.1904190331697464, 0.810339093208313, 0.983745276927948, 23.317560106515884],
    "torch.multinomial(torch.ones(9, device='cuda'), 4)": [8, 2, 1, 7, 2, 1, 7, 25],
}
#: These use functions of the device's mathematical library.
CLOSE = {
    "torch.randn(4096, device='cuda')":
        [-1.2870116233825684, -0.39583277702331543, 0.37557291984558105, 0.25733911991119385, 1.4190715551376343,
         0.4367091655731201, -0.49297067523002625, -0.5975221395492554, -0.21573619544506073, -34963.709561288124],
    "empty(9, dtype=torch.float64).normal_()":
        [-0.17714599745468995, 0.4677699396229892, -1.2312889926444979, -0.17327134225972005, 1.526222815128589,
         -1.4270623650273753, 0.03962443693013013, -1.638697799016932, -0.4508307423216001, -18.384826547178232],
    "empty(9).normal_(2, 0.5)":
        [1.3564941883087158, 1.8020836114883423, 2.18778657913208, 2.128669500350952, 2.709535837173462,
         2.2183547019958496, 1.9353581666946411, 2.3232851028442383, 2.0839338302612305, 79.04019749164581],
    "empty(9).exponential_(2.0)":
        [0.44951969385147095, 0.05975978076457977, 0.03634665533900261, 0.2660291790962219, 0.5877900719642639,
         0.27428996562957764, 0.8292640447616577, 0.1051512062549591, 0.00819412525743246, 10.430346459150314],
    "empty(9).log_normal_(0, 1)":
        [0.27609461545944214, 0.6731192469596863, 1.4558252096176147, 1.2934837341308594, 4.133281230926514,
         1.5476059913635254, 0.8787246346473694, 1.908982276916504, 1.1827799081802368, 59.833838760852814],
    "empty(9).cauchy_()":
        [-0.30091097950935364, 2.706601142883301, 4.466222286224365, 0.28167209029197693, -0.6858640313148499,
         0.24930067360401154, -1.467297077178955, 1.4748320578529808, 19.565654754638672, 169.03238920867443],
    "empty(9).geometric_(0.3)": [3, 1, 1, 2, 4, 2, 5, 1, 1, 80],
}
# fmt: on


@pytest.mark.parametrize(("expression", "values"), EXACT.items())
def test_draws_equal_those_of_a_device(workload: Workload, expression: str, values: list[float]) -> None:
    got = workload(DRAWN + f"result = drawn(lambda: {expression})")
    assert got[:-1] == values[:-1]
    assert got[-1] == pytest.approx(values[-1], rel=1e-12)


@pytest.mark.parametrize(("expression", "values"), CLOSE.items())
def test_draws_by_the_mathematical_library_are_close_to_those_of_a_device(
    workload: Workload, expression: str, values: list[float]
) -> None:
    got = workload(DRAWN + f"result = drawn(lambda: {expression})")
    assert got == pytest.approx(values, rel=1e-4, abs=1e-5)


def test_a_generator_of_ones_own_is_drawn_from(workload: Workload) -> None:
    values, same, other = workload(
        """
        torch.manual_seed(3)
        mine = torch.Generator(device="cuda").manual_seed(0)
        values = torch.rand(3, device="cuda", generator=mine).tolist()
        first = torch.rand(2, device="cuda").tolist()
        torch.manual_seed(3)
        second, third = torch.rand(2, device="cuda").tolist(), torch.rand(2, device="cuda").tolist()
        result = [values, second == first, third == first]
        """
    )
    assert values == [0.39904648065567017, 0.5166791677474976, 0.024930385872721672]
    assert same
    assert not other


def test_masks_shuffles_and_distinct_numbers_are_not_empty(workload: Workload) -> None:
    masked, shuffled, some = workload(
        """
        x = torch.rand(100, device="cuda")
        order = torch.randperm(1000, device="cuda")
        result = [len(x[x < 0.5]), sorted(order.tolist()) == list(range(1000)) != order.tolist(),
                  len(set(torch.randint(1000, (50,), device="cuda").tolist()))]
        """
    )
    assert 20 < masked < 80
    assert shuffled
    assert some > 40
