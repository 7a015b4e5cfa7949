"""What tuning gains over the choice by prediction, on random fusions and sizes.

    python bench/tuning.py [OUT.json] [--count 100] [--seconds 180] [--jobs 6]

Each fusion is tuned; then its choice and its winner are timed again, in turn, with more launches, since the smallest of several medians flatters. A gain is the
choice's time over the winner's, 1 where the choice stays. Processes work side by side, and one at a time uses the GPU for timing.
Read first: `gains_of`.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from measure import HERE, device_of, parser, table, write

from weft import FusionDefinition
from weft.errors import WeftError
from weft.options import options
from weft.runtime import stopwatch, tuned, tuning

sys.path.insert(0, str(HERE.parent / "tests" / "random_fusions"))

LARGEST_ELEMS, LEAST_BYTES = 1 << 24, 1 << 21
AGAIN_COUNT, AGAIN_ROUNDS = 31, 3


class Locked:
    """A measure that one process at a time uses, and that remembers the medians of each kernel by name."""

    def __init__(self, lock: str, count: int = 0) -> None:
        self.lock, self.count = lock, count
        self.seen: dict[str, list[float]] = {}

    def __call__(self, launch: Callable[[], None], device: int | None, count: int) -> float:
        with open(self.lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            us = stopwatch.median_us(launch, device, self.count or count)
        launched = launch.func  # type: ignore[attr-defined]
        name = launched._built.program.name if device is None else launched.__self__.name
        self.seen.setdefault(name, []).append(us)
        return us


@contextlib.contextmanager
def only_two() -> Iterator[None]:
    """Time the present choice and one other."""
    kept, tuning.AT_MOST = tuning.AT_MOST, 2
    try:
        yield
    finally:
        tuning.AT_MOST = kept


def gains_of(seed: int, device: str, lock: str, folder: str) -> list[dict[str, Any]]:
    """Tune the fusion of a seed, and return an entry for each of its kernels; none where it is too small, or no scheduler takes it."""
    from fusion_generator import LONG_ROWS, TWO_SIDES, random_case

    case = random_case(seed, LARGEST_ELEMS if device == "cuda" else 4000, ("", "", LONG_ROWS, TWO_SIDES)[seed % 4])
    inputs = case.arguments(device)
    if device == "cuda" and sum(t.numel() * t.element_size() for t in inputs if isinstance(t, torch.Tensor)) < LEAST_BYTES:
        return []
    with FusionDefinition() as fd:
        case.define(fd)
    out = []
    try:
        with options(cache_dir=folder):
            with FusionDefinition() as plain:
                case.define(plain)
            plain.execute(inputs)
            choices = [runtime.program.name for runtime in plain.fec._caller._known(inputs, None).runtimes]
        with options(cache_dir=folder, tune=True):
            with tuning.session(tuning.Session(120, measure=Locked(lock))) as session:
                fd.execute(inputs)
            names = [runtime.program.name for runtime in fd.fec._caller._known(inputs, None).runtimes]
            again: dict[str, list[float]] = {}
            for _ in range(AGAIN_ROUNDS):
                measure = Locked(lock, AGAIN_COUNT)
                tuned.forget()
                fd.fec._caller.forget()
                with only_two(), tuning.session(tuning.Session(120, again=True, measure=measure)):
                    fd.execute(inputs)
                for name, found in measure.seen.items():
                    again.setdefault(name, []).extend(found)
    except WeftError as error:
        return [{"seed": seed, "declined": error.code}]
    for found in session.results:
        choice = found.title.split()[0]
        winner = names[choices.index(choice)]  # kernels of a definition are in the same order
        best, chosen = (statistics.median(again[name]) if name in again else found.chosen_us for name in (winner, choice))
        out.append({
            "seed": seed, "family": case.family, "kernel": found.title, "scheduler": found.scheduler, "way": found.way, "params": found.params,
            "timed": found.timed,
            "chosen_us": chosen, "best_us": best, "gain": 1.0 if found.best_us == found.chosen_us else chosen / best, "first_gain": found.gain,
        })  # fmt: skip
    return out


def main() -> None:
    made = parser(__doc__.split("\n")[0])
    made.add_argument("--count", type=int, default=100)
    made.add_argument("--seconds", type=float, default=180)
    made.add_argument("--jobs", type=int, default=6)
    arguments = made.parse_args()
    device = device_of(arguments)
    start, entries, seeds = time.monotonic(), [], iter(range(10**6))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # processes that are stopped leave files
        lock = str(Path(folder) / "lock")
        pool = ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn"))
        waiting = {pool.submit(gains_of, next(seeds), device, lock, folder) for _ in range(2 * arguments.jobs)}
        fusions: set[int] = set()
        while waiting and len(fusions) < arguments.count and time.monotonic() - start < arguments.seconds:
            for future in as_completed(waiting):
                waiting.remove(future)
                waiting.add(pool.submit(gains_of, next(seeds), device, lock, folder))
                entries += future.result()
                fusions |= {entry["seed"] for entry in entries if "gain" in entry}
                break
        processes = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
    found = sorted((entry for entry in entries if "gain" in entry), key=lambda entry: entry["gain"])
    summary = {"fusions": len(fusions), "kernels": len(found), "declined": sum("declined" in e for e in entries), **summed([e["gain"] for e in found])}
    rows = [[e["kernel"], e["family"], f"{e['chosen_us']:.1f}", f"{e['best_us']:.1f}", f"{e['gain']:.3f}", f"{e['scheduler']} {e['way']}"] for e in found]
    print(table(["kernel", "family", "choice us", "winner us", "gain", "winner"], rows))
    print(summary)
    write(arguments, __file__, device, found, is_row_a_line=True, summary=summary)


def summed(gains: list[float]) -> dict[str, float]:
    """Return what is printed of the gains: geometric mean, worst, best, and how many kernels are faster."""
    if not gains:
        return {}
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return {"geometric_mean": mean, "worst": min(gains), "best": max(gains), "faster": sum(g > 1.005 for g in gains), "slower": sum(g < 0.995 for g in gains)}


if __name__ == "__main__":
    main()
