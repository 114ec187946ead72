"""Where the times of a run's device work come from: by family and source, and the costliest operations by themselves,
with their expected errors.

There is one definition of a run's device time. It is the time of its steps, from the end of the first step on; what a
model's building, compilation and autotuning took before is told apart, as the start-up. In a run without a second step
it is all device time. A collective counts on each of its members with what it takes if nobody waits. The summary
(``cost_share``), the table of `eidolon run`, `eidolon explain`, the metrics and strict runs all have the shares of this
time.

It goes into ``summary.json``, and ``eidolon explain`` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from eidolon_simcore.costs.kernel_names import demangle
from eidolon_simcore.costs.roofline import kernel_key
from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import Attribute, SignatureKind

MAX_OPERATIONS = 50  #: operations that the summary names
MAX_NAME = 160
_SIZES: Final[Mapping[SignatureKind, tuple[Attribute, ...]]] = {
    "gemm": ("m", "n", "k", "batch", "ta", "tb"),
    "conv": ("n", "c", "h", "w", "k", "r", "s"),
    "attention": ("b", "h", "kvh", "sq", "skv", "d", "causal"),
}


@dataclass(frozen=True, slots=True)
class Spent:
    """Device time of one signature in one rank. ``error`` is the expected error of the time, as a share of it; None for
    a collective, whose error is that of the fabric's model."""

    signature: Signature
    operator: Signature | None
    count: int
    ns: int
    source: str
    error: float | None
    free: int = 0  #: how many of them took no time


def coverage(spent: Iterable[Spent]) -> dict[str, Any]:
    """The section ``coverage`` of the summary.

    * ``families`` has nanoseconds by family and source;
    * ``operations`` has the costliest operations but collectives, with their expected errors and their shares of the
      families' sum;
    * ``expected_error`` is the error of device time but for collectives if all errors had the same sign, so it is a
      bound, and ``errors`` has the same by source;
    * ``free`` counts operations that took no time, by name. There should be none (law 2).
    """
    families: dict[str, dict[str, int]] = {}
    operations: dict[tuple[str, str, str], dict[str, Any]] = {}
    free: dict[str, int] = {}
    total = judged = wrong = 0.0
    by_error: dict[str, list[float]] = {}  # by source: the sum of times, and of times multiplied by their errors
    for one in spent:
        family, name = _names(one.signature)
        if one.free:
            free[f"{family} {name}".strip()] = free.get(f"{family} {name}".strip(), 0) + one.free
        if not one.count:
            continue
        by_source = families.setdefault(family, {})
        by_source[one.source] = by_source.get(one.source, 0) + one.ns
        total += one.ns
        if one.error is None:
            continue
        operator = one.operator.name if one.operator is not None else ""
        entry = operations.setdefault(
            (family, name, operator),
            {
                "family": family,
                "name": name,
                "operator": operator,
                "count": 0,
                "ns": 0,
                "source": one.source,
                "expected_error": one.error,
            },
        )
        if one.ns > entry["ns"]:  # the costliest of the signatures that share a name stands for them
            entry["source"], entry["expected_error"] = one.source, one.error
        entry["count"] += one.count
        entry["ns"] += one.ns
        judged += one.ns
        wrong += one.ns * one.error
        sums = by_error.setdefault(one.source, [0.0, 0.0])
        sums[0] += one.ns
        sums[1] += one.ns * one.error
    costliest = sorted(operations.values(), key=lambda e: (-e["ns"], e["family"], e["name"], e["operator"]))
    for entry in costliest:
        entry["expected_error"] = round(entry["expected_error"], 4)
        entry["share"] = round(entry["ns"] / total, 6) if total else 0.0
    return {
        "expected_error": round(wrong / judged, 4) if judged else 0.0,
        "errors": {source: round(off / ns, 4) for source, (ns, off) in sorted(by_error.items()) if ns},
        "free": dict(sorted(free.items())),
        "families": {
            family: dict(sorted(by_source.items()))
            for family, by_source in sorted(families.items(), key=lambda item: (-sum(item[1].values()), item[0]))
        },
        "operations": costliest[:MAX_OPERATIONS],
    }


def doubts(found: Mapping[str, Any], unknown_share: float, limit: float) -> list[str]:
    """What is wrong with a run's costs, one line for each fault. A strict run fails for any of them."""
    lines = []
    if unknown_share > limit:
        lines.append(f"{unknown_share:.0%} of the device time has no known cost (limit {limit:.0%})")
    if found["free"]:
        lines.append(f"{sum(found['free'].values())} operations took no time: {', '.join(found['free'])}")
    return lines


def _names(signature: Signature) -> tuple[str, str]:
    if signature.kind == "kernel":
        name = kernel_key(demangle(signature.name))
        return "kernel " + name.split("<", 1)[0].rsplit("::", 1)[-1], name[:MAX_NAME]
    sizes = [f"{key}={signature.get(key)}" for key in _SIZES.get(signature.kind, ()) if key in signature.attributes]
    family = f"{signature.kind} {signature.name}" if signature.kind in ("conv", "attention") else signature.kind
    return family, " ".join([signature.name, *sizes])[:MAX_NAME]
