"""Generated files are current, and the generator reads what it claims to read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
assert _SPEC is not None
assert _SPEC.loader is not None
generate = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generate)


@pytest.mark.parametrize("path", list(generate.generated()), ids=str)
def test_it_is_current(path: Path) -> None:
    assert (ROOT / path).read_text("utf-8") == generate.generated()[path], "run `make generate`"


def test_a_block_stands_between_comments_that_name_its_source() -> None:
    begin, end = "<!-- Generated from a.yaml by `make generate`. -->", "<!-- End of what is generated. -->"
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    assert generate.with_block(page, Path("a.yaml"), "new\n") == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    with pytest.raises(ValueError, match="no block"):
        generate.with_block(page, Path("b.yaml"), "new\n")


def test_values_are_read_with_their_comments() -> None:
    text = """# A value.
# On two lines.
one: {a: 1}

# Unrelated.

# A section.
two:
  # Inside.
  three: [x]
  four:
five: null
"""
    assert [tuple(value) for value in generate.chart_values(text)] == [
        ("one", "A value. On two lines.", False, {"a": 1}),
        ("two", "A section.", True, None),
        ("two.three", "Inside.", False, ["x"]),
        ("two.four", "", True, None),
        ("five", "", False, None),
    ]


def test_every_value_of_the_chart_is_explained() -> None:
    text = (ROOT / "charts/eidolon/values.yaml").read_text("utf-8")
    assert [value.path for value in generate.chart_values(text) if not value.is_section and not value.comment] == []


def test_a_template_in_a_description_is_shown_as_it_is() -> None:
    crd = "metadata:\n  name: simulatedclusters.eidolon.dev\nspec: {description: 'a {{ b }}'}\n"
    assert "'a {{ `{{` }} b }}'" in generate.crd_template(crd)


def test_main_writes_only_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = ("crds/simulatedcluster.yaml", "charts/eidolon/values.yaml", "charts/eidolon/values.schema.json")
    for path in (*sources, generate.HOST_COSTS, generate.COSTS_PAGE, generate.vocabulary.SOURCE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text("utf-8"), "utf-8")
    for path in generate.generated():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    for path in ("tools/fidelity.md.j2", "bench/fidelity/results", "bench/fidelity/predicted"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(ROOT / path)
    page = tmp_path / generate.COSTS_PAGE
    page.write_text(page.read_text("utf-8").replace("10,000", "1"), "utf-8")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 10
    assert generate.main([]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert generate.main(["--check"]) == 0
    assert generate.main([]) == 0
    assert capsys.readouterr().out == ""
    assert generate.main(["--write"]) == 2
