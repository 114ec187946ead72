"""The agent's end of a ring: what it reads, what it writes, and that it trusts nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eidolon_interposer import abi, futex, vocabulary
from eidolon_interposer.abi import EVENT_RECORD, FIXED_BYTES, RING_HEADER
from eidolon_interposer.messages import MessageConsumer, MessageProducer
from eidolon_interposer.ring import Batch, RingError, RingReader, Signature, pack, parse_signature
from eidolon_interposer.serverdir import (
    POLL_NS,
    ServerDirectory,
    ServerPage,
    remove_server_directory,
    write_server_conf,
)
from eidolon_interposer.vocabulary import Kind, MessageType, RecordFlag, ReplyStatus
from eidolon_interposer.writer import EndedError, RingWriter
from eidolon_proto.v1 import simulation_pb2 as pb

ROOT = Path(__file__).parents[2]
ABI_H = ROOT / "interposer/native/core/abi.h"
LIMIT = 1 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[ServerDirectory]:
    made = ServerDirectory(tmp_path / "server", {"mode": "core"}, 0)
    yield made
    made.page.close()


@pytest.fixture
def pair(directory: ServerDirectory) -> Iterator[tuple[RingWriter, RingReader]]:
    writer = RingWriter(directory.path, rank=3, local_rank=1, world=8, records=64, defs_bytes=4096, inbox_bytes=1024)
    reader = RingReader(writer.path)
    yield writer, reader
    reader.close()
    writer.close(orderly=False)


@dataclasses.dataclass(frozen=True)
class Taken:
    """A batch as the core reads it, and as the reader made it."""

    first_seq: int
    count: int
    records: bytes
    signatures: list[Signature]
    payloads: list[tuple[int, bytes, int]]
    made: Batch = dataclasses.field(compare=False)


def next_batch(reader: RingReader, limit: int = LIMIT) -> Taken | None:
    made = reader.batch(limit, 7)
    if made is None:
        return None
    batch = pb.AgentMessage.FromString(pack([made])).batch
    assert list(pb.AgentMessage.FromString(pack([made, made])).batches.batches) == [batch, batch]
    assert (batch.session, batch.first_seq, batch.count) == (7, made.first_seq, made.count)
    assert batch.delivered == reader.delivered
    return Taken(
        batch.first_seq,
        batch.count,
        batch.records,
        [Signature(s.id, s.kind, s.name, dict(s.attributes)) for s in batch.signatures],
        [(p.seq, p.data, p.position) for p in batch.payloads],
        made,
    )


def commit(reader: RingReader, batch: Taken) -> None:
    """As if the batch had reached the core, and its answer us."""
    reader.sent(batch.made)
    reader.taken(reader.messages)


def take(reader: RingReader, limit: int = LIMIT) -> Taken:
    batch = next_batch(reader, limit)
    assert batch is not None
    commit(reader, batch)
    return batch


def payloads(batch: Taken) -> list[tuple[int, bytes]]:
    return [(seq, data) for seq, data, _ in batch.payloads]


def column(batch: Taken, name: str) -> list[int]:
    values: list[int] = np.frombuffer(batch.records, EVENT_RECORD)[name].tolist()
    return values


def test_a_rank_is_told_of_a_call_that_may_have_lasted_too_long(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    header = np.memmap(writer.path, RING_HEADER, "r", shape=1)[0]
    assert int(header["overdue_seq"]) == 0
    reader.overdue(4, 30_000_000_000)
    assert (int(header["overdue_seq"]), int(header["overdue_ns"])) == (5, 30_000_000_000)
    reader.overdue(4, 0)
    assert int(header["overdue_seq"]) == 0


# ---- the layout ------------------------------------------------------------------------------------------------------


def test_layout_is_that_of_abi_h(tmp_path: Path) -> None:
    expected: list[str] = []
    lines: list[str] = []
    structures = {
        "EventRecord": abi.EVENT_RECORD,
        "MessageHead": abi.MESSAGE_HEAD,
        "ReplySlot": abi.REPLY_SLOT,
        "RingHeader": abi.RING_HEADER,
        "ServerPage": abi.SERVER_PAGE,
        "DeviceGauges": abi.DEVICE_GAUGES,
    }
    for name, dtype in structures.items():
        expected.append(f"{name} {dtype.itemsize}")
        lines.append(f'std::printf("{name} %zu\\n", sizeof({name}));')
        for field, (kind, offset, *_) in (dtype.fields or {}).items():
            expected.append(f"{name}.{field} {offset} {kind.itemsize}")
            lines.append(
                f'std::printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof({name}::{field}));'
            )
    for kind, name, value in abi.enumerators():
        expected.append(f"{kind}::{name} {value}")
        lines.append(f'std::printf("{kind}::{name} %d\\n", static_cast<int>({kind}::{name}));')
    for name, value in (
        ("kAbiVersion", vocabulary.ABI_VERSION),
        ("kReplySlots", vocabulary.REPLY_SLOTS),
        ("kMaxDevices", vocabulary.MAX_DEVICES),
    ):
        expected.append(f"{name} {value}")
        lines.append(f'std::printf("{name} %u\\n", {name});')
    expected.append(abi.RING_MAGIC.decode())
    lines.append('std::printf("%.8s\\n", kRingMagic);')
    source = tmp_path / "layout.cpp"
    includes = "".join(f'#include "{path}"\n' for path in (ABI_H, ABI_H.parent / "gauges_page.h"))
    source.write_text(
        f"#include <cstdio>\n{includes}using namespace eidolon;\nint main() {{\n" + "\n".join(lines) + "\n}\n"
    )
    program = tmp_path / "layout"
    subprocess.run(["g++", "-std=c++20", "-Wno-invalid-offsetof", "-o", program, source], check=True)
    assert subprocess.run([program], check=True, capture_output=True, text=True).stdout.split("\n")[:-1] == expected


def test_every_field_and_value_of_abi_h_is_mirrored() -> None:
    text = re.sub(r"//[^\n]*", "", (ABI_H.parent / "vocabulary.h").read_text() + ABI_H.read_text())
    assert abi.SERVER_MAGIC.decode() in ABI_H.read_text()
    mirrored = {(kind, name) for kind, name, _ in abi.enumerators()}
    for kind, body in re.findall(r"enum (?:class )?(\w+) : \w+ \{(.*?)\}", text, re.DOTALL):
        if kind == "Origin":  # no field of abi.h holds one
            continue
        assert {(kind, name) for name in re.findall(r"\bk\w+", body)} == {
            (other, name) for other, name in mirrored if other == kind
        }
    for name, dtype in (("RingHeader", RING_HEADER), ("EventRecord", EVENT_RECORD), ("ServerPage", abi.SERVER_PAGE)):
        body = re.search(rf"struct {name} \{{(.*?)\n\}};", text, re.DOTALL)
        assert body is not None
        assert re.findall(r"(\w+)(?:\[\w+\])?;", body[1]) == list(dtype.names or ())


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_header_is_read(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    assert (reader.rank, reader.local_rank, reader.world) == (3, 1, 8)
    assert reader.epoch_ns == writer.epoch_ns
    assert not reader.closed
    assert next_batch(reader) is None
    reader.session = 7
    assert writer.session == 7


def test_records_and_their_definitions_come_together(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    call = writer.sign(1, "call", "cudaLaunchKernel")
    gemm = writer.sign(1024, "gemm", "cublasGemmEx", m=128, n=-1)
    writer.emit(Kind.KERNEL, call=call, sig=gemm, stream=5, device=2, value=2**63 + 1, host_ns=77)
    batch = take(reader)
    assert (batch.first_seq, batch.count) == (0, 1)
    assert batch.signatures == [
        Signature(1, "call", "cudaLaunchKernel", {}),
        Signature(1024, "gemm", "cublasGemmEx", {"m": 128, "n": -1}),
    ]
    record = np.frombuffer(batch.records, EVENT_RECORD)[0]
    assert record["kind"] == Kind.KERNEL
    assert [int(record[n]) for n in ("seq", "call", "sig", "stream", "device", "value", "host_ns")] == [
        *(0, 1, 1024, 5, 2, 2**63 + 1, 77)
    ]
    assert next_batch(reader) is None


def restarted(writer: RingWriter, limit: int = LIMIT) -> Taken | None:
    """What an agent finds that was started anew."""
    again = RingReader(writer.path)
    batch = next_batch(again, limit)
    again.close()
    return batch


def test_what_the_core_has_not_taken_is_found_again_after_a_restart(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    writer.sign(9, "call", "f")
    writer.emit(Kind.HOST, call=9)
    first = next_batch(reader)
    assert first is not None
    assert first == next_batch(reader)
    reader.sent(first.made)
    assert next_batch(reader) is None
    assert restarted(writer) == first, "it was sent, but who knows how far it came"
    writer.send_payload(1, b"data")
    writer.emit(Kind.COLLECTIVE)
    second = next_batch(reader)
    assert second is not None
    reader.sent(second.made)
    assert not reader.settled
    reader.taken(1)
    assert restarted(writer) == second
    reader.taken(2)
    assert reader.settled
    assert restarted(writer) is None


def test_room_is_made_only_for_what_was_taken(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    for _ in range(64):
        writer.emit(Kind.HOST)
    batch = next_batch(reader)
    assert batch is not None
    reader.sent(batch.made)
    thread = threading.Thread(target=writer.emit, args=(Kind.HOST,))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive(), "the ring is full of what is under way"
    reader.taken(1)
    thread.join(20)
    assert not thread.is_alive()


def test_the_core_cannot_have_taken_what_was_never_sent(pair: tuple[RingWriter, RingReader]) -> None:
    with pytest.raises(RingError, match="taken 1 messages, of which 0 were sent"):
        pair[1].taken(1)


def test_records_wrap(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    seen: list[int] = []
    for _ in range(5):
        for _ in range(50):
            writer.emit(Kind.HOST, value=writer.head)
        batch = take(reader)
        assert batch.count == 50
        seen += column(batch, "value")
    assert seen == list(range(250))


def test_definitions_wrap(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    for number in range(1, 400):
        writer.sign(number, "mark", "x" * (number % 50))
        assert [s.name for s in take(reader).signatures] == ["x" * (number % 50)]


def test_limit_is_kept(directory: ServerDirectory) -> None:
    writer = RingWriter(directory.path, records=4096)
    reader = RingReader(writer.path)
    for _ in range(4000):
        writer.emit(Kind.HOST)
    sizes = []
    while (batch := next_batch(reader, 1 << 16)) is not None:
        sizes.append(len(batch.records))
        commit(reader, batch)
    assert max(sizes) == 1 << 15
    assert sum(sizes) == 4000 * 32
    writer.close(orderly=False)
    reader.close()


def test_many_definitions_go_before_the_records(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    for number in range(1, 40):
        writer.sign(number, "op", "name" * 10)
    writer.emit(Kind.HOST, sig=39)
    batches = []
    while (batch := next_batch(reader, 512)) is not None:
        batches.append(batch)
        commit(reader, batch)
    assert [s.id for b in batches for s in b.signatures] == list(range(1, 40))
    assert [b.count for b in batches] == [0] * (len(batches) - 1) + [1]


def test_a_payload_waits_for_its_record(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    writer.emit(Kind.HOST)
    writer.send_payload(1, b"bytes")
    batch = take(reader)
    assert (batch.count, batch.payloads) == (1, [])
    assert next_batch(reader) is None
    writer.emit(Kind.COLLECTIVE, flags=RecordFlag.FOREGROUND | RecordFlag.PAYLOAD)
    batch = take(reader)
    assert (batch.first_seq, batch.count, payloads(batch)) == (1, 1, [(1, b"bytes")])


def test_a_late_payload_is_sent_alone(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    writer.emit(Kind.COLLECTIVE)
    take(reader)
    writer.send_payload(0, b"")
    writer.emit(Kind.HOST)
    assert payloads(take(reader)) == [(0, b"")]


def test_payloads_are_spread_over_batches_with_their_records(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    for seq in range(6):
        writer.send_payload(seq, bytes([seq]) * 300)
        writer.emit(Kind.COLLECTIVE)
    got: dict[int, bytes] = {}
    while (batch := next_batch(reader, 1024)) is not None:
        assert all(batch.first_seq <= seq < batch.first_seq + batch.count for seq, _ in payloads(batch))
        assert len(batch.payloads) < 3
        got.update(payloads(batch))
        commit(reader, batch)
    assert got == {seq: bytes([seq]) * 300 for seq in range(6)}


def test_a_full_ring_holds_the_writer_until_there_is_room(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair

    def write() -> None:
        for seq in range(200):
            writer.send_payload(seq, b"x" * 200)
            writer.emit(Kind.COLLECTIVE)

    thread = threading.Thread(target=write)
    thread.start()
    count, deadline = 0, time.monotonic() + 20
    while count < 200 and time.monotonic() < deadline:
        batch = next_batch(reader)
        if batch is None:
            time.sleep(0.001)
            continue
        count += batch.count
        commit(reader, batch)
    thread.join(20)
    assert count == 200


def test_payloads_are_taken_early_when_the_shim_has_no_room_for_the_record_definitions(
    pair: tuple[RingWriter, RingReader],
) -> None:
    writer, reader = pair

    def write() -> None:  # a group of collectives whose payloads come first and do not fit
        for seq in range(40):
            writer.send_payload(seq, b"x" * 200)
        for _ in range(40):
            writer.emit(Kind.COLLECTIVE)

    thread = threading.Thread(target=write)
    thread.start()
    got, count, deadline = [], 0, time.monotonic() + 20
    while count < 40 and time.monotonic() < deadline:
        if not reader.has_news() or (batch := next_batch(reader)) is None:
            time.sleep(0.001)
            continue
        got += payloads(batch)
        count += batch.count
        commit(reader, batch)
    thread.join(20)
    assert [seq for seq, _ in got] == list(range(40))


# ---- writing back ----------------------------------------------------------------------------------------------------


def test_reply_wakes_who_waits(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    writer.emit(Kind.HOST)
    answers: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: answers.append(writer.ask(Kind.SYNC_STREAM, thread=17)))
    thread.start()
    while reader.head < 2:
        time.sleep(0.001)
    reader.reply(17, 1, 123_456_789, -5)
    thread.join(5)
    assert answers == [(123_456_789, -5)]
    assert writer.clock_ns == 123_456_789


def test_reply_slot_numbers_are_checked(pair: tuple[RingWriter, RingReader]) -> None:
    with pytest.raises(RingError, match="reply slot 256"):
        pair[1].reply(256, 0, 0, 0)


def test_published_clock_never_goes_back(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    reader.publish_clock(500)
    reader.publish_clock(400)
    assert writer.clock_ns == 500


def test_inbox_waits_for_room_and_wraps(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    sent = 0
    for _ in range(20):
        while reader.deliver(sent, bytes([sent % 256]) * (sent % 90), sent):
            sent += 1
        writer.read_inbox()
    assert sent > 100
    assert writer.payloads == {seq: bytes([seq % 256]) * (seq % 90) for seq in range(sent)}


def test_a_payload_that_needs_the_whole_inbox_arrives(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    assert reader.deliver(1, b"a" * 100, 1)
    big = b"b" * (1024 - 16)
    for _ in range(4):
        if reader.deliver(2, big, 2):
            break
        writer.read_inbox()
    writer.read_inbox()
    assert writer.payloads[2] == big
    with pytest.raises(RingError, match="does not fit"):
        reader.deliver(3, big + b"b", 3)


def test_the_end_of_a_rank_reaches_a_thread_that_waits(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    seen: list[EndedError] = []

    def ask() -> None:
        try:
            writer.ask(Kind.SYNC_DEVICE, thread=200)
        except EndedError as error:
            seen.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while reader.head < 1:
        time.sleep(0.001)
    reader.end(ReplyStatus.FAILED, "no\nnetwork " + "é" * 2000)
    reader.end(ReplyStatus.STOP, "too late")
    thread.join(5)
    assert seen[0].status == ReplyStatus.FAILED
    assert seen[0].reason.startswith("no network ééé")


def test_liveness_is_the_lock_of_another_process(directory: ServerDirectory) -> None:
    script = (
        "import sys, pathlib\n"
        "from eidolon_interposer.writer import RingWriter\n"
        "writer = RingWriter(pathlib.Path(sys.argv[1]))\n"
        "print(writer.path, flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, directory.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    reader = RingReader(path)
    assert reader.alive()
    child.kill()
    child.communicate()
    assert not reader.alive()
    assert not reader.closed
    reader.close()


# ---- distrust --------------------------------------------------------------------------------------------------------


def poke(path: Path, field: str, value: int) -> None:
    kind, offset = (RING_HEADER.fields or {})[field][:2]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(kind.itemsize, "little"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", 0, "magic"),
        ("abi_version", 1, f"the shim's ABI version is 1, the agent's is {vocabulary.ABI_VERSION}"),
        ("record_bytes", 33, "records of 33 bytes"),
        ("record_capacity", 63, "records: a capacity of 63"),
        ("record_capacity", 1 << 40, "records: a capacity"),
        ("records_offset", 0, "records: offset 0"),
        ("defs_capacity", 1 << 30, "defs: offset"),
        ("defs_offset", FIXED_BYTES, "overlap"),
        ("inbox_offset", 2**64 - 8, "inbox: offset"),
        ("inbox_capacity", 0, "inbox: a capacity of 0"),
        ("head", 65, "head 65 and tail 0"),
        ("tail", 1, "head 0 and tail 1"),
        ("defs_head", 4, "definitions: head 4"),
        ("defs_head", 1 << 20, "definitions: head"),
        ("inbox_head", 8192, "inbox: head 8192"),
    ],
)
def test_bad_headers_are_refused(pair: tuple[RingWriter, RingReader], field: str, value: int, message: str) -> None:
    poke(pair[0].path, field, value)
    with pytest.raises(RingError, match=message):
        RingReader(pair[0].path)


def test_files_that_are_no_rings_are_refused(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("short", b"EIDRING1"), ("long", bytes(FIXED_BYTES))):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(RingError):
            RingReader(path)
    (tmp_path / "link").symlink_to(tmp_path / "long")
    for path in (tmp_path / "link", tmp_path / "missing", tmp_path):
        with pytest.raises(RingError, match="cannot map"):
            RingReader(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"seq": 5}, "record 0 has sequence number 5"),
        ({"kind": 30}, "kind 30"),
        ({"kind": 0}, "kind 0"),  # reserved
        ({"kind": 22}, "kind 22"),
        ({"flags": RecordFlag.BLOCKING, "thread": 256}, "reply slot 256"),
        ({"sig": 1024}, "names signature 1024"),
        ({"sig": 2**32 - 1}, "names signature 4294967295"),
        ({"call": 3}, "names signature 3"),
    ],
)
def test_bad_records_are_refused(pair: tuple[RingWriter, RingReader], columns: dict[str, int], message: str) -> None:
    writer, reader = pair
    writer.emit(columns.pop("kind", Kind.HOST), **columns)  # type: ignore[arg-type]
    with pytest.raises(RingError, match=message):
        next_batch(reader)


def test_ids_are_left_to_the_core_after_a_restart(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    writer.sign(1024, "op", "early")
    take(reader)
    again = RingReader(writer.path)
    writer.emit(Kind.HOST, sig=1024)
    assert take(again).count == 1
    again.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01\0\0",
        b"\0\0\0\0op\nname\n",
        b"\xff\xff\xff\xffop\nname\n",
        b"\x01\0\0\0op",
        b"\x01\0\0\0op\nname",
        b"\x01\0\0\0\nname\n",
        b"\x01\0\0\0op\nname\nkey\n",
        b"\x01\0\0\0op\nname\nkey=\n",
        b"\x01\0\0\0op\nname\n=1\n",
        b"\x01\0\0\0op\nname\na=1\na=1\n",
        b"\x01\0\0\0op\nname\na=9223372036854775808\n",
        b"\x01\0\0\0op\nname\na=" + b"9" * 5000 + b"\n",
    ],
)
def test_bad_signatures_are_refused(body: bytes) -> None:
    with pytest.raises(RingError):
        parse_signature(body)


def test_names_may_hold_anything_but_a_newline() -> None:
    assert parse_signature(b"\x05\0\0\0mark\nnvtx:a=b \xff\n") == Signature(5, "mark", "nvtx:a=b �", {})


def test_a_resized_file_is_noticed(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    with writer.path.open("r+b") as file:
        file.truncate(FIXED_BYTES + (1 << 20))
    with pytest.raises(RingError, match="size was changed"):
        reader.alive()


def use(path: Path) -> None:
    """What an agent does with a ring."""
    reader = RingReader(path)
    try:
        for limit in (128, LIMIT):
            for _ in range(8):
                if (batch := next_batch(reader, limit)) is None:
                    break
                commit(reader, batch)
        reader.deliver(1, b"data", 1)
        reader.reply(1, 2, 3, 4)
        reader.publish_clock(9)
        reader.used_bytes()
        reader.alive()
        reader.end(ReplyStatus.STOP, "end")
    finally:
        reader.close()


@pytest.fixture(scope="module")
def used_ring(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ring with a bit of everything, as bytes."""
    directory = ServerDirectory(tmp_path_factory.mktemp("fuzz"), {}, 0)
    writer = RingWriter(directory.path, records=16, defs_bytes=1024, inbox_bytes=256)
    reader = RingReader(writer.path)
    for number in range(1, 20):
        writer.sign(number, "gemm", "name", m=number)
        writer.emit(Kind.KERNEL, sig=number)
        if number == 12:
            take(reader)
    writer.send_payload(19, b"payload")
    writer.emit(Kind.COLLECTIVE, flags=RecordFlag.BLOCKING)
    reader.deliver(3, b"in", 1)
    content = writer.path.read_bytes()
    reader.close()
    writer.close(orderly=False)
    directory.page.close()
    return content


