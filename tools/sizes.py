"""Checks that files and functions stay small; part of `make lint`.

    sizes.py                   names what is over a limit, exit code 1
    sizes.py --figures [TREE]  prints how a checkout stands: long files and functions, modules on simcore's ground floor

Three limits hold for what git tracks:

* A hand-written file of the product has at most 600 lines, a function at most 80. One that is longer needs a reason
  beside it: a comment that begins with "Long because", above the function or at the top of the file.
* A file has at most 256 KiB, and all files together at most 8 MiB: every clone fetches them. :data:`LARGE` lists the
  exceptions with their reasons.

Needs nothing but Python and git. Python is read with :mod:`ast`. C and C++ are read by their braces, without a
compiler: a block outside of functions is a function if a parenthesis stands before its brace.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
FILE_LINES: Final = 600
FUNCTION_LINES: Final = 80
REPORTED_FILE_LINES: Final = 500  #: of the lists of ``--figures``
FILE_BYTES: Final = 256 * 1024
TREE_BYTES: Final = 8 * 1024 * 1024
REASON: Final = "Long because"
#: Files that may have more bytes than :data:`FILE_BYTES`, each with how many and why.
LARGE: Final[Mapping[str, tuple[int, str]]] = {
    "bench/truth/traces/titan_fsdp2_tp2.parquet": (450 * 1024, "a trace of 68,000 events, 6 bytes each"),
    "bench/truth/traces/titan_pp2_fsdp2.parquet": (450 * 1024, "a trace of 67,000 events, 6 bytes each"),
    "bench/truth/frameworks/titan.tar.xz": (320 * 1024, "a text whose words decide how many tokens a real run had"),
}
PRODUCT: Final = ("operator", "simcore", "interposer", "bench", "images", "tools")
#: Parts of it that nobody wrote for the product: tests, and scripts as users bring them.
OTHERS: Final = re.compile(r"(^|/)tests/|^bench/truth/")
GROUND_FLOOR: Final = "simcore/eidolon_simcore"

_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'"""
    r"|^[ \t]*\#(?:[^\n\\]|\\.)*",
    re.DOTALL | re.MULTILINE,
)
_SCOPE = re.compile(r"\bnamespace\b|\bextern\s*$|\b(?:class|struct|union|enum)\b[^()]*$")
_ATTRIBUTES = re.compile(
    r"\b(?:alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)|\b(?:public|private|protected)\s*:"
    r"|^[ \t]*[A-Z][A-Z\d_]+\([^()]*\)[ \t]*$",  # a macro on a line of its own
    re.MULTILINE,
)
_VALUE = re.compile(
    r"=\s*(?:\[[^\]]*\]\s*(?:\(.*)?|[\w:<> ]*)$", re.DOTALL
)  #: a lambda or a list in braces, at the end
_MEMBER = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:).*[\w>]$", re.DOTALL)  #: a member before its braces, in a constructor


class Function(NamedTuple):
    """A function of a file, by the lines (from 1) on which it begins and ends."""

    name: str
    begin: int
    end: int

    @property
    def lines(self) -> int:
        """How many lines it has."""
        return self.end - self.begin + 1


# -- reading -----------------------------------------------------------------------------------------------------------


