"""What a call costs on the host: from a table by the call's name, or as measured in the rank.

The table (``data/host_cost.yaml``, which says what it is fitted to) gives the same times for the same script on any
machine; what the thread did before the call, Python functions and operators, comes with its record: the shim counts it.
``measured`` takes the thread's CPU time between intercepted calls times :data:`MEASURED_FACTOR`.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

#: Host time on a GPU server's CPU over that of the machine measured on; 1 until somebody calibrates it.
MEASURED_FACTOR = 1.0
#: How many times as long a server's host takes for each of several ranks as for one alone: 13 training steps on two
#: and four GPUs took 1.13 times as long to issue as their calls, operators and functions do on one GPU.
BESIDE_OTHERS = 1.13
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


def entry_ns() -> int:
    """Host time before the first kernel of ``torch.compile`` in a step."""
    return int(_table()["compiled_entry"])
