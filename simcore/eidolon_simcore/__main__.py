"""``python -m eidolon_simcore --plan plan.json --listen HOST:PORT --out DIR``: serves one run, then exits.

Prints ``listening HOST:PORT`` when ready; before it ``http HOST:PORT`` and ``dcgm HOST:PORT`` where asked for.
With ``--linger`` it stays, readable, until SIGTERM. Exit code: 0 if the run succeeded, 1 if it failed, 2 if it
could not start.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib import metadata
from pathlib import Path

from eidolon_simcore import core_plan as planning
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.export import dcgm, metrics
from eidolon_simcore.export.http import Files, Handler, HttpServer, Request, Response, error_response, json_response
from eidolon_simcore.export.summary import Report
from eidolon_simcore.export.timeline.recorder import recorders
from eidolon_simcore.run.service import STALE_S, Security, Service
from eidolon_simcore.run.simulation import Simulation


def _version() -> str:
    try:
        return metadata.version("eidolon")
    except metadata.PackageNotFoundError:
        return "unknown"


def routes(service: Service, out: Path) -> dict[str, Handler]:
    """The routes that ``--http`` serves."""

    def health(_: Request) -> Response:
        if service.healthy():
            return Response(b"ok\n")
        text = f"the simulation has not ticked for {STALE_S:g} s"
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, text)

    def summary(_: Request) -> Response:
        try:
            return json_response(json.loads((out / "summary.json").read_bytes()))
        except FileNotFoundError:
            return error_response(HTTPStatus.NOT_FOUND, "the run has not ended: there is no summary yet")

    return {
        "/healthz": health,
        "/status": lambda _: json_response(service.status),
        "/summary": summary,
        "/metrics": lambda _: Response(metrics.page(service.snapshot), content_type=metrics.CONTENT_TYPE),
        "/files/": Files(out),
    }


def dcgm_routes(service: Service) -> dict[str, Handler]:
    """The routes that ``--dcgm`` serves. If the core runs in a pod, the servers are pods of the same namespace."""
    namespace = os.environ.get("POD_NAMESPACE")
    return {"/metrics": lambda _: Response(dcgm.page(service.snapshot, namespace), content_type=metrics.CONTENT_TYPE)}


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The options that a core has wherever its agents are."""
    made = argparse.ArgumentParser(prog=prog, description=description)
    made.add_argument("--plan", type=Path, required=True, help="plan.json, whose section `core` is read")
    made.add_argument("--out", type=Path, required=True, help="where summary.json and progress.jsonl go")
    made.add_argument("--http", metavar="HOST:PORT", help="serve /healthz, /status, /metrics, /summary and /files/")
    made.add_argument("--dcgm", metavar="HOST:PORT", help="serve /metrics as NVIDIA's dcgm-exporter would")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Serves the run that the arguments describe; returns the exit code."""
    known = parser("eidolon_simcore", "The simulation core of one run.")
    known.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0: any free one")
    known.add_argument("--tls", type=Path, metavar="DIR", help="token, tls.crt and tls.key: agents must use TLS")
    known.add_argument("--linger", action="store_true", help="after the end stay until SIGTERM")
    options = known.parse_args(arguments)
    asked_to_end: queue.SimpleQueue[None] = queue.SimpleQueue()  # unlike an Event, safe in a signal handler

    def listen(service: Service) -> Callable[[], None]:
        print(f"listening {service.listen(options.listen)}", flush=True)
        return asked_to_end.get if options.linger else lambda: None

    try:
        security = Security.read(options.tls) if options.tls else None
    except (OSError, ValueError) as error:
        print(f"eidolon: {error}", file=sys.stderr)
        return 2
    return serve(options, listen, lambda: asked_to_end.put(None), security)


def serve(
    options: argparse.Namespace,
    connect: Callable[[Service], Callable[[], None]],
    asked_to_end: Callable[[], None] = lambda: None,
    security: Security | None = None,
) -> int:
    """Serves the run that the options of :func:`parser` describe; returns the exit code.

    Args:
        connect: makes the service known to its agents; what it returns is called when the run is over.
        asked_to_end: is called at SIGTERM and SIGINT, which also end the run.
    """
    try:
        plan = planning.read(options.plan)
        if security is not None:
            plan = dataclasses.replace(plan, token=security.token)
        # The first rank that joins says how many there are, so none needs to be expected before.
        engine = NativeEngine(optimistic=plan.time_sync == "optimistic")
        sinks = recorders(plan, options.out, engine)
        simulation = Simulation(
            plan, engine, Report(plan, options.out), version=_version(), now=time.monotonic(), sinks=sinks
        )
        service = Service(simulation, security)
        http = HttpServer(routes(service, options.out))
        if options.http:
            print(f"http {http.listen(options.http)}", flush=True)
        exporter = HttpServer(dcgm_routes(service))
        if options.dcgm:
            print(f"dcgm {exporter.listen(options.dcgm)}", flush=True)

        def end(*_: object) -> None:
            asked_to_end()
            service.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        leave = connect(service)
        threading.Thread(target=simulation.read_tables, name="tables").start()
    except (planning.PlanError, OSError, ValueError) as error:
        print(f"eidolon: {error}", file=sys.stderr)
        return 2
    service.run()
    leave()
    http.close()
    exporter.close()
    return 0 if simulation.state == "Succeeded" else 1


if __name__ == "__main__":
    sys.exit(main())
