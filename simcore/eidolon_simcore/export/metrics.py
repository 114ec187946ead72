"""Prometheus metrics of a run: a custom collector over a snapshot.

``docs/metrics.md`` is the reference; a test compares it with :data:`FAMILIES`. The names follow these rules:

* Units are base units; counters end in ``_total`` and shares in ``_ratio``. Labels are ``run``, ``server``, ``rank``,
  ``device`` and what a family is about (``op``, ``link``, ...). They are never names that a scraper gives (pod,
  namespace, job, instance, cluster).
* A scrape's clock is not the simulation's. A simulated rate is ``rate(counter) / rate(eidolon_virtual_seconds_total)``.
  All counters of simulated work are as of the end of the same final step, so the quotient does not depend on how fast
  the simulation runs. Gauges are those of the last final step.
* The number of series is bounded. Single devices have series up to :data:`MAX_DEVICES` devices, single links up to
  :data:`MAX_LINKS`. A family has at most :data:`MAX_NAMES` names from the workload, and the rest is ``other``.
  ``eidolon_metrics_left_out`` says what is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from eidolon_simcore.export.summary import shares
from eidolon_simcore.fabric.network import Port
from eidolon_simcore.ledger.accounts import SPLIT, KindTotal, Ledger
from eidolon_simcore.ledger.power import active_sms, draw
from eidolon_simcore.ledger.snapshot import BUCKETS_S, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_DEVICES = 1_024
MAX_LINKS = 4_096
MAX_NAMES = 50
STATES = ("Waiting", "Running", "Succeeded", "Failed")


class Family(NamedTuple):
    """A metric family: its kind, its labels beside ``run``, and its help text."""

    kind: str
    labels: tuple[str, ...]
    help: str


_DEVICE = ("server", "device")
_RANK = ("server", "rank")
_BOTH = ("server", "rank", "device")
_LAST = "in the last final step"
_OVER_LAST = "over the last final step"
_SO_FAR = "in the final steps but the first"

#: Every family that the collector can give, by name. Names of counters stand here without ``_total``.
FAMILIES: Mapping[str, Family] = {
    "eidolon_run": Family("gauge", ("gpu", "servers"), "Always 1. The labels say what is simulated."),
    "eidolon_run_state": Family("gauge", ("state",), "1 for the state that the run is in, else 0."),
    "eidolon_ranks": Family("gauge", ("state",), "Ranks that are expected, have joined, have left."),
    "eidolon_steps": Family("counter", (), "Final optimizer steps, the first (startup) included."),
    "eidolon_virtual_seconds": Family(
        "counter", (), f"Virtual time {_SO_FAR}. The divisor of every simulated rate: rate(x) / rate(this)."
    ),
    "eidolon_startup_seconds": Family("gauge", (), "Virtual time of the first step: process start, model, warm-up."),
    "eidolon_step_duration_seconds": Family("histogram", (), f"Virtual time of each step {_SO_FAR}."),
    "eidolon_step_last_duration_seconds": Family("gauge", (), "Virtual time of the last final step."),
    "eidolon_step_last_index": Family("gauge", (), "Number of the last final step, from 1."),
    "eidolon_tokens": Family("counter", (), f"Tokens {_SO_FAR}."),
    "eidolon_samples": Family("counter", (), f"Samples {_SO_FAR}."),
    "eidolon_flops": Family("counter", (), f"Floating-point operations of matrix units, as executed, {_SO_FAR}."),
    "eidolon_step_last_tokens_per_second": Family("gauge", (), f"Tokens per virtual second {_LAST}."),
    "eidolon_step_last_samples_per_second": Family("gauge", (), f"Samples per virtual second {_LAST}."),
    "eidolon_step_last_flops_per_second": Family("gauge", (), f"Matrix operations per virtual second {_LAST}."),
    "eidolon_mfu_ratio": Family(
        "gauge", (), f"Share of the devices' dense bf16 peak that was executed {_LAST}; recomputation counts."
    ),
    "eidolon_peak_flops_per_second": Family("gauge", (), "Dense bf16 peak of all devices that ranks work on."),
    "eidolon_step_time_ratio": Family(
        "gauge",
        ("activity",),
        f"Share of device time {_LAST}, mean over devices: compute, communication (exposed), copy, host, idle; sum 1.",
    ),
    "eidolon_step_overlap_ratio": Family(
        "gauge", (), f"Share of device time {_LAST} in which computing and communicating overlap; part of compute."
    ),
    "eidolon_device_time_ratio": Family(
        "gauge", (*_BOTH, "activity"), f"As eidolon_step_time_ratio, of one device {_LAST}."
    ),
    "eidolon_device_overlap_ratio": Family("gauge", _BOTH, f"As eidolon_step_overlap_ratio, of one device {_LAST}."),
    "eidolon_device_seconds": Family("counter", (*_BOTH, "activity"), f"Device time by activity {_SO_FAR}."),
    "eidolon_rank_step_seconds": Family(
        "gauge", _RANK, f"Virtual time from the rank's previous mark to its mark {_LAST}."
    ),
    "eidolon_rank_wait_ratio": Family(
        "gauge", _RANK, f"Share of time {_LAST} in collectives that others had not reached: a straggler has the least."
    ),
    "eidolon_rank_wait_seconds": Family(
        "counter", _RANK, f"Time in collectives that others had not reached, {_SO_FAR}."
    ),
    "eidolon_device_sm_clock_hertz": Family(
        "gauge", _DEVICE, "SM clock (in Hz) that the power model allows the step that is being issued."
    ),
    "eidolon_device_sm_clock_max_hertz": Family("gauge", _DEVICE, "Greatest SM clock of the device (in Hz)."),
    "eidolon_device_power_watts": Family("gauge", _DEVICE, f"Power draw (in W), a stated model, mean {_OVER_LAST}."),
    "eidolon_device_power_limit_watts": Family("gauge", _DEVICE, "Power limit of the device (in W)."),
    "eidolon_device_memory_allocated_bytes": Family("gauge", _DEVICE, "Allocated at the end of the last final step."),
    "eidolon_device_memory_step_peak_bytes": Family("gauge", _DEVICE, f"Most that was allocated {_LAST}."),
    "eidolon_device_memory_peak_bytes": Family("gauge", _DEVICE, "Most that was allocated in any final step."),
    "eidolon_device_memory_capacity_bytes": Family("gauge", _DEVICE, "Memory of the device."),
    "eidolon_device_out_of_memory": Family("counter", _DEVICE, "Allocations that were refused."),
    "eidolon_collectives": Family("counter", ("op",), f"Collectives {_SO_FAR}; send: pairs of send and receive."),
    "eidolon_collective_bytes": Family("counter", ("op",), "Bytes in the larger buffer of one member, summed."),
    "eidolon_collective_bus_bytes": Family("counter", ("op",), "These bytes times the bus factor of nccl-tests."),
    "eidolon_collective_seconds": Family(
        "counter", ("op",), "Time from the coming of the last member to the end, summed. Bus bytes over this is busbw."
    ),
    "eidolon_link_bytes": Family("counter", ("link", "tier"), f"Bytes over the link on the wire {_SO_FAR}."),
    "eidolon_link_capacity_bytes_per_second": Family("gauge", ("link", "tier"), "Capacity of the link."),
    "eidolon_link_utilization_ratio": Family("gauge", ("link", "tier"), f"Bytes over capacity times time {_LAST}."),
    "eidolon_tier_bytes": Family("counter", ("tier",), f"Bytes over all links of a tier {_SO_FAR}."),
    "eidolon_tier_utilization_ratio": Family(
        "gauge", ("tier", "of"), f"Mean and max of the utilisation of a tier's links {_LAST}."
    ),
    "eidolon_cost_source_ratio": Family(
        "gauge",
        ("source",),
        "Share of device time by the source of its cost, in the steps but the first (in all until the second).",
    ),
    "eidolon_startup_cost_source_ratio": Family(
        "gauge",
        ("source",),
        "The same before the first step's end, where models are built and kernels are compiled and tuned.",
    ),
    "eidolon_unmodelled_calls": Family("counter", ("call",), "Calls that the shim answered without modelling them."),
    "eidolon_unknown_reads": Family("counter", ("site",), "Reads of device values that were never computed."),
    "eidolon_unknown_read_bytes": Family("counter", ("site",), "Bytes of those reads."),
    "eidolon_host_waits": Family("counter", ("site",), "Waits of hosts by call site."),
    "eidolon_host_wait_seconds": Family("counter", ("site",), "Virtual time of those waits, over all ranks."),
    "eidolon_engine_operations": Family("counter", (), "Operations that the engine has taken."),
    "eidolon_engine_spans": Family("counter", (), "Spans that became final."),
    "eidolon_engine_collectives": Family("counter", (), "Collectives that were defined."),
    "eidolon_engine_flows": Family("counter", (), "Flows that were started."),
    "eidolon_engine_flows_active": Family("gauge", (), "Flows under way."),
    "eidolon_engine_rates_changed": Family("counter", (), "Changes of a flow's rate."),
    "eidolon_engine_rollbacks": Family("counter", (), "Corrections of the simulated past (optimistic mode)."),
    "eidolon_engine_rollback_depth_seconds": Family(
        "counter", (), "Virtual time that these corrections undid, summed."
    ),
    "eidolon_engine_rollback_depth_max_seconds": Family("gauge", (), "Virtual time that the deepest correction undid."),
    "eidolon_engine_nodes_live": Family("gauge", (), "Nodes in the engine's queue: issued or kept for a correction."),
    "eidolon_engine_live_bytes": Family("gauge", (), "Memory of the engine's live state."),
    "eidolon_engine_idle_jumps": Family("counter", (), "Ranks that resumed at the horizon (recorded as inputs)."),
    "eidolon_engine_horizon_seconds": Family("gauge", (), "Virtual time before which nothing can change."),
    "eidolon_engine_horizon_lag_seconds": Family("gauge", (), "From the horizon to the latest clock of any rank."),
    "eidolon_engine_real_seconds": Family("counter", (), "Real time since the simulation core started."),
    "eidolon_engine_virtual_to_real_ratio": Family("gauge", (), "Horizon over real time, since the start."),
    "eidolon_metrics_left_out": Family("gauge", ("what",), "Devices, links and names without series of their own."),
}

_ENGINE = {
    "operations": ("operations", 1.0),
    "spans": ("spans", 1.0),
    "collectives": ("collectives", 1.0),
    "flows": ("flows", 1.0),
    "flows_active": ("flows_active", 1.0),
    "rates_changed": ("rates_changed", 1.0),
    "rollbacks": ("rollbacks", 1.0),
    "rollback_depth_seconds": ("rollback_depth_ns_sum", 1e-9),
    "rollback_depth_max_seconds": ("rollback_depth_ns_max", 1e-9),
    "nodes_live": ("nodes_live", 1.0),
    "live_bytes": ("live_bytes", 1.0),
    "idle_jumps": ("idle_jumps", 1.0),
    "horizon_lag_seconds": ("horizon_lag_ns", 1e-9),
}
_Rows = Iterable[tuple[Sequence[str], float]]


class RunCollector(Collector):
    """Gives the families of the snapshot that ``read`` returns at the time of the scrape."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """The names without values, so that registering does not scrape."""
        return (_family(name, "", ()) for name in FAMILIES)

    def collect(self) -> Iterator[Metric]:
        """All families with their values."""
        snapshot = self._read()
        for name, rows in _rows(snapshot):
            yield _family(name, snapshot.run, rows)
        yield _histogram(snapshot)


def page(snapshot: Snapshot) -> bytes:
    """A snapshot in Prometheus's text format. It is byte for byte what the library makes of :class:`RunCollector`, but
    several times as fast, since labels are put together once for each family and not for each sample."""
    out: list[str] = []
    for name, rows in _rows(snapshot):
        kind, labels, text = FAMILIES[name]
        shown = f"{name}_total" if kind == "counter" else name
        out.append(f"# HELP {shown} {text}\n# TYPE {shown} {kind}\n")
        order = sorted(("run", *labels))
        run = _escaped(snapshot.run).replace("%", "%%")
        pairs = ",".join(f'{label}="{run}"' if label == "run" else f'{label}="%s"' for label in order)
        line = f"{shown}{{{pairs}}} "
        places = [labels.index(label) for label in order if label != "run"]
        free = not set(labels) <= _NUMBERED
        for values, value in rows:
            chosen = [_escaped(values[place]) for place in places] if free else [values[place] for place in places]
            out.append(f"{line % tuple(chosen)}{floatToGoString(value)}\n")
    return "".join(out).encode() + generate_latest(_Steps(snapshot))


class _Steps(Collector):
    """The histogram alone."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield _histogram(self._snapshot)


