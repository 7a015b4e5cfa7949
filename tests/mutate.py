"""Small mistakes planted in the compiler at random: how many of them the tests find.

    python tests/mutate.py --work FOLDER [--count 210] [--seed 17] [--only lower,schedule] [--workers 2]

Each mutation changes one place of one file of `lower schedule analysis runtime codegen ops` (Python) or `device` (C++): a comparison, an operator, a constant, a
condition. First the suite runs once on a copy of the checkout that is marked at these places: that says which tests reach which mutation, and how long each takes.
Then each mutation is planted by itself, and the tests that reach it run until one fails: quick ones of many files first, those of the same folder before others.
What survives these meets all tests of its folder and of the whole compiler (`--no-rest` leaves that out). A mutation is killed when a test fails, or when tests do
not end; every test that killed must pass on the unchanged copy. FOLDER keeps everything, so that a run that was stopped goes on.
EQUIVALENT has mutations that change nothing that can be seen, with the reason. Read first: `main`, `judged`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "mutations"))
from covering import CASES, HITS, marked, reached_by  # noqa: E402
from planting import FOLDERS, ROOT, Mutation, chosen  # noqa: E402
from trying import Runner  # noqa: E402

NEAR = {
    "lower": ("lower", "circular"), "schedule": ("schedule", "lower"), "analysis": ("analysis", "schedulers"), "runtime": ("runtime", "api"),
    "codegen": ("codegen", "lower", "ops"), "ops": ("ops", "api"), "device": ("device", "emulator/test_values.py", "lower"),
}  # fmt: skip
"""The tests that run first for a mutation of a folder."""
NEVER = ("style", "docs", "bench", "gpu", "__pycache__")
"""Tests that read sources, and tests of a GPU: they are no judges."""
EQUIVALENT: dict[str, str] = {}
"""`file: what became what`, as `Mutation.claim` has it, without the line -> why no test can tell."""
CASES_OF_A_TEST = 3
"""How many cases of a parametrized test run in the first run of the suite: the others reach what these reach, nearly always."""
FIRST_TESTS, FIRST_SECONDS, SECOND_SECONDS = 60, 25.0, 240.0


def copied(work: Path, name: str) -> Path:
    """Return a copy of the checkout, with its Python files compiled."""
    copy = work / name
    ignored = shutil.ignore_patterns(".git", "__pycache__", ".*cache", "results", "*.egg-info", "venv", ".venv")
    shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "weft", "tests"], cwd=copy, check=False)
    return copy


def covered(work: Path, taken: list[Mutation], workers: int) -> None:
    """Run the suite once on a marked copy; what it reaches stays in `work/hits`."""
    if (work / "covered").exists():
        return
    shutil.rmtree(work / "marked", ignore_errors=True)
    (work / "hits").mkdir(exist_ok=True)  # what an earlier run reached before it was stopped stays
    copy = copied(work, "marked")
    marked(copy, taken)
    environment = {**os.environ, "PYTHONPATH": str(copy), HITS: str(work / "hits"), CASES: str(CASES_OF_A_TEST), "WEFT_CACHE_DIR": str(work / "cache"), "TEST_SEED": "1"}
    folders = [f"tests/{name}" for name in rest(copy)]
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-p", "mutation_marks", *folders]
    with open(work / "covered.log", "wb") as log:
        subprocess.run(command, cwd=copy, env=environment, stdout=log, stderr=log, check=False)
    (work / "covered").touch()


def rest(copy: Path) -> list[str]:
    return sorted(p.name for p in (copy / "tests").iterdir() if p.is_dir() and p.name not in NEVER and p.name != "mutations")


def in_turn(tests: Iterable[str], seconds: dict[str, float], near: Sequence[str]) -> list[str]:
    """Return tests so that those near come first, the quick ones before the slow, each file and each test function in its turn."""

    def turns(names: Iterable[str], group: str) -> list[str]:
        groups: dict[str, list[str]] = {}
        for name in sorted(names, key=lambda n: (seconds.get(n, 1.0), n)):
            groups.setdefault(name.split(group)[0], []).append(name)
        return [name for row in itertools.zip_longest(*groups.values()) for name in row if name is not None]

    by_file: dict[str, list[str]] = {}
    for name in tests:
        by_file.setdefault(name.split("::")[0], []).append(name)
    files = {file: turns(names, "[") for file, names in by_file.items()}
    is_near = [[file for file in sorted(files) if any(file.startswith(f"tests/{n}") for n in near) == wanted] for wanted in (True, False)]
    mixed = [[n for row in itertools.zip_longest(*(files[f] for f in group)) for n in row if n is not None] for group in is_near]
    return [name for row in itertools.zip_longest(mixed[0], mixed[1]) for name in row if name is not None]


def portions(tests: list[str], seconds: dict[str, float]) -> list[list[str]]:
    """Cut a row of tests in two: a quick beginning, and the others until they would take too long."""
    first: list[str] = []
    spent = 0.0
    for name in tests:
        if len(first) < FIRST_TESTS and spent + seconds.get(name, 1.0) < FIRST_SECONDS:
            first.append(name)
            spent += seconds.get(name, 1.0)
    others: list[str] = []
    spent = 0.0
    for name in sorted(set(tests) - set(first), key=lambda n: seconds.get(n, 1.0)):
        if spent + seconds.get(name, 1.0) < SECOND_SECONDS:
            others.append(name)
            spent += seconds.get(name, 1.0)
    return [part for part in (first, others) if part]


def judged(runner: Runner, mutation: Mutation, tests: set[str], seconds: dict[str, float], with_rest: bool) -> str:
    """Return which test kills a mutation, or ""."""
    folder = Path(mutation.file).parts[1]
    parts = portions(in_turn(tests, seconds, NEAR[folder]), seconds)
    source = (runner.copy / mutation.file).read_text(encoding="utf-8")
    with runner.planted(mutation.file, mutation.applied(source)):
        for part in parts:
            if killer := runner.first_failing(part, sum(seconds.get(n, 1.0) for n in part)):
                return killer
        if with_rest:
            for names in (NEAR[folder], rest(runner.copy)):
                if killer := runner.first_failing([f"tests/{name}" for name in names if (runner.copy / "tests" / name).exists()], 900.0):
                    return killer
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--count", type=int, default=210)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--only", default=",".join(FOLDERS))
    parser.add_argument("--workers", type=int, default=2, help="processes of the first run of the suite")
    parser.add_argument("--no-rest", action="store_true")
    parser.add_argument("--known", action="store_true", help="judge by what the first run has reached so far; a later run goes on from there")
    a = parser.parse_args()
    work = a.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    copy = work / "checkout"
    if not copy.exists():
        copied(work, "checkout")
    taken = chosen(a.count, a.seed, tuple(a.only.split(",")), copy)
    if not a.known:
        covered(work, taken, a.workers)
    reached, seconds, failed = reached_by(work / "hits", len(taken))
    out = work / "result.json"
    rows: dict[str, dict[str, object]] = json.loads(out.read_text()) if out.exists() else {}
    runner = Runner(copy, work)
    for mutation, tests in zip(taken, reached, strict=True):
        claim = mutation.claim((copy / mutation.file).read_text(encoding="utf-8"))
        reason = EQUIVALENT.get(re.sub(r":\d+:", ":", claim, count=1), "")
        before = rows.get(claim, {})
        if before.get("killed by") or before.get("equivalent") or before and before["reached by"] == len(tests) and (a.no_rest or before["rest"]):
            continue
        killer = "" if reason else judged(runner, mutation, tests - failed - runner.unsteady, seconds, not a.no_rest)
        while "::" in killer and not runner.passes_unchanged(killer):
            killer = judged(runner, mutation, tests - failed - runner.unsteady, seconds, not a.no_rest)
        rows[claim] = {"killed by": killer, "equivalent": reason, "reached by": len(tests), "rest": not a.no_rest}
        print(f"{'equivalent' if reason else 'killed' if killer else 'SURVIVES':<10} {claim}   {killer or reason}", flush=True)
        out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    told = [row for row in rows.values() if not row["equivalent"]]
    killed = sum(bool(row["killed by"]) for row in told)
    print(f"{killed} of {len(told)} killed ({100 * killed / max(1, len(told)):.1f} %), {len(rows) - len(told)} equivalent", flush=True)


if __name__ == "__main__":
    main()
