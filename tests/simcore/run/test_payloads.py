"""What collectives do to bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eidolon_simcore.run import payloads
from eidolon_simcore.run.payloads import receivers, senders

FLOAT, BF16, HALF, INT32, INT8, UINT8, E4M3, E5M2 = 7, 9, 6, 2, 0, 1, 10, 11


def f4(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def bf16(*values: float) -> bytes:
    return (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()


def exchange(
    op: str, sent: list[bytes | None], root: int, dtype: int, redop: int, scales: Sequence[float | None] = ()
) -> list[bytes | None]:
    """With the length that the first sender's bytes have."""
    length = next(len(data) for data in sent if data is not None)
    return payloads.exchange(op, sent, root, dtype, redop, length, scales)


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


def test_integers_wrap_and_their_average_is_cut_off() -> None:
    full = np.array([2**31 - 1], "<i4").tobytes()
    one, four, minus_four = (np.array([v], "<i4").tobytes() for v in (1, 4, -4))
    assert exchange("all_reduce", [full, one], 0, INT32, 0)[0] == np.array([-(2**31)], "<i4").tobytes()
    assert exchange("all_reduce", [four, one], 0, INT32, 4)[0] == np.array([2], "<i4").tobytes()
    assert exchange("all_reduce", [minus_four, one], 0, INT32, 4)[0] == np.array([-1], "<i4").tobytes()
    assert exchange("all_reduce", [b"\x7f", b"\x01"], 0, INT8, 0)[0] == b"\x80"


@pytest.mark.parametrize(("dtype", "one", "greatest", "nan"), [(E4M3, 0x38, 0x7E, 0x7F), (E5M2, 0x3C, 0x7B, 0x7F)])
def test_floats_of_eight_bits(dtype: int, one: int, greatest: int, nan: int) -> None:
    every = bytes(range(greatest + 1)) + bytes(range(0x80, 0x80 + greatest + 1))
    assert exchange("all_reduce", [every], 0, dtype, 0)[0] == every
    mantissa = 3 if dtype == E4M3 else 2
    assert exchange("all_reduce", [bytes([one])] * 2, 0, dtype, 0)[0] == bytes([one + (1 << mantissa)])  # 1 + 1 = 2
    assert exchange("all_reduce", [bytes([greatest])] * 2, 0, dtype, 0)[0] == bytes([greatest])  # no infinity
    assert exchange("all_reduce", [bytes([one]), bytes([nan])], 0, dtype, 0)[0] == bytes([nan])
    tie = bytes([one]), bytes([one - ((mantissa + 1) << mantissa)])  # 1 + half a unit in its last place
    assert exchange("all_reduce", list(tie), 0, dtype, 0)[0] == bytes([one])


def test_a_scaled_sum_multiplies_each_members_bytes_by_its_own_factor() -> None:
    sent = [f4(2, 4), f4(3, 5)]
    assert exchange("all_reduce", sent, 0, FLOAT, 5, [0.5, 2.0])[0] == f4(7, 12)
    assert exchange("all_reduce", sent, 0, FLOAT, 5, [0.5, None])[0] is None
    assert exchange("reduce_scatter", [bf16(2, 4), bf16(3, 5)], 0, BF16, 5, [0.5, 0.5]) == [bf16(2.5), bf16(4.5)]


def test_unknown_bytes_make_what_depends_on_them_unknown() -> None:
    assert exchange("all_reduce", [f4(1), None], 0, FLOAT, 0) == [None, None]
    assert exchange("broadcast", [None, f4(1)], 0, FLOAT, 0) == [None, None]
    assert exchange("broadcast", [f4(1), None], 0, FLOAT, 0) == [f4(1)] * 2
    assert exchange("all_reduce", [f4(1), f4(1, 2)], 0, FLOAT, 0) == [None, None]  # sizes that do not fit
    assert exchange("all_reduce", [f4(1), f4(1)], 0, FLOAT, 9) == [None, None]  # a reduction that does not exist
    assert exchange("all_reduce", [f4(1), f4(1)], 0, 12, 0) == [None, None]  # nor does the type


def partly(data: bytes, *unknown: int) -> bytes:
    """``data`` without the bytes at the places ``unknown``, as it goes on the wire."""
    known = np.ones(len(data), np.bool_)
    known[list(unknown)] = False
    return (
        bytes(b if k else 0 for b, k in zip(data, known, strict=True)) + np.packbits(known, bitorder="little").tobytes()
    )


def test_bytes_that_are_known_in_part_arrive_in_part() -> None:
    def move(op: str, *sent: bytes | None, dtype: int = UINT8, redop: int = 0) -> list[bytes | None]:
        return payloads.exchange(op, sent, 0, dtype, redop, 4)

    half = partly(b"abcd", 2, 3)
    assert move("all_gather", half, b"efgh") == [partly(b"abcdefgh", 2, 3)] * 2
    assert move("all_gather", None, b"efgh") == [partly(b"....efgh", 0, 1, 2, 3)] * 2
    assert move("broadcast", half, None) == [half] * 2
    assert move("scatter", half, None) == [b"ab", None]
    assert move("all_to_all", half, b"efgh") == [b"abef", partly(b"cdgh", 0, 1)]
    assert move("reduce_scatter", half, b"\1\1\1\1") == [b"bc", None]
    wide = partly(np.array([1, 2], "<f2").tobytes(), 3)  # half of the second number
    assert move("all_reduce", wide, wide, dtype=HALF)[0] == partly(np.array([2, 2], "<f2").tobytes(), 2, 3)


def test_who_sends_and_who_receives() -> None:
    assert list(senders("broadcast", 4, 2)) == [2]
    assert list(receivers("broadcast", 4, 2)) == [0, 1, 2, 3]
    assert list(senders("gather", 3, 1)) == [0, 1, 2]
    assert list(receivers("gather", 3, 1)) == [1]
