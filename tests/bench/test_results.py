"""The results of `python -m bench.fidelity --json`, and the page that is made from them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from bench.fidelity import frameworks, results, traces, truth

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("fidelity_page", ROOT / "tools" / "fidelity_page.py")
assert _SPEC is not None
assert _SPEC.loader is not None
fidelity_page = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fidelity_page)


# ---- the data --------------------------------------------------------------------------------------------------------


def test_a_new_result_replaces_the_old_one_of_its_line_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    results.write(path, [{"kind": "step", "line": line, "error": 1} for line in "abc"])
    results.write(path, [{"kind": "step", "line": "d", "error": 2}, {"kind": "step", "line": "b", "error": 3}])
    results.write(path, [{"kind": "trace", "line": "b", "error": 4}])
    assert [(one["kind"], one["line"], one["error"]) for one in results.read(path)] == [
        ("step", "a", 1),
        ("step", "b", 3),
        ("step", "c", 1),
        ("step", "d", 2),
        ("trace", "b", 4),
    ]


def test_a_result_says_with_what_it_was_made() -> None:
    said = results.provenance()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", said["date"])
    assert {"python", "torch", "transformers", "eidolon"} <= said["versions"].keys()


def test_every_line_of_the_truth_has_a_result_and_every_result_its_line() -> None:
    for gpu in truth.RUNS:
        expected = [("step", line.name) for line in truth.lines(gpu)]
        expected += [("framework", f"{line.name} x{line.fields['world']}") for line in frameworks.lines(gpu)]
        expected += [("trace", name) for name in (*traces.TRAINED, *traces.TITAN) if gpu == "h100"]
        kept = results.read(results.RESULTS / f"{gpu}.jsonl")
        assert sorted((one["kind"], one["line"]) for one in kept) == sorted(expected)


# ---- the page --------------------------------------------------------------------------------------------------------


def record(**fields: Any) -> dict[str, Any]:
    return {"line": "a --batch 8 x1", "host_bound": False, "error": 0.0, **fields}


def test_a_table_and_a_sentence_follow_the_data(tmp_path: Path) -> None:
    for path in (fidelity_page.TEMPLATE, *(f"bench/fidelity/results/{gpu}.jsonl" for gpu in truth.RUNS)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text("utf-8"), "utf-8")
    (tmp_path / fidelity_page.PREDICTED).symlink_to(ROOT / fidelity_page.PREDICTED)
    line = "gpt2 --batch 8 --seq 1024 --mode amp --parallel ddp x4"
    [old] = [one for one in results.read(results.RESULTS / "h100.jsonl") if one["line"] == line]
    new = {**old, "here_ms": 80.0, "error": 0.0459, "median_error": 0.0459}
    results.write(tmp_path / fidelity_page.RESULTS / "h100.jsonl", [new])
    text = fidelity_page.page(tmp_path)
    assert "| `gpt2 --batch 8 --seq 1024 --mode amp --parallel ddp` | 4 | 80.00 | 76.49 | +4.6 % | +4.6 % |" in text
    assert "on four GPUs is 4.6 % too slow" in " ".join(text.split())


def test_a_line_that_is_not_in_the_data_is_an_error() -> None:
    functions = fidelity_page.functions({"h100": [record()]}, {})
    assert functions["off"]("h100", "a --batch 8 x1") == "within 0.1 % of the real one"
    with pytest.raises(LookupError, match="has no line 'b x1'"):
        functions["off"]("h100", "b x1")


def test_errors_of_tokens_per_second_become_those_of_a_step() -> None:
    tokens = {"unit": "tokens/s", "real": 100.0, "real_min": 90.0, "real_max": 110.0}
    assert fidelity_page.step_error(record(**tokens, here=125.0)) == pytest.approx(-0.2)
    assert fidelity_page.step_error(record(**tokens, here=125.0, host_bound=True)) == pytest.approx(
        100 / 125 - 100 / 110
    )
    assert fidelity_page.step_error(record(**tokens, here=95.0, host_bound=True)) == 0
    assert fidelity_page.step_error(record(unit="ms", here=1.0, error=0.5)) == 0.5


def test_means_are_by_what_bounds_a_run() -> None:
    found = fidelity_page.means(
        [record(line="a", error=-0.04), record(line="b", error=0.02), record(line="c", error=0.5, host_bound=True)]
    )
    assert found == (
        "The mean error of the 2 runs bound by the GPU is 3.0 %, the greatest 4.0 % (`a`). "
        "The mean distance of the 1 run bound by their hosts is 50.0 %, the greatest 50.0 % (`c`)."
    )


def test_coverage_is_told_where_all_lines_have_it() -> None:
    both = [record(line="a", known_share=0.99, free=0), record(line="b", known_share=1.0, free=2)]
    assert fidelity_page.coverage(both) == (
        "Device time with a measured or interpolated cost is 99.5 % on average and at least 99.0 % (`a`). "
        "2 operations took no time."
    )
    assert fidelity_page.coverage([*both, record(line="c", known_share=None, free=None)]) == ""


def test_prose_is_wrapped_and_code_is_not() -> None:
    text = f"* {'word ' * 18}`{'x ' * 8}y` end\n\n| {'cell ' * 30}|\n"
    lines = fidelity_page.wrapped(text).split("\n")
    assert lines[:2] == [f"* {'word ' * 18}".rstrip(), f"  `{'x ' * 8}y` end"]
    assert lines[3] == f"| {'cell ' * 30}|"
