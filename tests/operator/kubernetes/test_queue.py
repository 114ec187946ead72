"""The work queue: each key once, one at a time, later and later when it fails."""

from __future__ import annotations

import asyncio

from eidolon_operator.kubernetes.queue import Schedule, Workers
from eidolon_operator.kubernetes.world import Key

A, B = Key("lab", "a"), Key("lab", "b")


def test_a_key_is_in_the_queue_once_and_as_early_as_anybody_asked() -> None:
    schedule = Schedule()
    schedule.add(A, 10.0)
    schedule.add(A, 5.0)
    schedule.add(A, 7.0)
    assert schedule.next_due() == 5.0
    assert schedule.take(4.9) is None
    assert schedule.take(5.0) == A
    assert schedule.take(100.0) is None


def test_one_worker_per_key_and_another_round_if_something_came_meanwhile() -> None:
    schedule = Schedule(spacing_s=0.5)
    schedule.add(A, 0.0)
    assert schedule.take(0.0) == A
    schedule.add(A, 0.1)
    schedule.add(A, 0.2)
    assert schedule.take(1.0) is None, "it is being worked on"
    schedule.succeeded(A, 1.0, again=None)
    assert schedule.next_due() == 1.5, "not at once: a storm of events is one round"
    assert schedule.take(1.5) == A
    schedule.succeeded(A, 2.0, again=None)
    assert schedule.next_due() is None


def test_the_earlier_of_again_and_asked_for() -> None:
    schedule = Schedule(spacing_s=0.0)
    schedule.add(A, 0.0)
    schedule.take(0.0)
    schedule.add(A, 9.0)
    schedule.succeeded(A, 1.0, again=5.0)
    assert schedule.next_due() == 5.0


def test_what_fails_comes_back_later_and_later_and_no_event_hurries_it() -> None:
    schedule, now, delays = Schedule(), 0.0, []
    for _ in range(10):
        schedule.add(A, now)
        assert schedule.take(schedule.next_due() or now) == A
        schedule.add(A, now)
        delays.append(schedule.failed(A, now))
        now = schedule.next_due() or now
    assert delays == [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0, 30.0, 30.0]
    assert schedule.take(now) == A
    schedule.succeeded(A, now, again=None)
    schedule.add(A, now + 10)
    schedule.take(now + 10)
    assert schedule.failed(A, now + 10) == 0.5, "success is forgiveness"


def test_how_long_something_hangs() -> None:
    schedule = Schedule()
    assert schedule.oldest(100.0) == 0.0
    schedule.add(A, 10.0)
    assert schedule.oldest(5.0) == 0.0
    assert schedule.oldest(30.0) == 20.0
    schedule.take(30.0)
    assert schedule.oldest(90.0) == 60.0


def test_workers_keep_keys_apart_and_survive_errors() -> None:
    seen: list[str] = []

    async def run() -> None:
        done, active = asyncio.Event(), set()

        async def work(key: Key) -> float | None:
            assert key not in active
            active.add(key)
            await asyncio.sleep(0)
            active.discard(key)
            seen.append(key.name)
            if key == A and seen.count("a") == 1:
                raise RuntimeError("once")
            if seen.count("a") == 2 and "b" in seen:
                done.set()
            return None

        workers = Workers(work, schedule=Schedule(spacing_s=0.0))
        running = asyncio.create_task(workers.run())
        for _ in range(3):
            workers.add(A)
            workers.add(B)
        await asyncio.wait_for(done.wait(), 30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    assert sorted(seen) == ["a", "a", "b"]
