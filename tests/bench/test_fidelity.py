"""What `python -m bench.fidelity` makes of figures that it has: differences of lists of kernels, sums, errors."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest
from pyarrow import parquet

from bench import tables, trace_signatures
from bench.fidelity import frameworks, traces, truth
from bench.fidelity.traces import Work
from eidolon_simcore.catalogue import gpu
from eidolon_simcore.costs.roofline import MATRIX

ROOT = Path(__file__).parents[2]
MS = 1e6


def work(names: str, stream: int = 7, kind: str = "kernel") -> list[Work]:
    """One launch of 1 ms for each letter, one behind the other."""
    return [Work(stream, kind, name, i * MS, (i + 1) * MS, MS) for i, name in enumerate(names)]


# ---- lists of launches -----------------------------------------------------------------------------------------------


def test_equal_lists_have_no_differences() -> None:
    assert traces.compare("abcb", "abcb") == ([0, 1, 2, 3], [])
    assert traces.compare("", "") == ([], [])


@pytest.mark.parametrize(
    ("real", "here", "equal", "differences"),
    [
        ("abcd", "abxd", [0, 1, 3], [(2, 3, 2, 3)]),  # another in its place
        ("abcd", "abd", [0, 1, 3], [(2, 3, 2, 2)]),  # missing here
        ("abd", "abcd", [0, 1, 2], [(2, 2, 2, 3)]),  # only here
        ("aaaa", "aa", [0, 1], [(2, 4, 2, 2)]),  # the same one several times
        ("ab", "", [], [(0, 2, 0, 0)]),
        ("abcde", "abc", [0, 1, 2], [(3, 5, 3, 3)]),
    ],
)
def test_differences_are_told_by_place(
    real: str, here: str, equal: list[int], differences: list[tuple[int, ...]]
) -> None:
    assert traces.compare(real, here) == (equal, differences)


def test_what_is_equal_and_what_differs_are_all_of_both_lists() -> None:
    chance = random.Random(1)
    for _ in range(200):
        real, here = ("".join(chance.choices("abc", k=chance.randrange(12))) for _ in range(2))
        equal, differences = traces.compare(real, here)
        assert len(equal) + sum(i2 - i1 for i1, i2, _, _ in differences) == len(real)
        assert len(equal) + sum(j2 - j1 for _, _, j1, j2 in differences) == len(here)


def test_streams_are_matched_by_what_runs_on_them_not_by_number() -> None:
    real = traces.by_stream(work("aaab", 7) + work("xy", 20) + work("q", 30))
    here = traces.by_stream(work("xy", 1) + work("aab", 2))
    assert traces.match(real, here) == {7: 2, 20: 1}


def test_only_torchs_own_launches_are_counted_equal() -> None:
    """A library call keeps its place among them, though."""
    real = [*work("ab"), *work("gemm"[:1], kind="gemm"), *work("c")]
    assert traces.launches(real, real) == (3, [])
    moved = [real[2], real[0], real[1], real[3]]
    equal, differences = traces.launches(real, moved)
    assert equal == 3
    assert len(differences) == 2


def test_a_stream_that_only_one_of_both_has_is_a_difference() -> None:
    equal, differences = traces.launches(work("ab", 7) + work("z", 9), work("ab", 1) + work("y", 2))
    assert equal == 2
    assert [(one.real, one.here) for one in differences] == [(("z",), ()), ((), ("y",))]


# ---- times -----------------------------------------------------------------------------------------------------------


def test_communication_is_exposed_where_nothing_computes_beside_it() -> None:
    def span(kind: str, begin: float, end: float, stream: int) -> Work:
        return Work(stream, kind, kind, begin * MS, end * MS, (end - begin) * MS)

    step = [
        span("kernel", 0, 4, 1),
        span("nccl all_gather", 2, 6, 2),  # 2 ms alone
        span("gemm", 7, 8, 1),
        span("nccl reduce_scatter", 7.5, 9.5, 3),  # 1.5 ms alone, 0.5 of them beside the next
        span("nccl all_gather", 9, 10, 2),
    ]
    assert traces.times(step) == traces.Times(span=10, nccl=6.5, exposed=4.0, idle=1.0)


def test_sums_are_by_family_and_by_call() -> None:
    step = [
        Work(7, "kernel", "void at::native::vectorized_elementwise_kernel<4>(int)", 0, 0, 2 * MS),
        Work(7, "attention forward", "attention forward", 0, 0, 3 * MS),
        Work(7, "attention backward", "attention backward", 0, 0, 5 * MS),
        Work(7, "copy", "Memcpy HtoD", 0, 0, MS),
        Work(20, "nccl all_gather", "nccl all_gather", 0, 0, 4 * MS),
    ]
    assert traces.sums(step, lambda one: one.family) == {
        "elementwise": (1, 2.0),
        "attention": (2, 8.0),
        "copy": (1, 1.0),
        "NCCL": (1, 4.0),
    }
    both = traces.both({"gemm": (2, 1.0), "conv": (1, 5.0)}, {"gemm": (3, 2.0), "nccl": (1, 9.0)})
    assert both == {"conv": ((1, 5.0), (0, 0.0)), "gemm": ((2, 1.0), (3, 2.0)), "nccl": ((0, 0.0), (1, 9.0))}


# ---- a trace ---------------------------------------------------------------------------------------------------------


def trace(path: Path, gemm_dur: float = 2, kernel: str = "") -> Path:
    """An optimizer's step, then a copy: a GEMM whose library sets memory, a fill, a reduce-scatter on a stream of its
    own; and a kernel where its name is given."""
    events: list[dict[str, object]] = []

    def event(cat: str, name: str, ts: float, dur: float = 2, **args: object) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args})

    def operator(number: int, name: str, **args: object) -> None:
        event("cpu_op", name, number, **{"External id": number}, **args)

    def launch(cat: str, name: str, number: int, issued: float, ts: float, stream: int = 7, dur: float = 2) -> None:
        correlation = len(events)
        event("cuda_runtime", "cudaLaunchKernel", issued, correlation=correlation)
        at = {"External id": number, "correlation": correlation, "stream": stream}
        event(cat, name, ts, dur, **at, grid=[1, 1, 1], block=[32, 1, 1])

    matrices = {"Input Dims": [[4, 8], [8, 16]], "Input Strides": [[8, 1], [16, 1]], "Input type": ["float", "float"]}
    operator(1, "aten::mm", **matrices)
    launch("gpu_memset", "Memset (Device)", 1, issued=10, ts=100)
    launch("kernel", "nvjet_tst", 1, issued=11, ts=103, dur=gemm_dur)
    operator(2, "aten::fill_")
    launch("gpu_memset", "Memset (Device)", 2, issued=12, ts=110)
    launch("kernel", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 3, 9, 111, 20)
    event("user_annotation", "Optimizer.step#AdamW.step", 15)
    launch("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 4, issued=21, ts=113)
    if kernel:
        operator(5, "aten::add")
        launch("kernel", kernel, 5, issued=22, ts=130)
    text = json.dumps({"traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_a_trace_is_read_in_the_order_of_issue_with_library_calls_as_one(tmp_path: Path) -> None:
    step, late = traces.real(trace(tmp_path / "trace.json"))
    assert [(one.kind, one.name, one.stream) for one in step] == [
        ("nccl reduce_scatter", "nccl reduce_scatter", 20),
        ("gemm", "gemm", 7),
        ("set", "Memset", 7),
        ("copy", "Memcpy HtoD (pageable)", 7),
    ]
    assert (step[1].begin_ns, step[1].end_ns) == (100_000, 105_000)  # its memset belongs to it
    assert late == 1  # the copy: issued after the optimizer's step


def test_memory_that_a_convolution_sets_is_its_own_and_its_time(tmp_path: Path) -> None:
    arguments = {
        "External id": 1,
        "Input Dims": [[1, 8, 4, 4], [1, 8, 4, 4], [8, 8, 1, 1]],
        "Input type": ["float"] * 3,
        "Concrete Inputs": ["", "", "", "[True, True, False]"],
    }
    events: list[dict[str, object]] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::convolution_backward", "ts": 0, "dur": 1, "args": arguments}
    ]
    for ts, cat, name in ((10, "gpu_memset", "Memset (Device)"), (14, "kernel", "dgrad"), (18, "kernel", "wgrad")):
        args = {"External id": 1, "stream": 7, "grid": [1, 1, 1], "block": [32, 1, 1]}
        events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 2, "args": args})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    dgrad, wgrad = trace_signatures.read(path)
    assert (dgrad.signature.name, dgrad.begin_ns, dgrad.ns) == ("dgrad", 10_000, 4_000 + trace_signatures.INNER_GAP_NS)
    assert (wgrad.signature.name, wgrad.ns) == ("wgrad", 2_000)


def test_batch_normalisation_moves_as_many_bytes_as_the_shim_says() -> None:
    text = (ROOT / "interposer/native/libs/cudnn_norm.cpp").read_text("utf-8")
    call = re.compile(r'"batch_norm_(\w+)ward", (\d+) \* x\.bytes\(\) \+ d?[xy]\.bytes\(\), (\d+) \* x\.elements')
    found = {f"{way}ward": (int(read) + 1, int(flops)) for way, read, flops in call.findall(text)}
    assert found == trace_signatures.BATCH_NORM_WORK


def test_batch_normalisation_of_cudnn_is_one_call_by_the_bytes_that_the_shim_counts(tmp_path: Path) -> None:
    """Three passes over 4-byte values forward, five backward (`interposer/native/libs/cudnn_norm.cpp`)."""
    events: list[dict[str, object]] = []
    for number, name in ((1, "aten::cudnn_batch_norm"), (2, "aten::cudnn_batch_norm_backward")):
        arguments = {"External id": number, "Input Dims": [[2, 8, 4, 4], [8]], "Input type": ["float", "float"]}
        events.append({"ph": "X", "cat": "cpu_op", "name": name, "ts": number, "dur": 1, "args": arguments})
        for ts, cat, kernel in ((10, "gpu_memset", "Memset (Device)"), (14, "kernel", "cudnn::batchnorm_nhwc<float>")):
            at = {"External id": number, "stream": 7, "grid": [1, 1, 1], "block": [32, 1, 1]}
            events.append({"ph": "X", "cat": cat, "name": kernel, "ts": ts + 10 * number, "dur": 2, "args": at})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    forward, backward = trace_signatures.read(path)
    assert (forward.signature.kind, forward.signature.name) == ("library", "cudnn:batch_norm_forward")
    assert forward.signature.attributes == {"bytes": 3 * 4 * 256, "flops": 8 * 256}
    assert forward.ns == 4_000 + trace_signatures.INNER_GAP_NS
    assert backward.signature.name == "cudnn:batch_norm_backward"
    assert backward.signature.attributes == {"bytes": 5 * 4 * 256, "flops": 12 * 256}


def test_traces_that_are_added_to_a_table_leave_its_points_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*options: str) -> dict[str, tuple[float, int]]:
        monkeypatch.setattr("sys.argv", ["tables", "--gpu", "h200", *options])
        tables.main()
        rows = parquet.read_table(tmp_path / "kernels_h200.parquet").to_pylist()
        return {row["kind"]: (row["ns"], row["count"]) for row in rows}

    monkeypatch.setattr(tables, "TABLES", tmp_path)
    first = made("--traces", str(trace(tmp_path / "first.json.gz")))
    assert first.keys() == {"gemm"}
    slower = trace(tmp_path / "second.json.gz", gemm_dur=5, kernel="elementwise")
    assert made("--add", "--traces", str(slower)) == {**first, "kernel": (pytest.approx(2_000), 1)}
    assert made("--traces", str(slower))["gemm"] > first["gemm"]


def test_a_real_step_that_idled_drew_less_and_ran_at_a_higher_clock() -> None:
    busy_ns = [(MATRIX, 100 * MS)]
    clocks = [tables.step_pace(busy_ns, gpu("h100-sxm"), idle).clock for idle in (0.0, 10 * MS, 200 * MS)]
    assert clocks[0] < clocks[1] < clocks[2] == 1


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "distance"), [(5.0, 0.0), (2.0, 0.0), (1.5, -0.5), (9.0, 1.0), (8.0, 0.0)])
def test_a_value_in_the_measured_range_is_no_error(value: float, distance: float) -> None:
    assert truth.outside(value, 2.0, 8.0) == distance


def titan(name: str, tps: list[float]) -> frameworks.Line:
    return frameworks.Line({"name": name, "args": "", "world": 4, "tps": tps, "memory_gib": [1.0] * len(tps)})


def figures(speed: float) -> frameworks.Figures:
    return frameworks.Figures("tokens/s", (speed,), speed, (), ())


def test_the_run_that_is_bound_by_its_gpus_is_held_against_the_median_of_its_steps_from_the_third() -> None:
    line = titan("llama3-8B-fsdp4", [1.0, 50.0, 90.0, 110.0, 100.0])
    assert line.real().speeds == (90.0, 110.0, 100.0)
    assert frameworks.speed_error(line, figures(105.0)) == pytest.approx(0.05)


def test_runs_that_are_bound_by_their_host_are_wrong_only_outside_of_what_was_measured() -> None:
    line = titan("llama3-debug-fsdp4", [1.0, 50.0, 90.0, 110.0, 100.0])
    assert frameworks.speed_error(line, figures(92.0)) == 0
    assert frameworks.speed_error(line, figures(130.0)) == pytest.approx(0.2)
    assert frameworks.speed_error(line, figures(80.0)) == pytest.approx(-0.1)


def test_lines_of_the_truth_give_the_medians_that_they_state() -> None:
    for line in frameworks.lines():
        if line.titan:
            assert line.real().speed == line.fields["tps_median_from_step_3"]
    assert [line.name for line in frameworks.lines() if not line.host_bound] == ["llama3-8B-fsdp4"]


def test_the_memory_error_is_that_of_the_worst_rank() -> None:
    assert frameworks.memory_error((100.0, 200.0), (101.0, 190.0)) == pytest.approx(-0.05)
    assert frameworks.memory_error((), (1.0,)) is None


def test_output_of_a_framework_is_read_with_its_colours() -> None:
    (line,) = (one for one in frameworks.lines() if one.name == "llama3-debug-fsdp4")
    shown = "[rank0]:\x1b[31mstep: {:2}  \x1b[32mloss:  2.0  "
    shown += "\x1b[38;2;54;234;195mmemory:  1.35GiB(1%)  \x1b[34mtps: 1{:02},000  "
    shown += "\x1b[36mtflops: 11.70  \x1b[35mmfu: 1.18%\x1b[39m"
    output = "\n".join(shown.format(step, step) for step in range(1, 11))
    found = line.read(output)
    assert found is not None
    assert found.speed == 107_000
    assert found.reserved == (1.35,) * 10
    assert line.read(output.rpartition("\n")[0]) is None  # it did not get to its end
