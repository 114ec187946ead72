"""Complete plans, for benches and tests that start a core or an agent by themselves.

The operator makes them, as it does for every run, so no field can be missing. Whoever needs a figure that no spec has
changes the document.
"""

from __future__ import annotations

from typing import Any

from eidolon_operator import plan as planning
from eidolon_operator import spec as specs

TOKEN = "secret"


def document(**fields: Any) -> dict[str, Any]:
    """``plan.json`` of a cluster whose spec has these fields, and the CRD's defaults for the others."""
    cluster = {
        "apiVersion": specs.API_VERSION,
        "kind": specs.KIND,
        "metadata": {"name": "plan"},
        "spec": {"workload": {"command": ["train.py"]}, **fields},
    }
    return planning.build(specs.parse(cluster, source="plan"), source="plan", token=TOKEN).document
