"""Quantities: what people write, what the CRD's patterns admit, what comes out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eidolon_operator import spec, units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80GiB", 80 * 2**30),
        ("80Gi", 80 * 2**30),
        ("80 GiB", 80 * 2**30),
        ("80GB", 80 * 10**9),
        ("80G", 80 * 10**9),
        ("1.5KiB", 1536),
        ("4096", 4096),
        ("4096B", 4096),
        ("2Ti", 2 * 2**40),
    ],
)
def test_size(text: str, expected: int) -> None:
    assert units.parse_size_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50GB/s", 50 * 10**9),
        ("400Gb/s", 50 * 10**9),
        ("400Gbit/s", 50 * 10**9),
        ("12.5 GB/s", 12_500_000_000),
        ("1kB/s", 1000),
        ("8b/s", 1),
    ],
)
def test_rate(text: str, expected: int) -> None:
    assert units.parse_rate_bytes_per_s(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5us", 5000),
        ("1.5ms", 1_500_000),
        ("700ns", 700),
        ("10m", 600 * 10**9),
        ("2h", 7200 * 10**9),
        ("3s", 3 * 10**9),
    ],
)
def test_duration(text: str, expected: int) -> None:
    assert units.parse_duration_ns(text) == expected


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_size_bytes, "80 gigs"),
        (units.parse_size_bytes, "-1GiB"),
        (units.parse_size_bytes, "0"),
        (units.parse_size_bytes, "0.5"),
        (units.parse_size_bytes, ""),
        (units.parse_rate_bytes_per_s, "50GB"),
        (units.parse_rate_bytes_per_s, "7b/s"),
        (units.parse_rate_bytes_per_s, "0GB/s"),
        (units.parse_duration_ns, "5"),
        (units.parse_duration_ns, "5 minutes"),
    ],
)
def test_refused(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse(text)


def _quantity_patterns() -> list[tuple[str, Callable[[str], int]]]:
    """Every quantity of the CRD with the parser that reads it."""
    properties: Any = spec.object_schema()["properties"]["spec"]["properties"]
    network = properties["network"]["properties"]
    return [
        (properties["gpu"]["properties"]["memory"]["pattern"], units.parse_size_bytes),
        (properties["gpu"]["properties"]["contextMemory"]["pattern"], units.parse_size_bytes),
        (network["interServer"]["properties"]["bandwidth"]["pattern"], units.parse_rate_bytes_per_s),
        (network["interServer"]["properties"]["latency"]["pattern"], units.parse_duration_ns),
        (network["intraServer"]["properties"]["bandwidth"]["pattern"], units.parse_rate_bytes_per_s),
        (properties["startupTimeout"]["pattern"], units.parse_duration_ns),
    ]


@given(st.data())
def test_what_the_pattern_admits_can_be_parsed(data: st.DataObject) -> None:
    pattern, parse = data.draw(st.sampled_from(_quantity_patterns()))
    # \A and \Z: `$` would let a generated newline through at the end.
    text = data.draw(
        st.from_regex(
            pattern.replace("^", r"\A").replace("$", r"\Z"), fullmatch=True, alphabet=st.characters(codec="ascii")
        )
    )
    try:
        parsed = parse(text)
    except ValueError as error:
        parsed = 0
        if "at least 1 byte" not in str(error):  # a bound, not a question of syntax
            raise
    assert parsed >= 0


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (80 * 2**30, "80.0 GiB"),
        (2**40, "1.00 TiB"),
        (999 * 2**30, "999 GiB"),
    ],
)
def test_format_bytes(count: int, expected: str) -> None:
    assert units.format_bytes(count) == expected


@pytest.mark.parametrize(
    ("ns", "expected"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1500, "1.500 us"),
        (71_300_000, "71.30 ms"),
        (912_345_678, "912.3 ms"),
        (1234 * 10**9, "1,234.0 s"),
    ],
)
def test_format_ns(ns: int, expected: str) -> None:
    assert units.format_ns(ns) == expected
