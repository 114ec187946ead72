"""What a call costs on the host: from a table by the call's name, or as measured in the rank.

The table (``data/host_cost.yaml``, which says what it is fitted to) gives the same times for the same script on any
machine. ``measured`` takes the thread's CPU time between intercepted calls times :data:`MEASURED_FACTOR`.
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


def call_ns(name: str) -> int:
    """Host time of one call of this name."""
    table = _table()
    return int(table["calls"].get(name, table["default"]))
