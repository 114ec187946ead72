"""YAML files, read so that they mean one thing only.

An object of Kubernetes is JSON, whatever it is written in. So what has no place in JSON is refused here, and so is what
readers of YAML take in different ways: a key that is given twice (some take the first, some the last), ``010`` (8 or
10), ``1:30`` (90 or text). The file is looked at as a tree of nodes before any value is made of it, so a problem can
name its field, and a file that would unfold to more than memory holds is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from eidolon_operator.schema import Problem, shown

MOST_BYTES: Final = 3 << 20  #: an API server takes no more either
MOST_DEPTH: Final = 64
MOST_VALUES: Final = 200_000  #: what an alias stands for counts each time

_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge"))
_OCTAL: Final = re.compile(r"[-+]?0[0-9_]+")
_INT64: Final = range(-(1 << 63), 1 << 63)


class YamlError(Exception):
    """The file cannot be taken as it is; ``problems`` say why."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = list(problems)


def read(path: Path) -> list[Any]:
    """The documents in a file, without empty ones. Raises :class:`YamlError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # the latter: a NUL byte in the path
        raise YamlError(Problem("file", getattr(error, "strerror", None) or str(error))) from None
    if len(data) > MOST_BYTES:
        raise YamlError(Problem("file", f"has more than {MOST_BYTES:,} bytes"))
    try:
        return parse(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise YamlError(Problem("file", f"is not YAML: {error}")) from None


def parse(text: str) -> list[Any]:
    """The documents in a text, without empty ones. Raises :class:`YamlError`."""
    try:
        nodes = list(yaml.compose_all(text, yaml.SafeLoader))
        problems = [problem for node in nodes for problem in _Look().at(node, "", 0)]
        if problems:
            raise YamlError(*problems)
        make = yaml.SafeLoader("").construct_document
        documents = [make(node) for node in nodes]
    except RecursionError:
        raise YamlError(_too_deep("file")) from None
    except (yaml.YAMLError, ValueError) as error:  # the latter: a number of 5,000 digits, for example
        raise YamlError(Problem("file", f"is not YAML: {' '.join(str(error).split())}")) from None
    return [document for document in documents if document is not None]


class _Look:
    """Looks at the nodes of one document and says what is wrong with them."""

    def __init__(self) -> None:
        self._values = 0

    def at(self, node: Node, path: str, depth: int) -> Iterator[Problem]:
        """What is wrong with this node and those in it."""
        self._values += 1
        if self._values > MOST_VALUES:
            raise YamlError(Problem("file", f"holds more than {MOST_VALUES:,} values; aliases count each time"))
        if depth > MOST_DEPTH:
            raise YamlError(_too_deep(path))
        if node.tag not in _PLAIN:
            kind = node.tag.removeprefix(_TAG)
            yield Problem(path or "file", f"{shown(node.value)} is of YAML's type {kind}; write text in quotes")
        elif isinstance(node, MappingNode):
            yield from self._mapping(node, path, depth)
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                yield from self.at(item, f"{path}[{index}]", depth + 1)
        elif isinstance(node, ScalarNode):
            yield from _scalar(node, path or "file")

    def _mapping(self, node: MappingNode, path: str, depth: int) -> Iterator[Problem]:
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                yield from self.at(value, path, depth + 1)
                continue
            if key.tag != _TAG + "str":
                yield Problem(path or "file", f"the key {shown(key.value)} is not text; write it in quotes")
                continue
            field = f"{path}.{key.value}" if path else key.value
            line = key.start_mark.line + 1
            if key.value in lines:
                yield Problem(field, f"is given twice, in lines {lines[key.value]} and {line}; once is allowed")
            lines[key.value] = line
            yield from self.at(value, field, depth + 1)


def _scalar(node: ScalarNode, path: str) -> Iterator[Problem]:
    kind, text = node.tag.removeprefix(_TAG), node.value
    if kind not in ("int", "float"):
        return
    if kind == "int" and _OCTAL.fullmatch(text):
        yield Problem(path, f"{text} is octal for some readers of YAML; write it without the zero, or text in quotes")
    elif ":" in text:
        yield Problem(path, f"{text} counts in sixties for some readers of YAML; write a number, or text in quotes")
    elif kind == "int" and (len(text) > 80 or yaml.SafeLoader("").construct_object(node) not in _INT64):
        yield Problem(path, f"{shown(text)} is out of bounds; allowed: {_INT64[0]} to {_INT64[-1]}")


def _too_deep(path: str) -> Problem:
    return Problem(path, f"is nested more than {MOST_DEPTH} levels deep")
