"""The figures of runs as rows of text, which pages and Markdown both show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from eidolon_operator import folding
from eidolon_operator.reporting.model import PARTS, Run
from eidolon_operator.units import format_bytes, format_count, format_ns

#: Keys of the plan that the configuration of a run does not show.
_HIDDEN: Final = frozenset(
    (
        *("token", "attempt", "startup_timeout_s", "idle_timeout_s", "busy_timeout_s", "left_timeout_s"),
        "reconnect_timeout_s",
    )
)


class Table(NamedTuple):
    """Rows of text under a header. ``numbers`` are the columns with numbers, which are aligned to the right."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: frozenset[int] = frozenset()


class Figure(NamedTuple):
    """A number for the head of a report."""

    name: str
    value: str
    note: str = ""


def headline(run: Run) -> list[Figure]:
    """The most important numbers of a run."""
    out = []
    time = run.median("time_ns")
    count = len(run.training)
    out.append(
        Figure("Step time", format_ns(time) if time else "-", f"median of {count} step{'s' if count != 1 else ''}")
    )
    for field, name in (("tokens_per_s", "Tokens/s"), ("samples_per_s", "Samples/s")):
        if (rate := run.median(field)) is not None:
            out.append(Figure(name, format_count(rate), "simulated, all ranks"))
    if (mfu := run.median("mfu")) is not None:
        out.append(Figure("MFU", f"{mfu:.1%}", "of the bf16 peak, as executed"))
    peaks = run.peaks()
    if peaks:
        worst = max(peaks, key=lambda device: peaks[device])
        capacity = run.capacity_bytes(worst)
        share = f"{peaks[worst] / capacity:.0%} of {format_bytes(capacity)}" if capacity else ""
        out.append(Figure("Peak memory", format_bytes(peaks[worst]), f"{share}, device {worst}".lstrip(", ")))
    unknown = run.summary.get("cost_share", {}).get("unknown", 0.0)
    if run.summary.get("cost_share"):
        out.append(Figure("Known cost", f"{1 - unknown:.1%}", "of the device time"))
    if (ratio := run.real_ratio()) is not None:
        speed = f"{1 / ratio:,.1f}x slower" if ratio < 1 else f"{ratio:,.1f}x faster"
        out.append(Figure("Simulation", f"{run.summary['wall_s']:,.1f} s", f"{speed} than the cluster"))
    return out


def collectives(run: Run) -> Table | None:
    """Counts, bytes and times by kind of collective, over the training steps."""
    kinds = run.summary.get("collectives")
    steps = len(run.training)
    if not kinds or not steps:
        return None
    rows = []
    for kind in sorted(kinds, key=lambda kind: -kind["ns"]):
        seconds = kind["ns"] / 1e9
        rows.append(
            (
                kind["op"].replace("_", " "),
                format_count(kind["count"] / steps),
                format_bytes(kind["bytes"] / max(1, kind["count"])),
                format_bytes(kind["bytes"] / steps),
                format_ns(kind["ns"] / steps),
                f"{kind['bytes'] / seconds / 1e9:,.1f}" if seconds else "-",
                f"{kind['bus_bytes'] / seconds / 1e9:,.1f}" if seconds else "-",
            )
        )
    header = ("collective", "per step", "mean size", "bytes per step", "time per step", "algbw GB/s", "busbw GB/s")
    return Table(header, rows, frozenset(range(1, 7)))


