"""A recorded run as traces: what Perfetto shows and what other simulators get is what was simulated."""

from __future__ import annotations

import io
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import recorded_run
from google.protobuf import unknown_fields
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from eidolon_simcore.export.timeline import chakra, perfetto
from eidolon_simcore.export.timeline.reading import Timeline
from eidolon_simcore.export.timeline.store import RecordingError


class Slice(NamedTuple):
    track: tuple[str, ...]  #: names from the outermost
    name: str
    start: int
    end: int
    args: dict[str, int | str]
    flows: tuple[int, ...]


class Opened:
    """A Perfetto trace as the viewer takes it in: interned names resolved, beginnings joined with their ends."""

    def __init__(self, data: bytes) -> None:
        trace = Trace.FromString(data)
        self.tracks: dict[int, tuple[str, ...]] = {0: ()}
        self.slices: list[Slice] = []
        self.counters: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        names: dict[str, dict[int, Any]] = defaultdict(dict)
        open_: dict[int, list[Any]] = defaultdict(list)
        for packet in trace.packet:
            for field, entries in packet.interned_data.ListFields():
                names[field.name].update({e.iid: getattr(e, "name", None) or getattr(e, "str", b"") for e in entries})
            if packet.HasField("track_descriptor"):
                found = packet.track_descriptor
                self.tracks[found.uuid] = (*self.tracks[found.parent_uuid], found.name or found.process.process_name)
            if not packet.HasField("track_event"):
                continue
            event = packet.track_event
            track = self.tracks[event.track_uuid]
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                args: dict[str, int | str] = {}
                for annotation in event.debug_annotations:
                    text = names["debug_annotation_string_values"].get(annotation.string_value_iid, b"").decode()
                    args[names["debug_annotation_names"][annotation.name_iid]] = text or annotation.int_value
                begun = (names["event_names"][event.name_iid], packet.timestamp, args, tuple(event.flow_ids))
                open_[event.track_uuid].append(begun)
            elif event.type == TrackEvent.TYPE_SLICE_END:
                name, start, args, flows = open_[event.track_uuid].pop()
                self.slices.append(Slice(track, name, start, packet.timestamp, args, flows))
            elif event.type == TrackEvent.TYPE_COUNTER:
                self.counters[track].append((packet.timestamp, event.counter_value))
        assert not any(open_.values())

    def on(self, *track: str) -> list[Slice]:
        return [s for s in self.slices if s.track == track]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def summary(out: Path) -> dict[str, Any]:
    return recorded_run.record(out)


@pytest.fixture
def timeline(out: Path, summary: dict[str, Any]) -> Timeline:
    return Timeline(out)


def opened(timeline: Timeline, first: int | None = None, last: int | None = None, ranks: Any = None) -> Opened:
    file = io.BytesIO()
    perfetto.write(timeline, file, timeline.window(first, last), ranks)
    return Opened(file.getvalue())


# ---- Perfetto ------------------------------------------------------------------------------------------------------


def test_the_trace_gives_the_step_times_of_the_summary(timeline: Timeline, summary: dict[str, Any]) -> None:
    steps = opened(timeline).on("run", "steps")
    assert [(s.name, s.end - s.start) for s in steps] == [
        ("startup" if step["name"] == "startup" else f"step {step['index']}", step["time_ns"])
        for step in summary["steps"]
    ]


def test_every_rank_has_its_streams_and_its_host(timeline: Timeline) -> None:
    tracks = set(opened(timeline).tracks.values())
    for rank in (0, 1):
        process = f"rank {rank} (server 0)"
        for name in ("steps", "host", f"device {rank} stream 1", f"device {rank} stream 7", f"memory of device {rank}"):
            assert (process, name) in tracks


def test_kernels_are_called_what_users_call_them(timeline: Timeline) -> None:
    kernels = opened(timeline, 2, 2).on("rank 0 (server 0)", "device 0 stream 1")
    assert len(kernels) == recorded_run.KERNELS[0]
    assert {k.name for k in kernels} == {
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
    }
    assert {k.args["cost"] for k in kernels} <= {"measured", "interpolated", "roofline"}


def test_arrows_join_the_members_of_a_collective(timeline: Timeline) -> None:
    found = opened(timeline, 2, 4)
    by_flow = defaultdict(list)
    for s in found.slices:
        for flow in s.flows:
            by_flow[flow].append(s)
    assert len(by_flow) == 3
    for early, late in by_flow.values():
        assert early.name == late.name == "nccl:all_reduce"
        assert early.start < late.start  # the straggler comes last,
        assert early.end == late.end  # and both end together
        assert late.track[0] == "rank 1 (server 0)"


def test_a_window_holds_its_steps_and_ranks_and_nothing_else(timeline: Timeline, summary: dict[str, Any]) -> None:
    found = opened(timeline, 3, 4, [1])
    first, last = summary["steps"][2], summary["steps"][3]
    assert [s.name for s in found.on("run", "steps")] == ["step 3", "step 4"]
    assert all(s.end > first["end_ns"] - first["time_ns"] and s.start < last["end_ns"] for s in found.slices)
    assert not any("rank 0" in name for track in found.tracks.values() for name in track)
    assert len(found.on("rank 1 (server 0)", "device 1 stream 1")) == 2 * recorded_run.KERNELS[1]


def test_memory_steps_up_as_the_program_goes(timeline: Timeline) -> None:
    levels = opened(timeline).counters["rank 0 (server 0)", "memory of device 0"]
    assert [count for _, count in levels] == [(step + 1) << 30 for step in range(recorded_run.STEPS)]
    assert [time for time, _ in levels] == sorted(time for time, _ in levels)


