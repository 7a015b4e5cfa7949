"""The mutations of a file: one place of its text, changed to what is near.

Owns which changes there are and which of them a run takes. Read first: `mutations`.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("lower", "schedule", "analysis", "runtime", "codegen", "ops", "device")


@dataclass(frozen=True)
class Mutation:
    """The text from `start` to `end` of `file` becomes `text`."""

    file: str
    start: int
    end: int
    text: str

    def claim(self, source: str) -> str:
        """Return the mutation in words."""
        line = source.count("\n", 0, self.start) + 1
        return f"{self.file}:{line}: {source[self.start : self.end]!r} becomes {self.text!r}"

    def place(self, source: str) -> str:
        """Return the mutation with the text of its line: the same wherever the line stands."""
        line = source.split("\n")[source.count("\n", 0, self.start)].strip()
        return f"{self.file}: {line}: {source[self.start : self.end]!r} becomes {self.text!r}"

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in", "not in": "in"}
CALCULATED = {"+": "-", "-": "+", "*": "+", "//": "*", "%": "//", "|": "&", "&": "|", "<<": ">>", ">>": "<<"}
CXX = re.compile(r"(?<=[\w)\]] )(<=|>=|==|!=|<|>|\+|-|\*|/|%|&&|\|\|)(?= [\w(!~-])|\b([0-9]+)\b(?=[;,)\] ])")
CXX_TO = {"<=": "<", ">=": ">", "==": "!=", "!=": "==", "<": "<=", ">": ">=", "+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "&&": "||", "||": "&&"}


def mutations(file: str, source: str) -> Iterator[Mutation]:
    """Yield every mutation of a file."""
    if not file.endswith(".py"):
        code = re.sub(r"//[^\n]*|#[^\n]*|\"[^\"\n]*\"|asm volatile\([^;]*;", lambda m: " " * len(m[0]), source)
        for found in CXX.finditer(code):
            yield Mutation(file, found.start(), found.end(), CXX_TO[found[1]] if found[1] else str(int(found[2]) + 1))
        return
    if not source.isascii():
        return
    offsets = line_offsets(source)

    def place(node: ast.expr) -> tuple[int, int]:
        return offsets[node.lineno - 1] + node.col_offset, offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[operator]

    def between(left: ast.expr, right: ast.expr, changes: dict[str, str]) -> Iterator[Mutation]:
        gap = place(left)[1], place(right)[0]
        found = re.fullmatch(r"([\s)]*)(\S+(?: not| in)?)([\s(]*)", source[slice(*gap)])
        if found and found[2] in changes:
            yield Mutation(file, gap[0] + found.start(2), gap[0] + found.end(2), changes[found[2]])

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from between(node.left, node.comparators[0], COMPARED)
        elif isinstance(node, ast.BinOp) and not isinstance(node.left, (ast.JoinedStr, ast.Constant)):
            yield from between(node.left, node.right, CALCULATED)
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], {"and": "or", "or": "and"})
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield Mutation(file, *place(node), str(node.value + 1))
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield Mutation(file, *place(node), str(not node.value))
        elif isinstance(node, (ast.If, ast.IfExp)):
            start, end = place(node.test)
            yield Mutation(file, start, end, f"(not ({source[start:end]}))")


def line_offsets(source: str) -> list[int]:
    """Return where each line of an ASCII text begins."""
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets


def chosen(count: int, seed: int, folders: tuple[str, ...], root: Path = ROOT) -> list[Mutation]:
    """Return `count` mutations, every folder as often as the others, every file of it too."""
    rng, out, taken = random.Random(seed), [], set()
    files = {f: sorted(str(p.relative_to(root)) for p in (root / "weft" / f).iterdir() if p.suffix in (".py", ".cuh")) for f in folders}
    while len(out) < count:
        file = rng.choice(files[folders[len(out) % len(folders)]])
        found = [m for m in mutations(file, (root / file).read_text(encoding="utf-8")) if m not in taken]
        if found:
            out.append(rng.choice(found))
            taken.add(out[-1])
    return out
