"""``eidolon report`` and ``eidolon compare``: reports on the directories of runs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from eidolon_operator import rundir
from eidolon_operator.reporting import model, page, tables
from eidolon_operator.reporting.model import ReportError, Run

EXIT_USAGE: Final = 2


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the command line's parser."""
    report = verbs.add_parser(
        "report",
        help="make a page of a run",
        description="Writes one self-contained HTML page, or prints the figures as Markdown or JSON.",
        allow_abbrev=False,
    )
    report.add_argument("run", type=Path, metavar="RUN", help="directory of a run, e.g. eidolon-runs/demo-...")
    _add_forms(report, "RUN/report.html")
    compare = verbs.add_parser("compare", help="put two runs side by side", allow_abbrev=False)
    compare.add_argument("run", type=Path, metavar="RUN_A")
    compare.add_argument("other", type=Path, metavar="RUN_B")
    _add_forms(compare, "none: Markdown is printed")


def run(options: argparse.Namespace) -> int:
    """Runs one of the verbs; returns the exit code."""
    try:
        match options.verb:
            case "report":
                return _report(options)
            case _:
                return _compare(options)
    except ReportError as error:
        _complain(str(error))
        return EXIT_USAGE


def markdown(run: Run) -> str:
    """The report as Markdown."""
    parts = [f"## {run.name}: {run.state}", f"{run.cluster}, {run.ranks}" if run.classes else run.cluster]
    if run.summary.get("reason"):
        parts.append(str(run.summary["reason"]))
    figures = [(figure.name, figure.value, figure.note) for figure in tables.headline(run)]
    parts.append(tables.markdown(tables.Table(("", "", ""), figures)))
    sections: list[tuple[str, tables.Table | None]] = [
        ("Steps", tables.steps(run)),
        ("Collectives", tables.collectives(run)),
        ("Coverage", tables.coverage(run)),
        *tables.findings(run),
        ("Classes of ranks", tables.classes(run)),
        ("Configuration", tables.configuration(run)),
    ]
    parts += [f"### {name}\n\n{tables.markdown(table)}" for name, table in sections if table is not None and table.rows]
    return "\n\n".join(parts) + "\n"


def figures(run: Run) -> dict[str, Any]:
    """The report as numbers (ns, bytes, shares)."""
    return {
        "name": run.name,
        "state": run.state,
        "cluster": run.cluster,
        "step_time_ns": run.median("time_ns"),
        "tokens_per_s": run.median("tokens_per_s"),
        "samples_per_s": run.median("samples_per_s"),
        "mfu": run.median("mfu"),
        "split": run.split(),
        "peak_bytes": run.peaks(),
        "capacity_bytes": {device: run.capacity_bytes(device) for device in run.peaks()},
        "configuration": tables.flat(run.core),
        "summary": run.summary,
    }


def _report(options: argparse.Namespace) -> int:
    run = model.read(options.run)
    if options.json:
        return _put(options.out, json.dumps(figures(run), indent=1) + "\n")
    if options.markdown:
        return _put(options.out, markdown(run))
    return _put(options.out or options.run / "report.html", page.render(run))


def _compare(options: argparse.Namespace) -> int:
    a, b = model.read(options.run), model.read(options.other)
    if a.name == b.name:
        a, b = replace(a, label=options.run.resolve().name), replace(b, label=options.other.resolve().name)
    if options.json:
        return _put(options.out, json.dumps({"a": figures(a), "b": figures(b)}, indent=1) + "\n")
    if options.out is not None and not options.markdown:
        return _put(options.out, page.render_comparison(a, b))
    text = f"## {a.name} and {b.name}\n\n{tables.markdown(tables.comparison(a, b))}\n"
    different = tables.differences(a, b)
    if different is not None:
        text += f"\n### Settings that differ\n\n{tables.markdown(different)}\n"
    return _put(options.out, text)


def _add_forms(parser: argparse.ArgumentParser, default: str) -> None:
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="figures as JSON, to stdout unless -o is given")
    forms.add_argument("--markdown", action="store_true", help="figures as Markdown, to stdout unless -o is given")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help=f"the page ({default})")


def _put(path: Path | None, text: str) -> int:
    if path is None:
        print(text, end="")
    else:
        rundir.write_text(path, text)
        print(path)
    return 0


def _complain(message: str) -> None:
    print(f"eidolon: {message}", file=sys.stderr, flush=True)
