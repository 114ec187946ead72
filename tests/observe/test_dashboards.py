"""The dashboards and rules that the chart ships, without Grafana: what can be wrong in their files.

`make e2e-observe` asks a real Prometheus every one of these queries.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard

from eidolon_simcore.export import metrics

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "eidolon"
FILES = sorted((CHART / "dashboards").glob("*.json"))
RULES = yaml.safe_load((CHART / "rules" / "eidolon.yaml").read_text("utf-8"))
VARIABLES = {"$namespace": ".*", "$run": "demo", "$window": "5m"}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(request.param.read_text("utf-8"))
    return document


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [*board["panels"], *itertools.chain.from_iterable(panel.get("panels", []) for panel in board["panels"])]


def queries(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in panels(board) for target in panel.get("targets", [])]


def filled(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def selectors(node: Any) -> Iterator[str]:
    """Names of the metrics in a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name
    for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
        inner = getattr(node, part, None)
        if inner is not None:
            yield from selectors(inner)
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


def known() -> set[str]:
    names = set()
    for name, family in metrics.FAMILIES.items():
        if family.kind == "histogram":
            names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(f"{name}_total" if family.kind == "counter" else name)
    return names


def test_there_are_three_dashboards_and_they_are_up_to_date() -> None:
    assert [path.stem for path in FILES] == ["engine", "fabric", "throughput"]
    run = subprocess.run([sys.executable, ROOT / "tools" / "dashboards.py", "--check"])
    assert run.returncode == 0, "run tools/dashboards.py"


def test_json_goes_through_the_sdk_unchanged(board: dict[str, Any]) -> None:
    again = json.loads(json.dumps(Dashboard.from_json(board), default=lambda part: part.to_json()))
    assert again == board


def test_every_query_parses_and_names_metrics_that_exist(board: dict[str, Any]) -> None:
    assert queries(board)
    for expr in queries(board):
        names = list(selectors(promql_parser.parse(filled(expr))))
        assert names, expr
        assert set(names) <= known(), expr


def test_simulated_counters_have_no_bare_rate(board: dict[str, Any]) -> None:
    """Rates over the scrape's time are of the engine, or divided by such a rate (of virtual time, another counter)."""
    for expr in queries(board):
        simulated = [name for name in re.findall(r"rate\((eidolon_\w+)", expr) if "_engine_" not in name]
        assert not simulated or (" / " in expr and len(simulated) > 1), expr


def test_every_query_asks_for_the_chosen_run(board: dict[str, Any]) -> None:
    for expr in queries(board):
        assert expr.count("eidolon_") == expr.count('namespace=~"$namespace", run=~"$run"'), expr


def test_ids_are_unique_and_panels_do_not_overlap(board: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in panels(board)]
    assert len(ids) == len(set(ids))
    places = [panel["gridPos"] for panel in panels(board)]
    for a, b in itertools.combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (a, b)
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_datasource_namespace_and_run_are_variables(board: dict[str, Any]) -> None:
    assert [variable["name"] for variable in board["templating"]["list"]] == [
        "datasource",
        "namespace",
        "run",
        "window",
    ]
    for panel in panels(board):
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"


def test_dashboards_have_uids_of_their_own() -> None:
    assert len({json.loads(path.read_text("utf-8"))["uid"] for path in FILES}) == len(FILES)


def test_rules_name_metrics_that_exist() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    for rule in rules:
        assert set(selectors(promql_parser.parse(rule["expr"]))) <= known() | recorded, rule
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    assert alerts >= {"EidolonRunStalled", "EidolonOutOfMemory", "EidolonLowCoverage", "EidolonStraggler"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", CHART / "rules" / "eidolon.yaml"),
        ("test", "rules", Path(__file__).with_name("rules_test.yaml")),
    ],
    ids=["check", "test"],
)
def test_promtool_accepts_the_rules(command: tuple[Any, ...]) -> None:
    run = subprocess.run(["promtool", *map(str, command)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
