"""Hostile sequences of messages end a run as `IngestRejected` or another stated cause, never as `InternalError`.

`corpus` has sequences that once did harm. `make fuzz` plays as many new ones as EIDOLON_FUZZ says, and keeps there what
does harm, cut down to what matters.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile
import pytest

CORPUS = Path(__file__).with_name("corpus")
SEEDS = int(os.environ.get("EIDOLON_FUZZ", "150"))
LENGTH = 60
LIMIT_S = 20  #: for one sequence; most take milliseconds


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A sequence that keeps the core busy for ever does harm too."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"a sequence took more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def play(out: Path, events: list[hostile.Event]) -> str:
    time = iter(range(1 << 30))
    signal.alarm(LIMIT_S)
    out.mkdir(exist_ok=True)
    try:
        return hostile.play(out, events, lambda: next(time) / 1_000)
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_what_once_did_harm_no_longer_does(tmp_path: Path, path: Path) -> None:
    play(tmp_path, hostile.read(path))


def test_sequences_from_any_seed_end_in_a_stated_condition(tmp_path: Path) -> None:
    causes: dict[str, int] = {}
    for seed in range(SEEDS):
        events = hostile.Author(seed).write(LENGTH)
        try:
            cause = play(tmp_path, events)
        except Exception as error:

            def harmful(some: list[hostile.Event], error: Exception = error) -> bool:
                try:
                    play(tmp_path, some)
                except Exception as found:
                    return type(found) is type(error)
                return False

            events = hostile.smaller(events, harmful)
            name = hashlib.sha256(repr(events).encode()).hexdigest()[:12]
            hostile.write(CORPUS / f"{name}.jsonl", events)
            raise AssertionError(f"seed {seed} does harm; kept as {name}.jsonl") from error
        causes[cause] = causes.get(cause, 0) + 1
    assert len(causes) >= 4, f"sequences that end in a few ways only try little: {causes}"
