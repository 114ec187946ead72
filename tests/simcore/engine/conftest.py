"""Makes the helpers beside the tests importable, and says in the header whether there is an oracle for the network."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from simgrid_oracle import missing


def pytest_report_header() -> str:
    reason = missing()
    return f"network oracle: {'SimGrid' if reason is None else f'NONE, {reason}'}"
