"""Why ranks wait in real time, as the summary says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eidolon_simcore.run.real_time import RealTime, Waits


class Engine:
    """What is asked of an engine: which ranks wait for a collective that is not complete."""

    def __init__(self) -> None:
        self.unmatched: set[int] = set()

    def blocked(self) -> list[Any]:
        return [SimpleNamespace(rank=rank) for rank in self.unmatched]


def session(*, waits: bool = False, held: bool = False) -> Any:
    return SimpleNamespace(delivery=SimpleNamespace(waits=waits, held=held))


def test_samples_say_why_an_answer_is_not_known() -> None:
    engine, sessions = Engine(), {0: session(waits=True), 1: session(waits=True), 2: session(waits=True, held=True)}
    engine.unmatched = {0}
    time = RealTime(engine, sessions, 10.0)  # type: ignore[arg-type]
    for rank in sessions:
        time.joined(rank, 10.0)
    time.look(11.0)
    sessions[0] = session()
    time.look(13.0)
    for rank in sessions:
        time.left(rank, 20.0, 4_000_000_000, 500_000_000, 250_000_000)
    assert time.entries(99.0) == [
        {"rank": 0, "s": 10.0, "peers_s": 1.0, "horizon_s": 0, "ingest_s": 3.0, "room_s": 0.5, "watchers_s": 0.25},
        {"rank": 1, "s": 10.0, "peers_s": 0, "horizon_s": 3.0, "ingest_s": 1.0, "room_s": 0.5, "watchers_s": 0.25},
        {"rank": 2, "s": 10.0, "peers_s": 3.0, "horizon_s": 0, "ingest_s": 1.0, "room_s": 0.5, "watchers_s": 0.25},
    ]


def test_nothing_is_asked_while_nobody_waits() -> None:
    class Deaf(Engine):
        def blocked(self) -> list[Any]:
            raise AssertionError

    time = RealTime(Deaf(), {0: session()}, 0.0)  # type: ignore[arg-type]
    time.joined(0, 0.0)
    time.look(5.0)
    assert time.entries(6.0) == [
        {"rank": 0, "s": 6.0, "peers_s": 0, "horizon_s": 0, "ingest_s": 0, "room_s": 0, "watchers_s": 0}
    ]


def test_samples_are_scaled_to_what_was_measured() -> None:
    waits = Waits(0.0, 10.0, {"peers": 3.0, "horizon": 1.0}, (2.0, 0.0, 0.0))
    entry = waits.entry(0, 10.0)
    assert (entry["peers_s"], entry["horizon_s"], entry["ingest_s"]) == (1.5, 0.5, 0.0)


@pytest.mark.parametrize("again", [1, 2])
def test_a_rank_leaves_once(again: int) -> None:
    time = RealTime(Engine(), {}, 0.0)  # type: ignore[arg-type]
    time.joined(0, 0.0)
    time.left(0, 2.0, 1_000_000_000, 0, 0)
    for _ in range(again):
        time.left(0, 5.0, 0, 0, 0)
    assert [(entry["s"], entry["ingest_s"]) for entry in time.entries(9.0)] == [(2.0, 1.0)]
