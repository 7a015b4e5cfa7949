"""Small mistakes planted in the compiler at random: how many of them the tests find.

    python tests/mutate.py --work FOLDER [--count 210] [--seed 17] [--only lower,schedule] [--workers 2] [--seconds 300]

Each mutation changes one place of one file of `lower schedule analysis runtime codegen ops` (Python) or `device` (C++): a comparison, an operator, a constant, a
condition. First the suite runs once on a copy of the checkout that is marked at these places: that says which tests reach which mutation, and how long each takes.
Then each mutation is planted by itself, in several copies at once, and the tests that reach it run until one fails: quick ones of many files first, those of the
same folder before others; then the others; then all cases of their test functions, of which the first run had a few. A mutation is killed when a test fails, or
when tests do not end; every test that killed must pass on the unchanged copy. FOLDER keeps everything, so that a run that was stopped goes on.
EQUIVALENT has mutations that change nothing that can be seen, with the reason. Read first: `main`, `Judge`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "mutations"))
from covering import CASES, HITS, marked, reached_by  # noqa: E402
from planting import FOLDERS, ROOT, Mutation, chosen  # noqa: E402
from workers import Piece, Pool, serve  # noqa: E402

NEAR = {
    "lower": ("lower", "circular"), "schedule": ("schedule", "lower"), "analysis": ("analysis", "schedulers"), "runtime": ("runtime", "api"),
    "codegen": ("codegen", "lower", "ops"), "ops": ("ops", "api"), "device": ("device", "emulator/test_values.py", "lower"),
}  # fmt: skip
"""The tests that run first for a mutation of a folder."""
NEVER = ("style", "docs", "bench", "gpu", "__pycache__")
"""Tests that read sources, and tests of a GPU: they are no judges."""
_ANNOTATION, _SPACES = "an annotation, which nothing evaluates", "spaces in front of a line of the kernel's text"
EQUIVALENT: dict[str, str] = {
    "weft/schedule/staying_blocks.py: @dataclass(frozen=True): 'True' becomes 'False'": "a record that nothing changes or hashes is frozen",
    "weft/schedule/online_softmax.py: def _reduced(expr: Expr, kind: str) -> TensorView | None:: '|' becomes '&'": _ANNOTATION,
    "weft/lower/kernel_ir.py: def copied(statement: Statement, mapping: dict[Sym, Sym], rename: dict[str, Sym] | None = None) -> Statement:: '|' becomes '&'": _ANNOTATION,
    'weft/runtime/philox_state.py: return torch.randint(0, 2**63 - 1, (1,), dtype=torch.int64, device=None if device is None else torch.device("cuda", device)): \'1\' becomes \'2\'': "random numbers are drawn below 2^63 - 2 instead of below 2^63 - 1",
    "weft/codegen/blocks.py: depth += 1: '1' becomes '2'": _SPACES,
    "weft/schedule/peel.py: rows: IterDomain | None: '|' becomes '&'": _ANNOTATION,
    "weft/runtime/nvrtc.py: @dataclass(frozen=True, slots=True): 'True' becomes 'False'": "a record has slots: memory of a few objects",
    "weft/runtime/work_memory.py: found = _pool[(device, stream)] = _lasting(device, stream, max(size_bytes, 1 << 16)): '1' becomes '2'": "the pool begins with 128 KiB instead of 64",
    'weft/codegen/thread_folds.py: writer.emit(depth + 1, f"{ctype} value[{n}];"): \'1\' becomes \'2\'': _SPACES,
    "weft/lower/circular.py: def find_body(body: list[Statement], path: Sequence[Sym], tensors: Iterable[TensorView]) -> tuple[list[Statement], Loop | None, list[Statement]]:: '|' becomes '&'": _ANNOTATION,
    "weft/device/complex.cuh: return z.re < T(0) ? complex<T>(weft::abs(other), weft::copysign(z.re, z.im)) : complex<T>(z.re, weft::copysign(other, z.im));: '<' becomes '<='": "the number is infinite there, and so not zero",
}
"""`file: its line: what became what` -> why no test can tell."""
CASES_OF_A_TEST = 3
"""How many cases of a parametrized test run in the first run of the suite: the others reach what these reach, nearly always."""
FIRST_TESTS, FIRST_SECONDS, PIECE_SECONDS, MOST_SECONDS = 60, 25.0, 40.0, 240.0
"""How many tests meet a mutation first, how long they take, and then: seconds of a piece of work, and of all pieces for a mutation."""


def copied(copy: Path) -> Path:
    """Make a copy of the checkout, with its Python files compiled."""
    ignored = shutil.ignore_patterns(".git", "__pycache__", ".*cache", "results", "*.egg-info", "venv", ".venv")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "weft", "tests"], cwd=copy, check=False)
    return copy


def elsewhere() -> list[str]:
    """Return what PYTHONPATH has beside this checkout."""
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != ROOT]


def covered(work: Path, taken: list[Mutation], workers: int, folders: Sequence[str]) -> None:
    """Run the suite once on a marked copy; what it reaches stays in `work/hits`."""
    if (work / "covered").exists():
        return
    shutil.rmtree(work / "marked", ignore_errors=True)
    (work / "hits").mkdir(exist_ok=True)  # what an earlier run reached before it was stopped stays
    copy = copied(work / "marked")
    marked(copy, taken)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), *elsewhere()]), HITS: str(work / "hits"), CASES: str(CASES_OF_A_TEST), "WEFT_CACHE_DIR": str(work / "cache"), "TEST_SEED": "1"}
    tests = [f"tests/{name}" for name in folders or judges()]
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-p", "mutation_marks", *tests]
    with open(work / "covered.log", "wb") as log:
        subprocess.run(command, cwd=copy, env=environment, stdout=log, stderr=log, check=False)
    (work / "covered").touch()


def judges() -> list[str]:
    return sorted(p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and p.name not in NEVER and p.name != "mutations")


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


def in_pieces(mutation: Mutation, tests: Iterable[str], seconds: dict[str, float]) -> list[Piece]:
    """Cut tests into pieces of work, quick tests first."""
    pieces: list[Piece] = []
    part: list[str] = []
    spent = whole = 0.0
    for name in sorted(tests, key=lambda n: seconds.get(n, 1.0)):
        if whole + seconds.get(name, 1.0) > MOST_SECONDS:
            break
        if part and spent + seconds.get(name, 1.0) > PIECE_SECONDS:
            pieces.append(Piece(mutation, tuple(part), spent))
            part, spent = [], 0.0
        part.append(name)
        spent += seconds.get(name, 1.0)
        whole += seconds.get(name, 1.0)
    return [*pieces, Piece(mutation, tuple(part), spent)] if part else pieces


class Judge:
    """What is known of each mutation, in `work/result.json`. stages: how much of it has been tried: 0 nothing, 1 the first tests, 2 all that reach it, 3 all their cases. also: tests that come first."""

    def __init__(self, work: Path, taken: list[Mutation], also: Sequence[str]) -> None:
        self.work, self.taken, self.also = work, taken, also
        self.claims: dict[Mutation, str] = {}
        for m in taken:  # two of one line may read alike
            claim = m.claim((ROOT / m.file).read_text(encoding="utf-8"))
            self.claims[m] = claim if claim not in self.claims.values() else f"{claim} (another)"
        self.reached, self.seconds, self.failed, self.cases = reached_by(work / "hits", len(taken))
        self.out = work / "result.json"
        self.rows: dict[str, dict[str, object]] = json.loads(self.out.read_text()) if self.out.exists() else {}
        for mutation, tests in zip(taken, self.reached, strict=True):
            claim = self.claims[mutation]
            row = self.rows.setdefault(claim, {"killed by": "", "stage": 0})
            row |= {"reached by": len(tests), "equivalent": EQUIVALENT.get(mutation.place((ROOT / mutation.file).read_text(encoding="utf-8")), "")}

    def is_settled(self, mutation: Mutation) -> bool:
        row = self.rows[self.claims[mutation]]
        return bool(row["killed by"] or row["equivalent"])

    def pieces(self, stage: int) -> list[list[Piece]]:
        """Return the pieces of work of a stage for the mutations that no earlier stage settled."""
        out: list[list[Piece]] = []
        for mutation, tests in zip(self.taken, self.reached, strict=True):
            if self.is_settled(mutation) or stage <= int(str(self.rows[self.claims[mutation]]["stage"])) < 4:
                continue
            near = NEAR[Path(mutation.file).parts[1]]
            judges_of = tests or {n for n in self.seconds if n.startswith(tuple(f"tests/{name}" for name in near))}  # what runs at an import is not marked
            if stage == 4:
                out.append([Piece(mutation, tuple(self.also), 60.0)] if self.also else [])
                continue
            turn = in_turn(judges_of - self.failed, self.seconds, near)
            first = [n for n, spent in zip(turn, itertools.accumulate(self.seconds.get(n, 1.0) for n in turn)) if spent < FIRST_SECONDS][:FIRST_TESTS] or turn[:1]
            if stage == 1:
                out.append([Piece(mutation, tuple(first), sum(self.seconds.get(n, 1.0) for n in first))] if first else [])
            elif stage == 2:
                out.append(in_pieces(mutation, set(turn) - set(first), self.seconds))
            else:
                functions = dict.fromkeys(n.split("[")[0] for n in turn)
                wanted = [f for f in functions if self.cases.get(f, 1) > CASES_OF_A_TEST]
                spent_s = {f: self.cases[f] * max(self.seconds.get(n, 1.0) for n in turn if n.split("[")[0] == f) for f in wanted}
                out.append(in_pieces(mutation, wanted, spent_s))
        return out

    def run(self, stage: int, pool: Pool) -> None:
        """Try what is left of a stage, and keep what came of it."""
        by_mutation = self.pieces(stage)
        left = Counter(piece.mutation for pieces in by_mutation for piece in pieces)

        def done(piece: Piece, killer: str) -> None:
            row = self.rows[self.claims[piece.mutation]]
            left[piece.mutation] -= 1
            row["killed by"] = row["killed by"] or killer
            if left[piece.mutation] == 0 and stage < 4:
                row["stage"] = stage
            if killer or left[piece.mutation] == 0:
                print(f"{'killed' if row['killed by'] else f'stage {stage}':<8} {self.claims[piece.mutation]}   {killer}", flush=True)
                self.keep()

        for mutation in self.taken:
            if stage < 4 and not left[mutation] and not self.is_settled(mutation):
                row = self.rows[self.claims[mutation]]
                row["stage"] = max(stage, int(str(row["stage"])))
        pool.run([piece for row in itertools.zip_longest(*by_mutation) for piece in row if piece is not None], self.is_settled, done)
        self.keep()

    def keep(self) -> None:
        self.out.write_text(json.dumps(self.rows, indent=1), encoding="utf-8")

    def told(self) -> str:
        """Return the score in words, and every mutation that lives."""
        told = [row for row in self.rows.values() if not row["equivalent"]]
        killed = sum(bool(row["killed by"]) for row in told)
        alive = [f"alive after stage {row['stage']}, reached by {row['reached by']}: {claim}" for claim, row in self.rows.items() if not row["killed by"] and not row["equivalent"]]
        return "\n".join([*alive, f"{killed} of {len(told)} killed ({100 * killed / max(1, len(told)):.1f} %), {len(self.rows) - len(told)} equivalent"])


def main() -> None:
    start_s = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--count", type=int, default=210)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--only", default=",".join(FOLDERS))
    parser.add_argument("--workers", type=int, default=2, help="processes, each with a copy of the checkout")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many; a later run goes on from there")
    parser.add_argument("--tests", default="", help="folders of tests that judge; all, unless given")
    parser.add_argument("--also", default="", help="tests that what still lives meets first: those written since the first run")
    parser.add_argument("--worker", type=int, help="be this worker")
    a = parser.parse_args()
    work = a.work.resolve()
    if a.worker is not None:
        serve(copied(work / f"copy-{a.worker}"), work / f"worker-{a.worker}")
        return
    work.mkdir(parents=True, exist_ok=True)
    taken = chosen(a.count, a.seed, tuple(a.only.split(",")))
    covered(work, taken, a.workers, [f for f in a.tests.split(",") if f])
    judge = Judge(work, taken, [t for t in a.also.split(",") if t])
    print(f"{time.monotonic() - start_s:.0f} s: {len(judge.seconds)} tests, {len(judge.failed)} fail unchanged", *sorted(judge.failed), sep="\n  ", flush=True)
    for stage in (4, 1, 2, 3) if judge.also else (1, 2, 3):
        judge.run(stage, Pool(work, a.workers, start_s + a.seconds))
        print(f"{time.monotonic() - start_s:.0f} s, stage {stage}", judge.told(), sep="\n", flush=True)


if __name__ == "__main__":
    main()
