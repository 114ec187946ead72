"""Names of spans, shared by all ranks and told by number: the engine and the sinks handle numbers alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Label:
    """What spans are called."""

    name: str  #: kind and name of the signature; of host calls the name
    shown: str = ""  #: what users call it, where that is another name
    source: str = ""  #: of its cost
    operator: str = ""  #: of the framework, where it is known


@dataclass(slots=True)
class Labels:
    """Labels of spans, shared by all ranks, by their numbers."""

    names: list[str] = field(default_factory=lambda: [""])
    all: list[Label] = field(default_factory=lambda: [Label("")])
    _numbers: dict[Label, int] = field(default_factory=dict)

    def number(self, name: str, shown: str = "", source: str = "", operator: str = "") -> int:
        label = Label(name, shown, source, operator)
        found = self._numbers.get(label)
        if found is None:
            found = self._numbers[label] = len(self.names)
            self.names.append(name)
            self.all.append(label)
        return found
