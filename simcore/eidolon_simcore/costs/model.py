"""From a signature to a duration, with its source (law 2: nothing is silently free).

Sources, in the order in which they are asked:

=================  ====================================================================================================
``measured``       a table has the same work
``interpolated``   a table has similar work (:mod:`.interpolation`)
``roofline``       the signature determines work and bytes, and no table knows its like (:mod:`.roofline`)
``unknown``        it does not, and the volume was guessed from the launch's geometry
=================  ====================================================================================================

Tables say on which GPU they were measured, and serve every GPU: what was measured on another one is carried over
(:mod:`.carrying`) and stands beside the GPU's own points as ``interpolated``. If none of the tables was measured on a
GPU, others may have measured GEMMs on it (:mod:`.published`). Nothing else is ``measured`` there, and the expected
error of it is greater by :data:`TRANSFER_ERROR`."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache

from eidolon_simcore import catalogue
from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs import copies, package_tables, published
from eidolon_simcore.costs.carrying import carried_ns
from eidolon_simcore.costs.interpolation import Known, Points
from eidolon_simcore.costs.roofline import ATTENTION, FIT, MATRIX, MEMORY, Analysis, Roofline
from eidolon_simcore.signature import Signature

__all__ = ["SOURCES", "Cost", "CostModel", "Signature"]

SOURCES = ("measured", "interpolated", "roofline", "unknown")
MEASURED_GPUS = ("h100-sxm", "h200-sxm")  #: GPUs on which the tables were measured
TRANSFER_ERROR = 0.08  #: what is added to the error of times that GPUs with other SMs are given
#: Time from the end of a kernel to the start of the next one on a busy stream. In 13 traces of steps on an H100 and an
#: H200 its means are 1.2 to 1.7 us, with a profiler or without (2.3 to 2.7 us under FSDP, with four or more streams).
LAUNCH_GAP_NS = 1_450
#: By how much that gap is longer where a rank uses at least so many streams, as under FSDP.
CROWDED_LANES, CROWDED_NS = 4, 950
#: Relative errors, found on kernels of the traces of which each was left out of the tables in turn.
_ERROR = {"roofline": 0.25, "unknown": 0.60}


@dataclass(frozen=True, slots=True)
class Cost:
    """What an operation takes. Copies and sets, whose records name their bytes, take more than ``base_ns``: nanoseconds
    on the lines between the points ``by_bytes``."""

    base_ns: int
    source: str
    work_class: int = MEMORY  #: tells the engine what slows it down
    error: float = 0.0  #: expected relative error
    by_bytes: tuple[tuple[int, float], ...] = ()


class CostModel:
    """The costs of device work on one model of GPU."""

    def __init__(self, gpu: Gpu, points: Points | None = None) -> None:
        self._gpu = gpu
        self._roofline = Roofline(gpu)
        self._read = points
        self._reading = threading.Lock()
        self._found: dict[Hashable, Cost] = {}

    def read_tables(self) -> Points:
        """The points of the tables, which takes about a second for the first time. Whoever asks for a cost before reads
        them himself, or waits for the thread that is at it."""
        with self._reading:
            if self._read is None:
                self._read = measured_points(self._gpu.key)
            return self._read

    def cost(self, signature: Signature, operator: Signature | None = None) -> Cost:
        """The cost of a device operation; ``operator`` is the "op" signature that its attribute ``op`` names."""
        key = _key(signature), None if operator is None else _key(operator)
        found = self._found.get(key)
        if found is None:
            cost = self._cost(signature, operator)
            found = self._found[key] = replace(cost, base_ns=cost.base_ns + LAUNCH_GAP_NS)
        return found

    def _cost(self, signature: Signature, operator: Signature | None) -> Cost:
        if signature.kind in ("copy", "set"):
            law = copies.law(signature, self._gpu)
            error = law.error + (self._foreign() if law.source == "interpolated" else 0.0)
            return Cost(0, law.source, MEMORY, error, law.points)
        analysis = analyse(self._roofline, signature, operator)
        if analysis is None:
            return Cost(FIT["other"].floor_ns, "unknown", MEMORY, _ERROR["unknown"])
        points = self.read_tables()
        estimate = points.estimate(analysis.work)
        if estimate is None:
            error = _ERROR[analysis.source]
            return Cost(round(analysis.work.analytic_ns), analysis.source, analysis.kind, error)
        source, error = estimate.source, estimate.error
        guessed = analysis.source == "unknown" and analysis.work.group not in points
        if source == "roofline" or guessed:
            source, error = analysis.source, max(error, _ERROR[analysis.source])
        if self._gpu.key not in MEASURED_GPUS:
            error = max(error, published.ERROR) if estimate.own else error + TRANSFER_ERROR
        return Cost(max(1, round(estimate.ns)), source, analysis.kind, error)

    def _foreign(self) -> float:
        """What is added to the error of a figure that was measured on another kind of GPU."""
        return 0.0 if self._gpu.key in MEASURED_GPUS else TRANSFER_ERROR


def _key(s: Signature) -> Hashable:
    """What is the same for all ranks. Their numbers of operators are not."""
    return s.kind, s.name, tuple(item for item in s.attributes.items() if item[0] != "op")


def analyse(roofline: Roofline, signature: Signature, operator: Signature | None) -> Analysis | None:
    """What the analytic model says; None for a kind that it does not know."""
    match signature.kind:
        case "kernel":
            return roofline.kernel(signature, operator)
        case "gemm":
            return roofline.gemm(signature)
        case "conv":
            return roofline.conv(signature)
        case "attention":
            return roofline.attention(signature)
        case "library":
            return roofline.opaque_call(signature, operator)
    return None


@cache
def measured_points(key: str) -> Points:
    """All tables as points of a GPU of the catalogue. If others have measured some work on the GPU itself, the same
    work of GPUs with other SMs is not carried over, in any layout."""
    gpu = catalogue.gpu(key)
    models = {key: catalogue.gpu(key) for key in MEASURED_GPUS}
    here = Roofline(gpu)
    known: list[Known] = []
    for m, n, k, ns in published.linears(key):
        known.append(Known(here.gemm(package_tables.linear(m, n, k)).work, ns))
    left_out = {one.work.group for one in known}
    for point in package_tables.load(gemms=not known):
        analysis = analyse(here, point.signature, point.operator)
        if analysis is None or analysis.work.group in left_out:
            continue
        ns = point.ns
        if point.gpu != gpu.key:
            ns = carried_ns(ns, analysis.moved_bytes, _units(analysis), models[point.gpu], gpu)
        known.append(Known(analysis.work, ns, point.count, carried=point.gpu != gpu.key))
    return Points(known)


def _units(analysis: Analysis) -> str:
    """The key of the peak that stands for the rate of the SMs at this work."""
    return "bf16" if analysis.kind in (MATRIX, ATTENTION) else "fp32_simt"
