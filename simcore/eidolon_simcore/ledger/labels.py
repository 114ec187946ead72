"""Names of spans. All ranks share them, and the engine and the sinks handle their numbers alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Label:
    """What spans are called."""

    name: str  #: kind and name of the signature; of a host call its name alone
    shown: str = ""  #: what users call it, where that differs
    source: str = ""  #: where its cost comes from; empty for what has none
    operator: str = ""  #: the framework's operator that launched it, where that is known


@dataclass(slots=True)
class Labels:
    """The labels of a run, by their numbers. Label 0 is empty."""

    names: list[str] = field(default_factory=lambda: [""])
    all: list[Label] = field(default_factory=lambda: [Label("")])
    _numbers: dict[Label, int] = field(default_factory=dict)

    def number(self, name: str, shown: str = "", source: str = "", operator: str = "") -> int:
        """The number of a label, which is a new one if there is no such label yet."""
        label = Label(name, shown, source, operator)
        found = self._numbers.get(label)
        if found is None:
            found = self._numbers[label] = len(self.names)
            self.names.append(name)
            self.all.append(label)
        return found
