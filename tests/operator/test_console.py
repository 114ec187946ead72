"""What the terminal shows: the workload's bytes, whole lines with a prefix, a status that never mixes in."""

from __future__ import annotations

import asyncio
import io

from eidolon_operator.console import Console


def follow(chunks: list[bytes], prefix: str) -> bytes:
    async def run() -> bytes:
        out = io.BytesIO()
        source = asyncio.StreamReader()
        console = Console(out, io.BytesIO(), terminal=False)
        task = asyncio.create_task(console.follow(source, error=False, prefix=prefix))
        for chunk in chunks:
            source.feed_data(chunk)
            await asyncio.sleep(0)
        source.feed_eof()
        await task
        return out.getvalue()

    return asyncio.run(run())


def test_one_server_passes_through_untouched() -> None:
    assert follow([b"10%\r", b"20%\r100%\n", b"no newline"], "") == b"10%\r20%\r100%\nno newline"


def test_several_servers_get_a_prefix_per_line() -> None:
    assert follow([b"a", b"b\nc", b"\r\nlast"], "[server 1] ") == b"[server 1] ab\n[server 1] c\n[server 1] last\n"


def test_the_status_gives_way_to_output_and_comes_back() -> None:
    screen = io.BytesIO()
    console = Console(screen, screen, terminal=True)
    console.status(["step 1", "memory"])
    console.write(b"loss 2.0\n")
    console.status([])
    status = b"step 1\nmemory"
    erase = b"\x1b[1A\r\x1b[J"
    assert screen.getvalue() == status + erase + b"loss 2.0\n" + status + erase


def test_the_status_waits_for_the_end_of_a_line() -> None:
    screen = io.BytesIO()
    console = Console(screen, screen, terminal=True)
    console.write(b"loss ")
    console.status(["step 1"])
    assert screen.getvalue() == b"loss "
    console.write(b"2.0\n")
    assert screen.getvalue() == b"loss 2.0\nstep 1"


def test_without_a_terminal_there_is_no_status() -> None:
    out, err = io.BytesIO(), io.BytesIO()
    console = Console(out, err, terminal=False)
    console.status(["step 1"])
    console.write(b"x\n")
    assert (out.getvalue(), err.getvalue()) == (b"x\n", b"")


def test_a_reader_that_went_away_does_not_end_the_run() -> None:
    class Gone(io.BytesIO):
        def flush(self) -> None:
            raise BrokenPipeError

    Console(Gone(), io.BytesIO(), terminal=False).write(b"x\n")
