"""Runs that are predicted before they are measured: how they start, what is kept of them, how both are compared."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bench.fidelity import predictions, truth
from bench.fidelity.frameworks import Line
from bench.fidelity.running import Done

RUNS = {predictions.title(run): run for run in predictions.runs("h100")}
TITAN = RUNS["llama3-8B-fsdp8 x8"]
ZERO = RUNS["ds.py --stage 3 x8"]
GPT2 = next(run for name, run in RUNS.items() if "gpt2" in name)
COLLECTIVES = RUNS["coll_graph.py x8"]


def result(**fields: object) -> str:
    return f"something before\nRESULT {json.dumps(fields)}\n"


def lines_of(run: Line, output: str) -> list[dict[str, Any]]:
    return [{**run.fields, **one} for one in run.printed(output)]


def test_every_run_is_there_once_and_its_script_as_well() -> None:
    assert len(RUNS) == 15
    for run in RUNS.values():
        assert run.cwd.is_dir()
        if not run.titan:
            assert Path(run.command()[0]).is_file()


def test_a_real_machine_starts_the_same_command_without_eidolon() -> None:
    command = predictions.torchrun(ZERO)
    assert command[:4] == ["torchrun", "--standalone", "--nproc-per-node", "8"]
    assert command[4:] == ZERO.command()
    assert predictions.torchrun(TITAN) == TITAN.command()  # it has its own torchrun


def test_a_line_says_which_run_it_is_of() -> None:
    (line,) = lines_of(ZERO, result(script="ds.py", args="--stage 3", world=8, step_ms_median=300.0))
    assert [name for name, run in RUNS.items() if predictions.of_run(run, line)] == ["ds.py --stage 3 x8"]
    (line,) = lines_of(GPT2, result(args=GPT2.fields["args"], world=8, step_ms_median=70.0))  # train.py: no script
    assert [run for run in RUNS.values() if predictions.of_run(run, line)] == [GPT2]


def test_torchtitan_is_read_from_its_log_and_only_whole() -> None:
    step = "step: {:2}  loss:  2.0  grad_norm: 1.0  memory: 70.40GiB(89%)  tps: 7,{:03}  tflops: 456.1  mfu: 46.10%\n"
    output = "".join(step.format(n, n) for n in range(1, 11))
    (line,) = TITAN.printed(output)
    assert line["tps"] == [7_000 + n for n in range(1, 11)]
    assert (line["tflops"][0], line["mfu"][0], line["memory_gib"][0]) == (456.1, 46.1, 70.4)
    assert TITAN.printed(output.partition("\n")[2]) == []


def test_a_run_that_failed_half_way_counts_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "h100_x8.jsonl"
    half = Done(1, result(world=8, bytes=1024), "out of memory", 1.0, {})
    with pytest.raises(SystemExit, match=r"no result: coll_graph\.py x8"):
        predictions._collect([COLLECTIVES], out, lambda _: half)
    assert out.read_text() == ""
    assert "failed: exit code 1: out of memory" in capsys.readouterr().out
    predictions._collect([COLLECTIVES], out, lambda _: dataclasses.replace(half, code=0))
    assert json.loads(out.read_text())["bytes"] == 1024


def test_what_is_in_the_file_is_not_run_again(tmp_path: Path) -> None:
    out, started = tmp_path / "predicted" / "h100_x8.jsonl", []

    def start(run: Line) -> Done:
        started.append(run)
        return Done(int(run is TITAN), result(script="ds.py", args="--stage 3", world=8), "out of memory", 1.0, {})

    with pytest.raises(SystemExit, match="no result: llama3-8B-fsdp8 x8"):
        predictions._collect([ZERO, TITAN], out, start)
    with pytest.raises(SystemExit):
        predictions._collect([ZERO, TITAN], out, start)
    assert started == [ZERO, TITAN, TITAN]
    assert len(out.read_text().splitlines()) == 1


def test_errors_are_of_the_median_and_of_a_host_bound_run_the_distance_outside_of_what_was_measured() -> None:
    real = {**GPT2.fields, "step_ms_median": 80.0, "step_ms_min": 70.0, "step_ms_max": 90.0}
    here = {**GPT2.fields, "step_ms_median": 72.0}
    (found,) = predictions.compared([GPT2], [here], [{**real, "cpu_issue_ms_median": 40.0}])
    assert (found.host_bound, found.error) == (False, pytest.approx(-0.1))
    (found,) = predictions.compared([GPT2], [here], [{**real, "cpu_issue_ms_median": 79.0}])
    assert (found.host_bound, found.error) == (True, 0.0)


def test_collectives_are_compared_size_by_size() -> None:
    def row(size: int, us: float) -> dict[str, object]:
        return {**COLLECTIVES.fields, "bytes": size, **dict.fromkeys(predictions.OPERATIONS, us)}

    found = list(predictions.compared([COLLECTIVES], [row(1024, 11.0), row(2048, 9.0)], [row(2048, 10.0)]))
    assert [one.name for one in found] == [f"{operation} 2048" for operation in predictions.OPERATIONS]
    assert all(one.collective and one.error == pytest.approx(-0.1) for one in found)


@pytest.mark.parametrize("gpu", truth.RUNS)
def test_all_runs_were_predicted(gpu: str) -> None:
    lines = [json.loads(text) for text in (predictions.PREDICTED / f"{gpu}_x8.jsonl").read_text().splitlines()]
    for run in predictions.runs(gpu):
        own = [line for line in lines if predictions.of_run(run, line)]
        assert len(own) == (21 if run.fields["script"] == predictions.COLLECTIVES else 1), predictions.title(run)
