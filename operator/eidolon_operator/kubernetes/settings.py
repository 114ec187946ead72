"""The operator's settings, read from environment variables that the Helm chart's Deployment sets."""

from __future__ import annotations

import importlib.metadata
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from eidolon_operator.kubernetes.naming import HTTP_PORT

T = TypeVar("T")

Resources = Mapping[str, Mapping[str, str]]

#: Enough for a few ranks; the chart's values may say otherwise.
_CORE_RESOURCES: Final[Resources] = {"requests": {"cpu": "500m", "memory": "512Mi"}}
_AGENT_RESOURCES: Final[Resources] = {"requests": {"cpu": "100m", "memory": "96Mi"}}
_LEVELS: Final = ("debug", "info", "warning", "error")
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")


class SettingsError(Exception):
    """A variable of the environment is wrong; the message names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the operator, with their defaults. Those of pods are fixed for an attempt when it begins
    (``status.runtime``)."""

    core_image: str
    interposer_image: str
    namespaces: tuple[str, ...] = ()  #: empty: all
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    run_as: int | None = None  #: user, group and fsGroup of the pods; None: the cluster's choice (OpenShift)
    core_resources: Resources = field(default_factory=lambda: _CORE_RESOURCES)
    agent_resources: Resources = field(default_factory=lambda: _AGENT_RESOURCES)
    resync_s: float = 60.0
    log_level: str = "info"
    port: int = HTTP_PORT

    def runtime(self) -> dict[str, Any]:
        """What the pods of an attempt are made with, as ``status.runtime`` keeps it."""
        ids = {} if self.run_as is None else dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), self.run_as)
        return {
            "version": importlib.metadata.version("eidolon"),
            "coreImage": self.core_image,
            "interposerImage": self.interposer_image,
            "imagePullPolicy": self.image_pull_policy,
            "imagePullSecrets": list(self.image_pull_secrets),
            **ids,
            "coreResources": _plain(self.core_resources),
            "agentResources": _plain(self.agent_resources),
        }


def read(environment: Mapping[str, str]) -> Settings:
    """The settings in an environment. A variable that is unset or empty means the default. Raises
    :class:`SettingsError`."""

    def get(name: str, parse: Callable[[str], T]) -> T | None:
        text = environment.get(f"EIDOLON_{name}", "").strip()
        if not text:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise SettingsError(f"EIDOLON_{name}: {text!r} is not {error}") from None

    def image(name: str) -> str:
        found = get(name, str)
        if not found:
            raise SettingsError(f"EIDOLON_{name}: is required: a full image reference with a tag or a digest")
        return found

    given: dict[str, Any] = {
        "core_image": image("CORE_IMAGE"),
        "interposer_image": image("INTERPOSER_IMAGE"),
        "namespaces": get("NAMESPACES", _words),
        "image_pull_policy": get("IMAGE_PULL_POLICY", _one_of(*_PULL_POLICIES)),
        "image_pull_secrets": get("IMAGE_PULL_SECRETS", _words),
        "run_as": get("RUN_AS_USER", _user),
        "core_resources": get("CORE_RESOURCES", _resources),
        "agent_resources": get("AGENT_RESOURCES", _resources),
        "resync_s": get("RESYNC_S", _seconds),
        "log_level": get("LOG_LEVEL", _one_of(*_LEVELS)),
    }
    return Settings(**{name: value for name, value in given.items() if value is not None})


def configure_logging(level: str) -> None:
    """Logs one line per event to stderr, and of kopf's own messages only warnings."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return text

    return parse


def _user(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise ValueError("a number from 1 to 2147483647: pods must not run as root")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 3600.0:
        raise ValueError("a number of seconds from 1 to 3600")
    return value


def _resources(text: str) -> Resources:
    what = 'a JSON object such as {"requests": {"cpu": "1", "memory": "1Gi"}}'
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(what) from None
    if not isinstance(value, dict) or set(value) - {"requests", "limits"}:
        raise ValueError(what)
    if not all(isinstance(amounts, dict) for amounts in value.values()):
        raise ValueError(what)
    return {kind: {name: str(amount) for name, amount in amounts.items()} for kind, amounts in value.items()}


def _plain(resources: Resources) -> dict[str, dict[str, str]]:
    return {kind: dict(amounts) for kind, amounts in resources.items()}
