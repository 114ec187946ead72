"""``spec.network.topology``: from the spec's words to the plan's, and ``eidolon topology show``.

The plan's names are those of :class:`eidolon_simcore.fabric.settings.Settings`. Whether the fabric is possible shows
when it is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from eidolon_operator import units
from eidolon_operator.schema import Problem

_FIELD: Final = "spec.network.topology"
_QUANTITIES: Final[Mapping[str, Callable[[str], int]]] = {
    "bandwidth": units.RATE,
    "nicBandwidth": units.RATE,
    "linkBandwidth": units.RATE,
    "latency": units.LATENCY,
    "linkLatency": units.LATENCY,
}


def read(block: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, list[Problem]]:
    """The block as the plan has it, and what is wrong with its quantities. None if there is no block."""
    if block is None:
        return None, []
    problems: list[Problem] = []
    return _read(block, _FIELD, problems), problems


def _read(block: Mapping[str, Any], where: str, problems: list[Problem]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in block.items():
        parse = _QUANTITIES.get(key)
        if parse is not None:
            try:
                result[plan_name(key)] = parse(value)
            except ValueError as error:
                problems.append(Problem(f"{where}.{key}", str(error)))
        elif key == "cables":
            result[key] = [_read(cable, f"{where}.cables[{i}]", problems) for i, cable in enumerate(value)]
        else:
            result[plan_name(key)] = value
    return result


def plan_name(key: str) -> str:
    """The plan's name for a field: ``nicBandwidth`` becomes ``nic_bytes_per_s``, for example."""
    name = re.sub("(?<=[a-z])([A-Z])", lambda m: "_" + m[1].lower(), key)
    return re.sub("latency$", "latency_ns", re.sub("bandwidth$", "bytes_per_s", name))


def spec_name(key: str) -> str:
    """The spec's name for a field of the plan, for messages."""
    name = key.replace("bytes_per_s", "bandwidth").replace("latency_ns", "latency")
    return re.sub("_([a-z])", lambda m: m[1].upper(), name)
