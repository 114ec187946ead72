"""What the host lane of a rank spends: the time of each record's call, and of what its thread did before it.

By default the time of a call comes from a table by its name, and the shim states in the record what the thread did
before it. With measured host cost, the record holds the thread's CPU time since the record before it, call included.
Both are multiplied by a factor. ``native/src/intake.cpp`` adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eidolon_simcore.core_plan import Plan
from eidolon_simcore.costs import hostcost
from eidolon_simcore.signature import Signature

COPY_WAIT = "cudaMemcpy"  #: label of a wait without a call of its own: copies wait for what they copied


@dataclass(frozen=True, slots=True)
class HostCost:
    """How host time is told in a run: the same for all its ranks."""

    table: hostcost.Table
    measured: bool  #: records hold CPU time that was measured
    factor: float  #: on all host times
    note: str  #: for the summary: where the figures come from

    @classmethod
    def of(cls, plan: Plan) -> HostCost:
        """What the plan asks for. A measured host runs a fixed load first, to compare this machine's CPU."""
        table = plan.host_table
        if plan.host_cost == "measured":
            return cls(table, True, *table.factor())
        return cls(table, False, hostcost.beside_others(plan.ranks_per_server), table.stated())

    def settings(self) -> dict[str, Any]:
        """The same for the native intake of records."""
        return {
            "measured": self.measured,
            "factor": self.factor,
            "poll_ns": hostcost.POLL_NS,
            "compiled_entry_ns": self.table.compiled_entry,
        }


def is_compiled(signature: Signature) -> bool:
    """Whether it is a kernel of torch.compile: the first of a step pays for entering the compiled graph."""
    return signature.kind == "kernel" and signature.name.startswith("triton_")
