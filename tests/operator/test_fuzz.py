"""Whatever stands in a file or on the command line: one clear line and an exit code, never a traceback.

Hypothesis makes the input: nasty values at any place of a valid object, damaged text, cut and flipped bytes, any
mixture of options. A few hundred of each in CI; `make fuzz` tries as many as EIDOLON_FUZZ says.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import recorded_run
import yaml
from fakes import CORE
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eidolon_operator import cli, spec

EXAMPLES = int(os.environ.get("EIDOLON_FUZZ", "0"))
DEMO = Path(__file__).parents[2] / "examples" / "demo.yaml"


def often(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """So many examples, or as many as `make fuzz` asks for; always the same ones in CI."""
    quiet = list(HealthCheck)
    return settings(
        max_examples=EXAMPLES or count,
        deadline=None,
        suppress_health_check=quiet,
        derandomize=not EXAMPLES,
        database=None,
    )


NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        [0, -1, 2**31, 2**63, 2**64, 10**30, 1e308, 5e-324, float("nan"), float("inf"), "", "\0", "\n", "a\n"]
    ),
    st.sampled_from(
        ["100000000000000s", "1000000000000Tb/s", "80000000000000000000000", "0", "1e5", "0s", "-1GiB", "\u0661\u0662"]
    ),
    st.text(max_size=12),
    st.lists(st.integers(-2, 2), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(-2, 2), max_size=2),
)


def call(*words: str) -> tuple[int, str]:
    """Exit code and stderr of the command line. What is not caught fails the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(words)
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
    return code, err.getvalue()


def orderly(*words: str, least: int = 0) -> None:
    """The command ends with an exit code that it should have, and says why in lines of its own."""
    code, err = call(*words)
    assert least <= code <= 2 or code == 127
    assert bool(err) or not code
    assert "Traceback" not in err
    if not err.startswith("usage: "):
        assert all(line.startswith("eidolon: ") for line in err.splitlines()), err
    err.encode("utf-8", errors="backslashreplace")


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in a document."""
    if path:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the document with another value at that place."""
    document = copy.deepcopy(document)
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return document


# -- the object --------------------------------------------------------------------------------------------------------


def _filled(schema: Any, depth: int = 0) -> Any:
    """An object with every field of the schema, most of them of the right type."""
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("default", "example"):
        if key in schema and schema[key] not in ({}, []):
            return schema[key]
    match schema.get("type"):
        case "object":
            return {name: _filled(child, depth + 1) for name, child in schema.get("properties", {}).items()}
        case "array":
            return [_filled(schema["items"], depth + 1)]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case _:
            return "text"


BASE = {
    "apiVersion": spec.API_VERSION,
    "kind": spec.KIND,
    "metadata": {"name": "demo", "labels": {"a": "b"}},
    "spec": _filled(spec.object_schema()["properties"]["spec"]),
}
FIELDS = list(places(BASE))
TOKENS = (
    *(
        "010",
        "1:30",
        "1:30.5",
        "&a ",
        "*a",
        "<<: ",
        "? ",
        "- ",
        "{",
        "[",
        "]",
        "}",
        ": ",
        "'",
        '"',
        "|\n",
        "---\n",
        "\t",
    ),
    *("!!python/object:os.x ", "\0", '"\\0"', '"\\ud800"', "0x_", "2001-99-99", "2001-01-01", "9" * 5000, "#"),
    *("0x" + "f" * 9000, "%YAML 9.9\n"),
)


@often(300)
@given(st.sampled_from(FIELDS), NASTY, st.booleans())
def test_any_value_in_any_field_of_an_object(tmp_path_factory: Any, path: Any, value: Any, local: bool) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "cluster.yaml"
    document = changed(BASE, path, value)
    file.write_text(yaml.dump(document, sort_keys=False, allow_unicode=True), "utf-8")
    orderly("validate", *(["--local"] if local else []), str(file))
    with contextlib.suppress(spec.SpecError):  # what the operator gets is JSON, without the look at the file
        spec.parse(document, source="x", cluster=not local)


@often(200)
@given(st.sampled_from(FIELDS), NASTY)
def test_any_value_in_any_field_of_a_small_object(tmp_path_factory: Any, path: Any, value: Any) -> None:
    """One that is valid but for this field, so that what is behind the schema is reached too."""
    document = {"apiVersion": spec.API_VERSION, "kind": spec.KIND, "metadata": {"name": "demo"}}
    document["spec"] = {"workload": {"command": ["train.py"]}}
    node: Any = document
    for key, below in itertools.pairwise(path):
        if isinstance(key, int):
            return
        node = node.setdefault(key, [] if isinstance(below, int) else {})
    if not isinstance(node, dict):
        return
    node[path[-1]] = value
    file = tmp_path_factory.mktemp("fuzz") / "cluster.yaml"
    file.write_text(yaml.dump(document, sort_keys=False, allow_unicode=True), "utf-8")
    orderly("validate", "--local", str(file))


