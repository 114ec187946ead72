"""What a call costs on the host: from a table by operator or by the call's name, or as measured in the rank.

The table (``data/host_cost.yaml``, which says what it is fitted to) gives the same times for the same script on any
machine. Device work whose operator is known costs what that operator does on the host for each kernel or library call
that it issues; all other calls cost by their name. ``measured`` takes the thread's CPU time between intercepted calls
times :data:`MEASURED_FACTOR`.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

#: Host time on a GPU server's CPU over that of the machine measured on; 1 until somebody calibrates it.
MEASURED_FACTOR = 1.0
POLL_NS = 1_000  #: least cost of a query or a clock read by a foreground thread


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("eidolon_simcore") / "data" / "host_cost.yaml").read_text("utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


_KINDS = {"gemm": "library", "conv": "library", "attention": "library"}


def operator_ns(kind: str, operator: str) -> int:
    """Host time of issuing one piece of device work (the kind of its signature) from an operator."""
    table = _table()
    kind = _KINDS.get(kind, kind)
    return int(table["operators"].get(operator, {}).get(kind, table["other_operator"].get(kind, 0)))


def call_ns(name: str) -> int:
    """Host time of one call of this name."""
    table = _table()
    return int(table["calls"].get(name, table["default"]))


def entry_ns() -> int:
    """Host time before the first kernel of ``torch.compile`` in a step."""
    return int(_table()["compiled_entry"])
