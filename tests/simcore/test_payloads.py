"""What collectives do to bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eidolon_simcore.payloads import exchange, receivers, senders

FLOAT, BF16, HALF, INT32, UINT8 = 7, 9, 6, 2, 1


def f4(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def bf16(*values: float) -> bytes:
    return (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()


def test_gathers_scatters_and_exchanges() -> None:
    assert exchange("all_gather", [b"ab", b"cd"], 0, UINT8, 0) == [b"abcd", b"abcd"]
    assert exchange("gather", [b"ab", b"cd"], 1, UINT8, 0) == [None, b"abcd"]
    assert exchange("broadcast", [None, b"xy", None], 1, UINT8, 0) == [b"xy"] * 3
    assert exchange("scatter", [b"abcd", None], 0, UINT8, 0) == [b"ab", b"cd"]
    assert exchange("all_to_all", [b"abcd", b"efgh"], 0, UINT8, 0) == [b"abef", b"cdgh"]


@pytest.mark.parametrize(("redop", "result"), [(0, 5.0), (1, 6.0), (2, 3.0), (3, 2.0), (4, 2.5)])
def test_reductions(redop: int, result: float) -> None:
    assert exchange("all_reduce", [f4(2, 2), f4(3, 3)], 0, FLOAT, redop) == [f4(result, result)] * 2
    assert exchange("reduce_scatter", [f4(2, 2), f4(3, 3)], 0, FLOAT, redop) == [f4(result)] * 2
    assert exchange("reduce", [f4(2), f4(3)], 1, FLOAT, redop) == [None, f4(result)]


def test_half_types_round_once_to_nearest_even() -> None:
    assert exchange("all_reduce", [bf16(1.0), bf16(2**-8)], 0, BF16, 0)[0] == bf16(1.0)  # a tie goes to even
    assert exchange("all_reduce", [bf16(1.0), bf16(1.5 * 2**-8)], 0, BF16, 0)[0] == bf16(1.0 + 2**-7)
    halves = [np.array([v], "<f2").tobytes() for v in (60_000, 60_000)]
    assert np.isinf(np.frombuffer(exchange("all_reduce", halves, 0, HALF, 0)[0] or b"", "<f2"))[0]


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=8))
def test_bf16_of_one_member_is_unchanged(bits: list[int]) -> None:
    data = np.array(bits, "<u2")
    values = (data.astype("<u4") << 16).view("<f4")
    result = np.frombuffer(exchange("all_reduce", [data.tobytes()], 0, BF16, 0)[0] or b"", "<u2")
    same = np.isnan(values) | (result == data)
    assert same.all()


def test_integers_wrap_and_average_down() -> None:
    full = np.array([2**31 - 1], "<i4").tobytes()
    one = np.array([1], "<i4").tobytes()
    assert exchange("all_reduce", [full, one], 0, INT32, 0)[0] == np.array([-(2**31)], "<i4").tobytes()
    assert (
        exchange("all_reduce", [np.array([4], "<i4").tobytes(), one], 0, INT32, 4)[0] == np.array([2], "<i4").tobytes()
    )


def test_unknown_bytes_make_what_depends_on_them_unknown() -> None:
    assert exchange("all_reduce", [f4(1), None], 0, FLOAT, 0) == [None, None]
    assert exchange("broadcast", [None, f4(1)], 0, FLOAT, 0) == [None, None]
    assert exchange("broadcast", [f4(1), None], 0, FLOAT, 0) == [f4(1)] * 2
    assert exchange("all_reduce", [f4(1), f4(1, 2)], 0, FLOAT, 0) == [None, None]  # sizes that do not fit
    assert exchange("all_reduce", [b"a", b"b"], 0, 10, 0) == [None, None]  # 8-bit floats are not reduced
    assert exchange("all_reduce", [f4(1), f4(1)], 0, FLOAT, 9) == [None, None]  # nor by scaled sums


def test_who_sends_and_who_receives() -> None:
    assert list(senders("broadcast", 4, 2)) == [2]
    assert list(receivers("broadcast", 4, 2)) == [0, 1, 2, 3]
    assert list(senders("gather", 3, 1)) == [0, 1, 2]
    assert list(receivers("gather", 3, 1)) == [1]
