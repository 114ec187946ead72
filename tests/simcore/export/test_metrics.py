"""The Prometheus page of a snapshot: names, values, cardinality; the DCGM-shaped one; what NVML shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from simulated_run import Run, alone

from eidolon_simcore.catalogue import DeviceModel, gpu
from eidolon_simcore.costs.roofline import MATRIX
from eidolon_simcore.costs.sm_clock import CLASSES, FULL, pace
from eidolon_simcore.costs.work import WORK_FIELDS
from eidolon_simcore.export import dcgm, metrics
from eidolon_simcore.export.device_gauges import DeviceGauges
from eidolon_simcore.fabric.network import Link, Port
from eidolon_simcore.ledger.accounts import TIMES, KindTotal, Ledger
from eidolon_simcore.ledger.power import IDLE_POWER
from eidolon_simcore.ledger.snapshot import Progress, Snapshot
from eidolon_simcore.ledger.steps import Step
from eidolon_simcore.vocabulary import Kind

ROOT = Path(__file__).parents[3]
H100 = gpu("h100-sxm")
MS = 1_000_000


def ledger(servers: int = 1, gpus: int = 2, *, compute: int = 60, communication: int = 25, scale: int = MS) -> Ledger:
    """One rank a device, steps of 100 units."""
    ports = tuple(Port(server, device) for server in range(servers) for device in range(gpus))
    row = {
        "window": 100,
        "compute": compute,
        "communication": communication,
        "copy": 5,
        "host": 95 - compute - communication,
        "idle": 0,
        "overlap": 10,
        "wait": 3,
    }
    times = np.tile(np.array([row[name] * scale for name in TIMES], np.int64), (len(ports), 1))
    worked = {"flops": 2e12, "tensor_ns": compute * scale / 2, "memory_bytes": 1e8, "to_device_bytes": 1e6}
    work = np.tile(np.array([worked.get(name, 0.0) for name in WORK_FIELDS]), (len(ports), 1))
    kinds = {"all_reduce": KindTotal(4, 1000, 1500, 500)}
    return Ledger(ports, tuple(range(len(ports))), times, work, kinds, np.full(4 * len(ports), 10_000_000, np.int64))


def progress(ports: tuple[Port, ...], steps: int = 3, time_ns: int = 100 * MS) -> Progress:
    done = Progress()
    for index in range(1, steps + 1):
        peaks = dict.fromkeys(ports, 30 + index << 30)
        name = "startup" if index == 1 else "step"
        step = Step(index, name, index * time_ns, time_ns, peaks, {}, {}, dict.fromkeys(ports, 20 << 30))
        entry = {"index": index, "time_ns": time_ns, "tokens": 1000, "samples": None, "flops": 4e12, "mfu": 0.02}
        done = done.plus(step, {**entry, "tokens_per_s": 1e4, "samples_per_s": None}, dict.fromkeys(ports, 50.0))
    return done


def snapshot(servers: int = 1, gpus: int = 2, **changes: object) -> Snapshot:
    one = ledger(servers, gpus)
    links = tuple(
        Link(4 * n + i, f"{kind} {port.server}/{port.device}", kind.split(maxsplit=1)[0], 450_000_000_000)
        for n, port in enumerate(one.ports)
        for i, kind in enumerate(("nvlink out", "nvlink in", "nic out", "nic in"))
    )
    engine = {"operations": 10, "spans": 9, "flows": 3, "rollback_depth_ns_sum": 2_000_000_000, "horizon_lag_ns": 5}
    return replace(
        Snapshot("demo", (DeviceModel(H100, 80 << 30),) * servers, gpus),
        **{
            "state": "Running",
            "ranks": {"expected": len(one.ports), "joined": len(one.ports), "left": 0},
            "progress": progress(one.ports),
            "last": one,
            "total": one,
            "links": links,
            "out_of_memory": {Port(0, 1): 1},
            "source_ns": {"roofline": 3, "unknown": 1},
            "startup_source_ns": {"roofline": 1, "unknown": 1},
            "unmodelled": {"cudaFoo": 2},
            "unknown_reads": {"item": (1, 4)},
            "waits": {"cudaStreamSynchronize": (5, 2_000_000_000)},
            "engine": engine,
            "horizon_ns": 400 * MS,
            "wall_s": 4.0,
            **changes,
        },
    )


def samples(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "run"}
            found[sample.name, frozenset(labels.items())] = sample.value
    return found


def value(page: bytes, name: str, **labels: str) -> float:
    return samples(page)[name, frozenset(labels.items())]


def test_values_come_from_the_snapshot() -> None:
    page = metrics.page(snapshot())
    assert value(page, "eidolon_tokens_total") == 2000  # not the startup step's
    assert value(page, "eidolon_virtual_seconds_total") == pytest.approx(0.2)
    assert value(page, "eidolon_steps_total") == 3
    assert value(page, "eidolon_startup_seconds") == pytest.approx(0.1)
    assert value(page, "eidolon_step_last_duration_seconds") == pytest.approx(0.1)
    assert value(page, "eidolon_step_last_flops_per_second") == pytest.approx(4e13)
    assert value(page, "eidolon_mfu_ratio") == 0.02
    assert value(page, "eidolon_device_time_ratio", server="0", rank="1", device="1", activity="compute") == 0.6
    assert value(page, "eidolon_step_time_ratio", activity="communication") == 0.25
    assert value(page, "eidolon_device_memory_peak_bytes", server="0", device="0") == 33 << 30
    assert value(page, "eidolon_device_out_of_memory_total", server="0", device="1") == 1
    assert value(page, "eidolon_collective_bus_bytes_total", op="all_reduce") == 1500
    assert value(page, "eidolon_link_utilization_ratio", link="nic out 0/1", tier="nic") == pytest.approx(1e7 / 45e9)
    assert value(page, "eidolon_tier_bytes_total", tier="nvlink") == 4e7
    assert value(page, "eidolon_cost_source_ratio", source="unknown") == 0.25
    assert value(page, "eidolon_startup_cost_source_ratio", source="unknown") == 0.5
    assert value(page, "eidolon_host_wait_seconds_total", site="cudaStreamSynchronize") == 2.0
    assert value(page, "eidolon_engine_rollback_depth_seconds_total") == 2.0
    assert value(page, "eidolon_engine_virtual_to_real_ratio") == pytest.approx(0.1)
    assert value(page, "eidolon_run_state", state="Running") == 1


def test_the_page_is_what_the_library_makes_of_the_collector() -> None:
    names = {'a "quoted" %s\\ name\n': 3, "100 %": 1}
    for shown in (snapshot(unmodelled=names, run='of "me" 5 %'), Snapshot("demo", (DeviceModel(H100, 80 << 30),), 2)):
        registry = CollectorRegistry()
        registry.register(metrics.RunCollector(lambda shown=shown: shown))
        assert metrics.page(shown) == generate_latest(registry)


def test_shares_of_a_device_add_up_to_one() -> None:
    found = samples(metrics.page(snapshot()))
    shares = [v for (name, labels), v in found.items() if name == "eidolon_step_time_ratio"]
    assert sum(shares) == pytest.approx(1.0)


def test_the_histogram_holds_every_step_but_the_first() -> None:
    found = samples(metrics.page(snapshot()))
    assert found["eidolon_step_duration_seconds_count", frozenset()] == 2
    assert found["eidolon_step_duration_seconds_bucket", frozenset({("le", "0.1")})] == 2
    assert found["eidolon_step_duration_seconds_bucket", frozenset({("le", "0.07")})] == 0


def test_a_run_without_steps_has_counters_at_zero() -> None:
    page = metrics.page(Snapshot("demo", (DeviceModel(H100, 80 << 30),), 2))
    assert value(page, "eidolon_tokens_total") == 0
    assert value(page, "eidolon_virtual_seconds_total") == 0
    assert ("eidolon_mfu_ratio", frozenset()) not in samples(page)


def test_labels_are_ours_alone() -> None:
    families = list(text_string_to_metric_families(metrics.page(snapshot()).decode()))
    labels = {name for family in families for sample in family.samples for name in sample.labels}
    assert not labels & {"pod", "namespace", "job", "instance", "cluster", "container", "node"}
    assert all(sample.labels.get("run") == "demo" for family in families for sample in family.samples)


def test_only_declared_families_are_given_each_once_and_all_by_a_full_snapshot() -> None:
    names = re.findall(r"^# TYPE (\S+) ", metrics.page(snapshot()).decode(), re.MULTILINE)
    assert len(names) == len(set(names))
    full = snapshot(engine=dict.fromkeys((counter for counter, _ in metrics._ENGINE.values()), 1))
    names = re.findall(r"^# TYPE (\S+) ", metrics.page(full).decode(), re.MULTILINE)
    declared = {f"{name}_total" if family.kind == "counter" else name for name, family in metrics.FAMILIES.items()}
    assert set(names) == declared


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say() -> None:
    run = subprocess.run(["promtool", "check", "metrics"], input=metrics.page(snapshot()), capture_output=True)
    assert (run.returncode, run.stdout + run.stderr) == (0, b"")


def test_names_of_the_workload_are_bounded() -> None:
    many = {f"call{n}": 1 for n in range(200)}
    found = samples(metrics.page(snapshot(unmodelled=many)))
    calls = {dict(labels)["call"]: v for (name, labels), v in found.items() if name == "eidolon_unmodelled_calls_total"}
    assert len(calls) == metrics.MAX_NAMES + 1
    assert calls["other"] == 200 - metrics.MAX_NAMES
    assert found["eidolon_metrics_left_out", frozenset({("what", "names")})] == 150


def test_more_devices_than_the_limit_have_no_series_of_their_own() -> None:
    page = metrics.page(snapshot(servers=256, gpus=8))
    assert page.count(b"\n") < 400
    assert value(page, "eidolon_metrics_left_out", what="devices") == 2048
    assert value(page, "eidolon_step_time_ratio", activity="compute") == pytest.approx(0.6)


def test_a_thousand_ranks_are_scraped_within_their_limit_of_series_and_time() -> None:
    full = snapshot(servers=128, gpus=8)
    began = time.process_time()
    page = metrics.page(full)
    spent = time.process_time() - began
    assert page.count(b"\n") <= 40_000  # docs/metrics.md
    assert spent < 0.6  # bench.metrics has the figure; this guards against another order of growth


def test_the_reference_in_the_docs_is_up_to_date() -> None:
    run = subprocess.run([sys.executable, ROOT / "tools" / "metrics_reference.py", "--check"])
    assert run.returncode == 0, "run tools/metrics_reference.py"


# ---- DCGM ------------------------------------------------------------------------------------------------------------


def dcgm_values(page: bytes) -> Mapping[str, float]:
    """Of device 0 of server 0."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if sample.labels["gpu"] == "0" and sample.labels["Hostname"] == "demo-server-0":
                found[sample.name] = sample.value
    return found


