"""The table at the end of a run, as text."""

from __future__ import annotations

from typing import Any

from eidolon_operator import report

GIB = 2**30


def step(index: int, time_ms: float, peak: dict[str, int], **rates: float) -> dict[str, Any]:
    return {
        "index": index,
        "name": "step" if index else "startup",
        "end_ns": 0,
        "time_ns": int(time_ms * 1e6),
        "tokens_per_s": rates.get("tokens"),
        "samples_per_s": rates.get("samples"),
        "peak_bytes": peak,
    }


def summary(steps: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "state": "Succeeded",
        "reason": None,
        "gpu": "h100-sxm",
        "ranks": 2,
        "steps": steps,
        "cost_share": {"measured": 0.0, "interpolated": 0.0, "roofline": 0.975, "unknown": 0.025},
        "coverage": {"published": []},
        "host_cost": "table",
        "host_note": "",
        "host_waits": [],
        "unmodelled": [],
        "unknown_reads": [],
        "oom": [],
        "engine": {},
        "virtual_ns": 3 * 10**9,
        "wall_s": 12.34,
        **changes,
    }


def test_the_whole_report() -> None:
    steps = [
        step(0, 2000, {"0/0": GIB, "0/1": GIB}, tokens=4096.0),
        step(1, 71.3, {"0/0": 9 * GIB, "0/1": 8 * GIB}, tokens=114_885.0),
        step(2, 71.5, {"0/0": 10 * GIB, "0/1": 8 * GIB}, tokens=114_563.0),
    ]
    found = report.render(
        summary(
            steps,
            host_waits=[{"site": "store.get", "count": 3, "ns": 2_000_000}],
            unmodelled=[{"name": "cusparse:cusparseSpMM", "count": 4}, {"name": "nvml:nvmlX", "count": 9}],
            unknown_reads=[{"site": "item", "default": "loss", "bulk": False, "count": 1, "bytes": 4}],
        ),
        title="demo on 1 server x 2 h100-sxm",
    )
    assert found == (
        "demo on 1 server x 2 h100-sxm: Succeeded\n"
        "2 ranks on h100-sxm; host cost: table; 3.000 s simulated in 12.3 s\n"
        "\n"
        "   step  simulated time  tokens/s   mem 0/0   mem 0/1\n"
        "-----------------------------------------------------\n"
        "startup         2.000 s         -  1.00 GiB  1.00 GiB\n"
        "      1        71.30 ms   114,885  9.00 GiB  8.00 GiB\n"
        "      2        71.50 ms   114,563  10.0 GiB  8.00 GiB\n"
        "-----------------------------------------------------\n"
        " median        71.40 ms   114,724  10.0 GiB  8.00 GiB\n"
        "Memory: peak of each device by server/device; in the last row that of the whole run.\n"
        "\n"
        "Device time by cost source: measured 0.0%, interpolated 0.0%, roofline 97.5%, unknown 2.5%\n"
        "Host waits: 3 waits, 2.000 ms\n"
        "  store.get: 3 x, 2.000 ms\n"
        'Unmodelled calls: 13 calls of 2 functions, which mostly returned "not supported"\n'
        "  nvml:nvmlX: 9 x\n"
        "  cusparse:cusparseSpMM: 4 x\n"
        "Unknown reads: 1 read of values that were never computed\n"
        "  item: 1 x, 4 B, default: loss\n"
    )


def test_the_start_up_is_told_apart() -> None:
    found = report.render(summary([], startup_cost_share={"measured": 0.4, "unknown": 0.6}), title="demo")
    assert "unknown 2.5%\n  of the steps; the start-up (building, compilation, autotuning) had measured 40.0%" in found


def test_a_run_without_steps_has_its_peak_memory() -> None:
    found = report.render(summary([], peak_bytes={"0/0": 3 * GIB, "0/1": 2 * GIB}), title="demo")
    assert "No step became final. Peak memory: 0/0 3.00 GiB, 0/1 2.00 GiB." in found
    many = {f"{server}/0": server * GIB for server in range(40)}
    found = report.render(summary([], peak_bytes=many), title="demo")
    assert "No step became final. Greatest peak of memory: 39.0 GiB, on device 39/0." in found


