"""Every word of ``proto/vocabulary.toml`` is written by one side and read by the other; none has words of its own.

The second is checked where the words are used: an undeclared one does not compile in C++ and fails mypy in Python.
The first is looked up in the sources.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from eidolon_simcore.catalogue import Gpu

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import vocabulary as generator  # noqa: E402

VOCABULARY = tomllib.loads((ROOT / generator.SOURCE).read_text("utf-8"))
SIGNATURES: dict[str, dict[str, Any]] = VOCABULARY["signatures"]
MADE = {"vocabulary.h", "vocabulary.py"}
SHIM = ("interposer/native/core", "interposer/native/libs", "interposer/native/smi", "interposer/torch")


@cache
def cpp(*folders: str, only: frozenset[str] = frozenset(), but: frozenset[str] = frozenset()) -> str:
    """The C++ of these folders, without comments and what is made from the vocabulary: of all files, or of these."""
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.*")) if file.name not in MADE | but]
    files = [file for file in files if not only or file.name in only]
    text = "\n".join(file.read_text("utf-8") for file in files if file.suffix in (".cpp", ".h"))
    return re.sub(r"//[^\n]*", "", text)


@cache
def python(*folders: str) -> tuple[ast.Module, ...]:
    """The Python of these folders, but for what is made from the vocabulary or measures real GPUs."""
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")) if file.name not in MADE]
    return tuple(ast.parse(file.read_text("utf-8")) for file in files if file.parent.name != "profile")


SIMCORE = "simcore/eidolon_simcore"
NATIVE = "simcore/native/src"
INTAKE = frozenset({"event_record.h", "intake.h", "intake.cpp"})  # reads records and writes operations
AGENT = "interposer/eidolon_interposer"


@cache
def members(enumeration: str, *folders: str) -> frozenset[str]:
    """The members of an enum that Python names, as in ``Kind.HOST``."""
    return frozenset(
        node.attr
        for tree in python(*folders)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == enumeration
    )


@cache
def constants(*folders: str) -> frozenset[str]:
    """All strings of Python, as text."""
    found = set()
    for tree in python(*folders):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                found.add(node.value if isinstance(node.value, str) else node.value.decode())
    return frozenset(found)


@cache
def attributes_read() -> frozenset[str]:
    """What simcore asks signatures for, and the tables of repeated names that it uses."""
    found = set()
    for tree in python(SIMCORE):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id.isupper():
                found.add(node.id)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = ast.unparse(node.func.value).rpartition(".")[2]
                if of in ("s", "signature", "operator") and node.func.attr in ("get", "values"):
                    found |= {str(part.value) for part in node.args if isinstance(part, ast.Constant)}
    return frozenset(found)


def camel(name: str) -> str:
    return "k" + "".join(part[0].upper() + part[1:] for part in name.split("_"))


def words(section: str) -> list[Any]:
    return [pytest.param(name, entry, id=name) for name, entry in VOCABULARY[section].items()]


def check(entry: dict[str, Any], *, written: bool, read: bool) -> None:
    """One of the two sides may lack a word only where the vocabulary says why, and not where it does not lack it."""
    assert written is ("unwritten" not in entry), "nobody writes it" if not written else "it is written all the same"
    assert read is ("unread" not in entry), "nobody reads it" if not read else "it is read all the same"


# ---- each word is known on both sides --------------------------------------------------------------------------------


def is_read(kind: str) -> bool:
    """Whether the core looks at records of this kind."""
    return kind.upper() in members("Kind", SIMCORE) or re.search(rf"Kind::{camel(kind)}\b", cpp(NATIVE)) is not None


@pytest.mark.parametrize(("name", "entry"), words("record_kinds"))
def test_kinds_of_record(name: str, entry: dict[str, Any]) -> None:
    check(
        entry,
        written=re.search(rf"Kind::{camel(name)}\b", cpp(*SHIM)) is not None,
        read=is_read(name),
    )
    assert set(entry.get("sig", ())) <= set(SIGNATURES)


@pytest.mark.parametrize(("name", "entry"), words("record_flags"))
def test_flags_of_records(name: str, entry: dict[str, Any]) -> None:
    check(
        entry,
        written=re.search(rf"\b{camel(name)}\b", cpp(*SHIM)) is not None,
        read=name.upper() in members("RecordFlag", SIMCORE)
        or re.search(rf"RecordFlag::{camel(name)}\b", cpp(NATIVE)) is not None,
    )


@pytest.mark.parametrize(
    ("section", "enumeration"), [("message_types", "MessageType"), ("reply_statuses", "ReplyStatus")]
)
def test_what_passes_between_shim_and_agent(section: str, enumeration: str) -> None:
    for name, entry in VOCABULARY[section].items():
        shim = re.search(rf"{enumeration}::{camel(name)}\b", cpp(*SHIM)) is not None
        check(entry, written=shim, read=name.upper() in members(enumeration, AGENT))


@pytest.mark.parametrize(("name", "entry"), words("engine_operations"))
def test_operations_of_the_engine(name: str, entry: dict[str, Any]) -> None:
    check(
        entry,
        written=re.search(rf"Op::{camel(name)}\b", cpp(NATIVE, only=INTAKE)) is not None,
        read=re.search(rf"Op::{camel(name)}\b", cpp(NATIVE, but=INTAKE)) is not None,
    )


@pytest.mark.parametrize(("name", "entry"), words("engine_flags"))
def test_flags_of_the_engine(name: str, entry: dict[str, Any]) -> None:
    check(
        entry,
        written=re.search(rf"\b{camel(name)}\b", cpp(NATIVE, only=INTAKE)) is not None,
        read=re.search(rf"\b{camel(name)}\b", cpp(NATIVE, but=INTAKE)) is not None,
    )


@pytest.mark.parametrize(("name", "entry"), words("origins"))
def test_origins_of_values(name: str, entry: dict[str, Any]) -> None:
    """The core turns every number of ``origins`` into its name."""
    check(entry, written=re.search(rf"Origin::{camel(name)}\b", cpp(*SHIM)) is not None, read=True)


@pytest.mark.parametrize(("name", "entry"), words("numbers"))
def test_numbers(name: str, entry: dict[str, Any]) -> None:
    sides = [
        re.search(rf"\b{camel(name)}\b", cpp(*SHIM)),
        any(name.upper() in ast.dump(tree) for tree in python(AGENT)),
        any(name.upper() in ast.dump(tree) for tree in python(SIMCORE)),
    ]
    assert sum(map(bool, sides)) >= 2, "fewer than two sides use it"


@pytest.mark.parametrize(("kind", "signature"), words("signatures"))
def test_kinds_of_signature(kind: str, signature: dict[str, Any]) -> None:
    by_record = any(
        kind in entry.get("sig", ()) and is_read(name) for name, entry in VOCABULARY["record_kinds"].items()
    )
    assert "unread" in signature or by_record or kind in constants(SIMCORE), "nobody reads it"
    assert re.search(rf"signatures::{camel(kind)[1:]}\b", cpp(*SHIM)), "nobody writes it"
    for name in signature.get("names", ()):
        assert f'"{name}"' in cpp(*SHIM), f"nobody writes the name {name}"
    for name in signature.get("known_names", ()):
        assert name in constants(SIMCORE), f"nobody reads the name {name}"
        assert any(name in text for text in constants(AGENT)), f"nobody writes, or tells programs of, the name {name}"


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, s in SIGNATURES.items() for name in s.get("attributes", ())]
)
def test_attributes(kind: str, name: str) -> None:
    """A kind's struct in C++ has all of its attributes as members, so whoever writes the kind writes them."""
    signature = SIGNATURES[kind]
    entry = signature["attributes"][name]
    written = True
    if "open" in signature and not entry.get("argument"):
        literal = name.removeprefix("in{i}").replace("{d}", "0")
        written = f'"{literal}"' in cpp("interposer/torch")
    readable = {re.sub(r"\{\w\}", "", name).upper(), *generator.expanded(name, signature)}
    check(entry, written=written, read=not readable.isdisjoint(attributes_read()))


