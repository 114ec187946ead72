"""A run as its readers see it: the status, the snapshot for metrics pages, and the summary.

All three are made by the thread that runs the simulation. What they return is never changed afterwards, so other
threads may read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eidolon_simcore.core_plan import Plan
from eidolon_simcore.costs import published
from eidolon_simcore.costs.model import SOURCES
from eidolon_simcore.engine.interface import NetworkEngine
from eidolon_simcore.export.summary import Report, shares
from eidolon_simcore.fabric.network import Network
from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.ledger.books import Books
from eidolon_simcore.ledger.coverage import coverage, doubts
from eidolon_simcore.ledger.snapshot import Snapshot
from eidolon_simcore.run.collectives import Collectives
from eidolon_simcore.run.ending import Ending
from eidolon_simcore.run.final_results import FinalResults
from eidolon_simcore.run.membership import Membership
from eidolon_simcore.run.real_time import RealTime
from eidolon_simcore.run.server import Servers


@dataclass(frozen=True, slots=True)
class Views:
    """Reads the parts of a run. It changes none of them, but for the final judgement in :meth:`finish`."""

    plan: Plan
    engine: NetworkEngine
    network: Network
    books: Books
    collectives: Collectives
    servers: Servers
    ranks: Membership
    results: FinalResults
    report: Report
    ending: Ending
    real_time: RealTime
    host_note: str  #: where host times come from
    began_at: float  #: seconds of a monotonic clock

    # ---- while it runs --------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What ``GET /status`` answers, as JSON-ready values.

        ``state`` is ``Waiting`` until every server has said hello, then ``Running``, at the end ``Succeeded`` or
        ``Failed`` with ``reason``, a :class:`~.cause.Cause`, and ``message``, one line. ``notes`` are lines about what
        makes the results less exact.
        """
        servers, missing = list(self.servers.by_index.values()), self.servers.absent()
        steps = self.report.steps
        return {
            "name": self.plan.name,
            "state": self.ending.state or ("Waiting" if missing else "Running"),
            "reason": self.ending.cause,
            "message": self.ending.reason,
            "attempt": self.plan.attempt,
            "servers": {
                "expected": len(servers),
                "said_hello": [s.index for s in servers if s.said_hello],
                "missing": missing,
                "ended": {str(s.index): s.exit_code for s in servers if s.exit_code is not None},
            },
            "ranks": self.ranks.counts(),
            "step": _last(steps),
            "steps_final": len(steps),
            "peak_bytes": self.books.memory.highest(),
            "cost_share": shares(self._source_ns()),
            "virtual_ns": self.results.virtual_ns,
            "oom": len(self.books.memory.refusals),
            "notes": sorted(name for name in self.books.unmodelled() if name.startswith("torch:")),
        }

    def snapshot(self, now: float) -> Snapshot:
        """The run as other threads may see it."""
        sessions = self.ranks.sessions.values()
        return Snapshot(
            run=self.plan.name,
            devices=self.plan.devices,
            gpus_per_server=self.plan.gpus_per_server,
            state=self.ending.state or ("Running" if sessions else "Waiting"),
            ranks=self.ranks.counts(),
            class_sizes=self.plan.class_sizes,
            progress=self.results.progress,
            last=self.books.accounts.last,
            total=self.books.accounts.total,
            links=tuple(self.network.links()),
            paces={Port(s.server, device): s.pace for s in sessions for device in s.devices},
            issued=self._issued(),
            out_of_memory=dict(Counter(refusal.port for refusal in self.books.memory.refusals)),
            source_ns=self._source_ns(),
            startup_source_ns=self._startup_ns(),
            unmodelled=self.books.unmodelled(),
            unknown_reads=self.books.tally.reads.by_site(),
            waits=self.books.host_waits(),
            engine=self.engine.counters(),
            horizon_ns=self.engine.horizon(),
            wall_s=now - self.began_at,
        )

    def _issued(self) -> dict[Port, tuple[int, int]]:
        found: dict[Port, tuple[int, int]] = {}
        for session in self.ranks.sessions.values():
            work_ns = sum(session.source_ns().values()) + sum(session.startup_ns().values())
            for device in session.devices:
                clock_ns, others_ns = found.get(Port(session.server, device), (0, 0))
                found[Port(session.server, device)] = (
                    max(clock_ns, self.engine.clock(session.rank)),
                    others_ns + work_ns,
                )
        return found

    def _source_ns(self) -> dict[str, int]:
        """Device time of the steps so far, by the source of its cost (:mod:`eidolon_simcore.ledger.coverage`)."""
        return _summed(session.source_ns() for session in self.ranks.sessions.values())

    def _startup_ns(self) -> dict[str, int]:
        """Device time before the steps, by the source of its cost."""
        return _summed(session.startup_ns() for session in self.ranks.sessions.values())

    # ---- at its end -----------------------------------------------------------------------------------------------

    def finish(self, now: float) -> None:
        """Judges the run and writes the summary."""
        source_ns = self._source_ns()
        sessions = self.ranks.sessions
        found = coverage(one for rank in sorted(sessions) for one in sessions[rank].spent())
        texts = doubts(found, shares(source_ns).get("unknown", 0.0), self.plan.unknown_limit)
        unstated = self.books.tally.reads.unstated() if self.plan.strict else ""
        self.ending.judge([*texts, *([unstated] if unstated else [])], strict=self.plan.strict)
        clocks = [self.engine.clock(rank) for rank in sessions]
        end: dict[str, Any] = {
            "state": self.ending.state,
            "cause": self.ending.cause,
            "reason": self.ending.reason,
            "ranks": len(sessions),
            "step_counts": {str(rank): count for rank, count in self.books.steps.counts().items()},
            "engine": self.engine.counters(),
            "virtual_ns": max([self.results.virtual_ns, *clocks]),
            "wall_s": round(now - self.began_at, 3),
            "real_time": self.real_time.entries(now),
            "capacity_bytes": self.plan.devices[0].memory_bytes,
            **self.books.accounts.summary(),
        }
        end["host_note"] = self.host_note
        end["coverage"] = {"published": published.statement(one.gpu.key for one in self.plan.devices), **found}
        self.books.sinks.close()
        end["cost_share"], end["startup_cost_share"] = shares(source_ns), shares(self._startup_ns())
        self.report.finish(end, self.books)


def _summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found = dict.fromkeys(SOURCES, 0)
    for part in parts:
        for source, ns in part.items():
            found[source] += ns
    return found


def _last(steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The last final step; ``mfu`` is null where nobody stated the work of a step."""
    if not steps:
        return None
    last = steps[-1]
    return {key: last.get(key) for key in ("index", "time_ns", "end_ns", "tokens_per_s", "samples_per_s", "mfu")}