def test_a_refusal_that_the_next_try_cured_is_told_as_such() -> None:
    oom = {"server": 0, "device": 0, "step": 1, "requested_bytes": GIB, "allocated_bytes": 7 * GIB}
    found = report.render(summary([], oom=[oom | {"capacity_bytes": 7 * GIB, "cured": True}]), title="demo")
    assert "7.00 GiB allocated; the allocator freed what it had cached, and its next try succeeded\n" in found


def test_a_failed_run_says_why_and_where_memory_ended() -> None:
    oom = {
        "server": 0,
        "device": 1,
        "step": 3,
        "requested_bytes": 2 * GIB,
        "allocated_bytes": 7 * GIB,
        "capacity_bytes": 8 * GIB,
    }
    found = report.render(summary([], state="Failed", reason="rank 1 died", oom=[oom, oom]), title="demo")
    assert found.startswith("demo: Failed: rank 1 died\n")
    assert "No step became final." in found
    assert "Peak memory" not in found
    line = "Out of memory in step 3 on server 0 device 1: 2.00 GiB requested with 7.00 GiB of 8.00 GiB allocated"
    assert found.count(line) == 1


def test_many_steps_show_the_first_and_the_last() -> None:
    found = report.render(summary([step(i, 1, {}) for i in range(101)]), title="demo").splitlines()
    labels = [line.split()[0] for line in found[5:-7]]
    assert labels == ["startup", "1", "2", "3", "4", "5", "...", *map(str, range(89, 101))]
    assert "...       (83 more)" in "\n".join(found)


def test_many_devices_show_the_greatest_peak() -> None:
    peaks = {f"{server}/{device}": GIB for server in range(2) for device in range(8)} | {
        "1/3": 5 * GIB,
        "1/10": 5 * GIB,
    }
    found = report.render(summary([step(0, 1, peaks)]), title="demo")
    assert "peak memory   on" in found
    assert "5.00 GiB  1/3" in found


def test_long_lists_are_cut() -> None:
    calls = [{"name": f"lib:f{i:02}", "count": 1} for i in range(25)]
    found = report.render(summary([], unmodelled=calls), title="demo")
    assert "  lib:f09: 1 x\n  ... and 15 more in summary.json" in found


def test_samples_and_tokens_get_a_column_only_where_known() -> None:
    found = report.render(summary([step(1, 10, {}, samples=12.5)]), title="demo")
    assert "samples/s" in found
    assert "12.5" in found
    assert "tokens/s" not in found


def test_no_device_time() -> None:
    assert "Device time by cost source: no device time" in report.render(summary([], cost_share={}), title="demo")


def test_progress() -> None:
    assert report.progress_line(step(3, 71.3, {}, tokens=5000.0), 10) == "step 3 of 10 · 71.30 ms · 5,000 tokens/s"
    assert report.progress_line(step(3, 71.3, {}), None) == "step 3 · 71.30 ms"
    assert report.progress_line(step(0, 71.3, {}), None) == "startup 71.30 ms"


def test_a_folded_run_says_which_ranks_ran_and_for_which_others() -> None:
    fold = {"world": 1024, "classes": [{"rank": 0, "ranks": 1023}, {"rank": 1023, "ranks": 1}]}
    found = report.render(summary([], fold=fold), title="demo on 128 servers x 8 h100-sxm").splitlines()
    assert found[:3] == [
        "demo on 128 servers x 8 h100-sxm: Succeeded",
        "2 of 1,024 ranks ran on h100-sxm; host cost: table; 3.000 s simulated in 12.3 s",
        "Folded: rank 0 stands for 1,023 ranks, rank 1023 for itself",
    ]
    assert "ranks ran" not in report.render(summary([], fold=None), title="demo")
