"""Host cost tables: the package's own, and those that `eidolon calibrate host` makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from eidolon_simcore.costs import hostcost, reference_load

ROOT = Path(__file__).parents[3]
RUNS = {"warm": 10, "cold": 20, "rare": 30, "warm_ns": 1, "cold_ns": 2, "rare_ns": 3, "far_ns": 4}


def test_what_a_table_does_not_name_is_as_in_the_packages_own() -> None:
    own, table = hostcost.table(), hostcost.parse({"calls": {"cudaLaunchKernel": 7}, "function": RUNS})
    assert table.call_ns("cudaLaunchKernel") == 7
    assert table.call_ns("cudaMalloc") == own.call_ns("cudaMalloc")
    assert (table.operator, table.compiled_entry) == (own.operator, own.compiled_entry)
    assert table.server_conf() == {
        "host.function": "10 20 30 1 2 3 4",
        "host.operator": own.operator.conf(),
        "host.ages": own.ages.conf(),
    }
    assert hostcost.parse(None) is own


def test_the_shim_reads_each_figure_that_it_is_told() -> None:
    text = (ROOT / "interposer/native/core/interpreter.cpp").read_text("utf-8")
    assert set(re.findall(r'"(host\.\w+)"', text)) == set(hostcost.table().server_conf())


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"call": {}}, "call: {}: no such field: calls, default, compiled_entry, function,"),
        ({"calls": [1]}, "calls: [1]: a mapping is allowed"),
        ({"calls": {"cudaFree": -1}}, "calls.cudaFree: -1: a whole number from 0 on is allowed"),
        ({"calls": {"cudaFree": "5us"}}, "calls.cudaFree: '5us': a whole number from 0 on is allowed"),
        ({"default": True}, "default: True: a whole number from 0 on is allowed"),
        (
            {"function": {"warm": 1}},
            "function: {'warm': 1}: warm, cold, rare, warm_ns, cold_ns, rare_ns, far_ns are needed",
        ),
        ({"operator": RUNS | {"cold": 5}}, "operator.warm: 10: at most operator.cold (5) is allowed"),
        ({"operator": RUNS | {"rare": 19}}, "operator.cold: 20: at most operator.rare (19) is allowed"),
        ({"operator": RUNS | {"rare_ns": 1.5}}, "operator.rare_ns: 1.5: a whole number from 0 on is allowed"),
        (
            {"ages": {"launch": 5}},
            "ages: {'launch': 5}: launch, library, device_wait are needed, and no others allowed",
        ),
        ({"reference_ns": 0}, "reference_ns: 0: a whole number of nanoseconds, at least 1, is allowed"),
    ],
)
def test_a_bad_table_names_field_value_and_what_is_allowed(document: dict[str, Any], message: str) -> None:
    with pytest.raises(hostcost.HostTableError, match=re.escape(message)):
        hostcost.parse(document)


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    file = tmp_path / "host.yaml"
    with pytest.raises(hostcost.HostTableError, match=r"host.yaml: No such file"):
        hostcost.read(file)
    file.write_text("- 1", "utf-8")
    with pytest.raises(hostcost.HostTableError, match=r"host.yaml: holds a list: a mapping is allowed"):
        hostcost.read(file)
    file.write_text("{", "utf-8")
    with pytest.raises(hostcost.HostTableError, match=r"host.yaml: not YAML"):
        hostcost.read(file)
    file.write_text(yaml.safe_dump({"default": 3}), "utf-8")
    assert hostcost.parse(hostcost.read(file)).call_ns("unheard of") == 3


def test_measured_times_are_scaled_by_a_fixed_load(monkeypatch: pytest.MonkeyPatch) -> None:
    factor, note = hostcost.parse({"reference_ns": 50_000_000}).factor()
    assert factor > 0
    assert note.startswith(f"times {factor:.3f}: a fixed load took 50.0 ms there, ")
    assert hostcost.table().factor() == (1.0, "times 1, as the host table has no reference_ns")
    monkeypatch.setattr(reference_load, "measure_ns", lambda: 100_000_000)
    assert hostcost.parse({"reference_ns": 50_000_000}).factor()[0] == 0.5


def test_the_fixed_load_is_the_same_each_time() -> None:
    functions = reference_load._functions(3)
    assert [reference_load._load(functions, rounds) for rounds in (1, 2, 2)] == [
        6,
        15,
        15,
    ]  # 0 + 2 + 4, then 2 more than the last values
    assert len({function.__code__ for function in functions}) == 3  # type: ignore[attr-defined]
    assert reference_load.measure_ns(5) > 0
