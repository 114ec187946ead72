"""Makes from ``proto/vocabulary.toml`` what each part compiles or imports, and the reference page.

``make generate`` (:mod:`generate`) calls it. Every output says in its first line where it comes from. What is made:

* ``interposer/native/core/vocabulary.h`` for the shim: enums, one struct a kind of signature, the keys of server.conf;
* ``simcore/native/src/vocabulary.h`` for the core's native part: kinds and flags of records, and of operations;
* ``eidolon_interposer/vocabulary.py`` and ``eidolon_simcore/vocabulary.py``: the same as Python enums and ``Literal``;
* ``docs/reference-vocabulary.md``.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fidelity_page import wrapped

SOURCE: Final = Path("proto/vocabulary.toml")
SHIM_HEADER: Final = Path("interposer/native/core/vocabulary.h")
ENGINE_HEADER: Final = Path("simcore/native/src/vocabulary.h")
INTERPOSER_MODULE: Final = Path("interposer/eidolon_interposer/vocabulary.py")
SIMCORE_MODULE: Final = Path("simcore/eidolon_simcore/vocabulary.py")
PAGE: Final = Path("docs/reference-vocabulary.md")

_CPP_KEYWORDS: Final = frozenset({"default", "register", "switch", "union", "operator", "short", "long", "double"})

Table = Mapping[str, Any]


class Enumeration(NamedTuple):
    """How a section of numbers is named in the languages."""

    section: str
    name: str  #: of the type
    cpp_type: str  #: what comes before the opening brace; empty: constants
    is_flags: bool
    meaning: str


RECORD_KINDS: Final = Enumeration(
    "record_kinds", "Kind", "enum class Kind : uint8_t", False, "What one intercepted call was."
)
RECORD_FLAGS: Final = Enumeration(
    "record_flags", "RecordFlag", "enum RecordFlag : uint8_t", True, "Bits of a record's ``flags``."
)
MESSAGE_TYPES: Final = Enumeration(
    "message_types",
    "MessageType",
    "enum class MessageType : uint16_t",
    False,
    "Types of the messages between shim and agent.",
)
REPLY_STATUSES: Final = Enumeration(
    "reply_statuses",
    "ReplyStatus",
    "enum class ReplyStatus : int32_t",
    False,
    "What an answer, or the end of a run, means to the rank.",
)
ORIGINS: Final = Enumeration(
    "origins",
    "Origin",
    "enum class Origin : uint8_t",
    False,
    "What the reader of a value that was never computed was given.",
)
OPERATIONS: Final = Enumeration(
    "engine_operations",
    "Op",
    "enum class Op : std::uint8_t",
    False,
    "Operations that an engine understands: a coarser set than the kinds of event record.",
)
OPERATION_FLAGS: Final = Enumeration("engine_flags", "OpFlag", "", True, "Bits of an operation's ``flags``.")


def generated(root: Path) -> dict[Path, str]:
    """Every output, by its path from the root of the repository."""
    vocabulary = tomllib.loads((root / SOURCE).read_text("utf-8"))
    return {
        SHIM_HEADER: shim_header(vocabulary),
        ENGINE_HEADER: engine_header(vocabulary),
        INTERPOSER_MODULE: interposer_module(vocabulary),
        SIMCORE_MODULE: simcore_module(vocabulary),
        PAGE: page(vocabulary),
    }


def attributes(signature: Table) -> list[str]:
    """The names of a kind's attributes, with placeholders filled in."""
    return [name for given in signature.get("attributes", {}) for name in expanded(given, signature)]


def expanded(name: str, signature: Table) -> list[str]:
    """``in{i}_d{d}`` becomes ``in0_d0``, ``in0_d1``, ...; a name without placeholders is itself."""
    counts = {key: n for key, n in signature.get("repeated", {}).items() if f"{{{key}}}" in name}
    places = itertools.product(*(range(n) for n in counts.values()))
    return [name.format(**dict(zip(counts, place, strict=True))) for place in places]


