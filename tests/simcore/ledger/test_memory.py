"""Device memory: refusals, and which of them the rank's next try cured."""

from __future__ import annotations

import pytest

from eidolon_simcore.fabric.topology import Port
from eidolon_simcore.ledger.memory import MemoryView

GIB = 1 << 30
PORT, OTHER = Port(0, 0), Port(0, 1)


@pytest.mark.parametrize(
    ("then", "cured"),
    [
        ([5, 7], True),  # the cache is freed, the next try succeeds
        ([5, 6], False),  # what succeeds is smaller
        (["refused", 5, 7], False),  # the next try failed too: the program saw the error, and did something else
        ([], False),
    ],
)
def test_a_refusal_is_cured_by_the_next_try(then: list[int | str], cured: bool) -> None:
    memory = MemoryView()
    memory.update(0, PORT, 7 * GIB)
    memory.refused(0, PORT, 2 * GIB, 1)
    memory.update(1, OTHER, 3 * GIB)  # that of another rank
    for event in then:
        if isinstance(event, str):
            memory.refused(0, PORT, 2 * GIB, 1)
        else:
            memory.update(0, PORT, event * GIB)
    assert memory.refusals[0].cured is cured
    assert memory.peaks() == {PORT: 7 * GIB, OTHER: 3 * GIB}
