"""Writes the Grafana dashboards to charts/eidolon/dashboards/. With ``--check`` it says whether they are up to date.

Each dashboard is a list of rows of panels, each panel a title, a unit, and queries. In a query ``{}`` stands for the
selector of the run that the variables choose, and ``$window`` for the range of rates. A simulated rate is always a
quotient by the rate of virtual time (docs/metrics.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

OUT = Path(__file__).parents[1] / "charts" / "eidolon" / "dashboards"
SELECTOR = '{namespace=~"$namespace", run=~"$run"'
WIDTH = 24


@dataclass(frozen=True, slots=True)
class Query:
    """``expr`` with ``{}`` for the run's selector (``{, x="y"}`` with more); ``legend`` as Grafana writes it."""

    expr: str
    legend: str = "{{run}}"

    def text(self) -> str:
        """The expression with the selector in it."""
        return self.expr.replace("{, ", SELECTOR + ", ").replace("{}", SELECTOR + "}")


@dataclass(frozen=True, slots=True)
class Panel:
    """``kind``: graph, stack, stat, bars or heat."""

    title: str
    unit: str
    queries: Sequence[Query]
    help: str = ""
    kind: str = "graph"
    width: int = 8
    limit: float | None = None
    height: int = field(default=8)


def per_virtual(counter: str, by: str = "") -> str:
    """The rate of a counter in virtual time, of a run or of each ``by`` of it."""
    labels = "namespace, run" + (f", {by}" if by else "")
    over = "on (namespace, run) group_left () " if by else ""
    divisor = "(sum by (namespace, run) (rate(eidolon_virtual_seconds_total{}[$window])) > 0)"
    return f"sum by ({labels}) (rate({counter}{{}}[$window])) / {over}{divisor}"


def quotient(above: str, below: str, by: str) -> str:
    """The quotient of two counters' rates, of each ``by`` of a run."""
    rate = "sum by (namespace, run, {by}) (rate({name}{{}}[$window]))"
    return f"{rate.format(by=by, name=above)} / ({rate.format(by=by, name=below)} > 0)"


def figure(title: str, unit: str, expr: str, legend: str = "{{run}}") -> Panel:
    """One number."""
    return Panel(title, unit, [Query(expr, legend)], kind="stat", width=4, height=4)


def _or_none(counter: str, by: str) -> Query:
    """A counter by a label. If there are none, a zero says so."""
    nothing = f'label_replace(vector(0), "{by}", "none", "", "")'
    return Query(f"sum by ({by}) ({counter}{{}}) or {nothing}", f"{{{{{by}}}}}")


