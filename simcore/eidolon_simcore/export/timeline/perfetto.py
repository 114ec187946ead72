"""A recording as a Perfetto trace (https://ui.perfetto.dev opens it), which is written while the recording is read.

Every rank is a process with these tracks: its steps, the waits of its host lane, each stream of each device, and what
it has allocated on each device. Arrows join the members of a collective, from the one that came first to the last. The
run as a whole has tracks for its steps, for what links carry, and for where the engine corrected itself.

The messages are those of the PyPI package ``perfetto``. Names are written once and then referred to by number, so a
span takes about 40 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from eidolon_simcore.engine.interface import Op
from eidolon_simcore.export.timeline.links import Links
from eidolon_simcore.export.timeline.reading import HOST, Lane, Timeline

PACKETS: Final = 4_096  #: how many packets are serialized together
_SEQUENCE: Final = 1
_BEGIN, _END = pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END
_COUNTER, _INSTANT = pb.TrackEvent.TYPE_COUNTER, pb.TrackEvent.TYPE_INSTANT
_RUN: Final = 1  #: pid of the run as a whole; those of ranks follow
_COUNTERS: Final = 2_000  # place of counters in the order of tracks: behind streams


def write(timeline: Timeline, file: BinaryIO, window: tuple[int, int], ranks: Collection[int] | None = None) -> int:
    """Writes the spans of some ranks (None: all) in a window; returns how many there were."""
    return _Writer(timeline, file, window, ranks).write()


class _Writer:
    def __init__(
        self, timeline: Timeline, file: BinaryIO, window: tuple[int, int], ranks: Collection[int] | None
    ) -> None:
        self._timeline = timeline
        self._file = file
        self._window = window
        self._ranks = [rank for rank in timeline.ranks if ranks is None or rank in ranks]
        self._trace = pb.Trace()
        self._tracks: dict[tuple[Any, ...], int] = {}
        self._names: dict[tuple[str, str], int] = {}  # interned: (which, text) -> number
        self._counts = 0

    def write(self) -> int:
        self._packet().sequence_flags = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._steps()
        links = Links(self._timeline)
        chosen = np.array(self._ranks, np.uint32)
        for spans in self._timeline.spans(self._window):  # of all ranks, since the last one to come begins a collective
            links.take(spans)
            keep = np.isin(spans["rank"], chosen)
            if keep.any():
                self._spans({name: column[keep] for name, column in spans.items()})
        self._memory()
        self._links(links)
        self._corrections()
        self._flush()
        return self._counts

    # ---- parts of a trace -----------------------------------------------------------------------------------------

    def _steps(self) -> None:
        run = self._track(("steps",), "steps", self._process(_RUN, "run"))
        starts = {}
        for step in self._timeline.steps:
            starts[step.index] = step.start_ns
            if self._inside(step.start_ns, step.end_ns):
                args = {"index": step.index, "time_ns": step.end_ns - step.start_ns}
                self._slice(run, _step_name(step.index, step.name), "step", step.start_ns, step.end_ns, args)
        before: dict[int, int] = {}
        names = {step.index: _step_name(step.index, step.name) for step in self._timeline.steps}
        chosen = set(self._ranks)
        for index, rank, end in self._timeline.rows("steps"):
            start, before[rank] = before.get(rank, 0), end
            if rank in chosen and self._inside(start, end):
                track = self._track((rank, "steps"), "steps", self._rank(rank), order=0)
                self._slice(track, names[index], "rank step", start, end, {"index": index})

    def _spans(self, spans: dict[str, NDArray[Any]]) -> None:
        labels = self._timeline.labels
        rows = zip(*(spans[name].tolist() for name in _SPAN_COLUMNS), strict=True)
        host = HOST[spans["op"]].tolist()
        for (rank, lane, label, op, start, length, ahead, call), on_host in zip(rows, host, strict=True):
            if on_host:
                if not length:
                    continue
                track = self._track((rank, "host"), "host", self._rank(rank), order=1)
                name, category = labels[label].name or "idle", "wait"
                if op == Op.RESUME:
                    name, category = "idle", "idle"
                args: dict[str, int | str] = {}
            else:
                track = self._stream(rank, lane)
                known = labels[label]
                name, category = known.name or Op(op).name.lower(), known.kind or "other"
                args = {"queued_ns": ahead}
                if known.source:
                    args["cost"] = known.source
                if known.operator:
                    args["operator"] = known.operator
            self._slice(track, name, category, start, start + length, args, call)
            self._counts += 1

    def _memory(self) -> None:
        chosen = set(self._ranks)
        before: dict[tuple[int, int], int] = {}  # what is allocated when the window begins
        for rank, device, time, count in self._timeline.rows("memory"):
            if rank not in chosen:
                continue
            if time < self._window[0]:
                before[rank, device] = count
            elif time < self._window[1]:
                if (level := before.pop((rank, device), None)) is not None:
                    self._allocated(rank, device, self._window[0], level)
                self._allocated(rank, device, time, count)
        for (rank, device), level in before.items():
            self._allocated(rank, device, self._window[0], level)

    def _allocated(self, rank: int, device: int, time: int, count: int) -> None:
        name = f"memory of device {device}"
        track = self._track((rank, "memory", device), name, self._rank(rank), order=_COUNTERS, unit="bytes")
        self._count(track, time, count)

    def _links(self, links: Links) -> None:
        for name, _, levels in links.counters(self._window):
            links_of = self._process(_RUN + 1, "links")
            track = self._track(("link", name), name, links_of, order=_COUNTERS, unit="bytes/s")
            for time, level in levels:
                self._count(track, time, round(level))

    def _corrections(self) -> None:
        for time, rollbacks, depth in self._timeline.rows("progress"):
            if rollbacks and self._inside(time, time):
                track = self._track(("engine",), "engine", self._process(_RUN, "run"))
                packet = self._packet(time)
                packet.track_event.type = _INSTANT
                packet.track_event.track_uuid = track
                packet.track_event.name_iid = self._name("event_names", "corrections", packet)
                self._annotate(packet, {"rollbacks": rollbacks, "depth_ns": depth})

    # ---- tracks ---------------------------------------------------------------------------------------------------

    def _process(self, pid: int, name: str) -> int:
        known = self._tracks.get((pid,))
        if known is not None:
            return known
        uuid = self._tracks[pid,] = len(self._tracks) + 1
        descriptor = self._packet().track_descriptor
        descriptor.uuid = uuid
        descriptor.process.pid = pid
        descriptor.process.process_name = name
        descriptor.child_ordering = pb.TrackDescriptor.EXPLICIT
        descriptor.sibling_order_rank = pid
        return uuid

    def _rank(self, rank: int) -> int:
        known = self._tracks.get((_RUN + 2 + rank,))
        if known is not None:
            return known
        server = next((lane.server for (r, _), lane in self._timeline.lanes.items() if r == rank), 0)
        return self._process(_RUN + 2 + rank, f"rank {rank} (server {server})")

    def _stream(self, rank: int, lane: int) -> int:
        known = self._tracks.get((rank, "lane", lane))
        if known is not None:
            return known
        where = self._timeline.lanes.get((rank, lane), Lane(0, 0))
        if where.makes_communicators:
            return self._track((rank, "lane", lane), "communicators", self._rank(rank), order=1_000)
        name = f"device {where.device} stream {lane}"
        return self._track((rank, "lane", lane), name, self._rank(rank), order=2 + min(lane, 900))

    def _track(self, key: tuple[Any, ...], name: str, parent: int, order: int = 0, unit: str = "") -> int:
        """The track of this key, made if need be. One with a ``unit`` is a counter, one without has slices."""
        known = self._tracks.get(key)
        if known is not None:
            return known
        uuid = self._tracks[key] = len(self._tracks) + 1
        descriptor = self._packet().track_descriptor
        descriptor.uuid, descriptor.name, descriptor.parent_uuid = uuid, name, parent
        descriptor.sibling_order_rank = order
        if unit == "bytes":
            descriptor.counter.unit = pb.CounterDescriptor.UNIT_SIZE_BYTES
        elif unit:
            descriptor.counter.unit_name = unit
        return uuid

    # ---- packets --------------------------------------------------------------------------------------------------

    def _slice(
        self,
        track: int,
        name: str,
        category: str,
        start: int,
        end: int,
        args: Mapping[str, int | str],
        flow: int = 0,
    ) -> None:
        packet = self._packet(start)
        event = packet.track_event
        event.type, event.track_uuid = _BEGIN, track
        event.name_iid = self._name("event_names", name, packet)
        event.category_iids.append(self._name("event_categories", category, packet))
        self._annotate(packet, args)
        if flow:
            event.flow_ids.append(flow)
        last = self._packet(end)
        last.track_event.type, last.track_event.track_uuid = _END, track

    def _count(self, track: int, time: int, value: int) -> None:
        event = self._packet(time).track_event
        event.type, event.track_uuid, event.counter_value = _COUNTER, track, value

    def _annotate(self, packet: pb.TracePacket, args: Mapping[str, int | str]) -> None:
        for key, value in args.items():
            annotation = packet.track_event.debug_annotations.add()
            annotation.name_iid = self._name("debug_annotation_names", key, packet)
            if isinstance(value, int):
                annotation.int_value = value
            else:
                annotation.string_value_iid = self._name("debug_annotation_string_values", value, packet)

    def _name(self, which: str, text: str, packet: pb.TracePacket) -> int:
        """The number of a name. The packet that uses it first tells it to readers."""
        known = self._names.get((which, text))
        if known is None:
            known = self._names[which, text] = len(self._names) + 1
            entry = getattr(packet.interned_data, which).add()
            entry.iid = known
            if which == "debug_annotation_string_values":
                entry.str = text.encode()
            else:
                entry.name = text
        return known

    def _packet(self, time: int | None = None) -> pb.TracePacket:
        if len(self._trace.packet) >= PACKETS:
            self._flush()
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        if time is not None:
            packet.timestamp = time
        return packet

    def _flush(self) -> None:
        self._file.write(self._trace.SerializeToString())
        self._trace.Clear()

    def _inside(self, start: int, end: int) -> bool:
        first, last = self._window
        return start < last and (end > first or start == end == first)


_SPAN_COLUMNS: Final = ("rank", "lane", "label", "op", "start", "length", "ahead", "call")


def _step_name(index: int, name: str) -> str:
    return name if name == "startup" else f"step {index}"
