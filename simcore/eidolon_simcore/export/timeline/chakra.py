"""A recording as Chakra execution traces (MLCommons), which ASTRA-sim and SimAI read: one file for each rank.

A trace is a graph. Every operation of a device becomes a node: computation (``COMP_NODE``), a collective
(``COMM_COLL_NODE``), a send or a receive. What the host did between launches becomes a node with ``is_cpu_op``. Edges
are those that the program made. None is guessed from times:

* an operation depends on the one before it on its stream, on the events that its stream was told to wait for, and on
  the host that issued it;
* the host's next node depends on the one before, and on what the host waited for.

So another simulator that runs the graph with another network gets its own times. Edges to what lies before the window
are left out. Chakra's times are whole microseconds. The time of a node is the difference of its rounded ends, so that
sums along a lane stay exact to one microsecond.

Collectives name their communicator by ``pg_name``; ``PREFIX.groups.json`` lists the members, as ASTRA-sim's
configuration of communicator groups does.

The messages are those of ``et_def.proto`` in Chakra 0.0.4 (package ``ChakraProtoMsg``). Those that are used are
described here by their field numbers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto
from numpy.typing import NDArray

from eidolon_simcore.engine.interface import Op
from eidolon_simcore.export.timeline.reading import HOST, Timeline

VERSION: Final = "0.0.4"
RANKS: Final = 32  #: how many ranks have their spans in memory at a time
COMP, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  #: NodeType
#: CollectiveCommType by the operation's name.
COLLECTIVES: Final = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
}


def write(timeline: Timeline, prefix: Path, window: tuple[int, int], ranks: Iterable[int] | None = None) -> list[Path]:
    """Writes ``PREFIX.RANK.et`` for some ranks (None: all) and ``PREFIX.groups.json``; returns the files."""
    chosen = [rank for rank in timeline.ranks if ranks is None or rank in set(ranks)]
    calls = {row[0]: row[1:] for row in timeline.rows("calls")}
    files = []
    for at in range(0, len(chosen), RANKS):
        some = chosen[at : at + RANKS]
        for rank, rows in _by_rank(timeline, window, some):
            path = prefix.with_name(f"{prefix.name}.{rank}.et")
            _write(path, _Graph(timeline, rank, calls, window).nodes(rows))
            files.append(path)
    groups = prefix.with_name(f"{prefix.name}.groups.json")
    document = {str(number): list(members) for number, (_, members) in enumerate(timeline.communicators)}
    groups.write_text(json.dumps(document) + "\n", "utf-8")
    return [*files, groups]


# ---- the graph -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Node:
    """A node of a trace. Times are in nanoseconds."""

    id: int
    name: str
    type: int
    start_ns: int
    end_ns: int
    after: list[int] = field(default_factory=list)  #: control dependencies
    needs: list[int] = field(default_factory=list)  #: data dependencies
    attributes: dict[str, Any] = field(default_factory=dict)


class _Graph:
    """Makes the nodes of one rank from its rows, which come in the order of the program."""

    def __init__(
        self, timeline: Timeline, rank: int, calls: dict[int, tuple[int, ...]], window: tuple[int, int]
    ) -> None:
        self._timeline, self._rank, self._calls = timeline, rank, calls
        self._next = 0
        self._last: dict[int, int] = {}  # lane -> its last node
        self._waits: dict[int, list[int]] = {}  # lane -> what it was told to wait for
        self._keys: dict[int, list[int]] = {}  # recorded events -> nodes
        self._host: int | None = None
        self._host_ns = window[0]
        self._awaited: list[int] = []  # what the host has waited for since its last node

    def nodes(self, rows: Sequence[tuple[int, ...]]) -> Iterator[Node]:
        """``rows``: (seq, is span, op, lane, value or call, label, start, end, issue)."""
        for _, is_span, op, lane, value, label, start, end, issue in rows:
            if not is_span:
                self._order(op, lane, value)
            elif HOST[op]:
                self._host_ns = max(self._host_ns, end)
            elif op in (Op.WORK, Op.COLLECTIVE):
                if issue > self._host_ns:
                    yield self._on_host(issue)
                yield self._on_device(op, lane, value, label, start, end)

    def _order(self, op: int, lane: int, value: int) -> None:
        if op == Op.RECORD:
            self._keys[value] = [*self._waits.get(lane, ()), *([self._last[lane]] if lane in self._last else ())]
        elif op == Op.WAIT:
            self._waits.setdefault(lane, []).extend(self._keys.get(value, ()))
        elif op == Op.SYNC_KEY:
            self._awaited += self._keys.get(value, ())
        elif op == Op.SYNC_LANE:
            self._awaited += [self._last[lane]] if lane in self._last else []
        else:
            lanes = self._timeline.lanes
            self._awaited += [n for on, n in self._last.items() if lanes[self._rank, on].device == value]

    def _on_host(self, issue: int) -> Node:
        node = Node(self._number(), "host", COMP, self._host_ns, issue, attributes={"is_cpu_op": True})
        if self._host is not None:
            node.after.append(self._host)
        node.needs, self._awaited = sorted(set(self._awaited)), []
        self._host, self._host_ns = node.id, issue
        return node

    def _on_device(self, op: int, lane: int, call: int, label: int, start: int, end: int) -> Node:
        known = self._timeline.labels[label]
        node = Node(self._number(), known.name or "operation", COMP, start, end, attributes={"is_cpu_op": False})
        if self._host is not None:
            node.after.append(self._host)
        before = [self._last[lane]] if lane in self._last else []
        node.needs = sorted({*before, *self._waits.pop(lane, ()), *self._awaited})
        self._last[lane] = node.id
        node.attributes["stream"] = lane
        if known.operator:
            node.attributes["operator"] = known.operator
        if op == Op.COLLECTIVE:
            self._communicate(node, call)
        return node

    def _communicate(self, node: Node, call: int) -> None:
        if call not in self._calls:
            return  # the making of a communicator takes time but moves nothing
        op, count, group, position, _ = self._calls[call]
        name = self._timeline.ops[op]
        members = self._timeline.communicators[group][1]
        node.attributes |= {"comm_size": count, "pg_name": str(group)}
        if name == "send":
            node.type = SEND if members[0] == self._rank else RECEIVE
            node.attributes |= {"comm_src": members[0], "comm_dst": members[-1], "comm_tag": position}
        else:
            node.type = COLLECTIVE
            node.attributes["comm_type"] = COLLECTIVES.get(name, COLLECTIVES["broadcast"])

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


def _by_rank(
    timeline: Timeline, window: tuple[int, int], ranks: list[int]
) -> Iterator[tuple[int, list[tuple[int, ...]]]]:
    """Every rank, with its rows in the order of its program."""
    parts: dict[int, list[NDArray[np.int64]]] = {rank: [] for rank in ranks}
    for spans in timeline.spans(window, ranks):
        end = spans["start"] + spans["length"]
        columns = (spans["seq"], np.ones_like(end), spans["op"], spans["lane"], spans["call"], spans["label"])
        _divide(parts, spans["rank"], (*columns, spans["start"], end, spans["start"] - spans["ahead"]))
    least = {rank: min((int(part[:, 0].min()) for part in some), default=0) for rank, some in parts.items()}
    greatest = {rank: max((int(part[:, 0].max()) for part in some), default=-1) for rank, some in parts.items()}
    for block in timeline.recording.blocks("orders"):
        orders = block.columns
        nothing = np.zeros(block.rows, np.int64)
        values = (orders["seq"], nothing, orders["op"], orders["lane"], orders["value"], *[nothing] * 4)
        _divide(parts, orders["rank"], values)
    for rank, some in parts.items():
        rows = np.concatenate(some) if some else np.zeros((0, 9), np.int64)
        rows = rows[(rows[:, 0] >= least[rank]) & (rows[:, 0] <= greatest[rank])]
        # A call that orders is looked at before the wait it makes.
        yield rank, [tuple(row) for row in rows[np.lexsort((rows[:, 1], rows[:, 0]))].tolist()]


def _divide(parts: dict[int, list[NDArray[np.int64]]], of: NDArray[Any], columns: Sequence[NDArray[Any]]) -> None:
    rows = np.stack([column.astype(np.int64) for column in columns], axis=1)
    for rank in np.unique(of).tolist():
        if rank in parts:
            parts[rank].append(rows[of == rank])


# ---- the files -----------------------------------------------------------------------------------------------------


def _write(path: Path, nodes: Iterable[Node]) -> None:
    message = _messages()
    with path.open("wb") as file:
        target = cast("io.BytesIO", file)  # protobuf's annotation asks for this type, but any stream will do
        proto.serialize_length_prefixed(message["GlobalMetadata"](version=VERSION), target)
        for node in nodes:
            start = _micros(node.start_ns)
            encoded = message["Node"](
                id=node.id,
                name=node.name,
                type=node.type,
                ctrl_deps=node.after,
                data_deps=node.needs,
                start_time_micros=start,
                duration_micros=_micros(node.end_ns) - start,
                attr=[_attribute(name, value) for name, value in node.attributes.items()],
            )
            proto.serialize_length_prefixed(encoded, target)


def _attribute(name: str, value: bool | int | str) -> Any:
    make = _messages()["AttributeProto"]
    if isinstance(value, bool):
        return make(name=name, bool_val=value)
    return make(name=name, string_val=value) if isinstance(value, str) else make(name=name, int64_val=value)


def _micros(ns: int) -> int:
    return (ns + 500) // 1_000


_F: Final = descriptor_pb2.FieldDescriptorProto
_SCHEMA: Final[dict[str, list[tuple[str, int, int, bool]]]] = {  # message -> (field, number, type, repeated)
    "AttributeProto": [
        ("name", 1, _F.TYPE_STRING, False),
        ("int64_val", 9, _F.TYPE_INT64, False),
        ("bool_val", 27, _F.TYPE_BOOL, False),
        ("string_val", 29, _F.TYPE_STRING, False),
    ],
    "GlobalMetadata": [("version", 1, _F.TYPE_STRING, False), ("attr", 2, _F.TYPE_MESSAGE, True)],
    "Node": [
        ("id", 1, _F.TYPE_UINT64, False),
        ("name", 2, _F.TYPE_STRING, False),
        ("type", 3, _F.TYPE_INT32, False),  # an enumeration, which looks the same on the wire
        ("ctrl_deps", 4, _F.TYPE_UINT64, True),
        ("data_deps", 5, _F.TYPE_UINT64, True),
        ("start_time_micros", 6, _F.TYPE_UINT64, False),
        ("duration_micros", 7, _F.TYPE_UINT64, False),
        ("attr", 10, _F.TYPE_MESSAGE, True),
    ],
}
_ONE_OF: Final = ("int64_val", "bool_val", "string_val")  # false and 0 are written too


@cache
def _messages() -> dict[str, Any]:
    """The classes of the messages, in a pool of their own: ``mlc-chakra`` may be loaded in the same process."""
    file = descriptor_pb2.FileDescriptorProto(name="eidolon/et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            added = message.field.add(name=field_name, number=number, type=kind)
            added.label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            if kind == _F.TYPE_MESSAGE:
                added.type_name = ".ChakraProtoMsg.AttributeProto"
            if field_name in _ONE_OF:
                added.oneof_index = 0
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in _SCHEMA
    }
