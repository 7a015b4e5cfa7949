"""The mutations that `tests/mutate.py` plants are programs, each other than the original."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS), str(TESTS / "mutations")]
from mutate import EQUIVALENT  # noqa: E402
from planting import FOLDERS, ROOT, chosen, mutations  # noqa: E402


@pytest.mark.parametrize("file", ["weft/lower/in_place.py", "weft/schedule/inline.py", "weft/runtime/limits.py"])
def test_mutations_of_python_are_programs(file: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    found = list(mutations(file, source))
    assert len(found) > 20 and len(set(found)) == len(found)
    for mutation in found:
        changed = mutation.applied(source)
        ast.parse(changed)
        assert changed != source


def test_mutations_of_cpp_leave_comments_and_strings_alone() -> None:
    source = 'int f(int a, int b) { return a < b ? a + 2 : b; }  // a < b + 2\nconst char* s = "a < b";\n'
    bodies = {m.applied(source).split(" { ")[1].split(" }")[0] for m in mutations("x.cuh", source)}
    assert bodies >= {"return a <= b ? a + 2 : b;", "return a < b ? a - 2 : b;"}
    assert all(m.end < source.index("//") for m in mutations("x.cuh", source))


def test_a_choice_is_the_same_for_the_same_seed() -> None:
    first = chosen(21, 3, FOLDERS)
    assert first == chosen(21, 3, FOLDERS) != chosen(21, 4, FOLDERS)
    assert len({m.file.split("/")[1] for m in first}) == len(FOLDERS)


@pytest.mark.parametrize("place", EQUIVALENT)
def test_a_mutation_that_nobody_can_tell_is_of_a_line_that_exists(place: str) -> None:
    file, line = place.rsplit(": '", 1)[0].split(": ", 1)
    assert line in map(str.strip, (ROOT / file).read_text(encoding="utf-8").split("\n"))