_NUMBERS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 7, 8, 16, 32, 64, 1024, FIXED_BYTES, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 8, 2**64 - 1]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_corruption_raises_anything_but_ring_error(used_ring: bytes, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(used_ring)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.sampled_from(["field", "rings", "anywhere", "cut"]))
        if where == "field":
            fields = RING_HEADER.fields or {}
            kind, offset = fields[data.draw(st.sampled_from(sorted(set(fields) - {"fatal", "used_bytes"})))][:2]
            value = data.draw(_NUMBERS) & ((1 << 8 * kind.itemsize) - 1)
            content[offset : offset + kind.itemsize] = value.to_bytes(kind.itemsize, "little")
        elif where == "cut":
            content = content[: data.draw(st.integers(0, len(content)))]
        else:
            begin = FIXED_BYTES if where == "rings" else 0
            if begin < len(content):
                at = data.draw(st.integers(begin, len(content) - 1))
                patch = data.draw(st.binary(min_size=1, max_size=16))[: len(content) - at]
                content[at : at + len(patch)] = patch
    path = tmp_path / "fuzzed.ring"
    path.write_bytes(content)
    with contextlib.suppress(RingError):
        use(path)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=60), st.integers(0, 2**32))
def test_message_rings_carry_any_sequence(messages: list[bytes], seed: int) -> None:
    class Memory:
        """A mapping without a file."""

        def __init__(self) -> None:
            self.data = memoryview(mmap.mmap(-1, 4096))
            self.u64 = self.data.cast("Q")

    memory = Memory()
    producer = MessageProducer(memory, "ring", 64, 128, 0, 1)  # type: ignore[arg-type]
    consumer = MessageConsumer(memory, "ring", 64, 128, 0, 1)  # type: ignore[arg-type]
    random = np.random.default_rng(seed)
    got: list[bytes] = []

    def consume(most: int) -> None:
        for _, (kind, body, position) in zip(range(most), consumer.messages(consumer.head), strict=False):
            if kind != MessageType.PAD:
                got.append(body)
            consumer.pass_by(position)
            consumer.free(position)

    for message in messages:
        for _ in range(1000):
            if producer.offer(MessageType.PAYLOAD, message):
                break
            consume(int(random.integers(1, 4)))
        else:
            pytest.fail("no room was ever made")
    consume(1000)
    assert got == messages


