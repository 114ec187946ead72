"""What a call costs on the host: from a table by the call's name, or as measured in the rank.

The table (``data/host_cost.yaml``, which says what it is fitted to) gives the same times for the same script on any
machine. The shim counts what the thread did before the call, Python functions and operators, by what the table says
that each of them costs; this time comes with the call's record. ``eidolon calibrate host`` makes such a table on a
machine with a GPU. What it does not name costs what the package's table says.

``measured`` takes the thread's CPU time between intercepted calls and multiplies it by a factor: how long the table's
machine takes for a fixed load over how long this one does (:mod:`.reference_load`). The factor is 1 if the table does
not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from eidolon_simcore.costs import reference_load
from eidolon_simcore.vocabulary import ConfKey

#: How much the ranks of a server slow each other down: they share its caches and memory, and wait for the slowest of
#: them. Of n ranks, each takes 1 + this * (1 - 1/n) times as long as one alone: 1.11 for two, 1.17 for four. What DDP
#: and FSDP do with peers is counted apart. Compared with the same model on one GPU, issuing a step took rank 0 from
#: 0.98 to 1.2 times what its counts say (GPT-2, ResNet, ViT, Mixtral under DDP on two GPUs), and 1.3 times in one of
#: four cases on four GPUs. Steps of Llama 1B under FSDP, which are bound by the slowest host, took 1.11 times as long
#: on two GPUs and 1.17 times on four.
SHARED_HOST = 0.22
POLL_NS = 1_000  #: least cost of a query or a clock read by a foreground thread


class HostTableError(ValueError):
    """A document is no table of host costs. The message names the field, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What running a piece of code costs (nanoseconds), by how long ago it last ran: at most ``warm``, ``cold`` or
    ``rare``, or longer.

    This age is counted in what the thread has fetched since then: a function or operator that was not warm itself
    counts one, and calls count as :class:`Ages` says. The shim counts it
    (``interposer/native/core/interpreter.cpp``)."""

    warm: int
    cold: int
    rare: int
    warm_ns: int
    cold_ns: int
    rare_ns: int
    far_ns: int

    def conf(self) -> str:
        """As ``server.conf`` has it."""
        return " ".join(map(str, astuple(self)))


@dataclass(frozen=True, slots=True)
class Ages:
    """By how much calls age the code that the thread ran before: a launch (also a copy or set), a library call (also a
    collective), and a wait for a whole device."""

    launch: int
    library: int
    device_wait: int

    def conf(self) -> str:
        """As ``server.conf`` has it."""
        return " ".join(map(str, astuple(self)))


@dataclass(frozen=True, slots=True)
class Table:
    """Nanoseconds of host work. ``reference_ns`` is the CPU time of the fixed load on the machine where the table was
    made."""

    calls: Mapping[str, int]
    default: int
    compiled_entry: int  #: what comes before the first kernel of ``torch.compile`` in a step
    function: Runs
    operator: Runs
    ages: Ages
    reference_ns: int | None = None
    provenance: Mapping[str, str] | None = None  #: where it was made; None for the package's own table

    def call_ns(self, name: str) -> int:
        """Host time of one call of this name."""
        return self.calls.get(name, self.default)

    def server_conf(self) -> dict[ConfKey, str]:
        """What the shims are told of the table; they have no figures of their own."""
        return {
            "host.function": self.function.conf(),
            "host.operator": self.operator.conf(),
            "host.ages": self.ages.conf(),
        }

    def stated(self) -> str:
        """Where it was made, for a report; empty for the package's own table."""
        if self.provenance is None:
            return ""
        told = [self.provenance[key] for key in ("cpu", "gpu", "date") if self.provenance.get(key)]
        return f"of {', '.join(told) or 'a file without provenance'}"

    def factor(self) -> tuple[float, str]:
        """The factor for CPU times that are measured on this machine, and the reason for it. It runs the fixed load,
        unless the table does not say how long its machine takes for that."""
        if self.reference_ns is None:
            return 1.0, "times 1, as the host table has no reference_ns"
        here = reference_load.measure_ns()
        factor = self.reference_ns / here
        there = self.reference_ns
        return factor, f"times {factor:.3f}: a fixed load took {there / 1e6:.1f} ms there, {here / 1e6:.1f} here"


@cache
def table() -> Table:
    """The package's own table."""
    text = (resources.files("eidolon_simcore") / "data" / "host_cost.yaml").read_text("utf-8")
    return _parse(yaml.safe_load(text), None)


def read(path: Path) -> dict[str, Any]:
    """The document of a table in a file, for :func:`parse`."""
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise HostTableError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise HostTableError(f"{path}: not YAML: {error}") from error
    if not isinstance(document, dict):
        raise HostTableError(f"{path}: holds a {type(document).__name__}: a mapping is allowed")
    return document


def parse(document: Mapping[str, Any] | None) -> Table:
    """The table of a document. What the document does not name is as in the package's own table, and None stands for
    all of that."""
    return table() if document is None else _parse(document, table())


def beside_others(ranks: int) -> float:
    """How many times as long a host takes for a rank if its server has this many, compared with one alone."""
    return 1 + SHARED_HOST * (1 - 1 / ranks)


def _parse(document: Mapping[str, Any], base: Table | None) -> Table:
    known = [field.name for field in fields(Table)]
    for key in document:
        if key not in known:
            raise HostTableError(f"{key}: {document[key]!r}: no such field: {', '.join(known)} are allowed")
    calls = _mapping(document, "calls")
    found = {str(name): _ns(calls, name, f"calls.{name}") for name in calls}

    def single(name: str) -> int:
        return _ns(document, name, name) if base is None or name in document else int(getattr(base, name))

    def group(name: str, kind: type[Runs | Ages]) -> dict[str, int]:
        given, wanted = _mapping(document, name), [field.name for field in fields(kind)]
        if set(given) != set(wanted):
            raise HostTableError(f"{name}: {given!r}: {', '.join(wanted)} are needed, and no others allowed")
        return {key: _ns(given, key, f"{name}.{key}") for key in wanted}

    def runs(name: str) -> Runs:
        if base is not None and name not in document:
            return base.function if name == "function" else base.operator
        made = Runs(**group(name, Runs))
        for younger, older in pairwise(("warm", "cold", "rare")):
            least, most = getattr(made, younger), getattr(made, older)
            if least > most:
                raise HostTableError(f"{name}.{younger}: {least}: at most {name}.{older} ({most}) is allowed")
        return made

    reference_ns = _ns(document, "reference_ns", "reference_ns") if document.get("reference_ns") is not None else None
    if reference_ns == 0:
        raise HostTableError("reference_ns: 0: a whole number of nanoseconds, at least 1, is allowed")
    origin = None if base is None else {str(k): str(v) for k, v in _mapping(document, "provenance").items()}
    calls_of = found if base is None else {**base.calls, **found}
    return Table(
        calls=calls_of,
        default=single("default"),
        compiled_entry=single("compiled_entry"),
        function=runs("function"),
        operator=runs("operator"),
        ages=base.ages if base is not None and "ages" not in document else Ages(**group("ages", Ages)),
        reference_ns=reference_ns,
        provenance=origin,
    )


def _mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, Mapping):
        raise HostTableError(f"{name}: {value!r}: a mapping is allowed")
    return value


def _ns(section: Mapping[str, Any], name: str, where: str) -> int:
    value = section.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise HostTableError(f"{where}: {value!r}: a whole number from 0 on is allowed")
    return value
