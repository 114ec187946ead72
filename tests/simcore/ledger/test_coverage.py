"""What a run's device time rests on."""

from __future__ import annotations

import pytest

from eidolon_simcore.ledger.coverage import Spent, coverage
from eidolon_simcore.signature import Signature


def test_expected_errors_are_weighed_by_time_and_told_by_source() -> None:
    copy, gemm = Signature("copy", "h2d", {}), Signature("gemm", "cublas", {"m": 8, "n": 8, "k": 8})
    spent = [
        Spent(gemm, None, 3, 300, "measured", 0.02),
        Spent(gemm, None, 1, 100, "measured", 0.06),
        Spent(copy, None, 1, 100, "roofline", 0.3),
        Spent(Signature("collective", "all_reduce", {}), None, 2, 500, "interpolated", None),
    ]
    told = coverage(spent)
    assert told["errors"] == {"measured": pytest.approx(0.03), "roofline": pytest.approx(0.3)}
    assert told["expected_error"] == pytest.approx(0.084)
    assert told["families"] == {
        "collective": {"interpolated": 500},  # it has no error of its own, but its part of device time
        "gemm": {"measured": 400},
        "copy": {"roofline": 100},
    }
    assert [entry["share"] for entry in told["operations"]] == [0.4, 0.1]
