"""Small mistakes planted in the compiler at random: how many of them the tests find.

    python tests/mutate.py [--count 200] [--seed 0] [--only lower,schedule] [--out RESULT.json] [--timeout 600] [--full]

Each mutation changes one place of one file of `lower schedule analysis runtime codegen ops` (Python) or `device` (C++): a comparison, an operator, a constant, a
condition. The tests of that folder run on a copy of the checkout, and those of the whole compiler if they find nothing; with --full, the whole suite after that.
A mutation is killed when a test fails, or when tests do not end. EQUIVALENT has mutations that change nothing that can be seen, with the reason.
By hand: 200 mutations take some hours on two cores. Read first: `mutations`, `is_killed`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("lower", "schedule", "analysis", "runtime", "codegen", "ops", "device")
NEAR = {
    "lower": ("lower", "circular"), "schedule": ("schedule", "lower"), "analysis": ("analysis", "schedulers"), "runtime": ("runtime", "api"),
    "codegen": ("codegen", "lower", "ops"), "ops": ("ops", "api"), "device": ("device", "emulator/test_values.py", "lower"),
}  # fmt: skip
"""The tests that run first for a mutation of a folder."""
REST = tuple(sorted(p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and p.name not in ("style", "docs", "bench", "gpu", "__pycache__")))
EQUIVALENT: dict[str, str] = {}
"""`file: what became what`, as `Mutation.claim` has it, without the line -> why no test can tell."""


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
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    if not source.isascii():
        return

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


def chosen(count: int, seed: int, folders: tuple[str, ...]) -> list[Mutation]:
    """Return `count` mutations, every folder as often as the others, every file of it too."""
    rng, out, taken = random.Random(seed), [], set()
    files = {f: sorted(str(p.relative_to(ROOT)) for p in (ROOT / "weft" / f).iterdir() if p.suffix in (".py", ".cuh")) for f in folders}
    while len(out) < count:
        file = rng.choice(files[folders[len(out) % len(folders)]])
        found = [m for m in mutations(file, (ROOT / file).read_text(encoding="utf-8")) if m not in taken]
        if found:
            out.append(rng.choice(found))
            taken.add(out[-1])
    return out


def is_killed(copy: Path, tests: tuple[str, ...], timeout_s: int) -> str:
    """Return which test fails ("timeout" when they do not end), or ""."""
    present = [f"tests/{name}" for name in tests if (copy / "tests" / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *present]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else (done.stdout + done.stderr).strip().splitlines()[-1][:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(FOLDERS))
    parser.add_argument("--out", default="")
    parser.add_argument("--timeout", type=int, default=600)
    parser.add_argument("--full", action="store_true")
    a = parser.parse_args()
    rows: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="weft-mutations-") as folder:
        copy = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(".git", "__pycache__", ".*cache", "results", "*.egg-info", "venv", ".venv")
        shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
        for mutation in chosen(a.count, a.seed, tuple(a.only.split(","))):
            target = copy / mutation.file
            source = target.read_text(encoding="utf-8")
            claim = mutation.claim(source)
            reason = EQUIVALENT.get(re.sub(r":\d+:", ":", claim, count=1), "")
            target.write_text(mutation.applied(source), encoding="utf-8")
            steps = (NEAR[Path(mutation.file).parts[1]], REST, *((("",),) if a.full else ()))
            killer = "" if reason else next((found for tests in steps if (found := is_killed(copy, tests, a.timeout))), "")
            target.write_text(source, encoding="utf-8")
            rows.append({"mutation": claim, "killed by": killer, "equivalent": reason})
            print(f"{'equivalent' if reason else 'killed' if killer else 'SURVIVES':<10} {claim}   {killer or reason}", flush=True)
            if a.out:
                Path(a.out).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    judged = [row for row in rows if not row["equivalent"]]
    killed = sum(bool(row["killed by"]) for row in judged)
    print(f"{killed} of {len(judged)} killed ({100 * killed / max(1, len(judged)):.1f} %), {len(rows) - len(judged)} equivalent", flush=True)


if __name__ == "__main__":
    main()
