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
#: What the ranks of a server take from each other, which share its caches and memory: of n, each takes 1 + this × (1 - 1/n)
#: times as long as one alone. Eight training steps on two GPUs and four on four took 1.13 and 1.18 times as long to issue
#: as their calls, operators and functions do on one GPU (geometric means; from 0.9 to 1.3).
SHARED_HOST = 0.25
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


def beside_others(ranks: int) -> float:
    """How many times as long a host takes for each of this many ranks of a server as for one alone."""
    return 1 + SHARED_HOST * (1 - 1 / ranks)
