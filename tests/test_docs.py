"""The documents: links lead somewhere, commands name files and targets that are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from eidolon_operator.kubernetes.status import Reason
from eidolon_simcore.run.cause import Cause

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
