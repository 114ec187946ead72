"""The torch plugin: which bytes are known, which are computed, which become unknown. Each test runs in a workload."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Workload = Callable[[str], Any]


# ---- what is computed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("gpu(1, 2, 3) + 1", [2, 3, 4]),
        ("1 - gpu(1.5, 2.5)", [-0.5, -1.5]),
        ("torch.arange(4, device='cuda')", [0, 1, 2, 3]),
        ("torch.arange(2, 9, 3, device='cuda', dtype=torch.float64)", [2.0, 5.0, 8.0]),
        ("torch.linspace(0, 1, 3, device='cuda')", [0.0, 0.5, 1.0]),
        ("torch.eye(2, device='cuda')", [[1.0, 0.0], [0.0, 1.0]]),
        ("gpu(1, 3, 6, 10).diff()", [2, 3, 4]),
        ("gpu(1, 2, 3).cumsum(0)", [1, 3, 6]),
        ("gpu([1, 2], [3, 4]).sum(1)", [3, 7]),
        ("gpu(1, 2, 3).sum()", 6),
        ("gpu(1.0, 4.0).mean().sqrt() * 2", 10**0.5),
        ("gpu(True, False).all()", False),
        ("(gpu(1, 2, 3) > 1) & (gpu(1, 2, 3) != 3) | (gpu(1, 2, 3) == 1)", [True, True, False]),
        ("gpu(1, 2, 3)[gpu(True, False, True)]", [1, 3]),
        ("gpu(0, 5, 0, 7).nonzero()", [[1], [3]]),
        ("gpu(0, 0).nonzero()", []),
        ("torch.where(gpu(0, 5, 0, 7))[0]", [1, 3]),
        ("torch.where(gpu(True, False), gpu(1, 2), gpu(3, 4))", [1, 4]),
        ("gpu(1, 2, 3).masked_select(gpu(1, 2, 3) > 1)", [2, 3]),
        ("torch.cat([gpu(1, 2), gpu(3)])", [1, 2, 3]),
        ("torch.stack([gpu(1, 2), gpu(3, 4)]).t().contiguous()", [[1, 3], [2, 4]]),
        ("gpu(1.7, -2.2).to(torch.int32)", [1, -2]),
        ("gpu(1, 2).to(torch.bfloat16).float()", [1.0, 2.0]),
        ("gpu(3, 1, 2).sort().indices", [1, 2, 0]),
        ("gpu(3, 1, 2).topk(2).values", [3, 2]),
        ("gpu(3, 1, 2).max(0).indices", 0),
        ("gpu(1, 1, 3).bincount()", [0, 2, 0, 1]),
        ("gpu(1, 1, 3).bincount(minlength=6)", [0, 2, 0, 1, 0, 0]),
        ("torch.histc(gpu(0.0, 1.0, 1.0), bins=2, min=0, max=2)", [1.0, 2.0]),
        ("gpu(5, 6).repeat_interleave(gpu(1, 2))", [5, 6, 6]),
        ("gpu(3, 1, 3).unique()", [1, 3]),
        ("gpu(3, 1, 3).unique(return_inverse=True, return_counts=True)[2]", [1, 2]),
        ("gpu(3, 3, 1, 3).unique_consecutive(return_counts=True)[1]", [2, 1, 1]),
        ("torch.matrix_exp(gpu([0.0, 0.0], [0.0, 0.0]))", [[1.0, 0.0], [0.0, 1.0]]),
        ("torch.nn.functional.one_hot(gpu(0, 2))", [[1, 0, 0], [0, 0, 1]]),
        ("torch.nn.functional.pad(gpu(1, 2), (1, 1), value=9)", [9, 1, 2, 9]),
        ("gpu([1.0, 2.0]) @ gpu([3.0], [4.0])", [[11.0]]),
        ("torch.zeros(4, device='cuda').scatter_add_(0, gpu(1, 1), gpu(2.0, 3.0))", [0.0, 5.0, 0.0, 0.0]),
        ("gpu(1, 2, 3).index_select(0, gpu(2, 0))", [3, 1]),
        ("torch.empty(0, device='cuda').sum()", 0.0),
        ("gpu(1, 2).cpu().cuda() * 2", [2, 4]),
        ("gpu(3 + 4j).abs()", [5.0]),
        ("gpu(1 + 2j).conj().resolve_conj()", [1 - 2j]),
    ],
)
def test_small_known_tensors_are_computed(workload: Workload, expression: str, value: Any) -> None:
    got, reads, is_known = workload(
        f"""
        x = {expression}
        result = [*reading(lambda: str(x.tolist())), known(x)]
        """
    )
    assert eval(got) == pytest.approx(value) if isinstance(value, float) else eval(got) == value
    assert reads == 0
    assert is_known


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(gpu(1, 2, 3) + 1).sum().item()", 9),
        ("torch.equal(gpu(1, 2), gpu(1, 2))", True),
        ("torch.equal(gpu(1, 2), gpu(1, 3))", False),
        ("torch.allclose(gpu(1.0), gpu(1.0) + 1e-9)", True),
        ("bool((gpu(1, 2) == 2).any())", True),
        ("len(gpu(0, 1, 1)[gpu(0, 1, 1).bool()])", 2),
        ("int(gpu(7)) + float(gpu(0.5))", 7.5),
        ("gpu(3, 4).max().item()", 4),
        ("list(torch.split(torch.arange(6, device='cuda'), gpu(1, 5).tolist())[1].shape)", [5]),
    ],
)
def test_the_host_reads_what_was_computed(workload: Workload, expression: str, value: Any) -> None:
    assert workload(f"result = reading(lambda: {expression})") == [value, 0]


def test_an_operator_of_an_unknown_input_is_unknown_and_its_reading_is_counted(workload: Workload) -> None:
    assert workload(
        """
            x = unknown(3)
            y = x + gpu(1.0, 2.0, 3.0)
            result = [known(y), *reading(y.tolist)]
            """
    ) == [False, [0, 0, 0], 1]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("unknown(5).nonzero().shape[0]", 0),
        ("torch.equal(unknown(2), unknown(2))", True),  # as every check of all elements
        ("unknown(4, dtype=torch.int64).sum().item()", 0),
        # Zeros that the operator made for its kernels to add to are not its result; tokens spread over experts may be.
        ("torch.histc(unknown(9), bins=2, min=0, max=2).tolist()", [5, 4]),
        ("unknown(9, dtype=torch.int64).bincount(minlength=2).tolist()", [5, 4]),
        ("torch.ones(9000, device='cuda').histc(bins=2, min=0, max=2).tolist()", [4500, 4500]),
    ],
)
def test_unknown_results_are_counted(workload: Workload, expression: str, value: Any) -> None:
    got, reads = workload(f"result = reading(lambda: {expression})")
    assert got == value
    assert reads > 0


def test_what_was_foretold_to_one_read_is_not_told_to_the_next(workload: Workload) -> None:
    # An empty tensor's nonzero reads nothing; one that fails reads nothing either.
    assert workload(
        """
            torch.ones(0, 3, device="cuda").nonzero(), torch.equal(gpu(1), gpu(1, 2))
            try:
                torch.equal(gpu(1, 2), torch.ones(2))
            except RuntimeError:
                pass
            x = unknown(1, dtype=torch.int64)
            result = reading(x.item)
            """
    ) == [0, 1]


def test_an_operators_input_stays_known(workload: Workload) -> None:
    assert workload("x = gpu(1, 2, 3); y = x + 1; result = [x.tolist(), known(x)]") == [[1, 2, 3], True]


def test_in_place_operators_are_computed(workload: Workload) -> None:
    assert workload(
        """
            x = gpu(1, 2, 3)
            x.add_(1).mul_(x)
            x += gpu(1, 1, 1)
            x[0] -= 5
            y = gpu(1.0, 2.0, 3.0)
            y.clamp_(max=2).sub_(y, alpha=0.5)
            z = gpu(1, 2, 3, 4)
            z.masked_fill_(z > 2, 0)
            z[gpu(0, 1)] = gpu(8, 9)
            result = [x.tolist(), y.tolist(), z.tolist(), known(x), known(y), known(z)]
            """
    ) == [[0, 10, 17], [0.5, 1.0, 1.0], [8, 9, 0, 0], True, True, True]


def test_an_in_place_operator_of_an_unknown_operand_makes_its_tensor_unknown(workload: Workload) -> None:
    assert workload("x = gpu(1.0, 2.0); x.add_(unknown(2)); result = [x.tolist(), known(x)]") == [[0, 0], False]


def test_an_in_place_operator_uses_the_bytes_of_its_begin(workload: Workload) -> None:
    # Its parts change the tensor before it ends.
    assert workload(
        """
            x = gpu(1.0, 5.0)
            torch.nn.functional.hardtanh_(x, 0.0, 2.0)
            y = gpu([1.0, 2.0], [3.0, 4.0])
            y.fill_diagonal_(0.0)
            z = gpu(1, 2, 3)
            z[1:].copy_(z[:-1].clone())
            result = [x.tolist(), y.tolist(), z.tolist()]
            """
    ) == [[1.0, 2.0], [[0.0, 2.0], [3.0, 0.0]], [1, 1, 2]]


def test_an_out_argument_becomes_known_or_unknown(workload: Workload) -> None:
    assert workload(
        """
            a, b, c = gpu(1, 2), gpu(3, 4), gpu(5, 6)
            torch.add(a, a, out=b)
            torch.add(a, unknown(2, dtype=torch.int64), out=c)
            d = unknown(2, dtype=torch.int64)
            torch.add(a, a, out=d)
            result = [b.tolist(), known(c), d.tolist()]
            """
    ) == [[2, 4], False, [2, 4]]


def test_an_empty_out_argument_that_grows_within_its_storage(workload: Workload) -> None:
    assert workload(
        """
            a, known_out, unknown_out = gpu(1, 2), gpu(3, 4), gpu(3, 4)
            torch.add(a, a, out=known_out.resize_(0))
            torch.add(a, unknown(2, dtype=torch.int64), out=unknown_out.resize_(0))
            result = [known_out.tolist(), unknown_out.tolist(), known(unknown_out)]
            """
    ) == [[2, 4], [0, 0], False]


def test_a_written_view_leaves_the_rest_of_its_tensor_alone(workload: Workload) -> None:
    rows, columns, forgotten = workload(
        """
        x = gpu(1, 2, 3, 4)
        x[1:3].mul_(2)
        m = gpu([1, 2, 3], [4, 5, 6], [7, 8, 9])
        m[:, 1].add_(1)
        n = gpu([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
        n[:, 1].add_(unknown(2))
        result = [x.tolist(), m.tolist(), n.tolist()]
        """
    )
    assert rows == [1, 4, 6, 4]
    assert columns == [[1, 3, 3], [4, 6, 6], [7, 9, 9]]
    assert forgotten == [[1, 0, 3], [4, 0, 6]]


@pytest.mark.parametrize(
    ("elements", "computed"),
    [(4096, True), (4097, False)],
)
def test_only_few_elements_are_computed(workload: Workload, elements: int, computed: bool) -> None:
    assert workload(
        f"""
        x = torch.ones({elements}, device="cuda")
        outer = torch.ones(65, 1, device="cuda") * torch.ones(1, 64, device="cuda")
        result = [known(x), known(x + 1), known(torch.arange(0.0, {elements}, device="cuda")), known(outer)]
        """
    ) == [True, computed, computed, False]


@pytest.mark.parametrize(
    "expression",
    [
        "torch.rand(4097, device='cuda')",
        "torch.randperm(65537, device='cuda')",
        "torch.nn.functional.dropout(gpu(1.0, 2.0), 0.5)",
        "gpu(0.5, 0.5).multinomial(4, replacement=True)",
        "unknown(4).bernoulli()",
    ],
)
def test_other_random_numbers_stay_unknown(workload: Workload, expression: str) -> None:
    unchanged, is_known = workload(
        f"""
        state = torch.get_rng_state()
        x = {expression}
        result = [torch.equal(state, torch.get_rng_state()), known(x)]
        """
    )
    assert unchanged  # the host's generator is not drawn from either
    assert not is_known


# ---- where frameworks steer by values --------------------------------------------------------------------------------


def test_the_check_for_packed_sequences(workload: Workload) -> None:
    # As transformers does on position ids.
    assert workload(
        """
            def packed(position_ids):
                start = position_ids.min()
                expected = torch.arange(position_ids.shape[1], device="cuda") + start
                diff = torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1)
                return [bool((expected - position_ids).abs().sum().bool()), bool((diff == 1).all()),
                        (diff != 1).cumsum(-1).tolist()]
            result = [packed(torch.arange(5, device="cuda").unsqueeze(0)), packed(gpu(0, 1, 0, 1, 2).unsqueeze(0))]
            """
    ) == [[False, True, [[0] * 5]], [True, False, [[0, 0, 1, 1, 1]]]]


def test_autograd_computes_small_gradients_on_its_thread(workload: Workload) -> None:
    assert workload(
        """
            x = gpu(1.0, 2.0).requires_grad_()
            (x * x).sum().backward()
            x.grad.add_(1)
            w = torch.nn.Linear(2, 1, bias=False).cuda()
            with torch.no_grad():
                w.weight.fill_(0.5)
            w(gpu(1.0, 2.0)).backward()
            result = [x.grad.tolist(), w.weight.grad.tolist(), known(x.grad)]
            """
    ) == [[3.0, 5.0], [[1.0, 2.0]], True]


def test_no_grad_and_inference_mode(workload: Workload) -> None:
    assert workload(
        """
            x = gpu(1.0, 2.0).requires_grad_()
            with torch.no_grad():
                a = x + 1
                x.mul_(2)
            with torch.inference_mode():
                b = x + 1
                b.add_(1)
                c = torch.arange(2, device="cuda")
            result = [a.tolist(), x.tolist(), b.tolist(), c.tolist(), b.is_inference(), a.requires_grad]
            """
    ) == [[2, 3], [2, 4], [4, 6], [0, 1], True, False]


def test_autocast_decides_the_type(workload: Workload) -> None:
    assert workload(
        """
            with torch.autocast("cuda", torch.bfloat16):
                a = gpu([1.0, 2.0]) @ gpu([3.0], [4.0])
                b = gpu(1.0, 2.0).bfloat16().sum()
            result = [str(a.dtype), a.tolist(), str(b.dtype), b.item()]
            """
    ) == ["torch.bfloat16", [[11]], "torch.float32", 3]


def test_a_gradient_scaler_keeps_and_grows_its_scale_while_nobody_knows_the_gradients(workload: Workload) -> None:
    scales, reads = workload(
        """
        model = torch.nn.Linear(80, 80).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", growth_interval=2)
        def train():
            scales = []
            for _ in range(3):
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.float16):
                    loss = model(unknown(4, 80)).sum()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
            return scales
        result = reading(train)
        """
    )
    assert scales == [65536, 131072, 131072]
    assert reads == 0


def test_a_gradient_scaler_skips_a_step_whose_gradients_are_known_to_be_infinite(workload: Workload) -> None:
    assert workload(
        """
            p = torch.nn.Parameter(gpu(1.0, 2.0))
            optimizer = torch.optim.SGD([p], lr=1.0)
            scaler = torch.amp.GradScaler("cuda")
            result = []
            for gradient in (float("inf"), 65536.0):
                scaler.scale(p.sum())
                p.grad = gpu(gradient, 65536.0)
                scaler.step(optimizer)
                scaler.update()
                result.append([p.tolist(), scaler.get_scale()])
            """
    ) == [[[1, 2], 32768], [[-1, 0], 32768]]


@pytest.mark.parametrize("kind", ["fused", "capturable"])
def test_step_numbers_on_the_device(workload: Workload, kind: str) -> None:
    assert workload(
        f"""
            p = torch.nn.Parameter(unknown(100, 100))
            optimizer = torch.optim.AdamW([p], {kind}=True)
            for _ in range(3):
                p.grad = unknown(100, 100)
                optimizer.step()
            result = [optimizer.state[p]["step"].device.type, optimizer.state[p]["step"].item()]
            """
    ) == ["cuda", 3]


def test_compiled_functions_work_and_compute(workload: Workload) -> None:
    assert workload(
        """
            @torch.compile(backend="aot_eager")
            def f(x):
                return (x + 1).cumsum(0)
            result = [f(gpu(1, 2)).tolist(), f(gpu(1, 2, 3)).tolist(), known(f(unknown(3)))]
            """
    ) == [[2, 5], [2, 5, 9], False]


def test_functional_transforms(workload: Workload) -> None:
    assert workload(
        """
            x = gpu(1.0, 2.0)
            batched = torch.vmap(lambda row: row.sum())(torch.stack([x, x + 1]))
            gradient = torch.func.grad(lambda v: (v * v).sum())(x)
            result = [batched.tolist(), gradient.tolist()]
            """
    ) == [[3, 5], [2, 4]]


def test_wrappers_and_modes_see_nothing_of_it(workload: Workload) -> None:
    assert workload(
        """
            from torch.utils._python_dispatch import TorchDispatchMode
            class Log(TorchDispatchMode):
                def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                    names.append(str(func))
                    return func(*args, **(kwargs or {}))
            names = []
            with Log():
                a = gpu(1, 2)
                names.clear()
                (a + 1).mul_(2)
                logged = list(names)
            from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
            with FakeTensorMode() as mode:
                fake = torch.arange(3, device="cuda") + 1
            result = [logged, isinstance(fake, FakeTensor), (a + 1).tolist()]
            """
    ) == [["aten.add.Tensor", "aten.mul_.Tensor"], True, [2, 3]]


def test_dtensors_local_shards_are_computed(workload: Workload) -> None:
    assert workload(
        """
            import torch.distributed as dist
            from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
            from torch.testing._internal.distributed.fake_pg import FakeStore
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
            try:
                x = DTensor.from_local(gpu(1, 2, 3), init_device_mesh("cuda", (1,)), [Replicate()])
                y = (x + 1).sum()
                result = [type(y).__name__, y.to_local().item()]
            finally:
                dist.destroy_process_group()
            """
    ) == ["DTensor", 9]


def test_operators_that_fail_leave_nothing_behind(workload: Workload) -> None:
    assert workload(
        """
            def failing(action):
                try:
                    action()
                except (RuntimeError, IndexError, NotImplementedError) as error:
                    return type(error).__name__
            x = gpu(1, 2, 3)
            errors = [
                failing(lambda: x + gpu(1, 2)),
                failing(lambda: x.add_(gpu(1, 2))),
                failing(lambda: torch.cat([x, gpu([1])])),
                failing(lambda: x @ gpu(1, 2)),
            ]
            result = [errors, current_operator(), (gpu(1, 2) + 1).tolist()]
            """
    ) == [["RuntimeError"] * 4, 0, [2, 3]]


def test_many_operators_inside_each_other(workload: Workload) -> None:
    assert workload(
        """
            library = torch.library.Library("plugin_nest", "DEF")
            library.define("down(Tensor x, int n) -> Tensor")
            library.impl("down", lambda x, n: torch.ops.plugin_nest.down(x, n - 1) + 1 if n else x + 1,
                         "CompositeImplicitAutograd")
            x = gpu(0)
            deep = torch.ops.plugin_nest.down(x, 150)
            result = [current_operator(), (x + 1).item(), deep.item(), torch.ops.plugin_nest.down(x, 3).item()]
            """
    )[:2] == [0, 1]


# ---- what stays known, and what does not -----------------------------------------------------------------------------


def test_views_and_metadata_only_operators_keep_bytes(workload: Workload) -> None:
    assert workload(
        """
            x = gpu(1, 2, 3, 4)
            x.view(2, 2).t().unsqueeze_(0).requires_grad
            x.record_stream(torch.cuda.Stream())
            x.resize_(6)
            x.detach_()
            result = x.tolist()[:4]
            """
    ) == [1, 2, 3, 4]


def test_lazy_conjugates_and_negatives_are_not_taken_for_their_bytes(workload: Workload) -> None:
    assert workload(
        """
            z = gpu(1 + 2j, 3 + 4j)
            w = gpu(1 + 2j)
            w.conj().mul_(2)
            result = [str(z.conj().sum().tolist()), z.conj().imag.tolist(), torch._neg_view(gpu(1, 2)).add(1).tolist(),
                      known(w)]
            """
    ) == ["(4-6j)", [-2, -4], [0, -1], False]


def test_copies_on_the_device_carry_known_bytes(workload: Workload) -> None:
    assert workload(
        """
            x, y = gpu(1, 2, 3), gpu(0, 0, 0)
            y.copy_(x)
            large = torch.arange(9000).cuda()
            result = [x.clone().tolist(), y.tolist(), large.clone()[8999].item()]
            """
    ) == [[1, 2, 3], [1, 2, 3], 8999]


def test_a_copy_of_unknown_bytes_is_unknown(workload: Workload) -> None:
    assert workload("x, y = unknown(2), gpu(3.0, 4.0); y.copy_(x); result = known(y)") is False


def test_a_tensor_copied_to_itself_stays_known(workload: Workload) -> None:
    assert workload("x = gpu(1, 2); x.copy_(x); x.copy_(x.view(2)); result = x.tolist()") == [1, 2]


def test_a_reused_block_does_not_show_its_old_bytes(workload: Workload) -> None:
    assert workload(
        """
        a = gpu(9, 9, 9)
        x = a + 1  # computed
        address = x.data_ptr()
        del x
        y = torch.empty(3, dtype=torch.int64, device="cuda")
        result = [y.data_ptr() == address, y.tolist(), known(y)]
        """
    ) == [True, [0, 0, 0], False]


def test_training_forgets_the_running_statistics_that_no_schema_mentions(workload: Workload) -> None:
    before, evaluated, trained = workload(
        """
        with torch.backends.cudnn.flags(enabled=False):
            x, norm = torch.ones(1, 2, 4, 4, device="cuda"), torch.nn.BatchNorm2d(2).cuda()
            result = [known(norm.running_var)]
            norm.eval()(x)
            result.append(known(norm.running_var))
            norm.train()(x)
            result.append(known(norm.running_var))
        """
    )
    assert (before, evaluated, trained) == (True, True, False)


def test_masks_and_labels_of_a_batch_are_computed(workload: Workload) -> None:
    # Rows are chosen by them, tokens are counted: more elements than of other numbers are small.
    assert workload("""
