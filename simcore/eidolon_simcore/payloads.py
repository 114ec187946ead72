"""What a collective does to small payloads: the bytes each member gets from the bytes that the members sent.

``None`` is unknown and makes every result that depends on it unknown. Reductions go through a wider type and are
rounded once, so the result does not depend on an order of ranks that NCCL does not promise either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = bytes | None

#: ncclDataType_t -> (size in bytes, NumPy type; None where a reduction is not computed)
DTYPES: dict[int, tuple[int, str | None]] = {
    number: (size, kind)
    for number, (size, kind) in enumerate(
        [
            *[(1, "i1"), (1, "u1"), (4, "<i4"), (4, "<u4"), (8, "<i8"), (8, "<u8")],
            *[(2, "<f2"), (4, "<f4"), (8, "<f8"), (2, "bf16"), (1, None), (1, None)],
        ]
    )
}
_NAMES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")


def dtype_name(dtype: int) -> str:
    """A readable name of an ``ncclDataType_t``."""
    return _NAMES[dtype] if 0 <= dtype < len(_NAMES) else f"type {dtype}"


def wider_than_a_byte(dtype: int) -> bool:
    """Types that a switch can reduce (NVLink SHARP)."""
    return DTYPES.get(dtype, (1, None))[0] > 1


def senders(op: str, size: int, root: int) -> range:
    """Members whose bytes the operation reads."""
    return range(root, root + 1) if op in ("broadcast", "scatter") else range(size)


def receivers(op: str, size: int, root: int) -> range:
    """Members that the operation brings bytes to."""
    return range(root, root + 1) if op in ("reduce", "gather") else range(size)


def exchange(op: str, sent: Sequence[Bytes], root: int, dtype: int, redop: int) -> list[Bytes]:
    """Results by member. ``sent`` holds one entry a member; those that do not send are not looked at."""
    size = len(sent)
    if op in ("broadcast", "scatter"):
        whole = sent[root]
        if op == "broadcast" or whole is None:
            return [whole] * size
        return list(_chunks(whole, size))
    if any(data is None for data in sent):
        return [None] * size
    known = [data for data in sent if data is not None]
    if len({len(data) for data in known}) != 1:
        return [None] * size
    if op in ("all_gather", "gather"):
        joined = b"".join(known)
        return [joined if op == "all_gather" or member == root else None for member in range(size)]
    if op == "all_to_all":
        parts = [list(_chunks(data, size)) for data in known]
        return [b"".join(part[member] for part in parts) for member in range(size)]
    total = _reduce(known, dtype, redop)
    if op == "reduce_scatter":
        return [None] * size if total is None else list(_chunks(total, size))
    return [total if op == "all_reduce" or member == root else None for member in range(size)]


def _chunks(data: bytes, count: int) -> list[bytes]:
    each = len(data) // count
    return [data[i * each : (i + 1) * each] for i in range(count)]


_REDUCTIONS: dict[int, Callable[..., Any]] = {0: np.add, 1: np.multiply, 2: np.maximum, 3: np.minimum, 4: np.add}


def _reduce(parts: Sequence[bytes], dtype: int, redop: int) -> Bytes:
    """ncclRedOp_t: sum, product, maximum, minimum, average. Others (scaled sums) and 8-bit floats are unknown."""
    kind = DTYPES.get(dtype, (1, None))[1]
    reduction = _REDUCTIONS.get(redop)
    if kind is None or reduction is None:
        return None
    with np.errstate(all="ignore"):
        total = _widen(parts[0], kind)
        for part in parts[1:]:
            total = reduction(total, _widen(part, kind))
        if redop == 4:
            total = total // len(parts) if total.dtype.kind in "iu" else total / len(parts)
        return _narrow(total, kind)


def _widen(data: bytes, kind: str) -> NDArray[Any]:
    if kind == "bf16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype("<f8")
    values = np.frombuffer(data, kind)
    return values.astype("<f8") if values.dtype.kind == "f" else values


def _narrow(values: NDArray[Any], kind: str) -> bytes:
    if kind == "bf16":
        bits = values.astype("<f4").view("<u4")
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = np.where(np.isnan(values), 0x7FC0, rounded)
        return rounded.astype("<u2").tobytes()
    return values.astype(kind).tobytes()
