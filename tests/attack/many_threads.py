"""Sixteen threads that define, compile, tune, execute, change settings, use the disk cache and make scalar expressions, while the interpreter switches as often as it can.

Read first: `attack`.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

import torch
from tally import Tally

from weft import FusionDefinition
from weft.cache import Artefact, DiskCache, artefact_key
from weft.expr import add, ceildiv, const, floordiv, mul, var
from weft.options import current, options

STRUCTURES = 6


def executes(draw: random.Random, place: Path) -> str:
    factor = float(draw.randrange(STRUCTURES) + 2)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, factor), [1]))
    rows, columns = draw.randrange(1, 5), draw.randrange(1, 40)
    for _ in range(draw.randrange(1, 4)):
        (y,) = fd.execute([torch.ones(rows, columns)])
        if y.tolist() != [factor * columns] * rows:
            return f"{factor} * {columns} is {y.tolist()}"
    return ""


def tunes(draw: random.Random, place: Path) -> str:
    """One of two structures, of one size: all but the first threads find what another is timing, or has kept."""
    factor = float(draw.randrange(2) + 2)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.neg(fd.ops.mul(x, factor)))
    with options(tune_limit_s=2):
        (y,) = fd.execute([torch.ones(3, 65)], tune=True)
    return "" if y.tolist() == [[-factor] * 65] * 3 else f"{factor} times -1 is {y.tolist()}"


def interns(draw: random.Random, place: Path) -> str:
    name = f"v{draw.randrange(1000)}"
    forms = [lambda n: add(mul(var(n), 3), const(5000 + len(n))), lambda n: ceildiv(add(var(n), 7), const(8)), lambda n: floordiv(mul(var(n), var(n + "x")), const(4097))]
    form = draw.choice(forms)
    first, second = form(name), form(name)
    return "" if first is second else f"{first} is not {second}"


def changes_settings(draw: random.Random, place: Path) -> str:
    seed = draw.randrange(1000)
    with options(seed=seed, check=draw.choice(["", "bounds"])):
        time.sleep(0)
        return "" if current().seed == seed else f"{current().seed} is not {seed}"


def caches(draw: random.Random, place: Path) -> str:
    number = draw.randrange(30)
    cache = DiskCache(place, 200_000)
    found = cache.get_or_make(artefact_key(number), lambda a: a.blobs["x"], lambda: (bytes([number]) * 9000, Artefact({}, {"x": bytes([number]) * 9000})))
    return "" if found == bytes([number]) * 9000 else f"entry {number}"


WORK = (executes, tunes, interns, interns, interns, changes_settings, caches)


def attack(folder: Path, threads: int, rounds: int, seed: int) -> Tally:
    """Run `rounds` pieces of work in each of `threads` threads."""
    tally, lock = Tally(f"{threads} threads"), threading.Lock()

    def work(me: int) -> None:
        for number in range(rounds):
            draw = random.Random(f"{seed} {me} {number}")
            piece = draw.choice(WORK)
            try:
                said = piece(draw, folder)
                column, note = ("wrong", said) if said else ("right", "")
            except Exception as error:  # noqa: BLE001 - any error is what is looked for
                column, note = "raw error", f"{type(error).__name__}: {error}"
            with lock:
                tally.add(column, f"--seed {seed}: {piece.__name__}: {note}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(600)
            if thread.is_alive():
                tally.add("hang", "a thread did not end in 600 s")
    finally:
        sys.setswitchinterval(interval)
    return tally
