"""Results are kept as JSON lines, one for each run, which `python -m bench.fidelity --json FILE` writes.

`bench/fidelity/results` has a file for each GPU. docs/fidelity.md is made from them (`make generate`). A record says of
which kind it is ("step" for a run of train.py, "framework" or "trace"), with which line of the truth it is compared,
what the result is, and where it is from: the date, the cores of the machine, and the versions of what ran. Errors are
relative. A record that was not made by this package has a `note` that says so.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from bench.fidelity import running

Record = dict[str, Any]

RESULTS = Path(__file__).with_name("results")
DIGITS = 6  #: digits behind the point that are kept of a figure
#: Packages whose versions a result names if its environment has them.
PACKAGES = ("torch", "transformers", "torchtitan", "deepspeed", "megatron-core", "eidolon")
_ASK = """
import importlib.metadata, json, platform
found = {"python": platform.python_version()}
for name in %r:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def provenance(site: Path | None = None) -> Record:
    """Where a result of now is from. ``site`` is the environment of the workload if it is not the active one."""
    python = sys.executable if site is None else str(site / "bin" / "python")
    versions = {**_versions(python), "eidolon": _versions(sys.executable)["eidolon"]}
    return {"date": dt.datetime.now(dt.UTC).date().isoformat(), "cores": os.cpu_count(), "versions": versions}


@cache
def _versions(python: str) -> dict[str, str]:
    done = running.ended([python, "-c", _ASK % (PACKAGES,)], limit_s=60)
    if done.code != 0:
        raise RuntimeError(f"{python}: {done.reason}")
    return dict(json.loads(done.out))


def read(path: Path) -> list[Record]:
    """The records of a file, in its order. There are none if there is no file."""
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()] if path.exists() else []


def merged(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """The old records, of which new ones of the same kind and line replace some, and then all other new records."""
    records = {(one["kind"], one["line"]): one for one in old}
    records.update({(one["kind"], one["line"]): one for one in new})
    return list(records.values())


def write(path: Path, new: Iterable[Record]) -> None:
    """Puts results into a file, and keeps what they do not replace."""
    rounded = ({key: round(of, DIGITS) if isinstance(of, float) else of for key, of in one.items()} for one in new)
    text = "".join(json.dumps(one) + "\n" for one in merged(read(path), rounded))
    path.write_text(text, "utf-8")
