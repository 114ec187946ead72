"""The documents: links lead somewhere; files, modules and targets that they name are there."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from eidolon_operator import cli
from eidolon_operator.kubernetes.status import Reason
from eidolon_simcore.run.cause import Cause

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PACKAGES = ("operator", "simcore", "interposer")  #: folders of the checkout that hold Python packages
#: What a run, a user or a tool makes: files that pages name and no checkout has.
MADE = {
    *("cluster.yaml", "train.py", "host.yaml", "operators.parquet", "report.html", "trace.pftrace.gz"),
    "steps.parquet",
    *("summary.json", "plan.json", "progress.jsonl", "tls.crt", "site-packages"),
}
UNTRACKED, SHOWN = ("build", "dist", "eidolon-runs", "__pycache__"), (".ci", ".github")
#: Modules that come from elsewhere.
FOREIGN = {"compileall", "torch.distributed.run", "torchtitan.train"}
SUFFIXES = r"\.(?:py|cpp|h|c|toml|yaml|json|jsonl|md|proto|parquet|j2|txt|sh|et)"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"(?<!\\)\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    inside = [target for target in targets if "://" not in target]
    assert [target for target in inside if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_files_that_are_there(page: Path) -> None:
    commands = "\n".join(re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    named = re.findall(r"(?<![\w/.-])(?:examples|charts|crds|tools)/[\w./-]+", commands)
    assert [path for path in named if not (ROOT / path).exists()] == []


@functools.cache
def help_of(verb: str) -> str | None:
    """What `eidolon VERB --help` prints; None where there is no such verb."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), pytest.raises(SystemExit) as ended:
        cli.main([verb, "--help"])
    return None if ended.value.code else printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_eidolon_and_their_options_are_there(page: Path) -> None:
    commands = re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    lines = [line for block in commands for line in block.splitlines()] + code(page)
    wrong = []
    for line in lines:
        found = re.match(r"(?:\$ )?(?:\.venv/bin/)?eidolon ([a-z]+)(.*)", line.partition("#")[0])
        if found is None or found[1] in ("profile", "calibrate"):  # which hand on what they are given
            continue
        known = help_of(found[1])
        options = re.findall(r"(?<!\S)\[?(--[a-z-]+)", found[2].partition(" -- ")[0])
        if known is None or any(not re.search(rf"{option}\b", known) for option in options):
            wrong.append(line)
    assert wrong == []


@functools.cache
def files() -> frozenset[str]:
    """Every file and folder of the checkout, and every end of its path: ``a/b/c``, ``b/c``, ``c``."""
    found = set()
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name in SHOWN or not (name.startswith(".") or name in UNTRACKED)]
        for name in (*names, *folders):
            parts = (Path(folder) / name).relative_to(ROOT).parts
            found.update("/".join(parts[i:]) for i in range(len(parts)))
    return frozenset(found)


