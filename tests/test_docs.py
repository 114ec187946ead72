"""The documents: links lead somewhere, commands name files and targets that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eidolon_operator.kubernetes.status import Reason
from eidolon_simcore.status import Cause

ROOT = Path(__file__).parents[1]
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


def test_commands_of_make_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = " ".join(re.findall(r"^\.PHONY:(.*?(?:\\\n.*?)*)$", makefile, re.MULTILINE)).replace("\\", " ").split()
    for page in PAGES:
        commands = "\n".join(re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
        for line in re.findall(r"^\$ make ([a-z0-9 -]+)", commands, re.MULTILINE):
            assert [target for target in line.split() if target not in phony] == [], page.name


def test_every_reason_that_means_trouble_is_explained() -> None:
    normal = {"Ready", "Creating", "Starting", "WaitingForServers", "WorkloadRunning", "Restarting", "Finished"}
    normal |= {"NotFinished", "Suspended", "NotSuspended", "StepsDone", "WorkloadsEnded"}
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    explained = set(re.findall(r"`([A-Z][A-Za-z]+)`", page))
    assert {str(reason) for reason in (*Reason, *Cause) if reason} - normal - explained == set()