def test_dcgm_values_follow_the_work() -> None:
    computing = dcgm_values(dcgm.page(snapshot(last=ledger(compute=90, communication=3))))
    waiting = dcgm_values(dcgm.page(snapshot(last=ledger(compute=10, communication=83))))
    assert computing["DCGM_FI_DEV_GPU_UTIL"] == waiting["DCGM_FI_DEV_GPU_UTIL"] == 93  # a collective is a kernel, too
    assert computing["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.9 + 0.03 * 16 / 132)
    assert waiting["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.1 + 0.83 * 16 / 132)
    assert computing["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == pytest.approx(0.45)
    assert computing["DCGM_FI_PROF_DRAM_ACTIVE"] == pytest.approx(1e8 / (3352e9 * 0.1), rel=1e-3)
    assert computing["DCGM_FI_DEV_POWER_USAGE"] > 2 * waiting["DCGM_FI_DEV_POWER_USAGE"]
    assert computing["DCGM_FI_PROF_PCIE_RX_BYTES"] == pytest.approx(1e7)
    assert computing["DCGM_FI_PROF_NVLINK_TX_BYTES"] == pytest.approx(1e8)
    assert computing["DCGM_FI_DEV_FB_USED"] == 20 << 10
    assert computing["DCGM_FI_DEV_FB_FREE"] == 60 << 10


def test_dcgm_shows_the_clock_and_power_that_times_follow_from() -> None:
    work = [0.0] * CLASSES
    work[MATRIX] = 1e8
    throttled = {Port(0, 0): pace(work, H100)}
    busy, free = (dcgm_values(dcgm.page(snapshot(last=ledger(compute=100), paces=p))) for p in (throttled, {}))
    assert busy["DCGM_FI_DEV_SM_CLOCK"] == pytest.approx(1_320, rel=0.02)  # measured, as is 697 W
    assert busy["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(697, rel=0.02)
    assert free["DCGM_FI_DEV_SM_CLOCK"] == 1_980
    assert free["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(0.71 * 700)  # bound by memory


def test_both_pages_show_the_same_clock_and_power() -> None:
    work = [0.0] * CLASSES
    work[MATRIX] = 1e8
    shown = snapshot(last=ledger(compute=100, communication=0), paces={Port(0, 0): pace(work, H100)})
    page, like_dcgm = metrics.page(shown), dcgm_values(dcgm.page(shown))
    busy = {"server": "0", "device": "0"}
    assert value(page, "eidolon_device_sm_clock_hertz", **busy) == pytest.approx(1_320e6, rel=0.02)  # measured
    assert value(page, "eidolon_device_power_watts", **busy) == pytest.approx(697, rel=0.02)  # measured
    clock_mhz = value(page, "eidolon_device_sm_clock_hertz", **busy) / 1e6
    assert like_dcgm["DCGM_FI_DEV_SM_CLOCK"] == round(clock_mhz)
    assert like_dcgm["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(value(page, "eidolon_device_power_watts", **busy))
    other = {"server": "0", "device": "1"}  # nothing holds its clock back
    assert value(page, "eidolon_device_sm_clock_hertz", **other) == 1_980e6
    assert value(page, "eidolon_device_sm_clock_max_hertz", **other) == 1_980e6
    assert value(page, "eidolon_device_power_limit_watts", **other) == 700


def test_a_waiting_device_draws_less_by_its_idle_sms() -> None:
    page = metrics.page(snapshot(last=ledger(compute=50, communication=33)))
    active = 0.5 + 0.33 * 16 / 132
    draws = value(page, "eidolon_device_power_watts", server="0", device="1")
    assert draws == pytest.approx(700 * (0.12 + (0.71 - 0.12) * active))


def test_dcgm_knows_nvlinks_by_the_names_of_a_topology() -> None:
    names = ("server0/gpu0>server0/nvswitch", "server0/nvswitch>server0/gpu0", "server0/nvswitch>server0/gpu0#2")
    links = tuple(Link(number, name, "nvlink", 450_000_000_000) for number, name in enumerate(names))
    values = dcgm_values(dcgm.page(snapshot(links=links)))
    assert values["DCGM_FI_PROF_NVLINK_TX_BYTES"] == pytest.approx(1e8)
    assert values["DCGM_FI_PROF_NVLINK_RX_BYTES"] == pytest.approx(2e8)


def test_dcgm_shows_devices_that_no_rank_uses_as_idle() -> None:
    idle = dcgm_values(dcgm.page(Snapshot("demo", (DeviceModel(H100, 80 << 30),), 2)))
    assert idle["DCGM_FI_DEV_GPU_UTIL"] == 0
    assert idle["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(0.12 * 700)


def test_the_peak_of_a_folded_run_is_that_of_all_its_gpus() -> None:
    """So that the work of the whole job, divided by it, is the job's MFU."""
    whole = snapshot(servers=1, gpus=1, class_sizes={0: 1024})
    assert value(metrics.page(whole), "eidolon_peak_flops_per_second") == pytest.approx(1024 * 989.4e12)


def test_pages_tell_servers_of_other_gpus_apart() -> None:
    mixed = snapshot(
        servers=2, gpus=1, devices=(DeviceModel(H100, 80 << 30), DeviceModel(gpu("a100-40gb-sxm"), 40 << 30))
    )
    page = metrics.page(mixed)
    assert value(page, "eidolon_run", gpu="a100-40gb-sxm", servers="1") == 1
    assert value(page, "eidolon_run", gpu="h100-sxm", servers="1") == 1
    assert value(page, "eidolon_device_memory_capacity_bytes", server="1", device="0") == 40 << 30
    assert value(page, "eidolon_device_power_limit_watts", server="1", device="0") == 400
    assert value(page, "eidolon_peak_flops_per_second") == pytest.approx(989.4e12 + 312e12)
    family = next(iter(text_string_to_metric_families(dcgm.page(mixed).decode())))
    assert [sample.labels["modelName"] for sample in family.samples] == [H100.name, gpu("a100-40gb-sxm").name]


def test_dcgm_labels_are_the_exporters_with_the_pod_where_there_is_one() -> None:
    first = next(iter(text_string_to_metric_families(dcgm.page(snapshot(), "lab").decode()))).samples[0]
    assert first.labels["Hostname"] == first.labels["hostname"] == first.labels["pod"] == "demo-server-0"
    assert first.labels["modelName"] == "NVIDIA H100 80GB HBM3"
    assert first.labels["device"] == "nvidia0"
    assert first.labels["UUID"].startswith("GPU-00070e15-")  # what the shim's NVML says
    assert (first.labels["namespace"], first.labels["container"]) == ("lab", "workload")
    local = next(iter(text_string_to_metric_families(dcgm.page(snapshot()).decode()))).samples[0]
    assert not {"pod", "namespace", "container"} & set(local.labels)


def test_ranks_that_share_a_device_add_up_and_never_exceed_it() -> None:
    one = ledger(gpus=1, compute=80, communication=10)
    both = Ledger(
        (*one.ports, *one.ports), (0, 1), np.tile(one.times, (2, 1)), np.tile(one.work, (2, 1)), {}, one.link_bytes
    )
    shared = dcgm_values(dcgm.page(snapshot(last=both)))
    assert shared["DCGM_FI_DEV_GPU_UTIL"] == 100
    assert shared["DCGM_FI_PROF_SM_ACTIVE"] == 1
    assert shared["DCGM_FI_PROF_PCIE_RX_BYTES"] == pytest.approx(2e7)


# ---- what NVML and nvidia-smi show -----------------------------------------------------------------------------------

PORT = Port(0, 0)
LIMIT_W = 700.0


def test_in_a_run_with_steps_they_are_those_of_the_dcgm_page() -> None:
    s = snapshot(issued={PORT: (400 * MS, 100 * MS)})
    (port, reading), *others = DeviceGauges().read(s).items()
    assert (port, others) == (PORT, [])
    gauge = dcgm.gauges(s)[PORT]
    assert reading.power_mw == round(gauge.draw.watts * 1e3)
    assert reading.busy_percent == round(gauge.busy * 100) > 0
    assert (reading.at_ns, reading.energy_mj) == (300 * MS, round(gauge.energy_j * 1e3))


def test_before_the_second_step_a_device_is_busy_for_what_was_issued() -> None:
    meters = DeviceGauges()
    start = snapshot(progress=Progress(), issued={PORT: (400 * MS, 100 * MS)})
    reading = meters.read(start)[PORT]
    watts = (IDLE_POWER + (FULL.power - IDLE_POWER) * 0.25) * LIMIT_W
    assert reading.busy_percent == 25
    assert reading.power_mw == pytest.approx(watts * 1e3, abs=1)
    assert reading.energy_mj == pytest.approx(watts * 400, abs=1)
    later = meters.read(replace(start, issued={PORT: (800 * MS, 200 * MS)}))[PORT]
    assert later.energy_mj == pytest.approx(2 * reading.energy_mj, abs=2)
    full = meters.read(replace(start, issued={PORT: (1200 * MS, 1200 * MS)}))[PORT]
    assert full.busy_percent == 100  # since the reading before
    assert full.energy_mj == pytest.approx(later.energy_mj + FULL.power * LIMIT_W * 400, abs=2)
    assert meters.read(replace(start, issued={PORT: (2000 * MS, 1200 * MS)}))[PORT].busy_percent == 75  # a queue


def test_the_energy_of_the_start_up_stays_when_steps_begin() -> None:
    meters = DeviceGauges()
    s = snapshot(issued={PORT: (400 * MS, 100 * MS)})
    began = meters.read(replace(s, progress=Progress()))[PORT]
    assert s.progress.startup_ns == 100 * MS
    steps_mj = round(dcgm.gauges(s)[PORT].energy_j * 1e3)
    assert meters.read(s)[PORT].energy_mj == pytest.approx(began.energy_mj / 4 + steps_mj, abs=2)


def test_agents_are_told_what_has_changed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    rank = alone(run)
    rank.write(Kind.KERNEL, sig=rank.signature("kernel", "known", gx=1, bx=1))
    rank.sync()
    run.batch(rank)

    def told() -> list[int]:
        run.simulation.show(run.simulation.snapshot(0.0))
        run.simulation.tick(0.0)
        found = [gauges.device for message in run.sent[0] for gauges in message.gauges]
        run.sent[0].clear()
        return found

    assert told() == [0]
    assert told() == []