_NUMBERED = frozenset({"server", "rank", "device", "activity"})  #: labels whose values need no escaping


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _family(name: str, run: str, rows: _Rows) -> Metric:
    kind, labels, text = FAMILIES[name]
    make = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}[kind]
    family: Any = make(name, text, labels=("run", *labels))
    for values, value in rows:
        family.add_metric((run, *values), value)
    return family  # type: ignore[no-any-return]


def _histogram(snapshot: Snapshot) -> Metric:
    _, _, text = FAMILIES["eidolon_step_duration_seconds"]
    family = HistogramMetricFamily("eidolon_step_duration_seconds", text, labels=("run",))
    below = 0
    buckets = []
    for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), snapshot.progress.totals.buckets, strict=True):
        below += count
        buckets.append((bound, below))
    family.add_metric((snapshot.run,), buckets, snapshot.progress.totals.time_ns / 1e9)
    return family


def _rows(s: Snapshot) -> Iterator[tuple[str, _Rows]]:
    yield from _run_rows(s)
    yield from _device_rows(s)
    yield from _collective_rows(s)
    yield from _link_rows(s)
    yield from _honesty_rows(s)
    yield from _engine_rows(s)
    left_out = {
        "devices": len(s.last.ports) if len(s.last.ports) > MAX_DEVICES else 0,
        "links": len(s.links) if len(s.links) > MAX_LINKS else 0,
        "names": sum(max(0, len(names) - MAX_NAMES) for names in (s.unmodelled, s.unknown_reads, s.waits)),
    }
    yield "eidolon_metrics_left_out", [((what,), count) for what, count in left_out.items()]


