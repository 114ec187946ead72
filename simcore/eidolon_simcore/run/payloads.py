"""What a collective does to small payloads: the bytes each member gets from the bytes that the members sent.

A payload of n bytes has one of three forms on the wire, which its length tells apart:

* n bytes: all of them are known;
* n bytes and a mask of ⌈n/8⌉ bytes: bit i of the mask says that byte i is known, and unknown bytes are zeros;
* nothing: no byte is known.

Operations that move bytes move the mask with them. A reduced element is known if it is known at every member.

In a folded run some members are no processes, and the bytes of another member stand for theirs
(:mod:`.folding`). Each such payload is held once, with the number of members that it stands for.

Reductions go through a wider type and are rounded once. So the result does not depend on the order of the ranks, which
NCCL does not promise either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = bytes | None

#: By ncclDataType_t: size in bytes, and how values are read: a NumPy type, or the name of a small float.
DTYPES: tuple[tuple[int, str], ...] = (
    *((1, "i1"), (1, "u1"), (4, "<i4"), (4, "<u4"), (8, "<i8"), (8, "<u8")),
    *((2, "<f2"), (4, "<f4"), (8, "<f8"), (2, "bf16"), (1, "e4m3"), (1, "e5m2")),
)
_NAMES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"),
    *("float8_e4m3", "float8_e5m2"),
)
SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, SCALED_SUM = range(6)  #: ncclRedOp_t; the last is any custom reduction


def dtype_name(dtype: int) -> str:
    """A readable name of an ``ncclDataType_t``."""
    return _NAMES[dtype] if 0 <= dtype < len(_NAMES) else f"type {dtype}"


def wider_than_a_byte(dtype: int) -> bool:
    """Whether a switch can reduce the type (NVLink SHARP)."""
    return size_of(dtype) > 1


def size_of(dtype: int) -> int:
    """Bytes of an element."""
    return DTYPES[dtype][0] if 0 <= dtype < len(DTYPES) else 1


def senders(op: str, size: int, root: int) -> range:
    """Members whose bytes the operation reads."""
    return range(root, root + 1) if op in ("broadcast", "scatter") else range(size)


def receivers(op: str, size: int, root: int) -> range:
    """Members to which the operation brings bytes."""
    return range(root, root + 1) if op in ("reduce", "gather") else range(size)


def sent_bytes(op: str, count: int, dtype: int, size: int) -> int:
    """What one sender sends in an operation with NCCL's ``count`` of ``size`` members."""
    return count * size_of(dtype) * (size if op in ("reduce_scatter", "all_to_all", "scatter") else 1)


def any_known(op: str, sent: Sequence[Bytes], root: int) -> bool:
    """False if no member can get a known byte, because no sender knows one, or not every one does that is reduced."""
    if op in ("broadcast", "scatter"):
        return sent[root] is not None
    if op in ("all_gather", "gather", "all_to_all"):
        return any(one is not None for one in sent)
    return all(one is not None for one in sent)


