"""The summary of a run: bounded, however long the run was, and written even where the disk is full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import AUTOGRAD, FOREGROUND
from simulated_run import Run, alone, pair

from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.export import steps_file, summary
from eidolon_simcore.vocabulary import Kind

FULL_DISK = Path(__file__).with_name("full_disk.py")


def long_run(out: Path, steps: int) -> dict[str, Any]:
    run = Run(out)
    rank = alone(run)
    for step in range(steps):
        rank.write(Kind.MEMORY, value=(1 + step % 7) << 30)
        rank.kernel((1 + step % 5) << 20, flags=FOREGROUND | AUTOGRAD)
        rank.mark()
        if step % 100 == 99:
            run.batch(rank)
    run.batch(rank)
    return run.summary()


def test_the_summary_of_a_long_run_is_bounded_and_nothing_is_lost(tmp_path: Path) -> None:
    found = long_run(tmp_path, 3_000)
    assert (tmp_path / "summary.json").stat().st_size < 512 << 10
    assert (len(found["steps"]), found["steps_left_out"]) == (summary.MOST_STEPS, 3_000 - summary.MOST_STEPS)
    assert found["steps"][-1]["index"] == 3_000
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert steps_file.read(tmp_path / steps_file.NAME) == lines
    assert found["steps"] == lines[-summary.MOST_STEPS :]
    assert (tmp_path / steps_file.NAME).stat().st_size < (tmp_path / "progress.jsonl").stat().st_size / 5
    figures, times = found["step_figures"], [line["time_ns"] for line in lines[1:]]
    assert (figures["count"], figures["peak_bytes"]) == (2_999, {"0/0": 7 << 30})
    assert figures["time_ns"]["least"] == min(times)
    assert figures["time_ns"]["greatest"] == max(times)
    assert figures["time_ns"]["median"] == sorted(times)[len(times) // 2]


def test_a_short_run_has_all_its_steps_in_the_summary(tmp_path: Path) -> None:
    (tmp_path / steps_file.NAME).write_text("of an earlier run")
    found = long_run(tmp_path, 12)
    assert (len(found["steps"]), found["steps_left_out"]) == (12, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["progress.jsonl", "summary.json"]


def test_a_step_has_its_rates_and_who_was_last(tmp_path: Path) -> None:
    """Rank 1 computes twice as much as rank 0. User code reports samples; tokens are those of the spec."""
    run = Run(tmp_path, tokens_per_step=1_000)
    ranks = pair(run)
    for _ in range(3):
        for rank, work in zip(ranks, (1 << 26, 2 << 26), strict=True):
            rank.kernel(work, flags=FOREGROUND | AUTOGRAD)
            rank.mark()
    for rank in ranks:
        rank.write(Kind.EXIT)
        run.batch(rank)
        run.send(left=pb.RankLeft(session=rank.session, orderly=True, records=rank.seq))
    found = run.summary()
    step = found["steps"][-1]
    assert step["tokens_per_s"] == pytest.approx(1_000 / (step["time_ns"] / 1e9), rel=1e-12)
    assert (step["tokens"], step["samples"], step["samples_per_s"]) == (1_000, None, None)
    assert step["lag"]["rank"] == 1
    assert 0 < step["lag"]["ns"] < step["end_ns"]


def test_large_steps_are_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "MOST_STEPS_BYTES", 3_000)
    found = long_run(tmp_path, 100)
    assert 2 <= len(found["steps"]) <= 12
    assert len(json.dumps(found["steps"])) < 4_000


def test_progress_that_cannot_be_written_is_said_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path)
    (tmp_path / "progress.jsonl").unlink()
    (tmp_path / "progress.jsonl").symlink_to("/dev/full")
    rank = alone(run)
    for _ in range(3):
        rank.kernel(flags=FOREGROUND | AUTOGRAD)
        rank.mark()
    run.batch(rank)
    found = run.summary()
    assert (found["state"], len(found["steps"])) == ("Succeeded", 3)
    assert found["not_written"] == ["progress.jsonl from step 1 on: No space left on device"]
    assert "not written: progress.jsonl from step 1 on: No space left on device" in capsys.readouterr().err


def test_a_full_disk_keeps_the_summary(tmp_path: Path) -> None:
    """On a file system of 6 MiB, which something else fills while the run goes on."""
    namespace = ["unshare", "--map-root-user", "--mount"] if os.getuid() else ["unshare", "--mount"]
    script = 'mount -t tmpfs -o size=6m none "$0" && exec "$1" "$2" "$0"'
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*namespace, "sh", "-c", script, str(tmp_path), sys.executable, str(FULL_DISK)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], len(found["steps"]), found["steps_left_out"]) == ("Succeeded", summary.MOST_STEPS, 3_744)
    lost = [text.partition(" ")[0] for text in found["not_written"]]
    assert lost == ["progress.jsonl", "steps.parquet"]
    assert all(text.endswith("No space left on device") for text in found["not_written"])


def test_a_disk_that_is_full_from_the_start_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "summary.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="the summary of a run needs 4 MiB"):
        Run(tmp_path)
