"""Signatures: what the cost of an operation depends on, as the shim and the torch plugin send it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """Kind, name and whole-number attributes of an operation. A rank sends each signature once."""

    kind: str
    name: str
    attributes: Mapping[str, int]

    def get(self, key: str, default: int = 0) -> int:
        """The attribute of this name, or the default if there is none."""
        return self.attributes.get(key, default)