@pytest.mark.parametrize(("key", "entry"), words("conf"))
def test_keys_of_server_conf(key: str, entry: dict[str, Any]) -> None:
    writers = constants("operator/eidolon_operator", f"{SIMCORE}/costs", AGENT)
    of_gpu = key.startswith("gpu.") and key.removeprefix("gpu.") in {field.name for field in fields(Gpu)}
    check(entry, written=key in writers or of_gpu, read=f'"{key}"' in cpp(*SHIM))


# ---- a word that nobody declares is refused --------------------------------------------------------------------------

GOOD = """
auto a = signature("all_reduce", signatures::Collective{});
auto b = signature("cublasGemmEx", signatures::Gemm{});
auto c = signature("h2d", signatures::Copy{.pinned = 1, .pages = 0});
auto d = setting_number("devices");
auto e = signatures::Op::Key("in0_numel");
"""


def compiled(body: str) -> str:
    """What the compiler says of these lines, warnings being errors; empty if nothing."""
    source = f'#include "core.h"\nusing namespace eidolon;\n{body}\n'
    command = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-xc++", "-"]
    include = f"-I{ROOT / 'interposer/native/core'}"
    return subprocess.run([*command, include], input=source, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('auto x = signature("all_reduces", signatures::Collective{});', "not_in_proto_vocabulary_toml"),
        ('auto x = signature("h2d", signatures::Copy{.pinned = 1, .page = 0});', "no non-static data member named"),
        ('auto x = signature("h2d", signatures::Copy{.pinned = 1});', "missing initializer for member"),
        ('auto x = signature("name", signatures::Gemms{});', "not a member of"),
        ('auto x = setting_number("device");', "not_in_proto_vocabulary_toml"),
        ('auto x = signatures::Op::Key("in6_numel");', "not_in_proto_vocabulary_toml"),
    ],
)
def test_an_undeclared_word_does_not_compile(line: str, error: str) -> None:
    assert error in compiled(line)


def test_declared_words_compile() -> None:
    assert compiled(GOOD) == ""


def test_an_undeclared_word_fails_mypy(tmp_path: Path) -> None:
    source = tmp_path / "words.py"
    source.write_text(
        "from eidolon_interposer.vocabulary import ConfKey\n"
        "from eidolon_simcore.signature import Signature\n"
        's = Signature("gemm", "cublasGemmEx", {"m": 1})\n'
        's.get("m"), s.values("m", "n"), s.kind == "gemm"\n'
        'conf: dict[ConfKey, str] = {"devices": "1"}\n'
        'Signature("gems", "cublasGemmEx", {})\n'
        's.get("mm")\n'
        's.values("m", "nn")\n'
        'assert s.kind == "gems"\n'
        'conf = {"device": "1"}\n'
    )
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", source]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert [int(line) for line in re.findall(r"words\.py:(\d+): error", printed)] == [6, 7, 8, 9, 10], printed
