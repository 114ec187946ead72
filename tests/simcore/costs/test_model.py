"""Kernel names to bytes, signatures to durations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eidolon_simcore import catalogue
from eidolon_simcore.costs.kernel_names import Launch, demangle, traffic
from eidolon_simcore.costs.model import SOURCES, CostModel, Signature

MODEL = CostModel(catalogue.gpu("h100-sxm"))
N = 8192 * 3072

ADD_BF16 = (
    "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_15CUDAFunctor_addIN3c108BFloat16EEESt5arrayIPcLm3EEEEviT0_T1_"
)
MUL = "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
UNARY = "at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
TANH = "at::native::tanh_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(float)#1}"
COPY = "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4, X, "
    "at::native::memory::LoadWithCast<2>, at::native::memory::StoreWithCast<1> >(int, Y)"
)
MULTI = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"


def vectorized(functor: str, operands: int) -> str:
    return f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, {operands}ul> >(int, X)"


def kernel(name: str, blocks: int, threads: int = 128, n: int = -1, **more: int) -> Signature:
    shape = {"gx": blocks, "gy": 1, "gz": 1, "bx": threads, "by": 1, "bz": 1, "smem": 0, "n": n, "op": 0}
    return Signature("kernel", name, shape | more)


@pytest.mark.parametrize(
    ("name", "n", "moved"),
    [
        (demangle(ADD_BF16), N, 6 * N),
        (vectorized(MUL, 3), N, 12 * N),
        (vectorized(UNARY, 2), N, 8 * N),
        (vectorized(TANH, 2), N, 8 * N),
        (vectorized(COPY, 2), N, 6 * N),
        (vectorized("at::native::FillFunctor<c10::BFloat16>", 1), N, 2 * N),
        (CAST, N, 10 * N),
        (f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{MUL}>(X)", N, 12 * N),
    ],
)
def test_elementwise_kernels_tell_their_bytes(name: str, n: int, moved: int) -> None:
    assert traffic(Launch(name, 1, 128, n)).bytes == moved


def test_without_a_count_the_grid_tells_it() -> None:
    assert traffic(Launch(vectorized(MUL, 3), N // 1024, 128)).bytes == 12 * N
    assert traffic(Launch(CAST, N // 512, 128)).bytes == 10 * N


@pytest.mark.parametrize(
    ("functor", "per_element"),
    [
        ("TensorListMetadata<1>, at::native::BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>, float>", 8),
        ("TensorListMetadata<2>, at::native::TernaryOpScalarFunctor<c10::BFloat16, 2, 2, 0>, X, float>", 6),
        ("TensorListMetadata<3>, at::native::PointwiseOpScalarFunctor<float, 3, 3, 0>, std::multiplies<float>>", 12),
        ("FusedOptimizerTensorListMetadata<4>, at::native::FusedAdamMathFunctor<float, 4, X>>", 28),
    ],
)
def test_optimizer_kernels_tell_what_they_read_and_write(functor: str, per_element: int) -> None:
    assert traffic(Launch(MULTI + functor, 10, 512)).bytes == 655_360 * per_element


@pytest.mark.parametrize(
    ("signature", "us"),
    [  # measured on an H100 SXM (profiler traces), within 10 %
        (kernel(vectorized(MUL, 3), 24_576, n=N), 100.0),
        (kernel(vectorized(UNARY, 2), 24_576, n=N), 67.4),
        (kernel(ADD_BF16, 24_576, n=N), 51.1),
        (
            kernel(MULTI + "TensorListMetadata<1>, at::native::X::BinaryOpScalarFunctor<float, 1, 1, 0>, Y>", 320, 512),
            59.1,
        ),
        (Signature("gemm", "g", {"m": 3072, "n": 8192, "k": 768, "batch": 1, "ta": 1, "atype": 14, "ctype": 14}), 59.2),
        (Signature("gemm", "g", {"m": 2048, "n": 4096, "k": 5632, "batch": 1, "atype": 14, "ctype": 14}), 115.8),
        (
            Signature(
                "attention", "forward", {"b": 2, "h": 16, "sq": 2048, "skv": 2048, "d": 128, "causal": 1, "dtype": 9}
            ),
            83.2,
        ),
        (
            Signature(
                "conv",
                "forward",
                {
                    "n": 256,
                    "c": 256,
                    "h": 14,
                    "w": 14,
                    "k": 256,
                    "r": 3,
                    "s": 3,
                    "oh": 14,
                    "ow": 14,
                    "groups": 1,
                    "dtype": 9,
                },
            ),
            75.0,
        ),
    ],
)
def test_durations_are_near_the_measured_ones(signature: Signature, us: float) -> None:
    cost = MODEL.cost(signature)
    assert cost.base_ns / 1e3 == pytest.approx(us, rel=0.10)


def test_gemms_with_an_odd_leading_dimension_are_slow() -> None:
    """GPT-2's vocabulary of 50,257: its three GEMMs took 15,439 us together, six times what aligned ones take."""
    shape = {"batch": 1, "atype": 14, "ctype": 14}
    shapes = [
        {"m": 50257, "n": 8192, "k": 768, "ta": 1},
        {"m": 768, "n": 8192, "k": 50257},
        {"m": 768, "n": 50257, "k": 8192, "tb": 1},
    ]
    us = sum(MODEL.cost(Signature("gemm", "g", shape | s)).base_ns for s in shapes) / 1e3
    assert us == pytest.approx(6654.9 + 4508.6 + 4275.2, rel=0.1)


