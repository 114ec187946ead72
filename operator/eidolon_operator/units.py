"""Quantities as people write them, to integers and back.

Sizes follow the usual reading: ``GiB`` and Kubernetes' ``Gi`` are binary, ``GB`` and ``G`` decimal. Rates are decimal,
in bytes (``50GB/s``) or bits (``400Gb/s``). The patterns of the CRD admit what is parsed here; a test holds that.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_DECIMAL: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_DURATION_NS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_NUMBER: Final = r"^([0-9]+(?:\.[0-9]+)?) ?"


def parse_size_bytes(text: str, *, least: int = 1) -> int:
    """Bytes in a text such as ``80GiB``, ``80Gi``, ``80GB``, ``80G`` or ``80``. Raises ValueError."""
    number, prefix = _split(text, r"([KMGT]i?)?B?$", "a size such as 80GiB")
    return _integer(number * (_BINARY | _DECIMAL)[prefix], text, "a size such as 80GiB", least)


def parse_rate_bytes_per_s(text: str) -> int:
    """Bytes per second in a text such as ``50GB/s`` or ``400Gb/s``. Raises ValueError."""
    what = "a rate such as 50GB/s or 400Gb/s"
    number, unit = _split(text, r"([kKMGT]?(?:B|b|bit))/s$", what)
    bits = not unit.endswith("B")
    prefix = unit.removesuffix("bit").rstrip("Bb")
    return _integer(number * _DECIMAL[prefix] / (8 if bits else 1), text, what)


def parse_duration_ns(text: str) -> int:
    """Nanoseconds in a text such as ``5us`` or ``10m``. Raises ValueError."""
    number, unit = _split(text, r"(ns|us|ms|s|m|h)$", "a duration such as 5us or 10m")
    return int(number * _DURATION_NS[unit])


def _split(text: str, suffix: str, what: str) -> tuple[Fraction, str]:
    match = re.search(_NUMBER + suffix, text)
    if match is None:
        raise ValueError(f"{text!r} is not {what}")
    return Fraction(match[1]), match[2] or ""


def _integer(value: Fraction, text: str, what: str, least: int = 1) -> int:
    if (result := int(value)) < least:
        raise ValueError(f"{text!r} is not {what}: it must be at least 1 byte")
    return result


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a field may hold: quantities of one kind between two bounds, which are written as a user would."""

    parse: Callable[[str], int]
    least: str
    most: str

    def __call__(self, text: str) -> int:
        """The number in a text. Raises ValueError."""
        value = self.parse(text)
        if not self.parse(self.least) <= value <= self.parse(self.most):
            raise ValueError(f"{text!r} is out of bounds; allowed: {self.least} to {self.most}")
        return value


# The bounds are far beyond any real machine, and such that sums of virtual times stay within 64 bits.
SIZE: Final = Quantity(parse_size_bytes, "1B", "1024TiB")
SIZE_OR_NOTHING: Final = Quantity(functools.partial(parse_size_bytes, least=0), "0B", "1024TiB")
RATE: Final = Quantity(parse_rate_bytes_per_s, "1MB/s", "1000TB/s")
LATENCY: Final = Quantity(parse_duration_ns, "0ns", "10s")
TIME_LIMIT: Final = Quantity(parse_duration_ns, "1ms", "8760h")


def format_bytes(count: float) -> str:
    """A size in binary units with three significant digits, such as ``1536 MiB``."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{int(count)} B"


def format_ns(ns: float) -> str:
    """A time with four significant digits in the unit that reads best, such as ``71.30 ms``."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(ns) >= size:
            value = ns / size
            digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
            return f"{value:,.{digits}f} {unit}"
    return f"{int(ns)} ns"


def format_count(value: float) -> str:
    """A rate or count with thousands separators, such as ``1,234,567`` or ``12.3``."""
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else _three_digits(value)


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"
