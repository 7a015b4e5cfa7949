"""Which tests reach which mutation: the checkout is marked at the mutated places only, and the suite runs once on it.

A mark is a line `_weft_reached(N)` in front of the statement. What stands outside of functions is marked where its names are used in the file. A place in the device
library is reached by a kernel whose text needs the declaration around it. Programs that tests start carry the marks on. Read first: `marked`, `reached_by`.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from planting import Mutation, line_offsets

TEST, HITS, CASES = "MUTATED_TEST", "MUTATED_HITS", "MUTATED_CASES"
"""Environment: the test that runs, the folder of what was reached, and how many cases of each test function run."""

STARTUP = f'''
import builtins, os
_seen = set()
def _reached(number):
    test = os.environ.get("{TEST}", "")
    if (test, number) not in _seen:
        _seen.add((test, number))
        with open(os.path.join(os.environ["{HITS}"], f"hits-{{os.getpid()}}"), "a") as file:
            file.write(f"{{number}} {{test}}\\n")
if "{HITS}" in os.environ:
    builtins._weft_reached = _reached
'''
"""sitecustomize.py of the marked checkout."""

DEVICE_MARK = '''
_weft_places = __import__("json").loads((FOLDER / "places.json").read_text())
_weft_seen = {}
def _weft_text(parts, text):
    if text not in _weft_seen:
        used = "".join(only_used(parts, text))
        _weft_seen[text] = [number for number, declaration in _weft_places if declaration in used]
    for number in _weft_seen[text]:
        _weft_reached(number)
'''

PLUGIN = f'''
import json, os, time
import pytest

def pytest_collection_modifyitems(items):
    most, taken = int(os.environ["{CASES}"]), {{}}
    folder = os.environ["{HITS}"]
    done = {{line.split(" ", 1)[1].strip() for name in os.listdir(folder) if name.startswith("times-") for line in open(os.path.join(folder, name))}}
    for item in list(items):
        function = item.nodeid.split("[")[0]
        taken[function] = taken.get(function, 0) + 1
        if taken[function] > most or item.nodeid in done:
            items.remove(item)
    with open(os.path.join(folder, f"cases-{{os.getpid()}}"), "w") as file:
        file.writelines(f"{{count}} {{function}}\\n" for function, count in taken.items())

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    os.environ["{TEST}"] = item.nodeid
    start = time.monotonic()
    yield
    with open(os.path.join(os.environ["{HITS}"], f"times-{{os.getpid()}}"), "a") as file:
        file.write(f"{{time.monotonic() - start:.3f}} {{item.nodeid}}\\n")
    os.environ["{TEST}"] = ""

def pytest_runtest_logreport(report):
    if report.failed:
        with open(os.path.join(os.environ["{HITS}"], f"failed-{{os.getpid()}}"), "a") as file:
            file.write(report.nodeid + "\\n")
'''


def marked(copy: Path, mutations: list[Mutation]) -> None:
    """Mark the checkout `copy` at all places."""
    by_file: dict[str, list[tuple[int, Mutation]]] = defaultdict(list)
    for number, mutation in enumerate(mutations):
        by_file[mutation.file].append((number, mutation))
    device = []
    for file, places in by_file.items():
        source = (copy / file).read_text(encoding="utf-8")
        if file.endswith(".py"):
            (copy / file).write_text(_marked_python(source, places), encoding="utf-8")
        else:
            device += [(number, _declaration(source, mutation.start)) for number, mutation in places]
    if device:
        library = copy / "weft/device/library.py"
        text = library.read_text(encoding="utf-8").replace("    if shortened:\n", "    _weft_text(parts, kernel_text)\n    if shortened:\n", 1)
        (copy / "weft/device/places.json").write_text(json.dumps(device), encoding="utf-8")
        library.write_text(text + DEVICE_MARK, encoding="utf-8")
    (copy / "sitecustomize.py").write_text(STARTUP, encoding="utf-8")
    (copy / "mutation_marks.py").write_text(PLUGIN, encoding="utf-8")


def _declaration(source: str, offset: int) -> str:
    from weft.device.used import declarations

    for declaration in declarations(source):
        offset -= len(declaration.text)
        if offset < 0:
            return declaration.text.strip()
    raise AssertionError("a place outside of the text")


def _marked_python(source: str, places: list[tuple[int, Mutation]]) -> str:
    tree, offsets, lines = ast.parse(source), line_offsets(source), source.splitlines(keepends=True)
    marks: dict[int, list[str]] = defaultdict(list)
    for number, mutation in places:
        line = sum(1 for begin in offsets if begin <= mutation.start)
        for statement in _statements_to_mark(tree, line, lines):
            marks[statement.lineno].append(" " * statement.col_offset + f"_weft_reached({number})\n")
    out = "".join("".join(marks.get(at, ())) + text for at, text in enumerate(lines, 1))
    ast.parse(out)
    return out


def _statements_to_mark(tree: ast.Module, line: int, lines: list[str]) -> Iterator[ast.stmt]:
    """Yield where a mark for a place in `line` goes: the innermost statement, else the functions that use the names."""
    path: list[ast.AST] = [tree]
    while inner := [n for n in ast.walk(path[-1]) if isinstance(n, ast.stmt) and n is not path[-1] and _first_line(n) <= line <= (n.end_lineno or 0)]:
        path.append(min(inner, key=lambda n: (_first_line(n), -(n.end_lineno or 0))))
    functions = [i for i, n in enumerate(path) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if functions:
        function = path[functions[-1]]
        body = function.body[1:] if len(function.body) > 1 and ast.get_docstring(function) is not None else function.body  # type: ignore[attr-defined]
        inside = [n for n in path[functions[-1] + 1 :] if isinstance(n, ast.stmt) and _begins_line(n, lines)]
        yield inside[-1] if inside else body[0]
        return
    names = {n.id for p in path[1:] for n in ast.walk(p) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names |= {p.name for p in path if isinstance(p, ast.ClassDef)}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(function)):
            yield next((s for s in function.body[1:] or function.body if _begins_line(s, lines)), function.body[0])


def _first_line(node: ast.AST) -> int:
    return min((d.lineno for d in getattr(node, "decorator_list", ())), default=node.lineno)  # type: ignore[attr-defined]


def _begins_line(node: ast.stmt, lines: list[str]) -> bool:
    return not lines[node.lineno - 1][: node.col_offset].strip() and not lines[node.lineno - 1].lstrip().startswith(("elif", "@")) and not getattr(node, "decorator_list", ())


def reached_by(hits: Path, count: int) -> tuple[list[set[str]], dict[str, float], set[str], dict[str, int]]:
    """Return the tests that reach each mutation, the seconds of every test, the tests that failed, and how many cases each test function has."""
    tests: list[set[str]] = [set() for _ in range(count)]
    seconds: dict[str, float] = {}
    failed: set[str] = set()
    cases: dict[str, int] = {}
    for path in sorted(hits.iterdir()):
        for line in path.read_text(encoding="utf-8").splitlines():
            first, _, test = line.partition(" ")
            if path.name.startswith("hits-") and test:
                tests[int(first)].add(test)
            elif path.name.startswith("times-"):
                seconds[test] = float(first)
            elif path.name.startswith("cases-"):
                cases[test] = int(first)
            elif path.name.startswith("failed-"):
                failed.add(line)
    return tests, seconds, failed, cases
