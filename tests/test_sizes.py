"""tools/sizes.py: what it takes for a function, and what it says of files that are too long or too large."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("sizes", ROOT / "tools" / "sizes.py")
assert _SPEC is not None
assert _SPEC.loader is not None
sizes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(sizes)

NATIVE = r"""
#define OPEN(x) \
  {
namespace a::b {
struct alignas(8) Point : Base {
  int x = 0;
  explicit Point(int n) noexcept : x{n}, y_(n), names_{"}", "{"} {
    call('{', R"(})");
  }

  bool operator<(const Point &other) const {
    return x < other.x;
  }
  enum class Kind : char { kOne, kTwo };
};
const std::vector<int> table = {1, 2};
const auto made = [](int n) { // not a function of its own
  return n;
};
} // namespace
MACRO(6, name)
extern "C" {
MACRO(6, name)
int plain(void) { return 1'000; } /* { */
}
template <typename T = int> std::vector<T> of(std::vector<T> values = {}) {
  for (auto value : values) {
    if (value) { continue; }
  }
  return values;
}
"""


def test_functions_of_cpp() -> None:
    found = [(one.name, one.lines) for one in sizes.native_functions(NATIVE)]
    assert found == [("Point", 3), ("operator<", 3), ("plain", 1), ("of", 6)]


@pytest.mark.parametrize("text", ["int f() {\n", "}\n"])
def test_braces_that_do_not_match_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line 1: a brace"):
        list(sizes.native_functions(text))


def test_functions_of_python() -> None:
    text = "@decorated\ndef outer():\n    def inner():\n        pass\n\nclass A:\n    async def method(self): ...\n"
    found = {(one.name, one.begin, one.lines) for one in sizes.python_functions(text)}
    assert found == {("outer", 2, 3), ("inner", 3, 2), ("method", 7, 1)}


def made(tree: Path, files: dict[str, str]) -> list[str]:
    """A checkout with these files; what is over a limit of lines there."""
    subprocess.run(["git", "init", "-q", tree], check=True)
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, "utf-8")
    subprocess.run(["git", "-C", tree, "add", "."], check=True)
    return list(sizes.too_long(tree, sizes.tracked(tree)))


def test_long_files_and_functions_are_named_unless_a_reason_stands_beside_them(tmp_path: Path) -> None:
    python, native = "def f():\n" + "    x = 1\n" * 80, "int f() {\n" + "  g();\n" * 79 + "}\n"
    assert made(
        tmp_path,
        {
            "simcore/long.py": "x = 1\n" * 601,
            "simcore/reasoned.py": '"""A table."""\n# Long because it is a table.\n' + "x = 1\n" * 600,
            "operator/f.py": python,
            "operator/g.py": "# Long because it lists fields.\n@decorated\n" + python,
            "interposer/f.cpp": native,
            "interposer/g.cpp": "// What it does.\n// Long because it lists properties.\n" + native,
            "tests/f.py": python,
            "interposer/native/tests/f.cpp": native,
            "docs/page.md": "line\n" * 1000,
        },
    ) == [
        "simcore/long.py: 601 lines; 600 are allowed without a reason",
        "interposer/f.cpp:1: f has 81 lines; 80 are allowed without a reason",
        "operator/f.py:1: f has 81 lines; 80 are allowed without a reason",
    ]


def test_large_files_and_trees_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LARGE", {"a": (300_000, "a reason"), "b": (300_000, "a reason")})
    assert list(sizes.too_large({"a": 300_000, "b": 9, "c": 262_145, **{f"d{n}": 262_144 for n in range(30)}})) == [
        "c: 262,145 bytes; 262,144 are allowed",
        "b: the exception for it in tools/sizes.py is not needed",
        "all files together: 8,426,474 bytes; 8,388,608 are allowed",
    ]
