"""What a program can tell the simulation it runs in; outside one, nothing happens.

::

    import eidolon

    for batch in data:
        train(batch)
        eidolon.step()                      # the end of a step; optimizers then mark none
        eidolon.report("tokens", tokens)    # a whole number, for the run's summary
        eidolon.report("samples", samples)  # of these two it also gives the rate
"""

from __future__ import annotations

import operator
import sys

_hook = sys.modules.get("_eidolon_hook")
_steps = getattr(_hook, "steps", None)


def step() -> None:
    """Marks the end of a training step: it ends when all device work issued before it has ended. Waits for nothing."""
    if _steps is not None:
        _steps.explicit()


def report(name: str, value: int) -> None:
    """Reports one metric of the run. ``value`` is a whole number of 64 bits."""
    number = operator.index(value)
    if not isinstance(name, str) or not name or "\n" in name or "\0" in name:
        raise ValueError(f"a metric's name is one line of text, not {name!r}")
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{name}={number} does not fit 64 bits")
    if _steps is not None:
        _steps.report(name, number)