def _one(value: float | None) -> _Rows:
    return [] if value is None else [((), value)]


def _run_rows(s: Snapshot) -> Iterator[tuple[str, _Rows]]:
    step, totals = s.progress.step or {}, s.progress.totals
    servers = Counter(device.gpu.key for device in s.devices)
    yield "eidolon_run", [((gpu, str(count)), 1.0) for gpu, count in servers.items()]
    yield "eidolon_run_state", [((state,), float(state == s.state)) for state in STATES]
    yield "eidolon_ranks", [((state,), count) for state, count in s.ranks.items()]
    yield "eidolon_steps", _one(s.progress.count)
    yield "eidolon_virtual_seconds", _one(totals.time_ns / 1e9)
    yield "eidolon_startup_seconds", _one(None if s.progress.startup_ns is None else s.progress.startup_ns / 1e9)
    yield "eidolon_step_last_duration_seconds", _one(step["time_ns"] / 1e9 if step else None)
    yield "eidolon_step_last_index", _one(step.get("index"))
    yield "eidolon_tokens", _one(totals.tokens)
    yield "eidolon_samples", _one(totals.samples)
    yield "eidolon_flops", _one(totals.flops)
    yield "eidolon_step_last_tokens_per_second", _one(step.get("tokens_per_s"))
    yield "eidolon_step_last_samples_per_second", _one(step.get("samples_per_s"))
    yield "eidolon_step_last_flops_per_second", _one(step["flops"] * 1e9 / step["time_ns"] if step else None)
    yield "eidolon_mfu_ratio", _one(step.get("mfu"))
    sizes = {port: s.class_sizes.get(rank, 1) for port, rank in zip(s.last.ports, s.last.ranks, strict=True)}
    peak = sum(s.model(port).gpu.peak_flops("bf16") * size for port, size in sizes.items())
    yield "eidolon_peak_flops_per_second", _one(peak or None)
    if len(s.last.times):
        window = float(s.last.column("window").mean()) or 1.0
        shares_ = [((name,), float(s.last.column(name).mean()) / window) for name in SPLIT]
        yield "eidolon_step_time_ratio", shares_
        yield "eidolon_step_overlap_ratio", _one(float(s.last.column("overlap").mean()) / window)


