"""docs/architecture.md is true as far as names go: files exist, names are defined, members belong to their classes, layers are those of the import test."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import keyword
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "weft"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SPANS = re.findall(r"`([^`\n]+)`", re.sub(r"^    .*$", "", PAGE, flags=re.MULTILINE))

PROSE = {"bounds", "hold", "without", "them", "with", "else", "all", "serial", "unroll", "threads", "vector", "unswitch", "dim", "name", "tensor", "size", "weft", "KIND", "FIELD", "torch", "tensors", "numbers", "python", "axis"}
"""Words inside of longer spans that are no names: pseudo code, and placeholders."""


@functools.cache
def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]


@functools.cache
def defined() -> set[str]:
    """Every name that the package or the device library defines, names of modules, and keys of dicts of attributes."""
    found = {part for path in PACKAGE.rglob("*.py") for part in path.relative_to(ROOT).with_suffix("").parts}
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found.add(node.value)
    for path in (PACKAGE / "device").glob("*.cuh"):
        found |= set(re.findall(r"(?:struct|class|namespace)\s+(\w+)", path.read_text(encoding="utf-8")))
    return found | set(keyword.kwlist) | set(dir(builtins))


@functools.cache
def classes() -> dict[str, tuple[set[str], set[str]]]:
    """Class -> (its members, its bases)."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                members, bases = found.setdefault(node.name, (set(), set()))
                bases |= {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef):
                        members.add(inner.name)
                    elif isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Store):
                        members.add(inner.id if isinstance(inner, ast.Name) else inner.attr)
    return found


def members_of(name: str) -> set[str]:
    own, bases = classes().get(name, (set(), set()))
    return own.union(*(members_of(base) for base in bases if base != name))


def is_path(text: str) -> bool:
    return "/" in text or text.endswith((".py", ".cuh", ".md"))


def problems(span: str) -> list[str]:
    """What a span in backticks names and nothing is."""
    found = []
    if re.fullmatch(r"[\w.*/ ]+", span) and is_path(span):
        for path in span.split():
            places = [place for base in (PACKAGE, ROOT, PACKAGE / "schedulers") for place in base.glob(path if is_path(path) or "*" in path else f"{path}.py")]
            if not places:
                found.append(f"there is no file {path}")
        return found
    for owner, member in re.findall(r"\b([A-Z]\w+)\.(\w+)", span):
        if owner in classes() and member not in members_of(owner):
            found.append(f"{owner} has no {member}")
    for word in set(re.findall(r"[A-Za-z_]\w+", re.sub(r'f?"[^"]*"', lambda m: m[0] if m[0][1:-1].isidentifier() else "", span))) - PROSE:
        if len(word) > 1 and word not in defined():
            found.append(f"nothing is called {word}")
    return found


def test_every_name_on_the_page_is_one_of_the_package() -> None:
    wrong = {span: found for span in SPANS if (found := problems(span))}
    assert len(SPANS) > 120 and not wrong, wrong


def test_a_wrong_name_is_found() -> None:
    assert problems("graph/nothing.py") and problems("NoSuchClass") and problems("Scheduler.nothing") and problems("no_such_function")
    assert not problems("graph/concretize.py") and not problems("Scheduler.candidates")


def test_the_layers_of_the_page_are_those_that_imports_are_checked_against() -> None:
    spec = importlib.util.spec_from_file_location("test_imports_of_page", ROOT / "tests" / "style" / "test_imports.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "tests" / "style"))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "tests" / "style"))
    rows = [[name.strip() for name in row.split(",")] for row in re.findall(r"^\| ([\w, ]+) \| `", PAGE.partition("## Graphs")[0], flags=re.MULTILINE)]
    base, *folders = rows
    assert base == ["base"] and set(re.search(r"\| base \| `([\w ]+)`", PAGE)[1].split()) == set(module.LAYERS[0])  # type: ignore[index]
    on_page = [name for row in folders for name in row]
    expected = {name for layer in module.LAYERS[1:] for name in layer if name not in ("", "__main__")}
    assert set(on_page) == expected, set(on_page) ^ expected
    heights = [module.HEIGHT[name] for name in on_page]
    upward = [b for a, b in zip(on_page, on_page[1:]) if module.HEIGHT[b] < module.HEIGHT[a]]
    assert heights == sorted(heights), f"these stand below what imports them: {upward}"