def _meanings(entry: Table) -> Iterator[str]:
    """What a number means, and what a record of the kind holds."""
    yield entry["meaning"]
    if "value" in entry:
        yield f"`value`: {entry['value']}"
    if "sig" in entry:
        yield "`sig`: " + ", ".join(f"`{kind}`" for kind in entry["sig"])
    if "unread" in entry:
        yield f"not read: {entry['unread']}"


def _camel(name: str) -> str:
    return "".join(part[0].upper() + part[1:] for part in name.split("_"))


def _plain(text: str) -> str:
    """The text without marks around code, which comments in C++ do not need."""
    return text.replace("`", "")


# -- C++ ---------------------------------------------------------------------------------------------------------------

_CPP_HEADER: Final = f"// Made from {SOURCE} by `make generate`; do not edit. {PAGE} shows all of it.\n#pragma once\n"

_WORDS: Final = """\
// Calling it in a constant expression is an error, and its name is the message: the word is not declared.
void this_word_is_not_in_proto_vocabulary_toml();

// One of a list of words. Made from a string literal, which is looked up when it is compiled.
template <const auto &List> class Word {
public:
  consteval Word(const char *text) : index_(find(text)) {}
  constexpr size_t index() const { return index_; }
  constexpr const char *text() const { return List[index_]; }
  friend constexpr bool operator==(Word, Word) = default;

private:
  static consteval size_t find(std::string_view text) {
    for (size_t i = 0; i < std::size(List); ++i)
      if (text == List[i])
        return i;
    this_word_is_not_in_proto_vocabulary_toml();
    return 0;
  }
  size_t index_;
};
constexpr const char *text_of(const char *text) { return text; }
template <const auto &List> constexpr const char *text_of(Word<List> word) { return word.text(); }
"""

_CONF: Final = """\
struct ConfEntry {
  const char *otherwise; // value of an absent key; nullptr: none
  int64_t max;           // of a number; 0: any
  const char *words[2];  // that are allowed; nullptr: any text
};
"""


def shim_header(vocabulary: Table) -> str:
    """``interposer/native/core/vocabulary.h``."""
    parts = [
        _CPP_HEADER
        + "#include <array>\n#include <cstddef>\n#include <cstdint>\n#include <iterator>\n#include <string_view>\n\n"
        + "// clang-format off\nnamespace eidolon {\n"
    ]
    parts.append("")
    for name, entry in vocabulary["numbers"].items():
        kind = entry.get("cpp_type", "uint32_t")
        parts[-1] += f"inline constexpr {kind} k{_camel(name)} = {entry['value']}; // {_plain(entry['meaning'])}\n"
    enumerations = (RECORD_KINDS, RECORD_FLAGS, MESSAGE_TYPES, REPLY_STATUSES, ORIGINS)
    parts += [*(_cpp_enum(vocabulary, enumeration) for enumeration in enumerations), _WORDS]
    for section in ("nccl_algorithms", "nccl_protocols"):
        words = [name.replace("_", "") for name in vocabulary[section]]
        comment = "// By bit; to be compared without regard to case.\n"
        parts.append(comment + _cpp_words(_camel(section), words))
    parts.append(_cpp_signatures(vocabulary["signatures"]))
    parts.append(_cpp_conf(vocabulary))
    return "\n".join(parts) + "\n} // namespace eidolon\n"


def engine_header(vocabulary: Table) -> str:
    """``simcore/native/src/vocabulary.h``."""
    records = RECORD_KINDS._replace(cpp_type="enum class Kind : std::uint8_t")
    record_flags = RECORD_FLAGS._replace(cpp_type="enum class RecordFlag : std::uint8_t")
    enumerations = (records, record_flags, OPERATIONS)
    kinds, flags_of_records, operations = (_cpp_enum(vocabulary, enumeration) for enumeration in enumerations)
    kinds, operations = (enum.replace("\n};", "\n  kCount\n};") for enum in (kinds, operations))
    calls = vocabulary["numbers"]["call_ids"]
    flags = "".join(
        f"inline constexpr std::uint8_t k{_camel(name)} = {entry['number']}; // {_plain(entry['meaning'])}\n"
        for name, entry in vocabulary["engine_flags"].items()
    )
    return (
        f"{_CPP_HEADER}#include <cstdint>\n\n// clang-format off\nnamespace eidolon {{\n\n"
        f"inline constexpr std::uint32_t kCallIds = {calls['value']}; // {_plain(calls['meaning'])}\n\n"
        f"{kinds}\n{flags_of_records}\n{operations}\n"
        f"// {_plain(OPERATION_FLAGS.meaning)}\n{flags}\n"
        "} // namespace eidolon\n"
    )


