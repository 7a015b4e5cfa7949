"""Runs many random fusions in several processes, and says what became of them.

Read first: `run_seeds`.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import random
import re
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from fusion_case import Case
from fusion_check import Outcome, check, check_shapes
from fusion_generator import random_case
from fusion_shrink import shrink
from nvrtc_watch import compile_by_nvrtc

LARGEST_ELEMS = {"cpu": 4000, "cuda": 1 << 20}
LARGEST_LONG_ROWS = 5_000_000
Found = tuple[int, str, Outcome]
"""Seed, family, outcome."""


LOST = "lost"
"""The outcome of a seed whose process has no GPU any more, since a kernel of another one has failed there."""
_failed_on_the_gpu: list[int] = []


def start_worker(nvrtc: bool = False) -> None:
    import torch

    torch.set_num_threads(1)
    if nvrtc:
        compile_by_nvrtc()


@functools.lru_cache(maxsize=None)
def watched_pairs() -> Any:
    """Run each kernel of this process that may overlap the one before it together with that one, from now on; return what watches."""
    from weft.check.overlap import PairWatch
    from weft.check.script import checked_call
    from weft.runtime import engines

    watch = PairWatch(checked_call)
    engines.watchers.append(watch)
    return watch


def run_seed_in_pairs(seed: int, device: str, largest_elems: int, family: str = "", tune: bool = False, shapes: int = 0) -> Found:
    """Check the fusion of a seed, and its kernels behind each other and behind the last one of the seed before."""
    watch = watched_pairs()
    before = watch.pairs, watch.others
    seed, made_as, outcome = run_seed(seed, device, largest_elems, family, tune, shapes)
    found = [f"{names}: {found.text()}" for names, found in watch.found]
    watch.found.clear()
    if found and not outcome.is_failure:
        outcome = Outcome("overlap", "\n".join(found))
    elif outcome.kind == "ok":
        outcome = replace(outcome, detail=f"{watch.pairs - before[0]} pairs, {watch.others - before[1]} none")
    return seed, made_as, outcome


def run_seed(seed: int, device: str, largest_elems: int, family: str = "", tune: bool = False, shapes: int = 0) -> Found:
    """Check the fusion of a seed; an error outside of the call under test is a failure too. tune: compute each kernel by one of its candidates, at random.
    shapes: at how many sizes, with one definition; 0: at its own."""
    if _failed_on_the_gpu:
        return seed, family, Outcome(LOST)
    try:
        case = random_case(seed, largest_elems, family)
    except Exception as error:  # noqa: BLE001  (an op that a definition may have was refused)
        return seed, family, Outcome(f"{type(error).__name__} in the definition", f"{error}\n{traceback.format_exc(limit=-4)}")
    with any_candidate(seed) if tune else contextlib.nullcontext():
        outcome = run_case(case, device, shapes, largest_elems)
    if device == "cuda" and (trouble := gpu_trouble()):
        _failed_on_the_gpu.append(seed)
        outcome = outcome if outcome.is_failure else Outcome("GPU error", trouble)
    return seed, case.family, outcome


def gpu_trouble() -> str:
    """Return why this process cannot use the GPU any more, or ""."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def any_candidate(seed: int) -> Iterator[None]:
    """Tune what runs within the block, and let chance say how fast each of a few candidates is."""
    from weft.options import options
    from weft.runtime import tuned, tuning

    rng = random.Random(seed)
    tuned.forget()

    def measure(launch: Callable[[], None], device: int | None, count: int) -> float:
        launch()
        return rng.random()

    tuning.OF_A_WAY, tuning.AT_MOST = 3, 9
    with tempfile.TemporaryDirectory() as folder, options(tune=True, cache_dir=folder), tuning.session(tuning.Session(1e9, measure=measure)):
        yield


def run_case(case: Case, device: str, shapes: int = 0, largest_elems: int = 0) -> Outcome:
    try:
        return check_shapes(case, device, shapes, largest_elems) if shapes else check(case, device)
    except Exception as error:  # noqa: BLE001
        return Outcome(f"{type(error).__name__} in the test", str(error))


def run_seeds(seeds: Sequence[int], device: str, jobs: int, seconds: float = float("inf"), largest_elems: int = 0, family: str = "", tune: bool = False, shapes: int = 0, pairs: bool = False, nvrtc: bool = False) -> Iterator[Found]:
    """Yield (seed, family, outcome) as they come, until the time is over. family: of all of them. pairs: with kernels that start early. nvrtc: what the emulator
    runs is compiled by NVRTC, too."""
    stop = time.monotonic() + seconds
    largest = largest_elems or LARGEST_ELEMS[device]
    remaining = list(seeds)
    while remaining:
        lost: list[int] = []
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=start_worker, initargs=(nvrtc,)) as pool:
            waiting = [pool.submit(run_seed_in_pairs if pairs else run_seed, seed, device, largest, family, tune, shapes) for seed in remaining]
            for future in waiting:
                if time.monotonic() > stop:
                    pool.shutdown(cancel_futures=True)  # waiting: the end of the block would take the cancelling back
                    return
                found = future.result()
                if found[2].kind == LOST:
                    lost.append(found[0])
                else:
                    yield found
        remaining = lost


def shrunk(seed: int, outcome: Outcome, device: str, largest_elems: int, family: str = "", limit_s: float = 60.0) -> str:
    """Return the text of a small fusion that fails as the one of `seed` does."""
    small = shrink(random_case(seed, largest_elems, family), lambda case: run_case(case, device).kind == outcome.kind, limit_s)
    detail = run_case(small, device).detail.replace("\n", "\n# ")
    return f"# {'-' * 20} seed {seed}: {outcome.kind}, made smaller\n{small.text(device)}# {detail[:1500]}"


def report(found: Sequence[Found], seconds: float) -> None:
    """Print how many fusions ran, who took them, and why others were declined."""
    kinds = Counter(outcome.kind for _, _, outcome in found)
    print(f"{len(found)} fusions in {seconds:.0f} s: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))
    pairs = [map(int, re.findall(r"\d+", outcome.detail)) for _, _, outcome in found if outcome.kind == "ok" and outcome.detail]
    if pairs:
        print("pairs of kernels at once: %d; with something else between: %d" % tuple(map(sum, zip(*pairs))))
    taken = Counter(outcome.scheduler for _, _, outcome in found if outcome.kind == "ok")
    print("taken by: " + ", ".join(f"{name} {n}" for name, n in taken.most_common()))
    families = Counter(family for _, family, _ in found)
    declined = Counter(family for _, family, outcome in found if outcome.kind == "declined")
    print("declined by family: " + ", ".join(f"{family} {declined[family]} of {n}" for family, n in families.items()))
    reasons = Counter(reason for _, _, outcome in found if outcome.kind == "declined" for reason in [main_reason(outcome.detail)])
    for reason, n in reasons.most_common():
        print(f"  {n:4} {reason}")


def main_reason(detail: str) -> str:
    """Return the reasons of the schedulers that could have taken a fusion, without names of tensors."""
    lines = dict(line.split(": ", 1) for line in detail.split("\n") if ": " in line)
    parts = []
    for name in ("pointwise", "reduction", "inner_persistent"):
        reason = lines.get(name, "")
        reason = re.sub(r"T\d+_\w\[[^\]]*\]\S*( \w+\[[^\]]*\])?|T\d+\S*( \[[^\]]*\])?", "T", reason)
        parts.append(f"{name}: {reason}")
    return " | ".join(p for p in parts if "reduces" not in p and "nothing is reduced" not in p) or detail
