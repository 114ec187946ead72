"""``python -m eidolon_operator.kubernetes``: the operator, told by its environment (see :mod:`.settings`).

Ends with 0 on SIGTERM, 2 if a setting is wrong, 1 if a part of it ends by itself: Kubernetes then starts it anew, which
no run notices.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import sys
from typing import Any

import kopf

from eidolon_operator import plan as planning
from eidolon_operator import spec as specs
from eidolon_operator.kubernetes import handlers
from eidolon_operator.kubernetes import settings as configuration
from eidolon_operator.kubernetes.client import Api
from eidolon_operator.kubernetes.cores import Cores, CoreWatch
from eidolon_operator.kubernetes.queue import Workers
from eidolon_operator.kubernetes.reconcile import Reconciler
from eidolon_operator.kubernetes.settings import Settings, SettingsError
from eidolon_operator.kubernetes.world import Key, Pods

_log = logging.getLogger("eidolon_operator")


async def operate(settings: Settings, stop: asyncio.Event) -> bool:
    """Runs the operator until told to stop; False if a part of it ended by itself."""
    loop = asyncio.get_running_loop()
    api, cores, pods = await Api.connect(), Cores(), Pods()

    def look_at(key: Key) -> None:
        workers.add(key)

    core_watch = CoreWatch(cores.read, look_at)
    reconciler = Reconciler(api, core_watch, pods, settings)
    workers = Workers(reconciler.reconcile)
    resync = handlers.Resync(api, workers, pods, reconciler.versions, settings, clock=loop.time)
    health = await handlers.serve_health(resync, settings.port)

    async def watch_and_work() -> None:
        while not resync.ready:  # nothing is decided before everything is known
            try:
                await resync.once()
            except Exception as error:
                _log.warning("first list: %s", error)
                await asyncio.sleep(2.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(workers.run())
            group.create_task(resync.run())
            group.create_task(_kopf(settings, workers, pods, stop))

    working = asyncio.create_task(watch_and_work())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    orderly = stopped.done()
    if not orderly and (error := working.exception()) is not None:
        _log.error("the operator ends: %s", error, exc_info=error)
    for task in (working, stopped):
        task.cancel()
    await asyncio.gather(working, stopped, return_exceptions=True)
    await health.cleanup()
    await core_watch.close()
    await cores.close()
    await api.close()
    return orderly


async def _kopf(settings: Settings, workers: Workers, pods: Pods, stop: asyncio.Event) -> None:
    # kopf would name itself after the user, who need not have a name in a container.
    identity: Any = platform.node()
    await kopf.operator(
        registry=handlers.registry(workers, pods), identity=identity, **handlers.settings_of_kopf(settings)
    )
    stop.set()  # kopf takes signals for itself; where it cannot go on it raises


async def _main(settings: Settings) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    where = ", ".join(settings.namespaces) or "all namespaces"
    _log.info("operator %s: watches %s", settings.runtime()["version"], where)
    return 0 if await operate(settings, stop) else 1


def main() -> int:
    """Entry point; returns the exit code: 2 if the environment is wrong, 1 if the operator could not go on."""
    try:
        settings = configuration.read(os.environ)
    except SettingsError as error:
        print(f"eidolon: {error}", file=sys.stderr)
        return 2
    configuration.configure_logging(settings.log_level)
    # It is read once, at the start. Later it would hold up everything else, health checks too, for as long as a busy
    # node takes to read it.
    specs.object_schema()
    for _ in planning.catalogue_lines():
        pass
    return asyncio.run(_main(settings))


if __name__ == "__main__":
    sys.exit(main())
