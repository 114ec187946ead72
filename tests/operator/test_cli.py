"""The command line: what is wrong is said in one line, with an exit code that is not 0."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from eidolon_operator import cli

DEMO = Path(__file__).parents[2] / "examples" / "demo.yaml"
FRAMEWORKS = sorted((DEMO.parent / "frameworks").glob("*.yaml"))
EXAMPLES = sorted(DEMO.parent.glob("ddp-2x2*.yaml"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(arguments)
    except SystemExit as error:  # argparse
        code = int(error.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_validate_a_good_file(capsys: pytest.CaptureFixture[str]) -> None:
    expected = "valid: demo on 2 servers x 2 h100-sxm, 4 ranks\n"
    assert run(capsys, "validate", "--local", str(DEMO)) == (0, f"{DEMO}: {expected}", "")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_the_examples_for_kubernetes_are_valid(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    code, out, err = run(capsys, "validate", str(file))
    assert (code, err) == (0, "")
    assert out.endswith(" on 2 servers x 2 h100-sxm, 4 ranks\n")


@pytest.mark.parametrize("file", FRAMEWORKS, ids=lambda file: file.name)
def test_the_examples_of_frameworks_are_valid(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    code, out, err = run(capsys, "validate", "--local", str(file))
    assert (code, err) == (0, "")
    assert f"valid: {file.stem} on 1 server " in out


def test_validate_speaks_for_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "validate", str(DEMO))
    assert (code, out) == (2, "")
    assert err == f"eidolon: {DEMO}: spec.workload: image is required in a cluster (only `eidolon run` does without)\n"


def test_validate_names_every_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = yaml.safe_load(DEMO.read_text())
    document["spec"]["servers"] = 0
    document["spec"]["gpu"]["model"] = "H100"
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    code, out, err = run(capsys, "validate", str(file))
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"eidolon: {file}: spec.servers: 0 is out of bounds; allowed: 1 to 2048",
        f"eidolon: {file}: spec.gpu.model: 'H100' does not match ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$; "
        "write for example h100-sxm",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--gpu", "h1000", "--", "true"], "command line: spec.gpu.model: 'h1000' is not in the GPU catalogue"),
        (["run", "--servers", "0", "--", "true"], "command line: spec.servers: 0 is out of bounds; allowed: 1 to 2048"),
        (["run", "--gpu-memory", "8 gigs", "--", "true"], "command line: spec.gpu.memory: '8 gigs' does not match"),
        (
            ["run", "--gpus-per-server", "2", "--ranks-per-server", "4", "--", "true"],
            "command line: spec.workload.ranksPerServer: workload.ranksPerServer must not exceed gpusPerServer",
        ),
        (
            ["run", "--gpus-per-server", "2", "--", "torchrun", "--nproc-per-node", "4", "train.py"],
            "command line: spec.workload.ranksPerServer: 4 ranks do not fit the 2 GPUs of a server",
        ),
        (["run"], "run: needs either the FILE of a SimulatedCluster or a command after --"),
        (["run", "--"], "run: needs either the FILE of a SimulatedCluster or a command after --"),
        (["run", str(DEMO), "--", "true"], "run: needs either the FILE of a SimulatedCluster or a command after --"),
        (["run", "--host-memory", "8 gigs", "--", "true"], "run: --host-memory: '8 gigs' is not a size such as 80GiB"),
        (["run", "none.yaml"], "none.yaml: file: No such file or directory"),
    ],
)
def test_bad_input_of_run(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"eidolon: {expected}")
    assert len(err.splitlines()) == 1


def test_a_workload_that_is_not_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "run", "--out", str(tmp_path / "out"), "--", "no-such-program")
    assert (code, err) == (127, "eidolon: workload: 'no-such-program' is not found\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pod/demo"], "'pod/demo' is not the name of a SimulatedCluster; write simc/NAME"),
        (["demo", "--context", "none"], "the kubeconfig has no context 'none'; it has: here"),
        (["demo"], "the API server does not answer: "),
    ],
)
def test_fetch_says_what_is_missing(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    expected: str,
) -> None:
    """The kubeconfig names a server at a port that nothing listens on."""
    config = {
        "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "users": [{"name": "me", "user": {}}],
        "current-context": "here",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "fetch", "--timeout", "5", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"eidolon: fetch: {expected}")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "eidolon-runs").exists()


def test_an_option_that_is_misspelt(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", "--gpus", "2", "--", "true")
    assert code == 2
    assert "unrecognized arguments: --gpus" in err


def test_options_override_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", str(DEMO), "--gpu", "b300000")
    assert code == 2
    assert err.startswith(f"eidolon: {DEMO}: spec.gpu.model: 'b300000' is not in the GPU catalogue")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["torchrun", "--nproc-per-node", "2", "/a/My_Train.py", "--x"], "my-train"),
        (["torchrun", "-m", "torchtitan.train"], "torchrun"),
        (["./7b.py"], "b"),
        (["/bin/123"], "run"),
        (["a" * 80], "a" * 51),
    ],
)
def test_the_name_of_an_ad_hoc_run(command: list[str], expected: str) -> None:
    assert cli._name_of(command) == expected


def test_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "gpus")
    assert code == 0
    assert "h100-sxm" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("eidolon ")


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "run", "--help")
    assert code == 0
    for option, *_ in cli._OPTIONS:
        assert option in out


FOLD = ("run", "--servers", "2", "--gpus-per-server", "4", "--fold", "replica")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("--parallel", "dp=2,tp=2"),
            "command line: spec.fold.parallel: dp 2 x tp 2 is 4 ranks; the run has 8 (2 servers x 4)",
        ),
        (
            ("--keep", "7,8"),
            "command line: spec.fold.keep: keep must name ranks of the run: they are numbered from 0 to "
            "servers * ranksPerServer - 1",
        ),
        (("--null-core",), "run: --null-core simulates nothing, so it excludes --fold (spec.fold)"),
    ],
)
def test_a_fold_that_cannot_be(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], expected: str) -> None:
    assert run(capsys, *FOLD, *options, "--", "torchrun", "t.py") == (2, "", f"eidolon: {expected}\n")


@pytest.mark.parametrize(
    ("option", "text", "allowed"),
    [
        *(("--parallel", text, "AXIS=SIZE,... such as pp=8,dp=16,tp=8") for text in ("dp", "dp=2,", "dp=two", "")),
        *(("--keep", text, "a list of ranks such as 7,1023") for text in ("1,-2", "all", "1,,2", "")),
    ],
)
def test_options_of_a_fold_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], option: str, text: str, allowed: str
) -> None:
    code, _, err = run(capsys, *FOLD, f"{option}={text}", "--", "torchrun", "t.py")
    assert (code, f"argument {option}: {text!r} is not {allowed}" in err) == (2, True), err


def test_validate_says_how_many_ranks_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load(DEMO.read_text())
    document["spec"]["fold"] = {"mode": "replica"}
    file = tmp_path / "folded.yaml"
    file.write_text(yaml.safe_dump(document))
    code, out, err = run(capsys, "validate", "--local", str(file))
    assert (code, err) == (0, "")
    assert out == f"{file}: valid: demo on 2 servers x 2 h100-sxm, 4 ranks, of which 1 run\n"
