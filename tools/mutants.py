"""Changes simcore's Python in many small ways, one at a time, and names the changes that no test notices.

    mutants.py [--tests PATH ...] [--minutes N] [MODULE ...]

A MODULE is a file or a folder of ``simcore/eidolon_simcore``, such as ``run/membership.py`` or ``ledger``. A mutant
that *survives* is a change, such as ``<`` to ``<=`` or a left-out argument, after which all tests still pass. Each is
printed as a diff at the end. Some change nothing that anybody could see; the others want a test.

mutmut does the work. It asks first which tests call a function, and then runs only those for the function's mutants,
each in a forked process. It wants packages at the root of a project, and a complete one: the simulation core with its
compiled engine. So it works in ``build/mutants``, where links lead to the package as it is installed and to the tests.
Nothing in the checkout is changed.

By default the tests are those beside each module, and those of whole runs. A run that reaches its limit says how many
mutants were not tried.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
STAGE: Final = ROOT / "build" / "mutants"
PACKAGE: Final = "eidolon_simcore"
#: What the tests of simcore read beside the package.
BESIDE: Final = (
    ".ci",
    "bench",
    "conftest.py",
    "crds",
    "docs",
    "examples",
    "operator",
    "proto",
    "simcore",
    "tests",
    "tools",
)
WHOLE_RUNS: Final = "tests/simcore/run"
CENTRAL: Final = ("run/membership.py", "run/collectives.py", "run/watchdogs.py", "ledger/accounts.py")
#: `mutmut show` of many mutants in one process: each would take seconds for its start alone.
SHOW: Final = "import sys, mutmut.__main__ as m; [m.show.callback(name) for name in sys.argv[1:]]"
TO_STOP_S: Final = 30  #: how long mutmut may take to stop


def tests_of(modules: Iterable[str]) -> list[str]:
    """The folders with the tests of these modules."""
    wings = (f"tests/simcore/{Path(module).parts[0]}" for module in modules)
    beside = {wing if (ROOT / wing).is_dir() else "tests/simcore" for wing in wings}
    return ["tests/simcore"] if "tests/simcore" in beside else sorted({*beside, WHOLE_RUNS})


def settings(modules: Iterable[str], tests: Iterable[str]) -> str:
    """The section of pyproject.toml for mutmut."""
    patterns = [f"{PACKAGE}/{module}" if module.endswith(".py") else f"{PACKAGE}/{module}/*.py" for module in modules]
    values = {
        "source_paths": [PACKAGE],
        "only_mutate": patterns,
        "also_copy": list(BESIDE),
        "pytest_add_cli_args_test_selection": list(tests),
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    # The stage is no repository, and it is made afresh each time.
    return "\n".join(["[tool.mutmut]", *lines, "use_git_change_detection = false", "track_dependencies = false", ""])


def prepare(section: str) -> None:
    """Makes the folder in which mutmut works."""
    shutil.rmtree(STAGE, ignore_errors=True)
    STAGE.mkdir(parents=True)
    (STAGE / PACKAGE).symlink_to(Path(sysconfig.get_path("platlib")) / PACKAGE)
    for name in BESIDE:
        (STAGE / name).symlink_to(ROOT / name)
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    (STAGE / "pyproject.toml").write_text(f"{pyproject}\n{section}", "utf-8")


def mutmut(*arguments: str) -> list[str]:
    """The command line of mutmut."""
    return [sys.executable, "-m", "mutmut", *arguments]


def try_all(minutes: float) -> None:
    """Tries the mutants until all are done or the time is up. On a terminal it shows how far it is; elsewhere that goes
    into a file.
    """
    with (STAGE / "mutmut.log").open("w", encoding="utf-8") as log:
        out = None if sys.stdout.isatty() else log
        process = subprocess.Popen(mutmut("run", "--max-children", "1"), cwd=STAGE, stdout=out, start_new_session=True)
        try:
            code = process.wait(60 * minutes)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            code = stop(process)
    if code:
        sys.exit(f"mutants: mutmut ended with exit code {code}; see {log.name}")


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ends mutmut and what it started. It keeps what it has found."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(TO_STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return 0


def statuses(results: str) -> dict[str, str]:
    """What became of each mutant, of ``mutmut results --all true``."""
    lines = (line.strip().rpartition(": ") for line in results.splitlines())
    return {name: status for name, separator, status in lines if separator}


def report() -> str:
    """The survivors as diffs, and how many mutants there are of each status."""

    def answer(*command: str) -> str:
        return subprocess.run(command, cwd=STAGE, check=True, capture_output=True, text=True).stdout

    found = statuses(answer(*mutmut("results", "--all", "true")))
    survivors = [name for name, status in found.items() if status in ("survived", "no tests")]
    diffs = answer(sys.executable, "-c", SHOW, *survivors)
    counts = ", ".join(f"{count} {status}" for status, count in Counter(found.values()).most_common())
    return f"{diffs}{len(found)} mutants: {counts}"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Names changes of simcore's Python that no test notices.")
    parser.add_argument("modules", nargs="*", default=CENTRAL, metavar="MODULE")
    parser.add_argument("--tests", nargs="+", help="default: those beside each module, and those of whole runs")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long it may take (%(default)s)")
    options = parser.parse_args()
    for module in options.modules:
        if not (ROOT / "simcore" / PACKAGE / module).exists():
            parser.error(f"simcore/{PACKAGE} has no {module}; name a file or a folder in it")
    prepare(settings(options.modules, options.tests or tests_of(options.modules)))
    try_all(options.minutes)
    print(report())


if __name__ == "__main__":
    main()