THROUGHPUT = [
    (
        "Last final step",
        [
            Panel("Step time", "s", [Query("eidolon_step_last_duration_seconds{}")], kind="stat", width=4, height=4),
            Panel(
                "Tokens/s", "short", [Query("eidolon_step_last_tokens_per_second{}")], kind="stat", width=4, height=4
            ),
            Panel(
                "MFU", "percentunit", [Query("eidolon_mfu_ratio{}")], "Matrix arithmetic as executed.", "stat", 4, 1, 4
            ),
            Panel("Steps", "short", [Query("eidolon_steps_total{}")], kind="stat", width=4, height=4),
            figure(
                "Memory of the fullest device",
                "percentunit",
                "max by (namespace, run) (eidolon_device_memory_peak_bytes{} / eidolon_device_memory_capacity_bytes{})",
            ),
            figure("State", "none", "eidolon_run_state{} == 1", "{{run}}: {{state}}"),
        ],
    ),
    (
        "Throughput in virtual time",
        [
            Panel(
                "Step time",
                "s",
                [
                    Query("eidolon_step_last_duration_seconds{}", "last, {{run}}"),
                    Query(
                        "sum by (namespace, run) (rate(eidolon_step_duration_seconds_sum{}[$window])) / "
                        "(sum by (namespace, run) (rate(eidolon_step_duration_seconds_count{}[$window])) > 0)",
                        "mean, {{run}}",
                    ),
                ],
            ),
            Panel("Tokens per second", "short", [Query(per_virtual("eidolon_tokens_total"))]),
            Panel("Samples per second", "short", [Query(per_virtual("eidolon_samples_total"))]),
            Panel("Arithmetic", "flops", [Query(per_virtual("eidolon_flops_total"))], "Of matrix units, as executed."),
            Panel(
                "MFU",
                "percentunit",
                [
                    Query("eidolon_mfu_ratio{}", "last step, {{run}}"),
                    Query(
                        f"({per_virtual('eidolon_flops_total')}) / "
                        "sum by (namespace, run) (eidolon_peak_flops_per_second{})",
                        "mean, {{run}}",
                    ),
                ],
            ),
            Panel(
                "Distribution of step times",
                "s",
                [
                    Query(
                        "sum by (le) (increase(eidolon_step_duration_seconds_bucket{}[$window]))",
                        "{{le}}",
                    )
                ],
                kind="heat",
            ),
        ],
    ),
    (
        "Where the time goes",
        [
            Panel(
                "Split of the step time",
                "percentunit",
                [Query("eidolon_step_time_ratio{}", "{{activity}}")],
                "Mean over devices; communication is what computing does not hide.",
                "stack",
                limit=1,
            ),
            Panel(
                "Overlap",
                "percentunit",
                [Query("eidolon_step_overlap_ratio{}")],
                "Part of compute under which a collective runs.",
            ),
            Panel(
                "Split over the window",
                "percentunit",
                [
                    Query(
                        "sum by (activity) (rate(eidolon_device_seconds_total{}[$window])) / ignoring (activity) "
                        "group_left () (sum (rate(eidolon_device_seconds_total{}[$window])) > 0)",
                        "{{activity}}",
                    )
                ],
                kind="stack",
                limit=1,
            ),
        ],
    ),
    (
        "Memory",
        [
            Panel(
                "Peak of the step by device",
                "bytes",
                [
                    Query("topk(32, eidolon_device_memory_step_peak_bytes{})", "{{server}}/{{device}}"),
                    Query("max by (run) (eidolon_device_memory_capacity_bytes{})", "capacity"),
                ],
                "The 32 fullest.",
                width=12,
            ),
            Panel(
                "Allocated at the end of the step",
                "bytes",
                [Query("topk(32, eidolon_device_memory_allocated_bytes{})", "{{server}}/{{device}}")],
                width=6,
            ),
            Panel(
                "Refused allocations",
                "short",
                [Query("sum by (namespace, run) (eidolon_device_out_of_memory_total{})")],
                width=6,
            ),
        ],
    ),
    (
        "Stragglers",
        [
            Panel(
                "Ranks that wait least for others",
                "percentunit",
                [Query("bottomk(16, eidolon_rank_wait_ratio{})", "rank {{rank}}")],
                "Share of the step in collectives that others have not reached; a straggler has the least of it.",
                "bars",
                12,
            ),
            Panel(
                "Time lost to waiting",
                "percentunit",
                [Query("avg by (namespace, run) (eidolon_rank_wait_ratio{})")],
                "Mean over ranks.",
                width=6,
            ),
            Panel(
                "Slowest and quickest rank",
                "s",
                [
                    Query("max by (namespace, run) (eidolon_rank_step_seconds{})", "slowest, {{run}}"),
                    Query("min by (namespace, run) (eidolon_rank_step_seconds{})", "quickest, {{run}}"),
                ],
                "From mark to mark.",
                width=6,
            ),
        ],
    ),
]

BUSBW = quotient("eidolon_collective_bus_bytes_total", "eidolon_collective_seconds_total", "op")
COLLECTIVE_BYTES = per_virtual("eidolon_collective_bytes_total", "op")

