"""What a rank sends is checked before it is used.

A batch that is not as ``simulation.proto`` says raises :class:`InvalidBatchError`. Records that name a signature or a
call which the rank has not defined are refused in ``native/src/intake.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from eidolon_simcore.run.event_records import RECORD
from eidolon_simcore.signature import Signature
from eidolon_simcore.vocabulary import CALL_IDS, SignatureKind

MAX_SIGNATURES = 100_000  #: limit for one rank
MOST_OF_A_CALL = 1 << 50  #: elements or bytes of a collective
_MAX_ID = CALL_IDS + 2 * MAX_SIGNATURES
_SIGNATURE_KINDS = frozenset(get_args(SignatureKind))
_UNDEFINED = Signature(cast("SignatureKind", ""), "", {})


class InvalidBatchError(Exception):
    """A batch breaks the contract; the message says how."""


class LostRecordsError(InvalidBatchError):
    """Records are missing before this batch, because an agent died with them."""


def received(kind: str, name: str, attributes: Mapping[str, int]) -> Signature:
    """A signature as it came over the wire, if the vocabulary has its kind."""
    if kind not in _SIGNATURE_KINDS:
        raise InvalidBatchError(f"signature {name!r} is of unknown kind {kind!r}")
    if kind == "collective":
        for key in ("count", "bytes"):
            if not 0 <= attributes.get(key, 0) <= MOST_OF_A_CALL:
                raise InvalidBatchError(f"{name} has {key} {attributes[key]}; allowed: 0 to {MOST_OF_A_CALL}")
    return Signature(cast("SignatureKind", kind), name, attributes)


class Definitions:
    """The signatures that one rank has defined, by their ids."""

    def __init__(self) -> None:
        self._signatures: dict[int, Signature] = {}

    def add(self, number: int, signature: Signature) -> bool:
        """Defines a signature. False if it is known already: an agent that reconnects defines everything again."""
        if number <= 0 or number >= _MAX_ID:
            raise InvalidBatchError(f"signature id {number} is out of range")
        if signature.kind == "call" and number >= CALL_IDS:
            raise InvalidBatchError(f"call {signature.name!r} has id {number}, which is not below {CALL_IDS}")
        if number in self._signatures:
            return False
        if len(self._signatures) >= MAX_SIGNATURES:
            raise InvalidBatchError(f"more than {MAX_SIGNATURES} signatures of one rank")
        self._signatures[number] = signature
        return True

    def get(self, number: int) -> Signature:
        """The signature with this id; one without kind, name and attributes if there is none."""
        return self._signatures.get(number, _UNDEFINED)

    def operator_of(self, signature: Signature) -> Signature | None:
        """The framework's operator that a signature was launched by, where it says so."""
        return self._signatures.get(signature.get("op"))


def known_records(first_seq: int, count: int, data: bytes, next_seq: int) -> int:
    """How many records at the beginning of a batch, up to ``next_seq``, have come already, with an earlier stream."""
    if len(data) != count * RECORD.itemsize:
        raise InvalidBatchError(f"{len(data)} bytes for {count} records of {RECORD.itemsize}")
    if first_seq > next_seq:
        raise LostRecordsError(f"record {first_seq} follows record {next_seq - 1}")
    return min(next_seq - first_seq, count)