labels = torch.arange(32768).view(8, 4096)
labels[:, 3000:] = -100
labels = labels.cuda()
mask = labels != -100
more = torch.arange(32769).cuda() != 1
result = [mask.sum().item(), mask.all().item(), unknown(8, 4096, 4)[mask].shape, labels[mask].max().item(), known(more)]
""") == [24000, False, [24000, 4], 31671, False]


def test_a_custom_operators_mutated_argument_becomes_unknown(workload: Workload) -> None:
    assert workload(
        """
        @torch.library.custom_op("plugin_test::scale", mutates_args={"x"})
        def scale(x: torch.Tensor, y: torch.Tensor) -> None:
            pass
        x, y = gpu(1, 2), gpu(3, 4)
        torch.ops.plugin_test.scale(x, y)
        result = [known(x), known(y)]
        """
    ) == [False, True]


def test_zeros_that_a_custom_operator_hands_to_its_kernels_are_forgotten(workload: Workload) -> None:
    assert (
        workload(
            """
        @torch.library.custom_op("plugin_test::accumulate", mutates_args=())
        def accumulate(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x)  # and then a kernel of its own
        result = known(torch.ops.plugin_test.accumulate(gpu(1, 2)))
        """
        )
        is False
    )


@pytest.mark.parametrize(
    ("make", "values"),
    [
        ("torch.zeros(3, device='cuda')", [0, 0, 0]),
        ("torch.ones(2, dtype=torch.bfloat16, device='cuda')", [1, 1]),
        ("torch.full((2,), -2.5, dtype=torch.float16, device='cuda')", [-2.5, -2.5]),
        ("torch.full((2,), 2**40, dtype=torch.int64, device='cuda')", [2**40, 2**40]),
        ("torch.full((2,), 3.9, device='cuda').to(torch.int32).fill_(3.9)", [3, 3]),
        ("torch.full((2,), True, device='cuda')", [True, True]),
        ("torch.tensor(65536.0, device='cuda').reshape(1)", [65536]),
        ("torch.empty(2, dtype=torch.float64, device='cuda').fill_(float('-inf'))", [float("-inf")] * 2),
        ("torch.empty(2, device='cuda').fill_(gpu(5.0)[0])", [5, 5]),
    ],
)
def test_fills_with_a_known_number_are_known(workload: Workload, make: str, values: list[Any]) -> None:
    assert workload(f"x = {make}; result = [known(x), x.tolist()]") == [True, values]


def test_fills_of_more_than_is_computed_are_known(workload: Workload) -> None:
    assert workload("x = torch.full((5000,), 3, device='cuda'); result = [known(x), x[4999].item()]") == [True, 3]


def test_a_fill_of_part_of_a_tensor_is_known_in_that_part(workload: Workload) -> None:
    assert workload(
        """
            m = gpu([1, 2, 3], [4, 5, 6])
            m[:, 1] = 7
            m[1, 2] = torch.tensor(8)
            result = m.tolist()
            """
    ) == [[1, 7, 3], [4, 7, 8]]


def test_large_fills_are_not_kept(workload: Workload) -> None:
    assert workload("result = known(torch.ones(1 << 20, device='cuda'))") is False


def test_foreach_zero_is_known(workload: Workload) -> None:
    assert workload("a, b = gpu(1.0), gpu(2.0); torch._foreach_zero_([a, b]); result = [known(a), b.tolist()]") == [
        True,
        [0.0],
    ]


def test_an_initial_gradient_scale_can_be_read(workload: Workload) -> None:
    assert (
        workload(
            """
            scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
            scaler.scale(torch.ones(1, device="cuda"))
            result = scaler.get_scale()
            """
        )
        == 1024
    )


def test_captured_operators_are_not_computed_and_a_replay_writes_again(workload: Workload) -> None:
    captured = workload(
        """
        added, source, copied = gpu(1, 2), gpu(4, 5), gpu(0, 0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            added.add_(1)
            copied.copy_(source)
            filled = torch.full((2,), 7.0, device="cuda")
            fresh = source + source
        every = (added, copied, filled, fresh)
        result = []
        for host in (8, 9):
            for tensor in every:
                tensor.copy_(torch.full((2,), host))
            source.copy_(torch.tensor([host, host]))
            graph.replay()
            result.append([tensor.tolist() for tensor in every] + [known(added), known(fresh)])
        """
    )
    for host, (added, copied, filled, fresh, added_known, fresh_known) in zip((8, 9), captured, strict=True):
        assert (added, fresh) == ([0, 0], [0, 0])
        assert (added_known, fresh_known) == (False, False)
        assert copied == [host, host]
        assert filled == [7, 7]


def test_what_a_triton_kernel_writes_is_unknown(workload: Workload, tmp_path: Path) -> None:
    # Its name says nothing of its parameters; the code in its image does.
    source = tmp_path / "kernels.py"
    source.write_text(
        textwrap.dedent("""
        import triton
        import triton.language as tl

        @triton.jit
        def fold(source, running_max, turns, BLOCK: tl.constexpr):
            at = tl.arange(0, BLOCK)
            most = tl.load(running_max + at)
            for i in range(turns):
                most = tl.maximum(most, tl.load(source + i * BLOCK + at))
            tl.store(running_max + at, most)
        """)
    )
    assert workload(f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from kernels import fold
source, most = torch.ones(256, device="cuda"), torch.full((128,), float("-inf"), device="cuda")
before = [known(source), known(most)]
fold[(1,)](source, most, 2, BLOCK=128)
result = [before, known(source), known(most)]
""") == [[True, True], True, False]