def stragglers(run: Run, most: int = 8) -> Table | None:
    """Ranks that others waited for, which are those that waited least themselves."""
    rows = run.summary.get("ranks_split") or []
    steps = len(run.training)
    if len(rows) < 2 or not steps or all(row.get("wait_ns") is None for row in rows):
        return None
    ordered = sorted(rows, key=lambda row: (row["wait_ns"], row["rank"]))
    chosen = ordered if len(ordered) <= most else [*ordered[: most // 2], *ordered[-(most // 2) :]]
    header = ("rank", "server/device", "waits for others", "compute", "exposed communication", "host", "idle")
    fields = ("wait_ns", "compute_ns", "communication_ns", "host_ns", "idle_ns")
    return Table(
        header,
        [
            (str(r["rank"]), f"{r['server']}/{r['device']}", *(format_ns(r[field] / steps) for field in fields))
            for r in chosen
        ],
        frozenset(range(2, 7)),
    )


def steps(run: Run) -> Table:
    """A row for every step."""
    header = ["step", "time"]
    rates = [field for field in ("tokens_per_s", "samples_per_s", "mfu") if run.median(field) is not None]
    header += [{"tokens_per_s": "tokens/s", "samples_per_s": "samples/s", "mfu": "MFU"}[field] for field in rates]
    rows = []
    for step in run.steps:
        known = step["name"] == "step"
        cells = [str(step["index"]) if known else step["name"], format_ns(step["time_ns"])]
        for field in rates:
            value = step.get(field) if known else None
            cells.append("-" if value is None else f"{value:.1%}" if field == "mfu" else format_count(value))
        rows.append(tuple(cells))
    return Table(tuple(header), rows, frozenset(range(1, len(header))))


def coverage(run: Run) -> Table | None:
    """Device time by the source of its cost: of the steps, and of the start-up apart from them."""
    shares: Mapping[str, float] = run.summary.get("cost_share", {})
    if not shares:
        return None
    errors: Mapping[str, float] = run.summary.get("coverage", {}).get("errors", {})
    rows = [
        (source, f"{share:.1%}", f"± {errors[source]:.1%}" if errors.get(source) else "-")
        for source, share in shares.items()
        if share
    ]
    startup: Mapping[str, float] = run.summary.get("startup_cost_share", {})
    rows += [(f"start-up: {source}", f"{share:.1%}", "-") for source, share in startup.items() if share]
    return Table(("source", "device time", "expected error"), rows, frozenset((1, 2)))


def findings(run: Run) -> list[tuple[str, Table]]:
    """What makes the figures less trustworthy, longest first."""
    summary = run.summary
    calls = sorted(summary.get("unmodelled", ()), key=lambda item: (-item["count"], item["name"]))
    reads = sorted(summary.get("unknown_reads", ()), key=lambda item: (-item["count"], item["site"]))
    found = [
        (
            "Out of memory",
            Table(
                ("server/device", "step", "requested", "allocated", "capacity"),
                list(dict.fromkeys(_refusal(item) for item in summary.get("oom", ()))),
                frozenset((2, 3, 4)),
            ),
        ),
        (
            "Host waits (sum over ranks)",
            Table(
                ("call", "count", "time"),
                [(w["site"], f"{w['count']:,}", format_ns(w["ns"])) for w in summary.get("host_waits", ())],
                frozenset((1, 2)),
            ),
        ),
        (
            "Calls that are not modelled",
            Table(("call", "count"), [(c["name"], f"{c['count']:,}") for c in calls], frozenset((1,))),
        ),
        (
            "Reads of values never computed",
            Table(
                ("where", "count", "bytes"),
                [(r["site"], f"{r['count']:,}", format_bytes(r["bytes"])) for r in reads],
                frozenset((1, 2)),
            ),
        ),
    ]
    return [(name, table) for name, table in found if table.rows]


def classes(run: Run) -> Table | None:
    """The classes of a folded run, a row for neighbours that stand for equally many ranks."""
    if not run.classes:
        return None
    rows = [
        (f"{first}" if first == last else f"{first} to {last}", f"{multiplicity:,}")
        for first, last, multiplicity in folding.groups(run.classes)
    ]
    return Table(("rank that ran", "ranks that each stands for"), rows, frozenset((1,)))


def configuration(run: Run) -> Table:
    """The configuration of a run: the core's section of the plan, flattened."""
    return Table(("setting", "value"), [(key, _value(key, value)) for key, value in flat(run.core).items()])


def flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The section with nested keys as ``a.b``, without hidden keys and those that are not set. What is folded is told
    in words."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        if key in _HIDDEN or value is None:
            continue
        if key == "fold" and (folded := folding.of_core(section)):
            found[key] = f"{folding.counted(folded)}: {folding.listed(folded)}"
        elif isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def comparison(a: Run, b: Run) -> Table:
    """The figures of two runs and their ratio."""
    rows: list[tuple[str, ...]] = []

    def row(name: str, x: float | None, y: float | None, form: Any) -> None:
        if x is None and y is None:
            return
        texts = ["-" if value is None else form(value) for value in (x, y)]
        change = f"{y / x - 1:+.1%}" if x and y is not None else "-"
        rows.append((name, *texts, change))

    row("step time (median)", a.median("time_ns"), b.median("time_ns"), format_ns)
    row("tokens/s", a.median("tokens_per_s"), b.median("tokens_per_s"), format_count)
    row("samples/s", a.median("samples_per_s"), b.median("samples_per_s"), format_count)
    row("MFU", a.median("mfu"), b.median("mfu"), lambda value: f"{value:.1%}")
    parts = a.split(), b.split()
    for field, name in PARTS:
        if parts[0].get(field) or parts[1].get(field):
            row(name, parts[0].get(field), parts[1].get(field), format_ns)
    peaks = [max(run.peaks().values(), default=None) for run in (a, b)]
    row("peak memory", peaks[0], peaks[1], format_bytes)
    kinds = [{kind["op"]: kind for kind in run.summary.get("collectives") or ()} for run in (a, b)]
    for op in dict.fromkeys([*kinds[0], *kinds[1]]):
        values = [
            kind[op]["ns"] / len(run.training) if op in kind and run.training else None
            for kind, run in zip(kinds, (a, b), strict=True)
        ]
        row(f"{op.replace('_', ' ')} per step", values[0], values[1], format_ns)
    shares = [run.summary.get("cost_share", {}).get("unknown") for run in (a, b)]
    row("device time of unknown cost", shares[0], shares[1], lambda value: f"{value:.1%}")
    row("simulated", a.summary.get("virtual_ns"), b.summary.get("virtual_ns"), format_ns)
    row("real time", a.summary.get("wall_s"), b.summary.get("wall_s"), lambda value: f"{value:,.1f} s")
    return Table(("", a.name, b.name, "change"), rows, frozenset((1, 2, 3)))


def differences(a: Run, b: Run) -> Table | None:
    """Settings in which two runs differ."""
    ours, theirs = flat(a.core), flat(b.core)
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    if not keys:
        return None
    rows = [(key, *(_value(key, side[key]) if key in side else "-" for side in (ours, theirs))) for key in keys]
    return Table(("setting", a.name, b.name), rows)


def markdown(table: Table) -> str:
    """A table in GitHub's Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join("---:" if i in table.numbers else "---" for i in range(len(table.header))) + "|"
    return "\n".join([line(table.header), rule, *map(line, table.rows)])


def _refusal(item: Mapping[str, Any]) -> tuple[str, ...]:
    sizes = (format_bytes(item[f"{key}_bytes"]) for key in ("requested", "allocated", "capacity"))
    return (f"{item['server']}/{item['device']}", str(item["step"]), *sizes)


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key.endswith("bytes_per_s"):
        return f"{value / 1e9:g} GB/s"
    if isinstance(value, int) and key.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, int) and key.endswith("_ns"):
        return format_ns(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
