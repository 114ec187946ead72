"""Finds NVIDIA headers and the C functions they declare.

The compiler is the parser: the headers are preprocessed with the C++ compiler of the build, and only two things are
read from the result, the names declared with C linkage and how many parameters each takes. Types are never parsed;
the stubs take them from the declaration itself (`decltype`, see stub.h), so a wrong reading here cannot pass unseen:
it does not compile.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

TOKEN = re.compile(r'[A-Za-z_]\w*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|\d[\w.]*|\S')
VARIADIC, OVERLOADED = -1, -2  # instead of a number of parameters: no stub can be typed by `decltype` of the name


class HeaderError(Exception):
    """A header is missing or does not preprocess."""


def include_dirs(roots: list[Path], cuda: int) -> list[Path]:
    """Include directories of the `nvidia-*` wheels installed under each root (a venv, or a site-packages)."""
    found: list[Path] = []
    for root in roots:
        sites = [root] if (root / "nvidia").is_dir() else sorted(root.glob("lib*/python3*/site-packages"))
        for site in sites:
            for include in sorted((site / "nvidia").glob("*/include")):
                # CUDA 13 wheels share one directory (cu13), those of CUDA 12 have one each.
                major = re.fullmatch(r"cu(\d+)", include.parent.name)
                if major is None or int(major[1]) == cuda:
                    found.append(include.resolve())
    found.sort(key=lambda include: include.parent.name != f"cu{cuda}")  # that one first, where both majors are there
    return list(dict.fromkeys(found))  # a venv's lib64 is its lib


def header_major(includes: list[Path]) -> int | None:
    """The CUDA major version that the first cuda.h in the include directories is of."""
    for include in includes:
        if (include / "cuda.h").is_file():
            version = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", (include / "cuda.h").read_text())
            return int(version[1]) // 1000 if version else None
    return None


def preprocess(compiler: str, headers: tuple[str, ...], defines: tuple[str, ...], includes: list[Path]) -> str:
    """The text of the headers as the C++ compiler sees it."""
    command = [compiler, "-E", "-P", "-x", "c++", "-std=c++20", "-w"]
    command += [f"-D{name}" for name in defines] + [f"-isystem{path}" for path in includes] + ["-"]
    text = "".join(f"#include <{header}>\n" for header in headers)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HeaderError("\n".join(done.stderr.splitlines()[:3]))
    return done.stdout


def declared(text: str) -> dict[str, int]:
    """Functions that preprocessed text declares with C linkage: name -> number of parameters."""
    functions: dict[str, int] = {}
    tokens = TOKEN.findall(text)
    linkage = [False]  # of each open `extern "C" {`, innermost last; other blocks are skipped whole
    statement: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token == "{":
            if statement[-2:-1] == ["extern"]:
                linkage.append(statement[-1] == '"C"')
                statement = []
            elif statement[:1] == ["namespace"]:
                at = _skip(tokens, at, "{", "}")
                statement = []
            else:
                at = _skip(tokens, at, "{", "}")
                if "(" in statement and "=" not in statement:  # a function with its body
                    _declaration(statement, linkage[-1], functions)
                    statement = []
                else:
                    statement.append("{}")
        elif token == "}":
            if len(linkage) > 1:
                linkage.pop()
            statement = []
        elif token == ";":
            _declaration(statement, linkage[-1], functions)
            statement = []
        elif token == "[" and tokens[at + 1] == "[":
            at = _skip(tokens, at, "[", "]")
        elif token in ("__attribute__", "__asm__", "__declspec", "alignas", "noexcept") and tokens[at + 1] == "(":
            at = _skip(tokens, at + 1, "(", ")")
        else:
            statement.append(token)
        at += 1
    return functions


def _skip(tokens: list[str], at: int, opening: str, closing: str) -> int:
    """The index of the token that closes the one at `at`."""
    depth = 0
    while at < len(tokens):
        if tokens[at] == opening:
            depth += 1
        elif tokens[at] == closing:
            depth -= 1
            if depth == 0:
                break
        at += 1
    return at


def _declaration(statement: list[str], c_linkage: bool, functions: dict[str, int]) -> None:
    if statement[:2] == ["extern", '"C"']:
        statement, c_linkage = statement[2:], True
    if "(" not in statement or statement[0] in ("typedef", "using", "template"):
        return
    opening = statement.index("(")
    name = statement[opening - 1]
    if opening < 2 or "=" in statement[:opening] or not re.fullmatch(r"[A-Za-z_]\w*", name):
        return
    if not c_linkage or "static" in statement[:opening]:
        if name in functions:
            functions[name] = OVERLOADED
        return
    closing = _skip(statement, opening, "(", ")")
    functions.setdefault(name, _count(statement[opening + 1 : closing]))


def _count(parameters: list[str]) -> int:
    if parameters in ([], ["void"]):
        return 0
    if parameters[-1] == ".":
        return VARIADIC
    depth = commas = 0
    for token in parameters:
        if token in "([":
            depth += 1
        elif token in ")]":
            depth -= 1
        elif token == "," and depth == 0:
            commas += 1
    return commas + 1
