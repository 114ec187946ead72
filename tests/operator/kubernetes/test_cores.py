"""The watch of the simulation cores: who is asked, how often, and when it is news."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from aiohttp import web

from eidolon_operator.kubernetes import cores
from eidolon_operator.kubernetes.cores import POLL_S, Cores, CoreWatch
from eidolon_operator.kubernetes.world import CoreReading, Key, PodState

KEY = Key("lab", "demo")
CORE = PodState("demo-core", "u1", "o", 1, None, "Running", ready=True, address="10.0.0.1")
RUNNING, MISSING = CoreReading({"state": "Running"}), CoreReading(error="no answer")


class Script:
    """A core that gives these answers, one at each time it is asked; the test's clock goes on by what is slept."""

    def __init__(self, *answers: CoreReading) -> None:
        self.answers = list(answers)
        self.asked_at: list[tuple[float, str]] = []
        self.now = 0.0
        self.news: list[float] = []
        self.silent = asyncio.Event()
        self.watch = CoreWatch(self.read, lambda _: self.news.append(self.now), sleep=self.sleep)

    async def read(self, address: str) -> CoreReading:
        self.asked_at.append((self.now, address))
        return self.answers.pop(0)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if not self.answers:
            self.silent.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)


def play(answers: Iterable[CoreReading], then: Callable[[Script], Awaitable[Any]] | None = None) -> Script:
    """Follows a core until it has given its answers."""

    async def run() -> Script:
        script = Script(*answers)
        assert script.watch.follow(KEY, CORE) is None, "nothing is known yet"
        await asyncio.wait_for(script.silent.wait(), 10)
        if then is not None:
            await then(script)
        await script.watch.close()
        return script

    return asyncio.run(run())


def test_an_answer_is_news_only_if_it_is_another() -> None:
    step = CoreReading({"state": "Running", "step": {"index": 1}})

    async def last(script: Script) -> None:
        assert script.watch.follow(KEY, CORE) == step

    script = play([RUNNING, RUNNING, step, step], last)
    assert script.asked_at == [(number * POLL_S, "10.0.0.1") for number in range(4)]
    assert script.news == [0.0, 2 * POLL_S]


def test_a_core_may_miss_two_answers() -> None:
    async def still(script: Script) -> None:
        assert script.watch.follow(KEY, CORE) == RUNNING

    assert play([RUNNING, MISSING, MISSING, RUNNING], still).news == [0.0]

    async def gone(script: Script) -> None:
        assert script.watch.follow(KEY, CORE) == MISSING

    assert play([RUNNING, *[MISSING] * 9], gone).news == [0.0, 3 * POLL_S], "told once"
    assert play([MISSING] * 9, gone).news == [2 * POLL_S]


def test_the_last_word_ends_it() -> None:
    async def run() -> None:
        script = Script(RUNNING, CoreReading({"state": "Succeeded"}), RUNNING)
        script.watch.follow(KEY, CORE)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(script.news) == 2
        script.watch.follow(KEY, CORE)
        await asyncio.sleep(0)
        assert len(script.answers) == 1
        await script.watch.close()

    asyncio.run(run())


def test_a_pod_that_is_not_ready_is_not_asked_but_its_word_stands() -> None:
    async def stop_and_go_on(script: Script) -> None:
        assert script.watch.follow(KEY, dataclasses.replace(CORE, ready=False)) == RUNNING
        script.answers = [RUNNING]
        script.silent.clear()
        script.watch.follow(KEY, CORE)
        await asyncio.wait_for(script.silent.wait(), 10)

    script = play([RUNNING], stop_and_go_on)
    assert len(script.asked_at) == 2
    assert script.news == [0.0]


def test_another_pod_of_that_name_is_another_core() -> None:
    async def replaced(script: Script) -> None:
        script.answers = [RUNNING]
        script.silent.clear()
        assert script.watch.follow(KEY, dataclasses.replace(CORE, uid="u2", address="10.0.0.2")) is None
        await asyncio.wait_for(script.silent.wait(), 10)
        assert script.watch.follow(KEY, None) is None, "nobody asks any more"

    script = play([RUNNING], replaced)
    assert [address for _, address in script.asked_at] == ["10.0.0.1", "10.0.0.2"]
    assert len(script.news) == 2


@pytest.mark.asyncio
async def test_what_counts_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never stands still, such as virtual time, is left out: else every answer would be another."""

    async def status(_: web.Request) -> web.Response:
        return web.json_response({"state": "Running", "attempt": 1, "step": None, "virtual_ns": 7})

    application = web.Application()
    application.add_routes([web.get("/status", status)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(cores, "HTTP_PORT", runner.addresses[0][1])
    reader = Cores()
    assert await reader.read("127.0.0.1") == CoreReading({"state": "Running", "attempt": 1, "step": None})
    await runner.cleanup()
    gone = await reader.read("127.0.0.1")
    assert gone.document is None
    assert gone.error.startswith("http://127.0.0.1:")
    await reader.close()