@often(300)
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(TOKENS) | st.text(max_size=5)), min_size=1, max_size=4))
@example([(1.0, "[" * 5000)])
@example(
    [
        (
            0.0,
            "a: &a [x]\n"
            + "".join(
                f"{c}: &{c} [{', '.join(f'*{b}' for _ in range(9))}]\n"
                for b, c in zip("abcdefgh", "bcdefghi", strict=True)
            ),
        )
    ]
)
@example([(1.0, "\nx: &a [*a]\n")])
@example([(1.0, "\nspec: {}\n")])
@example([(1.0, "\n" + "- " * 400)])
def test_any_damage_to_the_text_of_an_object(tmp_path_factory: Any, damage: list[tuple[float, str]]) -> None:
    text = DEMO.read_text()
    for where, what in damage:
        at = int(where * len(text))
        text = text[:at] + what + text[at + len(what) // 2 :]
    file = tmp_path_factory.mktemp("fuzz") / "cluster.yaml"
    file.write_text(text, "utf-8", errors="surrogatepass")
    orderly("validate", "--local", str(file))


# -- the files of a run ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recorded run, with a plan beside the summary."""
    out = tmp_path_factory.mktemp("finished")
    recorded_run.record(out)
    (out / "plan.json").write_text(json.dumps({"name": "demo", "core": CORE}))
    return out


VERBS = (
    *(("explain",), ("report", "--markdown"), ("report", "--json"), ("report",)),
    *(("trace",), ("trace", "--format", "chakra"), ("compare",)),
)


@often(300)
@given(st.data())
def test_any_value_in_any_field_of_the_files_of_a_run(
    finished: Path, tmp_path_factory: Any, data: st.DataObject
) -> None:
    run = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(finished, run)
    name = data.draw(st.sampled_from(["summary.json", "plan.json", "progress.jsonl", "recording/recording.json"]))
    text = (run / name).read_text()
    if name == "progress.jsonl":
        (run / "summary.json").unlink()
        lines = text.splitlines()
        document = json.loads(lines[-1])
        place = data.draw(st.sampled_from(list(places(document))))
        text = "\n".join([*lines[:-1], json.dumps(changed(document, place, data.draw(NASTY)))])
    else:
        document = json.loads(text)
        place = data.draw(st.sampled_from(list(places(document))))
        text = json.dumps(changed(document, place, data.draw(NASTY)))
    (run / name).write_text(text)
    verb = data.draw(st.sampled_from(VERBS))
    orderly(*verb, str(run), *([str(finished)] if verb[0] == "compare" else []))


@often(300)
@given(st.integers(0, 1 << 30))
def test_any_damage_to_the_bytes_of_the_files_of_a_run(finished: Path, tmp_path_factory: Any, seed: int) -> None:
    chance = random.Random(seed)
    run = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(finished, run)
    file = chance.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    data = bytearray(file.read_bytes())
    match chance.randrange(4):
        case 0:
            del data[chance.randrange(len(data) + 1) :]
        case 1:
            file.unlink()
            file.mkdir()
        case 2:
            data[:] = chance.choice([b"", b"[" * 100_000, b"\xff\xfe", b"{}", b"null", b"[]", b'"text"'])
        case _:
            for _ in range(chance.randrange(1, 8)):
                data[chance.randrange(len(data))] = chance.randrange(256)
    if file.is_file():
        file.write_bytes(data)
    verb = chance.choice(VERBS)
    orderly(*verb, str(run), *([str(finished)] if verb[0] == "compare" else []))


# -- the command line --------------------------------------------------------------------------------------------------

WORDS = st.one_of(
    st.sampled_from(
        [
            *("run", "validate", "explain", "report", "compare", "trace", "topology", "show", "gpus", "fetch"),
            *("--help", "--version", "--json", "--markdown", "-o", "--out", "--svg", "--steps", "--ranks", "--format"),
            *("--local", "--null-core", "--record", "--strict", "--metrics", "--dcgm", "--host-memory", "--host-table"),
            *(option for option, *_ in cli._OPTIONS),
            *(str(DEMO), "/dev/null", "/", "", ".", "a\0b", "/proc/self/mem", "none", "0", "1", "-1", "nan", "1:2"),
            *(
                "127.0.0.1:0",
                "1" * 5000,
                "8 gigs",
                "\u0661",
                "1_0",
                "simc/x",
                "\udcff",
                "é",
                "3:5",
                "0-999999",
                "9" * 30,
            ),
        ]
    ),
    st.text(max_size=6),
)


@often(400)
@given(st.lists(WORDS, max_size=7), st.sampled_from([None, [], ["no-such-program"], ["no-such-\udcff"], ["a\0b"]]))
def test_any_words_on_the_command_line(tmp_path_factory: Any, words: list[str], command: list[str] | None) -> None:
    """A run is only begun if its program is there, and here none is."""
    if (
        words[:1] in (["profile"], ["calibrate"])
        or "fetch" in words
        or (command is None and "--" not in words and DEMO.as_posix() in words and "run" in words)
    ):
        return
    words = words if command is None else [*words, "--", *command]
    here = tmp_path_factory.mktemp("fuzz")
    with contextlib.chdir(here):
        orderly(*words)