FABRIC = [
    (
        "Links",
        [
            Panel(
                "Utilisation by tier",
                "percentunit",
                [Query("eidolon_tier_utilization_ratio{}", "{{tier}} {{of}}")],
                "Over the last final step.",
            ),
            Panel("Bytes by tier", "Bps", [Query(per_virtual("eidolon_tier_bytes_total", "tier"), "{{tier}}")]),
            Panel(
                "Hottest links",
                "percentunit",
                [Query("topk(24, eidolon_link_utilization_ratio{})", "{{link}}")],
                "Bytes over capacity in the last final step.",
                "bars",
                limit=1,
            ),
            Panel(
                "Link heat",
                "percentunit",
                [Query("eidolon_link_utilization_ratio{}", "{{link}}")],
                "Each link's utilisation in the last final step.",
                width=12,
            ),
            Panel(
                "Bytes of the busiest links",
                "Bps",
                [Query(f"topk(16, {per_virtual('eidolon_link_bytes_total', 'link')})", "{{link}}")],
                width=12,
            ),
        ],
    ),
    (
        "Collectives",
        [
            Panel(
                "Bus bandwidth",
                "Bps",
                [
                    Query(
                        quotient("eidolon_collective_bus_bytes_total", "eidolon_collective_seconds_total", "op"),
                        "{{op}}",
                    )
                ],
                "As nccl-tests defines it, from the last member's coming to the end.",
            ),
            Panel(
                "Mean time",
                "s",
                [Query(quotient("eidolon_collective_seconds_total", "eidolon_collectives_total", "op"), "{{op}}")],
            ),
            Panel(
                "Mean size",
                "bytes",
                [Query(quotient("eidolon_collective_bytes_total", "eidolon_collectives_total", "op"), "{{op}}")],
            ),
            Panel("Per second", "cps", [Query(per_virtual("eidolon_collectives_total", "op"), "{{op}}")], width=12),
            Panel(
                "Bytes per second",
                "Bps",
                [Query(per_virtual("eidolon_collective_bytes_total", "op"), "{{op}}")],
                width=12,
            ),
        ],
    ),
]

ENGINE = [
    (
        "Coverage",
        [
            Panel(
                "Device time by source of its cost",
                "percentunit",
                [Query("eidolon_cost_source_ratio{}", "{{source}}")],
                kind="stack",
                limit=1,
            ),
            Panel(
                "Calls that are not modelled",
                "short",
                [_or_none("eidolon_unmodelled_calls_total", "call")],
            ),
            Panel(
                "Reads of unknown values",
                "short",
                [_or_none("eidolon_unknown_reads_total", "site")],
            ),
            Panel(
                "Hosts wait at",
                "s",
                [Query("topk(10, sum by (site) (eidolon_host_wait_seconds_total{}))", "{{site}}")],
                "Virtual time so far, over all ranks, by call site.",
                width=16,
            ),
            Panel("Left out of the metrics", "short", [Query("eidolon_metrics_left_out{}", "{{what}}")]),
        ],
    ),
    (
        "Speed of the simulation",
        [
            Panel(
                "Virtual to real time",
                "none",
                [
                    Query("eidolon_engine_virtual_to_real_ratio{}", "since the start, {{run}}"),
                    Query("deriv(eidolon_engine_horizon_seconds{}[$window])", "now, {{run}}"),
                ],
                "Seconds simulated in a real second.",
            ),
            Panel("Operations", "ops", [Query("rate(eidolon_engine_operations_total{}[$window])")], "In real time."),
            Panel("Spans", "ops", [Query("rate(eidolon_engine_spans_total{}[$window])")], "In real time."),
            Panel("Horizon", "s", [Query("eidolon_engine_horizon_seconds{}")], "Virtual time that is final."),
            Panel(
                "Horizon lag", "s", [Query("eidolon_engine_horizon_lag_seconds{}")], "To the latest clock of a rank."
            ),
            Panel("Steps", "short", [Query("eidolon_steps_total{}")]),
        ],
    ),
    (
        "Engine",
        [
            Panel("Rollbacks", "ops", [Query("rate(eidolon_engine_rollbacks_total{}[$window])")], "In real time."),
            Panel(
                "Depth of rollbacks",
                "s",
                [
                    Query(
                        "rate(eidolon_engine_rollback_depth_seconds_total{}[$window]) / "
                        "(rate(eidolon_engine_rollbacks_total{}[$window]) > 0) or "
                        "0 * eidolon_engine_rollbacks_total{}",
                        "mean, {{run}}",
                    ),
                    Query("eidolon_engine_rollback_depth_max_seconds{}", "deepest, {{run}}"),
                ],
            ),
            Panel("Queue", "short", [Query("eidolon_engine_nodes_live{}")], "Nodes that are not final yet."),
            Panel(
                "Flows",
                "short",
                [Query("eidolon_engine_flows_active{}", "active, {{run}}")],
            ),
            Panel("Memory of the engine", "bytes", [Query("eidolon_engine_live_bytes{}")]),
            Panel("Ranks", "short", [Query("eidolon_ranks{}", "{{state}}")]),
        ],
    ),
]

