"""Writes what is made from others: the chart's copy of the CRD, reference pages, docs/fidelity.md, the vocabulary.

    generate.py            writes them (`make generate`)
    generate.py --check    writes nothing; names the files that are not current, exit code 1

What they are made from: ``crds/simulatedcluster.yaml``; ``values.yaml`` (comments and defaults) with
``values.schema.json`` (types) of the chart; the package's host cost table; results of ``bench.fidelity``
(:mod:`fidelity_page`); ``proto/vocabulary.toml`` (:mod:`vocabulary`). Needs PyYAML, Jinja and nothing of Eidolon.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).parent))  # also where tests load this file by its path
import fidelity_page
import vocabulary

ROOT: Final = Path(__file__).parents[1]
CRD: Final = Path("crds/simulatedcluster.yaml")
CHART: Final = Path("charts/eidolon")
HOST_COSTS: Final = Path("simcore/eidolon_simcore/data/host_cost.yaml")
COSTS_PAGE: Final = Path("docs/costs.md")
PROSE_WIDTH: Final = 100  # characters of a line of Markdown, as in pyproject.toml ([tool.rumdl])

Schema = Mapping[str, Any]


def generated() -> dict[Path, str]:
    """Every generated file, by its path from the root of the repository."""
    crd = (ROOT / CRD).read_text("utf-8")
    values = (ROOT / CHART / "values.yaml").read_text("utf-8")
    schema = json.loads((ROOT / CHART / "values.schema.json").read_text("utf-8"))
    return {
        CHART / "templates/crd.yaml": crd_template(crd),
        Path("docs/reference-simulatedcluster.md"): crd_page(yaml.safe_load(crd)),
        Path("docs/reference-chart.md"): values_page(values, schema),
        fidelity_page.PAGE: fidelity_page.page(ROOT),
        COSTS_PAGE: with_block(
            (ROOT / COSTS_PAGE).read_text("utf-8"),
            HOST_COSTS,
            host_figures(yaml.safe_load((ROOT / HOST_COSTS).read_text("utf-8"))),
        ),
        **vocabulary.generated(ROOT),
    }


def main(arguments: list[str]) -> int:
    """Writes or checks; returns the exit code."""
    files = generated()
    stale = [path for path, text in files.items() if not _holds(ROOT / path, text)]
    if arguments == ["--check"]:
        for path in stale:
            print(f"{path} is not current; run `make generate`", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for path in stale:
        (ROOT / path).write_text(files[path], "utf-8")
        print(f"wrote {path}")
    return 0


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text("utf-8") == text


# -- the CRD as a template ---------------------------------------------------------------------------------------------


def crd_template(crd: str) -> str:
    """The CRD, word by word, as a template: Helm installs what lies in ``crds/`` once and never upgrades it."""
    body = re.sub(r"\A(#[^\n]*\n)+", "", crd)
    body = body.replace("{{", "{{ `{{` }}")  # what looks like a template in a description is none
    name = "  name: simulatedclusters.eidolon.dev\n"
    if body.count(name) != 1:
        raise ValueError(f"{CRD}: expected metadata.name once, as a line {name.strip()!r}")
    metadata = (
        name
        + '  labels: {{- include "eidolon.labels" . | nindent 4 }}\n'
        + '  {{- if ne (toString (.Values.crds).keep) "false" }}\n'
        + "  annotations:\n    helm.sh/resource-policy: keep\n"
        + "  {{- end }}\n"
    )
    return (
        f"{{{{- /* Generated from {CRD} by tools/generate.py; do not edit. */}}}}\n"
        '{{- if ne (toString (.Values.crds).enabled) "false" }}\n' + body.replace(name, metadata) + "{{- end }}\n"
    )


# -- the reference of the object ---------------------------------------------------------------------------------------


def crd_page(crd: Mapping[str, Any]) -> str:
    """All fields of a SimulatedCluster, with types, defaults and bounds, and the rules across fields."""
    version = crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        "# SimulatedCluster",
        "",
        *_wrapped(
            f"Generated from [{CRD}](../{CRD}) by `make generate`. "
            "In a cluster, `kubectl explain simc.spec --recursive` shows the same."
        ),
        "",
        *_wrapped(
            f"`apiVersion: {crd['spec']['group']}/{version['name']}`, `kind: {crd['spec']['names']['kind']}`, "
            f"short name `{crd['spec']['names']['shortNames'][0]}`. "
            "This version only ever gains optional fields. None is renamed, removed or given another meaning."
        ),
        "",
    ]
    for section in ("spec", "status"):
        if section in schema["properties"]:
            lines += [f"## {section}", "", "| field | type | default | meaning |", "|---|---|---|---|"]
            lines += [_field_row(path, node) for path, node in _fields(schema["properties"][section], section)]
            lines.append("")
    lines += [
        "## Rules",
        "",
        "Beyond types and bounds, the API server and `eidolon validate` refuse what breaks these:",
        "",
    ]
    for path, message in _rules(schema, ""):
        lines += _wrapped(f"* `{path or 'the object'}`: {message}.", indent="  ")
    lines += ["", "## Columns of `kubectl get simc`", "", "| column | what it shows |", "|---|---|"]
    lines += [
        f"| {column['name']} | {_cell(column.get('description', column['jsonPath']))} |"
        for column in version.get("additionalPrinterColumns", ())
    ]
    return "\n".join(lines) + "\n"


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        yield here, child
        yield from _fields(child, here)
        if "properties" in child.get("items", {}):
            yield from _fields(child["items"], f"{here}[]")
        if isinstance(child.get("additionalProperties"), dict) and "properties" in child["additionalProperties"]:
            yield from _fields(child["additionalProperties"], f"{here}.*")


def _field_row(path: str, schema: Schema) -> str:
    default = f"`{json.dumps(schema['default'])}`" if schema.get("default") not in (None, {}, []) else ""
    return f"| `{path}` | {_type(schema)} | {default} | {_cell(schema.get('description', ''))} |"


def _type(schema: Schema) -> str:
    kind = str(schema.get("type", "integer or string"))
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    if low is not None:
        return f"{kind}, at least {low}"
    return f"{kind}, such as `{schema['example']}`" if "example" in schema else kind


def _rules(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        message = " ".join(str(rule.get("message", rule["rule"])).split())
        yield path, re.sub(r"([\[\]*])", r"\\\1", message)  # a pattern in it is no Markdown
    for name, child in schema.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _rules(schema["additionalProperties"], f"{path}.*")


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of prose as long as Markdown allows here; all but the first are indented."""
    return textwrap.wrap(text, PROSE_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- the reference of the chart's values -------------------------------------------------------------------------------


class Value(NamedTuple):
    """One line of values.yaml: a value with its default, or a section (default None) that holds values."""

    path: str
    comment: str
    is_section: bool
    default: Any


def chart_values(text: str) -> Iterator[Value]:
    """The values of a values.yaml, in which each stands on a line of its own, under its comment, and only sections go
    on below their line."""
    parents: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            comment.clear()
        elif line.lstrip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        else:
            (name, default), *_ = yaml.safe_load(line.strip()).items()
            depth = (len(line) - len(line.lstrip())) // 2
            parents[depth:] = [name]
            yield Value(".".join(parents), " ".join(comment), line.endswith(":"), default)
            comment.clear()


def values_page(text: str, schema: Schema) -> str:
    """All values of the chart, with types and defaults."""
    lines = [
        "# Values of the Helm chart",
        "",
        *_wrapped(
            f"Generated from [{CHART}/values.yaml](../{CHART}/values.yaml) by `make generate`. Each value may be null."
        ),
        "",
        "| value | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for path, comment, is_section, default in chart_values(text):
        kind = "section" if is_section else _value_type(schema, path)
        shown = "" if is_section else f"`{json.dumps(default)}`"
        lines.append(f"| `{path}` | {kind} | {shown} | {_cell(comment)} |")
    return "\n".join(lines) + "\n"


def _value_type(root: Schema, path: str) -> str:
    schema = root
    for part in path.split("."):
        schema = schema["properties"][part]
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " or ".join("list" if kind == "array" else kind for kind in kinds if kind != "null")


# -- figures in pages that are written by hand -------------------------------------------------------------------------


def with_block(page: str, source: Path, block: str) -> str:
    """The page with this text between the two comments that name its source. ValueError if they are not there."""
    begin, end = f"<!-- Generated from {source} by `make generate`. -->\n", "<!-- End of what is generated. -->\n"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"no block {begin.strip()!r} with an end {end.strip()!r}")
    return f"{before}{begin}\n{block}\n{end}{after}"


def host_figures(table: Schema) -> str:
    """The host model's figures as Markdown: what it costs to run code, by its age, and what ages it."""
    function, operator, ages = table["function"], table["operator"], table["ages"]
    bounds = [function[name] for name in ("warm", "cold", "rare")]
    if bounds != [operator[name] for name in ("warm", "cold", "rare")]:
        raise ValueError(f"functions and operators differ in their ages: {function}, {operator}")
    lines = [
        "| what the thread runs | by how much it ages other code |",
        "|---|---|",
        "| a function or operator that is warm | 0 |",
        "| a function or operator that is not warm | 1 |",
        f"| a launch, copy or set | {ages['launch']:,} |",
        f"| a library call or collective | {ages['library']:,} |",
        f"| a device-wide wait | {ages['device_wait']:,} |",
        "",
        f"| cost, us, by age | {' | '.join(f'up to {bound:,}' for bound in bounds)} | older |",
        "|---|---|---|---|---|",
    ]
    for what, runs in (
        ("an operator that is called, views included", operator),
        ("a Python function that is entered", function),
    ):
        times = (runs[f"{name}_ns"] / 1e3 for name in ("warm", "cold", "rare", "far"))
        lines.append(f"| {what} | {' | '.join(f'{time:g}' for time in times)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