# ---- futexes and the server's directory ------------------------------------------------------------------------------


def elapsed(action: Callable[[], object]) -> float:
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def test_futex_waits_and_wakes(directory: ServerDirectory) -> None:
    page = directory.page
    assert elapsed(lambda: page.wait_for_news([], page.bell, 50_000_000)) >= 0.05
    assert elapsed(lambda: page.wait_for_news([], page.bell + 1, 5_000_000_000)) < 5  # another value: returns at once
    other = ServerPage(directory.path / "server.page")
    seen = page.bell
    threading.Timer(0.05, other.ring).start()
    assert elapsed(lambda: page.wait_for_news([], seen, 10_000_000_000)) < 5
    assert page.bell == seen + 1
    other.close()


def test_records_that_nobody_rings_for_are_news_soon(
    directory: ServerDirectory, pair: tuple[RingWriter, RingReader]
) -> None:
    writer, reader = pair
    page, seen = directory.page, directory.page.bell
    threading.Timer(0.05, writer.emit, (Kind.HOST,)).start()
    assert elapsed(lambda: page.wait_for_news([reader], seen, 10_000_000_000)) < 5
    assert reader.has_news()
    assert page.bell == seen, "it was looked for, not rung for"


def test_records_gather_until_it_is_time_to_look(
    directory: ServerDirectory, pair: tuple[RingWriter, RingReader]
) -> None:
    writer, reader = pair
    page, seen = directory.page, directory.page.bell
    writer.emit(Kind.HOST)
    assert reader.has_news()
    assert elapsed(lambda: page.wait_for_news([reader], seen, 10_000_000_000)) >= POLL_NS / 1e9