def _device_rows(s: Snapshot) -> Iterator[tuple[str, _Rows]]:
    if len(s.last.ports) > MAX_DEVICES:
        return
    names, totals = _names(s.last), _names(s.total)
    window = s.last.column("window").clip(1)
    yield "eidolon_device_time_ratio", _by_activity(names, s.last, 1 / window)
    yield "eidolon_device_overlap_ratio", zip(names, (s.last.column("overlap") / window).tolist(), strict=True)
    yield "eidolon_device_seconds", _by_activity(totals, s.total, np.full(len(totals), 1e-9))
    first = _first_rows(s.last.ranks)
    yield "eidolon_rank_step_seconds", [(names[i][:2], float(window[i]) / 1e9) for i in first]
    wait = s.last.column("wait")
    yield "eidolon_rank_wait_ratio", [(names[i][:2], float(wait[i]) / float(window[i])) for i in first]
    waits = s.total.column("wait")
    yield "eidolon_rank_wait_seconds", [(totals[i][:2], float(waits[i]) / 1e9) for i in _first_rows(s.total.ranks)]
    draws = {port: draw(s, port, active) for port, active in active_sms(s.devices, s.last).items()}
    gpus = {port: s.model(port).gpu for port in draws}
    yield "eidolon_device_sm_clock_hertz", _by_port({port: one.clock_hz for port, one in draws.items()})
    yield "eidolon_device_sm_clock_max_hertz", _by_port({port: gpu.clock_khz * 1e3 for port, gpu in gpus.items()})
    yield "eidolon_device_power_watts", _by_port({port: one.watts for port, one in draws.items()})
    yield "eidolon_device_power_limit_watts", _by_port({port: gpu.power_limit_mw / 1e3 for port, gpu in gpus.items()})
    yield "eidolon_device_memory_allocated_bytes", _by_port(s.progress.allocated_bytes)
    yield "eidolon_device_memory_step_peak_bytes", _by_port(s.progress.step_peak_bytes)
    yield "eidolon_device_memory_peak_bytes", _by_port(s.progress.peak_bytes)
    yield (
        "eidolon_device_memory_capacity_bytes",
        _by_port({port: s.model(port).memory_bytes for port in s.progress.peak_bytes}),
    )
    yield "eidolon_device_out_of_memory", _by_port({**dict.fromkeys(s.progress.peak_bytes, 0), **s.out_of_memory})