def _cpp_enum(vocabulary: Table, enumeration: Enumeration) -> str:
    lines = [f"// {_plain(enumeration.meaning)}", f"{enumeration.cpp_type} {{"]
    for name, entry in vocabulary[enumeration.section].items():
        lines.append(f"  k{_camel(name)} = {entry['number']}, // {_plain('; '.join(_meanings(entry)))}")
    return "\n".join([*lines, "};", ""])


def _cpp_words(name: str, words: Iterable[str]) -> str:
    listed = ", ".join(json.dumps(word) for word in words)
    return f"inline constexpr const char *k{name}[] = {{{listed}}};\n"


def _cpp_signatures(signatures: Table) -> str:
    lines = [
        "struct Attribute {",
        "  const char *key;",
        "  int64_t value;",
        "};",
        "",
        "// One struct a kind of signature: its members are the kind's attributes, and all of them have to be given.",
        "// Name is what a signature of the kind can be named: one of a list of words, or any text.",
        "namespace signatures {",
    ]
    for kind, signature in signatures.items():
        fields = attributes(signature)
        name = "const char *"
        if "names" in signature:
            name = f"{_camel(kind)}Name"
            lines += ["", _cpp_words(f"{name}s", signature["names"]).rstrip()]
            lines.append(f"using {name} = Word<k{name}s>;")
        lines += ["", f"// {_plain(signature['meaning'])[:1].upper()}{_plain(signature['meaning'])[1:]}."]
        if "open" in signature:  # its attributes are named one by one
            lines += [
                f"inline constexpr const char *k{_camel(kind)}Attributes[] = {{",
                *(f'  "{field}",' for field in fields),
                "};",
                f"struct {_camel(kind)} {{",
                f'  static constexpr const char *kKind = "{kind}";',
                f"  using Key = Word<k{_camel(kind)}Attributes>;",
                "};",
            ]
            continue
        lines += [f"struct {_camel(kind)} {{", f"  using Name = {name};"]
        lines.append(f'  static constexpr const char *kKind = "{kind}";')
        for given, entry in signature.get("attributes", {}).items():
            unit = f"; {entry['unit']}" if "unit" in entry else ""
            lines.append(f"  int64_t {_member(given)}; // {_plain(entry['meaning'])}{unit}")
        pairs = ", ".join(f'{{"{field}", {_member(field)}}}' for field in fields)
        values = f"{{{{{pairs}}}}}" if fields else "{}"
        lines.append(f"  std::array<Attribute, {len(fields)}> attributes() const {{ return {values}; }}")
        lines.append("};")
    return "\n".join([*lines, "", "} // namespace signatures", ""])


def _member(name: str) -> str:
    return f"{name}_" if name in _CPP_KEYWORDS else name


def _cpp_conf(vocabulary: Table) -> str:
    keys = "".join(f'  "{key}",\n' for key in vocabulary["conf"])
    lines = []
    for entry in vocabulary["conf"].values():
        otherwise = json.dumps(str(entry["default"])) if "default" in entry else "nullptr"
        words = [json.dumps(word) for word in entry["type"]] if isinstance(entry["type"], list) else ["nullptr"] * 2
        lines.append(f"  {{{otherwise}, {_bound(vocabulary, entry)}, {{{', '.join(words)}}}}},\n")
    return (
        "// Keys of server.conf, and what is said of each of them.\n"
        f"inline constexpr const char *kConfKeys[] = {{\n{keys}}};\nusing ConfKey = Word<kConfKeys>;\n"
        f"{_CONF}inline constexpr ConfEntry kConfEntries[] = {{\n{''.join(lines)}}};\n"
    )