DASHBOARDS = {
    "throughput": ("eidolon-throughput", "Eidolon / Simulated throughput", THROUGHPUT),
    "fabric": ("eidolon-fabric", "Eidolon / Fabric", FABRIC),
    "engine": ("eidolon-engine", "Eidolon / Fidelity and engine", ENGINE),
}
DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def build_panel(panel: Panel, number: int, x: int, y: int) -> Any:
    """A panel with this number at this place of the dashboard's grid."""
    make = {"stat": stat, "bars": bargauge, "heat": heatmap}.get(panel.kind, timeseries)
    builder: Any = make.Panel().title(panel.title).description(panel.help).datasource(DATASOURCE).unit(panel.unit)
    builder.id(number).grid_pos(models.GridPos(h=panel.height, w=panel.width, x=x, y=y))
    if panel.limit is not None:
        builder.min(0).max(panel.limit)
    if panel.kind in ("graph", "stack"):
        builder.fill_opacity(60 if panel.kind == "stack" else 8).line_width(1).axis_soft_min(0)
        builder.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    if panel.kind == "stack":
        builder.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    if panel.kind == "bars":
        builder.orientation(common_models.VizOrientation.HORIZONTAL)
    if panel.kind == "heat":
        builder.calculate(False)
    for ref, query in zip("ABCDEF", panel.queries, strict=False):
        target = (
            prometheus.Dataquery().expr(query.text()).legend_format(query.legend).ref_id(ref).datasource(DATASOURCE)
        )
        builder.with_target(target.instant() if panel.kind == "bars" else target.range())
    return builder


def build(name: str) -> str:
    """A dashboard's JSON."""
    uid, title, rows = DASHBOARDS[name]
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["eidolon"])
        .timezone("browser")
        .time("now-30m", "now")
        .refresh("10s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_query_variable("namespace", "Namespace", "label_values(eidolon_run, namespace)"))
        .with_variable(_query_variable("run", "Run", 'label_values(eidolon_run{namespace=~"$namespace"}, run)'))
        .with_variable(
            dashboard.IntervalVariable("window")
            .label("Window of rates")
            .values("1m,5m,15m,1h,6h")
            .current(models.VariableOption(text="5m", value="5m"))
        )
        .link(
            dashboard.DashboardLink("Eidolon")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["eidolon"])
            .include_vars(True)
            .keep_time(True)
        )
    )
    number, y = 1, 0
    for heading, panels in rows:
        made.with_row(dashboard.Row(heading).id(number).grid_pos(models.GridPos(h=1, w=WIDTH, x=0, y=y)))
        number, y, x, height = number + 1, y + 1, 0, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            made.with_panel(build_panel(panel, number, x, y))
            number, x, height = number + 1, x + panel.width, max(height, panel.height)
        y += height
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def _query_variable(name: str, label: str, query: str) -> Any:
    # without a namespace label (a local Prometheus) "All" must match what is not there
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(DATASOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .include_all(True)
        .all_value(".*")
        .multi(True)
        .current(models.VariableOption(text="All", value="$__all"))
    )


def main() -> int:
    """Writes or checks the dashboards; returns the exit code."""
    stale = 0
    for name in DASHBOARDS:
        path, text = OUT / f"{name}.json", build(name)
        if "--check" in sys.argv:
            stale += not path.exists() or path.read_text("utf-8") != text
        else:
            path.write_text(text, "utf-8")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
