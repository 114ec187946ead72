"""``eidolon trace``: the timeline of a recorded run, to look at or for another simulator."""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from zstandard import ZstdError

from eidolon_operator.reporting.model import ReportError

EXIT_USAGE: Final = 2


def add_verb(verbs: Any) -> None:
    """Adds the verb to the command line's parser."""
    trace = verbs.add_parser(
        "trace",
        help="make a trace of a recorded run",
        description="Writes the timeline of a run that was recorded (`eidolon run --record`): for ui.perfetto.dev, or "
        "as Chakra execution traces for other simulators.",
        allow_abbrev=False,
    )
    trace.add_argument("run", type=Path, metavar="RUN")
    trace.add_argument("--steps", type=_steps, metavar="FIRST[:LAST]", help="only these steps, e.g. 3:5 (all)")
    trace.add_argument("--ranks", type=_ranks, metavar="LIST", help="only these ranks, e.g. 0,8 or 0-7 (all)")
    trace.add_argument("--format", choices=("perfetto", "chakra"), default="perfetto")
    trace.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="RUN/trace.pftrace.gz, compressed if it ends in .gz; for chakra the prefix of the files (RUN/chakra)",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    try:
        return _trace(options)
    except ReportError as error:
        _complain(str(error))
        return EXIT_USAGE


def write(directory: Path) -> int:
    """Writes the whole trace of a run, as the verb does without options. Returns the exit code."""
    return run(argparse.Namespace(run=directory, steps=None, ranks=None, format="perfetto", out=None))


def _trace(options: argparse.Namespace) -> int:
    from eidolon_simcore.export.timeline.store import RecordingError

    if not options.run.is_dir():
        raise ReportError(f"{options.run}: no such directory")
    try:
        return _write(options)
    except RecordingError as error:
        hint = "" if (options.run / "recording").is_dir() else "; record a run with `eidolon run --record`"
        raise ReportError(f"{error}{hint}") from error
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError, ZstdError) as error:
        # Its parts refer to each other by numbers, so what is wrong in one shows anywhere.
        text = f"{options.run / 'recording'}: the recording is damaged ({type(error).__name__}: {error})"
        raise ReportError(" ".join(text.split())) from error


def _write(options: argparse.Namespace) -> int:
    from eidolon_simcore.export.timeline import chakra, perfetto
    from eidolon_simcore.export.timeline.reading import Timeline

    timeline = Timeline(options.run)
    window = timeline.window(*(options.steps or (None, None)))
    unknown = sorted(set(options.ranks or ()) - set(timeline.ranks))
    if unknown:
        raise ReportError(f"--ranks: rank {unknown[0]} is not in the recording, which has {_listed(timeline.ranks)}")
    if not timeline.recording.facts.get("complete"):
        problem = timeline.recording.facts.get("problem") or "the run had not ended"
        _complain(f"the recording is not complete: {problem}")
    if dropped := timeline.recording.facts.get("dropped_rows"):
        _complain(f"the recording reached its limit: its first {dropped:,} rows were dropped")
    if options.format == "chakra":
        files = chakra.write(timeline, options.out or options.run / "chakra", window, options.ranks)
        print(f"{files[0]} ... {files[-1].name}: {len(files) - 1} ranks" if len(files) > 1 else "no ranks")
        return 0
    out = options.out or options.run / "trace.pftrace.gz"
    with _opened(out) as file:
        count = perfetto.write(timeline, file, window, options.ranks)
    print(f"{out}: {count:,} spans, {out.stat().st_size / 1e6:,.1f} MB; open it in https://ui.perfetto.dev")
    return 0


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "wb", compresslevel=4))
    return path.open("wb")


def _steps(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,18})(?::([0-9]{1,18}))?", text)
    if found is None or (found[2] is not None and int(found[2]) < int(found[1])):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form FIRST or FIRST:LAST, e.g. 3:5")
    return int(found[1]), int(found[2] or found[1])


def _ranks(text: str) -> list[int]:
    ranks: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip())
        if found is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of ranks such as 0,8 or 0-7")
        ranks |= set(range(int(found[1]), int(found[2] or found[1]) + 1))
    return sorted(ranks)


def _listed(ranks: Iterable[int]) -> str:
    some = list(ranks)
    return f"ranks {some[0]} to {some[-1]}" if some else "none"


def _complain(message: str) -> None:
    print(f"eidolon: {message}", file=sys.stderr, flush=True)