def _bound(vocabulary: Table, entry: Table) -> int:
    bound = entry.get("max", 0)
    return int(vocabulary["numbers"][bound]["value"] if isinstance(bound, str) else bound)


# -- Python ------------------------------------------------------------------------------------------------------------


def simcore_module(vocabulary: Table) -> str:
    """``eidolon_simcore/vocabulary.py``."""
    enumerations = (RECORD_KINDS, RECORD_FLAGS, ORIGINS, OPERATIONS, OPERATION_FLAGS)
    numbers = ("protocol", "call_ids")
    return "\n".join(
        [
            _python_head("the simulation core shares with the shim and the engine", vocabulary, numbers),
            *(_python_enum(vocabulary, enumeration) for enumeration in enumerations),
            "",
            _python_words("nccl_algorithms", vocabulary, "By bit of a communicator's ``algorithms``."),
            _python_words("nccl_protocols", vocabulary, "By bit of a communicator's ``protocols``."),
            *_python_signatures(vocabulary["signatures"]),
            *_python_conf(vocabulary),
        ]
    )


def interposer_module(vocabulary: Table) -> str:
    """``eidolon_interposer/vocabulary.py``."""
    enumerations = (RECORD_KINDS, RECORD_FLAGS, MESSAGE_TYPES, REPLY_STATUSES)
    numbers = ("abi_version", "protocol", "reply_slots", "max_devices")
    return "\n".join(
        [
            _python_head("the agent shares with the shim, the core and the operator", vocabulary, numbers),
            *(_python_enum(vocabulary, enumeration) for enumeration in enumerations),
            *_python_conf(vocabulary),
        ]
    )


def _python_head(whose: str, vocabulary: Table, numbers: Iterable[str]) -> str:
    lines = [
        f'"""The words and numbers that {whose}.',
        "",
        f"Made from ``{SOURCE}`` by ``make generate``; do not edit. ``{PAGE}`` shows all of it.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "import enum",
        "from typing import Final, Literal",
        "",
    ]
    for name in numbers:
        entry = vocabulary["numbers"][name]
        lines.append(f"{name.upper()}: Final = {entry['value']}  #: {entry['meaning']}")
    return "\n".join([*lines, ""])


def _python_enum(vocabulary: Table, enumeration: Enumeration) -> str:
    base = "IntFlag" if enumeration.is_flags else "IntEnum"
    lines = ["", f"class {enumeration.name}(enum.{base}):", f'    """{enumeration.meaning}"""', ""]
    lines += [f"    {name.upper()} = {entry['number']}" for name, entry in vocabulary[enumeration.section].items()]
    return "\n".join([*lines, ""])


def _python_words(section: str, vocabulary: Table, meaning: str) -> str:
    listed = ", ".join(f'"{word}"' for word in vocabulary[section])
    return f"#: {meaning}\n{section.upper()}: Final = ({listed})"


def _literal(name: str, words: Iterable[str]) -> str:
    return "\n".join([f"{name} = Literal[", *(f'    "{word}",' for word in words), "]"])


def _python_signatures(signatures: Table) -> Iterator[str]:
    yield "\n#: Kinds of signature."
    yield _literal("SignatureKind", signatures)
    yield "\n#: Attributes of signatures, of whatever kind."
    every = dict.fromkeys(name for signature in signatures.values() for name in attributes(signature))
    yield _literal("Attribute", every)
    for signature in signatures.values():
        for given in signature.get("attributes", {}):
            if "{" in given:
                yield _repeated(given, signature)


def _repeated(given: str, signature: Table) -> str:
    """The names of a repeated attribute as a table by its places: ``IN_D[i][d]``."""
    name = given.upper()
    for key in signature["repeated"]:
        name = name.replace(f"{{{key.upper()}}}", "")
    counts = [n for key, n in signature["repeated"].items() if f"{{{key}}}" in given]
    kind = "Attribute"
    for _ in counts:
        kind = f"tuple[{kind}, ...]"
    names = [f'"{one}"' for one in expanded(given, signature)]
    if len(counts) == 1:
        rows = [f"    {one}," for one in names]
    else:
        width = counts[1]
        rows = [f"    ({', '.join(names[at : at + width])})," for at in range(0, len(names), width)]
    return "\n".join([f"\n#: Attribute ``{given}``.", f"{name}: Final[{kind}] = (", *rows, ")"])