def test_a_rank_that_waits_for_an_answer_is_known(pair: tuple[RingWriter, RingReader]) -> None:
    writer, reader = pair
    writer.emit(Kind.HOST)
    take(reader)
    assert not reader.awaits_answer()
    seq = writer.emit(Kind.SYNC_DEVICE, flags=RecordFlag.FOREGROUND | RecordFlag.BLOCKING)
    take(reader)
    assert reader.awaits_answer()
    reader.reply(0, seq, 1_000, 0)
    assert not reader.awaits_answer()


def test_waking_nobody_is_fine() -> None:
    word = np.zeros(1, np.uint32)
    assert futex.wake(word.ctypes.data) == 0
    with pytest.raises(OSError, match="futex wait"):
        futex.wait(word.ctypes.data + 1, 0, 1000)  # not aligned


def test_server_directory_is_made_taken_over_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "server-1"
    first = ServerDirectory(path, {"mode": "core", "gpu.cc": "9.0"}, 1)
    assert (path / "server.conf").read_text() == "mode=core\ngpu.cc=9.0\nserver=1\n"
    first.page.ring()
    first.page.beat()
    assert abs(first.page.heartbeat_ns - time.monotonic_ns()) < 10**9
    assert [first.next_session(), first.next_session()] == [1, 2]
    second = ServerDirectory(path, {"mode": "core"}, 1)
    assert second.page.bell == 1
    assert second.next_session() == 3
    assert second.exit_state() is None
    (path / "exit").write_text("3")
    assert second.exit_state() is None  # half written
    (path / "exit").write_text("3 killed by signal 9\n")
    assert second.exit_state() == (3, "killed by signal 9")
    (path / "exit").write_text("0\n")
    assert second.exit_state() == (0, "")
    (path / "other").write_text("not ours")
    first.page.close()
    second.remove()
    assert [p.name for p in path.iterdir()] == ["other"]
    (path / "other").unlink()
    remove_server_directory(path)
    assert not path.exists()


