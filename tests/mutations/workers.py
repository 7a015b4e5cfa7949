"""Several mutations at once: processes that each have a copy of the checkout, and take the next piece of work as soon as they are free.

A piece of work is a mutation and some tests. Read first: `Pool.run`, `serve`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planting import Mutation

PROGRAM = Path(__file__).resolve().parents[1] / "mutate.py"


@dataclass(frozen=True)
class Piece:
    """Tests to run on one mutation, and how many seconds they take without it."""

    mutation: Mutation
    tests: tuple[str, ...]
    expected_s: float


class Pool:
    """`count` workers; each has the folder `work/worker-N`. stop_at: of `time.monotonic`, when no piece is begun any more."""

    def __init__(self, work: Path, count: int, stop_at: float) -> None:
        self.work, self.count, self.stop_at = work, count, stop_at

    def run(self, pieces: Sequence[Piece], is_settled: Callable[[Mutation], bool], done: Callable[[Piece, str], None]) -> None:
        """Work through `pieces` in order, but for mutations that are settled. done: called with what killed the mutation or "", by one thread at a time."""
        waiting: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        for piece in pieces:
            waiting.put(piece)
        lock = threading.Lock()

        def serve_one(number: int) -> None:
            command = [sys.executable, str(PROGRAM), "--work", str(self.work), "--worker", str(number)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdin is not None and process.stdout is not None
            while time.monotonic() < self.stop_at:
                try:
                    piece = waiting.get_nowait()
                except queue.Empty:
                    break
                if is_settled(piece.mutation):
                    continue
                m = piece.mutation
                process.stdin.write(json.dumps([m.file, m.start, m.end, m.text, piece.tests, piece.expected_s]) + "\n")
                process.stdin.flush()
                killer = json.loads(process.stdout.readline())
                with lock:
                    done(piece, killer)
            process.stdin.close()
            process.wait()

        threads = [threading.Thread(target=serve_one, args=(n,)) for n in range(min(self.count, len(pieces)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def serve(copy: Path, work: Path) -> None:
    """Be a worker: answer pieces of work from stdin with what killed them. Nothing of weft is imported here, so that each child imports the mutated files."""
    from trying import Runner  # loads torch

    answers = os.fdopen(os.dup(1), "w")
    work.mkdir(exist_ok=True)
    runner = Runner(copy, work)
    for line in sys.stdin:
        file, start, end, text, tests, expected_s = json.loads(line)
        assert not any(name == "weft" or name.startswith("weft.") for name in sys.modules)
        mutated = Mutation(file, start, end, text).applied((copy / file).read_text(encoding="utf-8"))
        answers.write(json.dumps(_killer(runner, file, mutated, tests, expected_s)) + "\n")
        answers.flush()


def _killer(runner: Runner, file: str, text: str, tests: list[str], expected_s: float) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Return the first of these tests that fails because of the mutation, or ""."""
    while left := [t for t in tests if t not in runner.unsteady]:
        with runner.planted(file, text):
            killer = runner.first_failing(left, expected_s)
        if "::" not in killer or runner.passes_unchanged(killer):
            return killer
    return ""