def _python_conf(vocabulary: Table) -> Iterator[str]:
    yield "\n#: Keys of server.conf."
    yield _literal("ConfKey", vocabulary["conf"])
    yield ""


# -- the page ----------------------------------------------------------------------------------------------------------


def page(vocabulary: Table) -> str:
    """All words and numbers, as a reference."""
    lines = [
        "# Vocabulary",
        "",
        (
            f"Generated from [{SOURCE}](../{SOURCE}) by `make generate`. These are the words and numbers that the "
            "shim, the agent, the simulation core, the engine and the operator agree on. [adding.md](adding.md) says "
            "how to add one."
        ),
        "",
        "## Numbers",
        "",
        "| name | value | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {e['value']} | {_cell(e['meaning'])} |" for name, e in vocabulary["numbers"].items()),
        "",
    ]
    for title, section in (
        ("Kinds of event record", "record_kinds"),
        ("Flags of event records", "record_flags"),
        ("Types of message", "message_types"),
        ("Statuses of a reply", "reply_statuses"),
        ("Origins of values", "origins"),
        ("Operations of the engine", "engine_operations"),
        ("Flags of the engine's operations", "engine_flags"),
        ("NCCL's algorithms", "nccl_algorithms"),
        ("NCCL's protocols", "nccl_protocols"),
    ):
        lines += [f"## {title}", "", "| name | number | meaning |", "|---|---|---|"]
        lines += [_number_row(name, entry) for name, entry in vocabulary[section].items()]
        lines.append("")
    lines += ["## Kinds of signature", ""]
    for kind, signature in vocabulary["signatures"].items():
        lines += _signature_section(kind, signature)
    lines += ["## Keys of `server.conf`", ""]
    lines += ["| key | type | default | written by | meaning |", "|---|---|---|---|---|"]
    for key, entry in vocabulary["conf"].items():
        kind = " or ".join(f"`{word}`" for word in entry["type"]) if isinstance(entry["type"], list) else entry["type"]
        bound = f", at most {_bound(vocabulary, entry)}" if "max" in entry else ""
        default = f"`{entry['default']}`" if "default" in entry else ""
        lines.append(f"| `{key}` | {kind}{bound} | {default} | {entry['written_by']} | {_cell(entry['meaning'])} |")
    return wrapped("\n".join(lines) + "\n")


def _number_row(name: str, entry: Table) -> str:
    number = f"bit {entry['bit']}" if "bit" in entry else entry["number"]
    return f"| `{name}` | {number} | {_cell('; '.join(_meanings(entry)))} |"


def _signature_section(kind: str, signature: Table) -> list[str]:
    lines = [f"### `{kind}`", ""]
    names = ", ".join(f"`{name}`" for name in signature.get("names", ()))
    facts = [
        signature["meaning"],
        f"name: {names or signature.get('name')}",
        f"written by: {signature['written_by']}",
    ]
    facts += [f"`{name}`: {meaning}" for name, meaning in signature.get("known_names", {}).items()]
    if "open" in signature:
        facts.append(f"other attributes: {signature['open']}")
    if "unread" in signature:
        facts.append(f"not read: {signature['unread']}")
    lines += [f"* {fact[:1].upper()}{fact[1:]}." for fact in facts]
    if signature.get("attributes"):
        lines += ["", "| attribute | meaning |", "|---|---|"]
        for name, entry in signature["attributes"].items():
            unit = f", in {entry['unit']}" if "unit" in entry else ""
            unread = f"; not read: {entry['unread']}" if "unread" in entry else ""
            lines.append(f"| `{name}` | {_cell(entry['meaning'] + unit + unread)} |")
    return [*lines, ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