@pytest.mark.parametrize(
    ("signature", "source"),
    [
        (kernel(ADD_BF16, 8, n=8192), "interpolated"),
        (kernel("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, X> >(Y)", 64), "unknown"),
        (kernel("triton_poi_fused_add_0", 64), "unknown"),
        (kernel("_Z9my_kernelPf", 64), "unknown"),
        (Signature("library", "cusparse:spmm", {"bytes": 0, "flops": 0}), "unknown"),
        (Signature("library", "cufft:exec", {"bytes": 1 << 20, "flops": 0}), "roofline"),
        (Signature("surprise", "x", {}), "unknown"),
    ],
)
def test_nothing_is_free_and_a_guess_is_called_one(signature: Signature, source: str) -> None:
    cost = MODEL.cost(signature)
    assert cost.base_ns > 0
    assert cost.source == source
    assert source in SOURCES


def test_a_sleep_on_the_device_takes_its_cycles() -> None:
    # The SMs of an H100 run at 1.98 GHz.
    cost = MODEL.cost(kernel("_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl", 1, 1, n=10**9), None)
    assert cost.base_ns == pytest.approx(505e6, rel=0.01)
    assert cost.source == "roofline"


def test_an_operator_with_shapes_replaces_the_guess() -> None:
    reduce = kernel("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, X> >(Y)", 64, op=7)
    operator = Signature("op", "aten::sum", {"bytes": N * 4, "written": 4 * N, "in0_numel": N, "in0_itemsize": 4})
    cost = MODEL.cost(reduce, operator)
    assert cost.source == "interpolated"  # kernels of its template were measured
    assert cost.base_ns == pytest.approx(N * 4 / (0.65 * 3352e9) * 1e9, rel=0.25)


@pytest.mark.parametrize("name", catalogue.names())
def test_every_gpu_costs_every_kind(name: str) -> None:
    model = CostModel(catalogue.gpu(name))
    for dtype in (0, 1, 2, 3, 14, 28):
        shape = {"m": 4096, "n": 4096, "k": 4096, "batch": 1, "atype": dtype, "ctype": dtype, "computetype": 68}
        assert model.cost(Signature("gemm", "g", shape)).base_ns > 10_000
    for kind in ("h2d", "d2h", "d2d", "h2h", "p2p"):
        cost = model.cost(Signature("copy", kind, {"pinned": 1}))
        assert cost.by_bytes[-1][1] > cost.by_bytes[0][1] > 0


def test_tf32_is_faster_than_fp32() -> None:
    shape = {"m": 4096, "n": 4096, "k": 4096, "batch": 1, "atype": 0, "ctype": 0}
    fp32, tf32 = (MODEL.cost(Signature("gemm", "g", shape | {"computetype": c})).base_ns for c in (68, 77))
    assert fp32 > 4 * tf32


# ---- dense solvers ---------------------------------------------------------------------------------------------------

SOLVERS = json.loads((Path(__file__).parents[3] / "bench" / "solvers_h200.json").read_text("utf-8"))["rows"]


TYPES = ("Cgetrf", "Sgebrd")


def solver(name: str, bytes_moved: int, flops: int) -> Signature:
    return Signature("library", name, {"bytes": bytes_moved, "op": 0, "flops": flops})


def test_dense_solvers_take_what_they_took() -> None:
    model = CostModel(catalogue.gpu("h200-sxm"))
    for row in SOLVERS:
        cost = model.cost(solver(row["name"], row["bytes"], row["flops"]))
        assert cost.base_ns == pytest.approx(row["ns"], rel=0.05, abs=2_000), row
        assert cost.source == "measured"


def test_a_solver_between_measured_sizes_takes_a_time_between_theirs() -> None:
    model = CostModel(catalogue.gpu("h200-sxm"))
    at = {row["shape"][0]: row["ns"] for row in SOLVERS if row["name"] == "cusolver:cusolverDnXpotrf"}
    n = 1448  # of fp32
    cost = model.cost(solver("cusolver:cusolverDnXpotrf", 8 * n * n, n**3 // 3))
    assert cost.source == "interpolated"
    assert 0.7 * at[1024] < cost.base_ns < 1.4 * at[2048]


def test_a_solver_that_was_not_measured_is_a_guess_by_other_types_if_there_are_any() -> None:
    model, n = CostModel(catalogue.gpu("h200-sxm")), 512
    found = {name: model.cost(solver(f"cusolver:cusolverDn{name}", 16 * n * n, 2 * n**3 // 3)) for name in TYPES}
    assert {cost.source for cost in found.values()} == {"unknown"}  # its FLOPs say little
    assert found["Cgetrf"].base_ns > 10 * found["Sgebrd"].base_ns