def _names(ledger: Ledger) -> list[tuple[str, str, str]]:
    """Server, rank and device of each row."""
    return [
        (str(port.server), str(rank), str(port.device)) for rank, port in zip(ledger.ranks, ledger.ports, strict=True)
    ]


def _by_activity(names: Sequence[tuple[str, str, str]], ledger: Ledger, scale: NDArray[np.float64]) -> _Rows:
    for activity in SPLIT:
        for name, value in zip(names, (ledger.column(activity) * scale).tolist(), strict=True):
            yield (*name, activity), value


def _first_rows(ranks: Sequence[int]) -> list[int]:
    """The first row of each rank."""
    first: dict[int, int] = {}
    for row, rank in enumerate(ranks):
        first.setdefault(rank, row)
    return list(first.values())


def _by_port(values: Mapping[Port, float]) -> _Rows:
    return [((str(port.server), str(port.device)), float(value)) for port, value in values.items()]


def _collective_rows(s: Snapshot) -> Iterator[tuple[str, _Rows]]:
    def rows(value: Callable[[KindTotal], float]) -> _Rows:
        return [((op,), value(kind)) for op, kind in s.total.kinds.items()]

    yield "eidolon_collectives", rows(lambda kind: kind.count)
    yield "eidolon_collective_bytes", rows(lambda kind: kind.bytes)
    yield "eidolon_collective_bus_bytes", rows(lambda kind: kind.bus_bytes)
    yield "eidolon_collective_seconds", rows(lambda kind: kind.ns / 1e9)