def test_a_page_of_another_abi_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "server.page"
    ServerPage.create(path)
    page = bytearray(path.read_bytes())
    page[abi.offset_of(abi.SERVER_PAGE, "abi_version")] = 9
    path.write_bytes(page)
    with pytest.raises(
        ValueError, match=f"is of ABI version 9, this agent's is {vocabulary.ABI_VERSION}: use one release"
    ):
        ServerPage(path)
    page[0] ^= 1
    path.write_bytes(page)
    with pytest.raises(ValueError, match="is no server page"):
        ServerPage(path)


@pytest.mark.parametrize(("key", "value"), [("a=b", "c"), ("", "c"), ("a", "b\nc"), (" a", "b")])
def test_server_conf_cannot_be_forged(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        write_server_conf(tmp_path, {key: value}, 0)


def test_memory_of_a_dead_process_is_taken_back(directory: ServerDirectory) -> None:
    with (directory.path / "server.page").open("r+b") as file:
        file.seek(64 + 8)
        file.write((1000).to_bytes(8, "little"))
    directory.page.take_back([5, 400, 0])
    assert directory.page.used_bytes(1) == 600
    directory.page.take_back([0, 601])  # more than there is: somebody is wrong, and it is not made worse
    assert [directory.page.used_bytes(device) for device in (0, 1)] == [0, 600]
