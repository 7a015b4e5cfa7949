"""docs/constants.md has every number that somebody chose for the schedulers, in one of its kinds, and no other name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEDULERS = ROOT / "weft" / "schedulers"
MOST = 200
_NUMBERS = (ast.Constant, ast.Tuple, ast.Dict, ast.UnaryOp, ast.USub, ast.BinOp, ast.Mult, ast.Load)


def is_chosen(value: ast.expr) -> bool:
    """True where numbers stand there, and nothing else: what is computed from other names is no number of its own."""
    nodes = list(ast.walk(value))
    numbers = [n.value for n in nodes if isinstance(n, ast.Constant)]
    return all(isinstance(n, _NUMBERS) for n in nodes) and numbers != [] and all(isinstance(n, (int, float)) for n in numbers)


def chosen_in(text: str) -> list[str]:
    """Return the names of a module that are bound to numbers, those of a tuple apart; and the fields of `Fitted`."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            pairs = zip(target.elts, node.value.elts) if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) else [(target, node.value)]
            found += [name.id for name, value in pairs if isinstance(name, ast.Name) and name.id.isupper() and is_chosen(value)]
        if isinstance(node, ast.ClassDef) and node.name == "Fitted":
            found += [field.target.id for field in node.body if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)]
    return found


def test_the_table_of_kinds_has_every_constant_once() -> None:
    chosen = {path.relative_to(SCHEDULERS).as_posix(): chosen_in(path.read_text(encoding="utf-8")) for path in sorted(SCHEDULERS.rglob("*.py"))}
    table = (ROOT / "docs" / "constants.md").read_text(encoding="utf-8").split("## By kind")[1].split("\n## ")[0]
    listed: dict[str, list[str]] = {}
    for count, cell in re.findall(r"^\| [^|]+ \| (\d+) \| [^|]+ \| ([^|]+) \|$", table, re.M):
        names = [(file, name) for file, text in re.findall(r"`([\w/]+\.py)`: ([^;|]+)", cell) for name in re.findall(r"\w+", text)]
        assert len(names) == int(count), cell
        for file, name in names:
            listed.setdefault(file, []).append(name)
    assert {file: sorted(names) for file, names in listed.items()} == {file: sorted(names) for file, names in chosen.items() if names}
    assert sum(map(len, chosen.values())) < MOST


def test_what_counts_as_chosen() -> None:
    text = "A, B = 3, (1, 2 * 4)\nC = A + 1\nD = 'words'\nE = {1: 0.5, 2: -1}\nF = range(4)\nlower = 3\n"
    assert chosen_in(text) == ["A", "B", "E"]
