"""A rank that makes its files shorter, or writes anything into them, ends itself and nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest
from playing import LIMIT_S, Core, Server, until, until_ended

from eidolon_interposer.abi import FIXED_BYTES, Kind
from eidolon_interposer.writer import EndedError, RingWriter

# A rank of its own process that goes on writing while it makes its ring shorter and longer, or fills it with noise.
HOSTILE = """
import os, pathlib, random, sys
from eidolon_interposer.abi import Kind
from eidolon_interposer.writer import EndedError, RingWriter
how, chance = sys.argv[2], random.Random(int(sys.argv[3]))
writer = RingWriter(pathlib.Path(sys.argv[1]), rank=1)
size = writer.path.stat().st_size
writer.ask(Kind.CLOCK)
try:
    for _ in range(2000):
        writer.emit(Kind.HOST)
        if how == "cut":
            os.truncate(writer.path, chance.randrange(0, size))
            os.truncate(writer.path, size)
        else:
            with open(writer.path, "r+b") as file:
                file.seek(chance.randrange(0, size))
                file.write(chance.randbytes(chance.choice([1, 8, 300, 5000])))
            os.truncate(writer.path, size)
        writer.check()
except (EndedError, ValueError):
    pass
os._exit(0)
"""


@pytest.mark.parametrize("size", [0, 1, 4096, FIXED_BYTES, FIXED_BYTES + 4096])
def test_a_ring_that_is_cut_ends_its_rank_only(server: Server, core: Core, size: int) -> None:
    server.start()
    writer, other = RingWriter(server.directory), RingWriter(server.directory)
    for each in (writer, other):
        each.ask(Kind.CLOCK)
    before = writer.path.stat().st_size
    with writer.path.open("r+b") as file:
        file.truncate(size)
    what = f"the file's size was changed from {before} to {size} bytes"
    left = until(lambda: core.of("left"), "its leaving")[0]
    assert (left.session, left.orderly, left.damage) == (writer.session or 1, False, what)
    if size >= 4096:  # what the shim looks at is still there
        with pytest.raises(EndedError, match=f"broken ring: {what}"):
            until_ended(writer)
    other.ask(Kind.CLOCK)
    for each in (writer, other):
        each.close(orderly=False)
    server.write_exit("1 x\n")
    assert server.wait() == 0
    assert f"session 1: broken ring: {what}" in server.errors


def test_a_ring_that_is_cut_while_the_agent_reads_it(server: Server, core: Core) -> None:
    """The agent has looked at the file's size before: it finds out by touching what is gone."""
    server.start()
    writer, other = RingWriter(server.directory), RingWriter(server.directory)
    for each in (writer, other):
        each.ask(Kind.CLOCK)
    before = writer.path.stat().st_size
    server.hold()
    writer.emit(Kind.HOST)
    with writer.path.open("r+b") as file:
        file.truncate(0)
        file.truncate(before)
    server.agent.send_signal(18)
    left = until(lambda: core.of("left"), "its leaving")[0]
    assert (left.session, left.orderly) == (1, False)
    assert left.damage
    other.ask(Kind.CLOCK)
    for each in (writer, other):
        each.close(orderly=False)
    server.write_exit("1 x\n")
    assert server.wait() == 0


@pytest.mark.parametrize("how", ["cut", "noise"])
@pytest.mark.parametrize("seed", range(4))
def test_no_rank_can_end_its_agent(server: Server, core: Core, how: str, seed: int) -> None:
    server.start()
    other = RingWriter(server.directory)
    other.ask(Kind.CLOCK)
    command = [sys.executable, "-c", HOSTILE, server.directory, how, str(seed)]
    rank = subprocess.Popen([str(part) for part in command])
    try:
        rank.wait(LIMIT_S)  # in whatever way it ends
    finally:
        rank.kill()
    left = until(lambda: core.of("left"), "its leaving")[0]
    assert (left.session, left.orderly) == (2, False)
    other.ask(Kind.CLOCK)
    other.close()
    server.write_exit()
    assert server.wait() == 0


def test_a_server_page_that_is_cut_ends_its_server_with_a_message(server: Server, core: Core) -> None:
    """All ranks of a server write to it, so it cannot be known whose doing it was."""
    server.start()
    page = server.directory / "server.page"
    size = page.stat().st_size
    with page.open("r+b") as file:
        file.truncate(0)
    assert server.wait() == 1
    what = f"{page} is broken: the file's size was changed from {size} to 0 bytes"
    assert f"the agent failed: {what}" in server.errors
    assert what in (server.directory / "stop").read_text()