def exchange(
    op: str,
    sent: Sequence[Bytes],
    root: int,
    dtype: int,
    redop: int,
    length: int,
    scales: Sequence[float | None] = (),
    stand_ins: Sequence[int] = (),
) -> list[Bytes]:
    """The result of each member, as it goes on the wire.

    Args:
        sent: one payload for each member; those of members that do not send are not looked at.
        length: bytes that one sender sends, as :func:`sent_bytes` says.
        scales: the members' factors in a scaled sum; None for one that is not known.
        stand_ins: by member, the one whose payload is its; () if each has its own.
    """
    size = len(sent)
    if op in ("broadcast", "scatter"):
        data, known = _decoded(sent[root], length)
        parts = 1 if op == "broadcast" else size
        return [_encoded(d, k) for d, k in zip(_split(data, parts), _split(known, parts), strict=True)] * (
            size // parts
        )
    senders, row, counts = np.unique(stand_ins or range(size), return_inverse=True, return_counts=True)
    decoded = [_decoded(sent[member], length) for member in senders]
    data, known = np.stack([d for d, _ in decoded]), np.stack([k for _, k in decoded])
    if op in ("all_gather", "gather"):
        joined = _encoded(data[row].ravel(), known[row].ravel())
        return [joined if op == "all_gather" or member == root else None for member in range(size)]
    if op == "all_to_all":
        data = data.reshape(-1, size, length // size)[row].swapaxes(0, 1).reshape(size, -1)
        known = known.reshape(-1, size, length // size)[row].swapaxes(0, 1).reshape(size, -1)
        return [_encoded(d, k) for d, k in zip(data, known, strict=True)]
    total, of_total = _reduced(
        data, known, dtype, redop, [scales[member] for member in senders] if scales else (), counts
    )
    if op == "reduce_scatter":
        return [_encoded(d, k) for d, k in zip(_split(total, size), _split(of_total, size), strict=True)]
    whole = _encoded(total, of_total)
    return [whole if op == "all_reduce" or member == root else None for member in range(size)]


# ---- bytes that may be unknown -------------------------------------------------------------------------------------


def _decoded(wire: Bytes, length: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The bytes, and which of them are known. In a payload of any other length none is."""
    if wire is not None and len(wire) == length:
        return np.frombuffer(wire, np.uint8), np.ones(length, np.bool_)
    if wire is not None and len(wire) == length + -(-length // 8):
        mask = np.frombuffer(wire, np.uint8, offset=length)
        known = np.unpackbits(mask, count=length, bitorder="little").view(np.bool_)
        return np.frombuffer(wire, np.uint8, count=length), known
    return np.zeros(length, np.uint8), np.zeros(length, np.bool_)


def _encoded(data: NDArray[np.uint8], known: NDArray[np.bool_]) -> Bytes:
    if known.all():
        return data.tobytes()
    if not known.any():
        return None
    return np.where(known, data, 0).astype(np.uint8).tobytes() + np.packbits(known, bitorder="little").tobytes()


def _split(values: NDArray[Any], count: int) -> NDArray[Any]:
    return values[: values.size // count * count].reshape(count, -1)


# ---- reductions ----------------------------------------------------------------------------------------------------

_REDUCTIONS: dict[int, Callable[..., Any]] = {
    SUM: np.add,
    PRODUCT: np.multiply,
    MAXIMUM: np.maximum,
    MINIMUM: np.minimum,
    AVERAGE: np.add,
    SCALED_SUM: np.add,
}


def _reduced(
    data: NDArray[np.uint8],
    known: NDArray[np.bool_],
    dtype: int,
    redop: int,
    scales: Sequence[float | None],
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The bytes of the reduction of all rows, each of which stands for ``counts`` members, and which are known."""
    reduction = _REDUCTIONS.get(redop)
    factors = [1.0] * len(data) if redop != SCALED_SUM else [s for s in scales if s is not None]
    width = size_of(dtype)
    if reduction is None or not 0 <= dtype < len(DTYPES) or len(factors) != len(data) or data.shape[1] % width:
        return np.zeros(data.shape[1], np.uint8), np.zeros(data.shape[1], np.bool_)
    kind = DTYPES[dtype][1]
    with np.errstate(all="ignore"):
        parts = [_wide(row, kind) for row in data]
        if redop == SCALED_SUM:
            parts = [(part * factor).astype(part.dtype) for part, factor in zip(parts, factors, strict=True)]
        total = _repeated(parts[0], redop, int(counts[0]))
        for part, count in zip(parts[1:], counts[1:], strict=True):
            total = reduction(total, _repeated(part, redop, int(count)))
        if redop == AVERAGE:  # integers are cut off towards zero
            members = int(counts.sum())
            total = np.sign(total) * (np.abs(total) // members) if total.dtype.kind in "iu" else total / members
        narrowed = _narrow(total, kind)
    elements = known.reshape(len(data), -1, width).all(axis=(0, 2))
    return np.frombuffer(narrowed, np.uint8), np.repeat(elements, width)


def _repeated(part: NDArray[Any], redop: int, count: int) -> NDArray[Any]:
    """The reduction of so many times the same values."""
    if count == 1 or redop in (MAXIMUM, MINIMUM):
        return part
    return (part**count if redop == PRODUCT else part * count).astype(part.dtype)


def _wide(data: NDArray[np.uint8], kind: str) -> NDArray[Any]:
    if kind == "bf16":
        return (data.view("<u2").astype("<u4") << 16).view("<f4").astype("<f8")
    if kind in _EIGHT_BITS:
        return _eight_bit_values(kind)[data]
    values = data.view(kind)
    return values.astype("<f8") if values.dtype.kind == "f" else values


def _narrow(values: NDArray[Any], kind: str) -> bytes:
    if kind == "bf16":
        bits = values.astype("<f4").view("<u4")
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = np.where(np.isnan(values), 0x7FC0, rounded)
        return rounded.astype("<u2").tobytes()
    if kind in _EIGHT_BITS:
        return _eight_bits(values, kind).tobytes()
    return values.astype(kind).tobytes()


#: Floats of one byte: bits of the mantissa, bias of the exponent, bit pattern of the greatest finite number.
_EIGHT_BITS = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}


@cache
def _eight_bit_values(kind: str) -> NDArray[np.float64]:
    """The numbers that the 256 patterns stand for."""
    mantissa_bits, bias, greatest = _EIGHT_BITS[kind]
    magnitude = np.arange(128)
    exponent, mantissa = magnitude >> mantissa_bits, (magnitude & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    values = np.where(exponent == 0, 2.0 * mantissa, 1 + mantissa) * 2.0 ** (exponent - bias)
    values[greatest + 1 :] = np.nan
    if kind == "e5m2":
        values[greatest + 1] = np.inf
    return np.concatenate([values, -values])


def _eight_bits(values: NDArray[np.float64], kind: str) -> NDArray[np.uint8]:
    """The nearest patterns, ties to even. What is too large becomes the greatest finite number, as in CUDA."""
    greatest = _EIGHT_BITS[kind][2]
    finite = _eight_bit_values(kind)[: greatest + 1]
    size = np.minimum(np.abs(values), finite[-1])
    above = np.clip(np.searchsorted(finite, size), 1, greatest)
    middle = (finite[above - 1] + finite[above]) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    bits = np.where(up, above, above - 1) | np.where(np.signbit(values), 0x80, 0)
    return np.where(np.isnan(values), 0x7F, bits).astype(np.uint8)
