"""Where a run stands, for whoever watches it: what ``GET /status`` answers.

:func:`status` is a pure function of the simulation, called by the thread that owns it; what it returns is never changed
afterwards, so that other threads may read it.
"""

from __future__ import annotations

from typing import Any

from eidolon_simcore.export.summary import shares
from eidolon_simcore.run.simulation import Simulation


def status(simulation: Simulation) -> dict[str, Any]:
    """The run's state as JSON-ready values.

    ``state`` is ``Waiting`` until every server has said hello, then ``Running``, at the end ``Succeeded`` or ``Failed``
    with ``reason``, a :class:`~.cause.Cause`, and ``message``, one line. ``notes`` are lines about what makes it less
    exact.
    """
    servers, plan = simulation.servers, simulation.plan
    hello = [s.index for s in servers if s.said_hello]
    ended = {str(s.index): s.exit_code for s in servers if s.exit_code is not None}
    running = "Running" if len(hello) == len(servers) else "Waiting"
    return {
        "name": plan.name,
        "state": simulation.state or running,
        "reason": simulation.cause,
        "message": simulation.reason,
        "attempt": plan.attempt,
        "servers": {
            "expected": len(servers),
            "said_hello": hello,
            "missing": [s.index for s in servers if not s.said_hello],
            "ended": ended,
        },
        "ranks": simulation.rank_counts(),
        "step": _step(simulation.steps),
        "steps_final": len(simulation.steps),
        "peak_bytes": simulation.peak_bytes(),
        "cost_share": shares(simulation.source_ns()),
        "virtual_ns": simulation.virtual_ns,
        "oom": simulation.oom_count,
        "notes": simulation.notes(),
    }


def _step(steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The last final step; ``mfu`` is null where nobody stated the work of a step."""
    if not steps:
        return None
    last = steps[-1]
    return {key: last.get(key) for key in ("index", "time_ns", "end_ns", "tokens_per_s", "samples_per_s", "mfu")}