def python_functions(text: str) -> Iterator[Function]:
    """All functions of a Python file, nested ones too; a decorator is no part of its function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(node.name, node.lineno, node.end_lineno or node.lineno)


def native_functions(text: str) -> Iterator[Function]:
    """All functions of a C or C++ file; a lambda is part of its function. ValueError where braces do not match."""
    code = _CODE.sub(_blank, text)
    blocks: list[tuple[str, int]] = []  # kind ("scope", "function", "other") and begin of each that is open
    begin = 0  # of what stands before the next brace
    for sign in re.finditer(r"[{};]", code):
        at = sign.start()
        outside = not blocks or blocks[-1][0] == "scope"
        if sign[0] == "{":
            head = _ATTRIBUTES.sub(_blank, code[begin:at])
            kind = _kind(head.strip()) if outside else "other"
            blocks.append((kind, begin + len(head) - len(head.lstrip())))
        elif sign[0] == "}":
            if not blocks:
                raise ValueError(f"line {_line(code, at)}: a brace closes nothing")
            kind, began = blocks.pop()
            if kind == "function":
                yield Function(_name(code[began:at]), _line(code, began), _line(code, at))
        if kind != "other" if sign[0] != ";" else outside:
            begin = at + 1
    if blocks:
        raise ValueError(f"line {_line(code, blocks[-1][1])}: a brace is not closed")


def _kind(head: str) -> str:
    """What a brace opens after this text, outside of functions."""
    if _SCOPE.search(head):
        return "scope"
    return "function" if "(" in head and not _VALUE.search(head) and not _MEMBER.search(head) else "other"


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _line(code: str, at: int) -> int:
    return code.count("\n", 0, at) + 1


def _name(head: str) -> str:
    found = re.search(r"([\w:~]+|operator\s*[^\s(]+)\s*\(", head)
    return found[1] if found else head.partition("\n")[0]


# -- the tree ----------------------------------------------------------------------------------------------------------


def tracked(tree: Path) -> list[str]:
    """The existing files that git tracks in a checkout, by their paths from its root."""
    listed = subprocess.run(["git", "-C", tree, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    return [path for path in listed.split("\0") if path and (tree / path).is_file() and not (tree / path).is_symlink()]


def written(paths: list[str]) -> list[str]:
    """The files among these that are written by hand for the product."""
    own = (path for path in paths if path.partition("/")[0] in PRODUCT and not OTHERS.search(path))
    return [path for path in own if path.endswith((".py", ".c", ".cpp", ".h"))]


def functions(path: str, text: str) -> list[Function]:
    """The functions of a file, whose name tells its language."""
    return list(python_functions(text) if path.endswith(".py") else native_functions(text))


def long_files(tree: Path, paths: list[str], limit: int) -> list[tuple[str, int]]:
    """The files with more lines than this, the longest first."""
    counts = ((path, len((tree / path).read_text("utf-8").splitlines())) for path in paths)
    return sorted((one for one in counts if one[1] > limit), key=lambda one: -one[1])


def long_functions(tree: Path, paths: list[str], limit: int) -> list[tuple[str, Function]]:
    """The functions of these files with more lines than this, the longest first."""
    found = [(path, one) for path in paths for one in functions(path, (tree / path).read_text("utf-8"))]
    return sorted((pair for pair in found if pair[1].lines > limit), key=lambda pair: -pair[1].lines)


def has_reason(lines: list[str], above: int) -> bool:
    """Whether the comment that ends right above a line (from 1) says why what follows is long."""
    comment = []
    while above > 1 and re.match(r"\s*(//|#|@)", lines[above - 2]):
        above -= 1
        comment.append(lines[above - 1])
    return any(re.match(rf"\s*(//|#:?) {REASON}", line) for line in comment)


# -- checks ------------------------------------------------------------------------------------------------------------


def too_long(tree: Path, paths: list[str]) -> Iterator[str]:
    """A message for each file and function over its limit of lines that gives no reason."""
    own = written(paths)
    for path, count in long_files(tree, own, FILE_LINES):
        if not any(re.match(rf"(//|#) {REASON}", line) for line in (tree / path).read_text("utf-8").splitlines()[:20]):
            yield f"{path}: {count} lines; {FILE_LINES} are allowed without a reason"
    for path, one in long_functions(tree, own, FUNCTION_LINES):
        if not has_reason((tree / path).read_text("utf-8").splitlines(), one.begin):
            yield f"{path}:{one.begin}: {one.name} has {one.lines} lines; {FUNCTION_LINES} are allowed without a reason"


def too_large(sizes: Mapping[str, int]) -> Iterator[str]:
    """A message for each file over its limit of bytes, for each exception that is not needed, and for all files
    together.
    """
    for path, size in sizes.items():
        limit, _ = LARGE.get(path, (FILE_BYTES, ""))
        if size > limit:
            yield f"{path}: {size:,} bytes; {limit:,} are allowed"
    for path in LARGE:
        if sizes.get(path, 0) <= FILE_BYTES:
            yield f"{path}: the exception for it in tools/sizes.py is not needed"
    if (total := sum(sizes.values())) > TREE_BYTES:
        yield f"all files together: {total:,} bytes; {TREE_BYTES:,} are allowed"


def figures(tree: Path) -> Iterator[str]:
    """Lines of text that say how a checkout stands."""
    paths = tracked(tree)
    own = written(paths)
    files = long_files(tree, own, REPORTED_FILE_LINES)
    over = long_functions(tree, own, FUNCTION_LINES)
    floor = [path for path in paths if re.fullmatch(rf"{GROUND_FLOOR}/(?!__init__)\w+\.py", path)]
    most = sum(count > FILE_LINES for _, count in files)
    yield f"files over {REPORTED_FILE_LINES} lines: {len(files)}, over {FILE_LINES}: {most}"
    yield from (f"    {count:>5}  {path}" for path, count in files)
    yield f"functions over {FUNCTION_LINES} lines: {len(over)}"
    yield from (f"    {one.lines:>5}  {path}:{one.begin} {one.name}" for path, one in over)
    yield f"modules on simcore's ground floor: {len(floor)}"
    yield f"bytes that git tracks: {sum((tree / path).stat().st_size for path in paths):,}"


def main(arguments: list[str]) -> int:
    """Checks or prints; returns the exit code."""
    if arguments[:1] == ["--figures"] and len(arguments) <= 2:
        print("\n".join(figures(Path(arguments[1]) if len(arguments) == 2 else ROOT)))
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    paths = tracked(ROOT)
    messages = [*too_long(ROOT, paths), *too_large({path: (ROOT / path).stat().st_size for path in paths})]
    for message in messages:
        print(message, file=sys.stderr)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
