"""What device work costs, looked up record by record in the native part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eidolon_simcore.engine import _engine  # type: ignore[attr-defined]
from eidolon_simcore.engine.interface import OPERATION
from eidolon_simcore.run.event_records import RECORD
from eidolon_simcore.vocabulary import Kind


def intake(prices: Any, gap: int = 0) -> Any:
    """An intake with these prices, for a device on which work starts ``gap`` ns later."""
    settings = {"measured": False, "factor": 1.0, "poll_ns": 0, "compiled_entry_ns": 0, "crowded_lanes": 0}
    return _engine.Intake(prices, _engine.Meter(), _engine.Outline(), **settings, crowded_ns=gap)


def take(prices: Any, signatures: list[int], values: list[int], works: list[bool] | None = None, gap: int = 0) -> Any:
    """Prices a batch; its operations. What is no work is the recording of an event."""
    made = intake(prices, gap)
    records = np.zeros(len(signatures), RECORD)
    records["seq"] = np.arange(len(signatures))
    records["sig"], records["value"] = signatures, values
    records["kind"] = np.where(works if works is not None else True, Kind.KERNEL, Kind.EVENT_RECORD)
    for number in signatures:
        made.define(number, 0)
    made.open(0, records.tobytes())
    assert not made.translate()
    return np.frombuffer(made.close(), OPERATION)


def mark(prices: Any) -> None:
    """A step ends."""
    records = np.zeros(1, RECORD)
    records["kind"], records["sig"] = Kind.MARK, 1
    made = intake(prices)
    made.define(1, 0, step=True)
    made.open(0, records.tobytes())
    assert made.translate()


@pytest.fixture
def prices() -> Any:
    """1: a GEMM of 1,000 ns. 2: a copy of 500 ns and half a nanosecond a byte."""
    made = _engine.Prices()
    made.define(1, 1_000, [], 11, 2, 0)
    made.define(2, 500, [(0, 0.0), (100, 50.0)], 12, 1, 2)
    return made


def test_a_record_gets_its_duration_label_and_class(prices: Any) -> None:
    out = take(prices, [1, 2, 1], [7, 100, 0])
    assert out["work_ns"].tolist() == [1_000, 550, 1_000]
    assert out["label"].tolist() == [11, 12, 11]
    assert out["work_class"].tolist() == [2, 1, 2]
    assert prices.spent() == [[0, 0, 0], [2, 2_000, 0], [1, 550, 0]]
    assert prices.source_ns == [2_000, 0, 550, 0]


def test_bytes_cost_what_the_lines_between_the_points_say(prices: Any) -> None:
    prices.define(3, 10, [(64, 100.0), (128, 100.0), (256, 300.0)], 13, 1, 1)
    sizes = [0, 64, 100, 128, 192, 256, 257, 512]
    assert take(prices, [3] * len(sizes), sizes)["work_ns"].tolist() == [110, 110, 110, 110, 210, 310, 312, 710]
    prices.define(4, 10, [(64, 100.0)], 13, 1, 1)
    assert take(prices, [4, 4], [1, 1_000])["work_ns"].tolist() == [110, 110]
    with pytest.raises(ValueError, match="ascending"):
        prices.define(5, 0, [(8, 1.0), (8, 2.0)], 13, 1, 1)


def test_what_is_no_device_work_is_left_alone(prices: Any) -> None:
    assert take(prices, [1, 2], [0, 0], works=[False, True])["work_ns"].tolist() == [0, 500]


def test_the_pace_of_a_step_stretches_classes_and_full_clock_times_stay(prices: Any) -> None:
    prices.set_pace([1.0, 1.0, 1.25])
    assert take(prices, [1, 2], [0, 0])["work_ns"].tolist() == [1_250, 500]
    assert prices.cut()[:3] == [0.0, 500.0, 1_000.0]
    assert prices.at_full_clock[:3] == [0.0, 0.0, 0.0]


def test_a_crowded_device_starts_everything_later(prices: Any) -> None:
    assert take(prices, [1], [0], gap=950)["work_ns"].tolist() == [1_950]


def test_a_signature_without_a_price_is_free_and_counted_as_that(prices: Any) -> None:
    assert take(prices, [5, 5], [0, 0], gap=950)["work_ns"].tolist() == [0, 0]
    assert prices.spent()[5] == [2, 0, 2]


def test_steps_are_counted_apart_from_what_came_before(prices: Any) -> None:
    take(prices, [2, 5], [0, 0])
    assert prices.spent()[2] == [1, 500, 0]
    mark(prices)
    assert prices.spent()[2] == [1, 500, 0]
    take(prices, [1], [0])
    assert [row[:2] for row in prices.spent()[1:3]] == [[1, 1_000], [1, 500]]  # no second step: all there is
    assert (prices.source_ns, prices.startup_ns) == ([1_000, 0, 500, 0], [0] * 4)
    mark(prices)
    assert [row[:2] for row in prices.spent()] == [[0, 0], [1, 1_000], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert (prices.source_ns, prices.startup_ns) == ([1_000, 0, 0, 0], [0, 0, 500, 0])
    assert prices.spent()[5][2] == 1  # what was free is not forgotten