def _link_rows(s: Snapshot) -> Iterator[tuple[str, _Rows]]:
    time_ns = s.progress.step["time_ns"] if s.progress.step else 0
    links = s.links
    last = [float(n) for n in s.last.link_bytes] + [0.0] * (len(links) - len(s.last.link_bytes))
    total = [float(n) for n in s.total.link_bytes] + [0.0] * (len(links) - len(s.total.link_bytes))
    used = [
        bytes_ * 1e9 / (link.bytes_per_s * time_ns) if time_ns else 0.0
        for link, bytes_ in zip(links, last, strict=False)
    ]
    if len(links) <= MAX_LINKS:
        names = [(link.name, link.tier) for link in links]
        yield "eidolon_link_bytes", zip(names, total, strict=False)
        yield (
            "eidolon_link_capacity_bytes_per_second",
            zip(names, (float(link.bytes_per_s) for link in links), strict=True),
        )
        yield "eidolon_link_utilization_ratio", zip(names, used, strict=True)
    tiers: dict[str, list[int]] = {}
    for number, link in enumerate(links):
        tiers.setdefault(link.tier, []).append(number)
    equal = [link.equal for link in links]  # links for which each stands
    yield (
        "eidolon_tier_bytes",
        [((tier,), sum(total[n] * equal[n] for n in numbers)) for tier, numbers in tiers.items()],
    )
    statistics: list[tuple[Sequence[str], float]] = []
    for tier, numbers in tiers.items():
        mean = sum(used[n] * equal[n] for n in numbers) / sum(equal[n] for n in numbers)
        statistics += [((tier, "mean"), mean), ((tier, "max"), max(used[n] for n in numbers))]
    yield "eidolon_tier_utilization_ratio", statistics


def _honesty_rows(s: Snapshot) -> Iterator[tuple[str, _Rows]]:
    yield "eidolon_cost_source_ratio", [((source,), share) for source, share in shares(s.source_ns).items()]
    startup = shares(s.startup_source_ns)
    yield "eidolon_startup_cost_source_ratio", [((source,), share) for source, share in startup.items()]
    yield "eidolon_unmodelled_calls", _bounded(s.unmodelled)
    yield "eidolon_unknown_reads", _bounded({site: count for site, (count, _) in s.unknown_reads.items()})
    yield "eidolon_unknown_read_bytes", _bounded({site: size for site, (_, size) in s.unknown_reads.items()})
    yield "eidolon_host_waits", _bounded({site: count for site, (count, _) in s.waits.items()})
    yield "eidolon_host_wait_seconds", _bounded({site: ns / 1e9 for site, (_, ns) in s.waits.items()})


def _bounded(values: Mapping[str, float]) -> _Rows:
    """The first :data:`MAX_NAMES` names in the order in which they came, so that no series ever goes away."""
    rows: list[tuple[Sequence[str], float]] = []
    rest = 0.0
    for number, (name, value) in enumerate(values.items()):
        if number < MAX_NAMES:
            rows.append(((name,), value))
        else:
            rest += value
    return [*rows, (("other",), rest)] if len(values) > MAX_NAMES else rows


def _engine_rows(s: Snapshot) -> Iterator[tuple[str, _Rows]]:
    for name, (counter, unit) in _ENGINE.items():
        if counter in s.engine:
            yield f"eidolon_engine_{name}", _one(s.engine[counter] * unit)
    yield "eidolon_engine_horizon_seconds", _one(s.horizon_ns / 1e9)
    yield "eidolon_engine_real_seconds", _one(s.wall_s)
    yield "eidolon_engine_virtual_to_real_ratio", _one(s.horizon_ns / 1e9 / s.wall_s if s.wall_s > 0 else None)