def code(page: Path) -> list[str]:
    """What a page sets in code within its prose."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_the_text_names_are_there(page: Path) -> None:
    """A name with a suffix that files here have, or a path that begins at a folder of the checkout."""
    made = {"build", "eidolon-runs"}
    top = {path.name for path in ROOT.iterdir() if path.is_dir()} - made
    named = [
        span
        for span in code(page)
        if re.fullmatch(r"[\w./-]+", span)
        and not span.startswith(("/", "RUN/"))
        and (re.search(rf"\w{SUFFIXES}$", span) or ("/" in span and span.split("/")[0] in top))
    ]
    assert [name for name in named if name.rstrip("/") not in files() and Path(name).name not in MADE] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_are_run_are_there(page: Path) -> None:
    modules = set(re.findall(r"(?:python|nproc-per-node \d+) -m ([a-z_][\w.]*\w)", page.read_text("utf-8"))) - FOREIGN
    missing = []
    for module in modules:
        path = module.replace(".", "/")
        places = [ROOT / folder / f"{path}{end}" for folder in ("", *PACKAGES) for end in (".py", "/__main__.py")]
        if not any(place.exists() for place in places):
            missing.append(module)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_that_the_text_names_are_there(page: Path) -> None:
    named = [word for span in code(page) if span.startswith("make ") for word in span.split()[1:]]
    wanted = [word for word in named if re.fullmatch(r"[a-z0-9-]+", word)]
    assert [word for word in wanted if word not in targets()] == []


def defines(path: Path, function: str) -> bool:
    """Whether a file of Python or C++ has the definition of a function."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return re.search(rf"^ *def {function}\(", text, re.MULTILINE) is not None
    return re.search(rf"^[A-Za-z].*\b{function}\([^;]*?\{{$", text, re.MULTILINE) is not None


def test_the_walk_goes_through_functions_that_are_there() -> None:
    page = (ROOT / "docs" / "walkthrough.md").read_text("utf-8")
    kernel, collective = page.split("\n## ")[1:]
    assert len(re.findall(r"^\d+\. ", page, re.MULTILINE)) == len(stops(kernel)) + len(stops(collective))
    assert 1 <= len(stops(kernel)) <= 12
    assert [stop for stop in stops(kernel) + stops(collective) if not defines(ROOT / stop[0], stop[1])] == []


def stops(section: str) -> list[tuple[str, str]]:
    """Files and functions of a walk."""
    return re.findall(r"^\d+\. `([^`]+)`: `(\w+)`\.", section, re.MULTILINE)


def targets() -> set[str]:
    """Of the Makefile."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = re.findall(r"^\.PHONY:(.*?(?:\\\n.*?)*)$", makefile, re.MULTILINE)
    return set(" ".join(phony).replace("\\", " ").split())


def test_commands_of_make_are_targets() -> None:
    phony = targets()
    for page in PAGES:
        commands = "\n".join(re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
        for line in re.findall(r"^\$ make ([a-z0-9 -]+)", commands, re.MULTILINE):
            assert [target for target in line.split() if target not in phony] == [], page.name


def test_the_workflow_for_kind_calls_what_there_is() -> None:
    """It runs on other people's machines only, so what it names is looked up here."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "kind.yaml").read_text("utf-8"))
    job = workflow["jobs"]["e2e"]
    commands = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    called = [target for line in re.findall(r"^make ([a-z0-9 -]+)$", commands, re.MULTILINE) for target in line.split()]
    assert called == ["setup", "images", "kind-torch"]
    assert set(called) <= targets()
    files = re.findall(r"(?:examples|e2e)/[\w./-]+", commands)
    assert [path for path in files if not (ROOT / path).exists()] == []
    [selection] = re.findall(r'-m "([^"]+)"', commands)
    declared = {marker.split(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    assert set(re.findall(r"\w+", selection)) - {"not", "and"} <= declared
    oldest = re.search(r">=(\d+\.\d+)", (ROOT / "charts" / "eidolon" / "Chart.yaml").read_text("utf-8"))
    assert oldest is not None
    assert f":v{oldest[1]}." in job["strategy"]["matrix"]["node"][0], "the oldest Kubernetes that the chart admits"
    tests = "".join(file.read_text("utf-8") for file in (ROOT / "e2e" / "kubernetes").glob("*.py"))
    assert [name for name in job["env"] if f'"{name}"' not in tests] == [], "nobody reads it"


def test_every_reason_that_means_trouble_is_explained() -> None:
    normal = {"Ready", "Creating", "Starting", "WaitingForServers", "WorkloadRunning", "Restarting", "Finished"}
    normal |= {"NotFinished", "Suspended", "NotSuspended", "StepsDone", "WorkloadsEnded"}
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    explained = set(re.findall(r"`([A-Z][A-Za-z]+)`", page))
    assert {str(reason) for reason in (*Reason, *Cause) if reason} - normal - explained == set()


def _sources() -> Iterator[str]:
    """The sources of what users run, with the parts of a text that stands on several lines joined."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*"):
            if file.suffix in {".py", ".c", ".cpp", ".h"} and "tests" not in file.parts:
                yield re.sub(r'["\']\s*\n\s*f?["\']', "", file.read_text("utf-8")).replace("\\", "")


def test_the_messages_of_local_runs_are_those_of_the_sources() -> None:
    """What stands in the column "message" is what users search for. Dots stand for what differs."""
    page = (ROOT / "docs" / "troubleshooting-local.md").read_text("utf-8")
    tables = re.findall(r"^\| message \|.*\n\|[-| ]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    messages = [message for row in rows for message in re.findall(r"^\| `([^`]+)` \|", row)]
    assert len(messages) == len(rows) > 30, "every row begins with a message"
    sources = list(_sources())
    for message in messages:
        pieces = [piece.strip() for piece in message.split("...") if re.search(r"[A-Za-z]{3}", piece)]
        assert pieces, message
        assert any(all(piece in source for piece in pieces) for source in sources), message
