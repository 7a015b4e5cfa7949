"""Imports point down the layers of docs/architecture.md, wherever they stand: at the top, in functions, for type checkers only."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from source_tree import PACKAGE, module_name, python_files, shown, tree

# Lowest first. A name is a module or a package of `weft`; the empty name is `weft/__init__.py`.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "options", "dtypes", "arch", "expr", "dump", "forking", "integers", "remembered"),
    ("cache",),
    ("ir",),
    ("ops",),
    ("analysis",),
    ("schedule",),
    ("graph",),
    ("autograd",),
    ("schedulers",),
    ("lower",),
    ("codegen", "device"),
    ("compiler",),
    ("segment",),
    ("emulator",),
    ("reference",),
    ("runtime",),
    ("api",),
    ("frontend",),
    ("nn",),
    ("check", "quantize"),
    ("cli", "", "__main__"),
)
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def layer_of(module: str) -> str:
    """`weft.ir.values` -> `ir`."""
    return module.removeprefix("weft").lstrip(".").partition(".")[0]


@functools.cache
def imported(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and full name of every module of the package that a file imports; a name out of a module counts as that module."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "weft":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            if base.partition(".")[0] != "weft":
                continue
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base


@functools.cache
def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_every_module_has_a_layer() -> None:
    unknown = sorted({layer_of(module_name(path)) for path in python_files("weft")} - HEIGHT.keys())
    assert not unknown, f"give these a place in LAYERS, and in docs/architecture.md: {unknown}"


def test_imports_point_down_the_layers() -> None:
    upward = [
        f"{shown(path, line)}: {layer_of(module_name(path)) or 'weft'} imports {target}, which is above it"
        for path in python_files("weft")
        for line, target in imported(path)
        if HEIGHT.get(layer_of(target), -1) > HEIGHT.get(layer_of(module_name(path)), len(LAYERS))
    ]
    assert not upward, "\n".join(upward)


def test_packages_of_one_layer_do_not_import_each_other() -> None:
    """Modules of the base layer may; packages beside each other share nothing."""
    sideways = [
        f"{shown(path, line)}: imports {target}"
        for path in python_files("weft")
        for line, target in imported(path)
        if HEIGHT.get(layer_of(target)) == HEIGHT.get(layer_of(module_name(path))) not in (0, len(LAYERS) - 1)
        and layer_of(target) != layer_of(module_name(path))
    ]
    assert not sideways, "\n".join(sideways)


def test_compiling_needs_no_torch() -> None:
    """No module below the reference imports torch when it is imported."""
    eager = [
        f"{shown(path, node.lineno)}: imports torch when it is imported"
        for path in python_files("weft")
        if HEIGHT[layer_of(module_name(path))] < HEIGHT["reference"]
        for node in tree(path).body
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "torch" for alias in node.names)
        or isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == "torch"
    ]
    assert not eager, "\n".join(eager)


# Files that still import each other, some in functions; every other file is outside of any cycle. Take a name out when its cycle is gone; put none in.
IN_CYCLES: dict[str, set[str]] = {}


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of modules that reach each other."""
    reached = {name: reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in found if name in reached[other]) | {name} for name, found in reached.items()}
    return [set(group) for group in groups if len(group) > 1]


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - found:
            found.add(name)
            waiting.append(name)
    return found


def test_files_do_not_import_each_other() -> None:
    """Imports in functions and for type checkers count: they only hide a cycle."""
    graph = {module_name(path): {target for _, target in imported(path)} for path in python_files("weft")}
    graph = {name: {t for t in targets if t in graph and t != name} for name, targets in graph.items()}
    known = {f"weft.{folder}.{name}" for folder, names in IN_CYCLES.items() for name in names}
    found = {name for group in cycles(graph) for name in group}
    assert not found - known, f"new cycles: {[sorted(g) for g in cycles(graph) if g - known]}"
    assert not known - found, f"these are in no cycle any more, take them out of IN_CYCLES: {sorted(known - found)}"
