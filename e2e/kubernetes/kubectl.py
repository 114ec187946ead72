"""What the tests do with a cluster, in the words of its users: kubectl, helm, a namespace of one's own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

Object = dict[str, Any]
T = TypeVar("T")
COMMAND_TIMEOUT_S = 120.0


class RefusedError(Exception):
    """A command failed; the message is what it said."""


class TimedOutError(AssertionError):
    """What was waited for did not come; the message holds the last state that was seen."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl with one KUBECONFIG."""

    program: str
    kubeconfig: Path

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Runs a command, returns what it printed.

        Raises:
            RefusedError: it failed.
        """
        command = [self.program, f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode:
            raise RefusedError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: Object, namespace: str | None = None) -> str:
        """Applies objects.

        Raises:
            RefusedError: one of them was refused.
        """
        where = [f"--namespace={namespace}"] if namespace else []
        return self("apply", *where, "-f", "-", stdin="---\n".join(map(yaml.safe_dump, objects)))

    def list(self, kind: str, *arguments: str) -> list[Object]:
        """All objects of a kind that the arguments (--namespace, --selector) select."""
        items: list[Object] = json.loads(self("get", kind, "-o", "json", *arguments))["items"]
        return items

    def get(self, kind: str, name: str, namespace: str) -> Object | None:
        """One object, or None."""
        arguments = ("get", kind, name, f"--namespace={namespace}", "-o", "json", "--ignore-not-found")
        text = self(*arguments)
        return json.loads(text) if text else None


def wait_for(condition: Callable[[], T], timeout_s: float, state: Callable[[], object] = lambda: "") -> T:
    """Asks until the answer is true; returns it.

    Raises:
        TimedOutError: it did not become true in time.
    """
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimedOutError(f"not within {timeout_s:.0f} s; {state()}")
        time.sleep(0.5)
    return answer


def condition(object_: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of an object's status, empty if it has none of this type."""
    found = object_.get("status", {}).get("conditions", [])
    return next((entry for entry in found if entry["type"] == kind), {})
