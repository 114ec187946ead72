"""Signatures: what the cost of an operation depends on, as the shim and the torch plugin send it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eidolon_simcore.vocabulary import Attribute, SignatureKind


@dataclass(frozen=True, slots=True)
class Signature:
    """Kind, name and whole-number attributes of an operation. A rank sends each signature once.

    ``docs/reference-vocabulary.md`` says which attributes a kind has and what they mean. Where the kind is ``op``,
    ``attributes`` holds the operator's own integer arguments too."""

    kind: SignatureKind
    name: str
    attributes: Mapping[str, int]

    def get(self, key: Attribute, default: int = 0) -> int:
        """The attribute of this name, or the default if there is none."""
        return self.attributes.get(key, default)

    def values(self, *keys: Attribute, default: int = 0) -> tuple[int, ...]:
        """The attributes of these names, in their order."""
        return tuple(self.attributes.get(key, default) for key in keys)