def test_a_window_begins_with_what_was_allocated_before(timeline: Timeline) -> None:
    levels = opened(timeline, 4, 4).counters["rank 0 (server 0)", "memory of device 0"]
    assert levels[0] == (timeline.steps[3].start_ns, 3 << 30)
    assert [count for _, count in levels] == [3 << 30, 4 << 30]


def test_a_links_counter_adds_up_to_the_bytes_it_carried(timeline: Timeline) -> None:
    levels = opened(timeline, 2, 4).counters["links", timeline.links[0]["name"]]
    carried = sum(level * (after - time) / 1e9 for (time, level), (after, _) in itertools.pairwise(levels))
    (pattern,) = timeline.patterns
    assert carried == pytest.approx(3 * pattern["bytes"][0], rel=1e-6)
    assert levels[-1][1] == 0


def test_a_step_that_is_not_there_is_named(timeline: Timeline) -> None:
    with pytest.raises(RecordingError, match="step 9 is not in the recording, which has steps 1 to 5"):
        timeline.window(3, 9)


def test_a_small_limit_keeps_the_last_steps(tmp_path: Path) -> None:
    recorded_run.record(tmp_path, limit_bytes=4_000)
    short = Timeline(tmp_path)
    assert short.recording.facts["dropped_rows"] > 0
    spans = opened(short).on("rank 0 (server 0)", "device 0 stream 1")
    assert 0 < len(spans) < recorded_run.STEPS * recorded_run.KERNELS[0]
    assert spans[-1].end <= short.steps[-1].end_ns


# ---- Chakra --------------------------------------------------------------------------------------------------------


def nodes(path: Path) -> Iterator[Any]:
    """The nodes of a file, read by MLCommons' own schema and reader."""
    schema = pytest.importorskip("chakra.schema.protobuf.et_def_pb2", reason="mlc-chakra is not installed")
    from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd

    with openFileRd(str(path)) as file:
        head = schema.GlobalMetadata()
        assert decodeMessage(file, head)
        assert head.version == chakra.VERSION
        while decodeMessage(file, node := schema.Node()):
            assert len(unknown_fields.UnknownFieldSet(node)) == 0
            yield node


def attributes(node: Any) -> dict[str, Any]:
    return {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}


@pytest.fixture(scope="module")
def graph(out: Path, summary: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The nodes of both ranks in steps 2 and 3."""
    timeline = Timeline(out)
    files = chakra.write(timeline, tmp_path_factory.mktemp("chakra") / "run", timeline.window(2, 3))
    assert [file.name for file in files] == ["run.0.et", "run.1.et", "run.groups.json"]
    assert json.loads(files[-1].read_text()) == {"0": [0, 1]}
    return [list(nodes(file)) for file in files[:2]]


def test_a_chakra_graph_has_no_cycle_and_no_loose_end(graph: list[list[Any]]) -> None:
    for rank in graph:
        assert [node.id for node in rank] == list(range(len(rank)))
        for node in rank:
            assert all(other < node.id for other in (*node.ctrl_deps, *node.data_deps))


def test_collectives_name_their_group_and_size(graph: list[list[Any]]) -> None:
    for rank in graph:
        found = [attributes(node) for node in rank if node.type == chakra.COLLECTIVE]
        assert len(found) == 2
        for one in found:
            assert (one["comm_type"], one["comm_size"], one["pg_name"]) == (0, 4 * recorded_run.COUNT, "0")


def test_a_collective_needs_the_kernels_that_its_stream_was_told_to_wait_for(graph: list[list[Any]]) -> None:
    for number, rank in enumerate(graph):
        first = next(node for node in rank if node.type == chakra.COLLECTIVE)
        kernels = [n for n in rank if n.id < first.id and attributes(n).get("stream") == recorded_run.COMPUTE]
        assert len(kernels) == recorded_run.KERNELS[number]
        assert list(first.data_deps) == [kernels[-1].id]


def test_the_host_goes_on_after_what_it_waited_for(graph: list[list[Any]]) -> None:
    for rank in graph:
        first = next(node for node in rank if node.type == chakra.COLLECTIVE)
        following = next(n for n in rank if n.id > first.id and attributes(n)["is_cpu_op"])
        assert first.id in following.data_deps


def test_replaying_the_graph_gives_the_recorded_times(graph: list[list[Any]]) -> None:
    """Starting every node when all it depends on has ended: computation ends when the recording says, to the
    microseconds that Chakra rounds to."""
    for rank in graph:
        begin = rank[0].start_time_micros
        ends: dict[int, int] = {}
        for node in rank:
            ready = max((ends[other] for other in (*node.ctrl_deps, *node.data_deps)), default=begin)
            start = node.start_time_micros if node.type == chakra.COLLECTIVE else ready
            assert abs(start - node.start_time_micros) <= 2, node
            ends[node.id] = node.start_time_micros + node.duration_micros


def test_mlcommons_own_tool_reads_the_files(out: Path, summary: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("chakra", reason="mlc-chakra is not installed")
    from chakra.src.jsonizer import jsonizer

    timeline = Timeline(out)
    file, *_ = chakra.write(timeline, tmp_path / "run", timeline.window(2, 2), [1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["x", "--input_filename", str(file), "--output_filename", str(tmp_path / "x.json")])
        jsonizer.main()
    assert (tmp_path / "x.json").read_text().count('"COMM_COLL_NODE"') == 1
