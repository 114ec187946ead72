"""What an operation's cost depends on, as the shim and the torch plugin send it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """Kind, name and whole-number attributes; interned by the rank and sent once."""

    kind: str
    name: str
    attributes: Mapping[str, int]

    def get(self, key: str, default: int = 0) -> int:
        return self.attributes.get(key, default)
