"""``python -m eidolon_simcore --plan plan.json --listen HOST:PORT --out DIR``: serves one run, then exits.

Prints ``listening HOST:PORT`` when ready. Exit code: 0 if the run succeeded, 1 if it failed, 2 if it could not start.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from importlib import metadata
from pathlib import Path

from eidolon_simcore import plan as planning
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.report import Report
from eidolon_simcore.service import Service
from eidolon_simcore.simulation import Simulation
from eidolon_simcore.timeline.recorder import recorders


def _version() -> str:
    try:
        return metadata.version("eidolon")
    except metadata.PackageNotFoundError:
        return "unknown"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="eidolon_simcore", description="The simulation core of one run.")
    parser.add_argument("--plan", type=Path, required=True, help="plan.json, whose section `core` is read")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0: any free one")
    parser.add_argument("--out", type=Path, required=True, help="where summary.json and progress.jsonl go")
    options = parser.parse_args(arguments)
    try:
        plan = planning.read(options.plan)
        # The first rank that joins says how many there are, so none needs to be expected before.
        engine = NativeEngine(optimistic=plan.time_sync == "optimistic")
        sinks = recorders(plan, options.out, engine)
        simulation = Simulation(
            plan, engine, Report(plan, options.out), version=_version(), now=time.monotonic(), sinks=sinks
        )
        service = Service(simulation)
        address = service.listen(options.listen)
    except (planning.PlanError, OSError) as error:
        print(f"eidolon: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.cancel())
    print(f"listening {address}", flush=True)
    service.run()
    return 0 if simulation.state in (None, "Succeeded") else 1


if __name__ == "__main__":
    sys.exit(main())
