"""`weft check`: kernels in the emulator, with all checks, in several orders.

Owns what is printed and the exit status: 0 when nothing was found, 1 when something was (or a planted mistake was missed). What is done is in `weft.check`.
Read first: `main`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from weft.check.explore import SEEDS, NoOrders
from weft.errors import UserError


class NothingToCheck(UserError):
    code = "W442"
    what = "weft check: {problem}"
    fix = "weft check SCRIPT.py | weft check KERNEL.cu --launch LAUNCH.toml | weft check --planted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what `weft check` accepts."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a Python script whose fusions are checked, or a CUDA text (with --launch)")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="the script's own arguments")
    parser.add_argument("--launch", type=Path, metavar="FILE.toml", help="how to launch a CUDA text: docs/checks.md lists the keys")
    parser.add_argument("--seeds", type=int, default=None, metavar="N", help=f"orders of threads and copies that are tried (default: {SEEDS})")
    parser.add_argument("--blocks", type=int, default=None, metavar="K", help="run only K blocks, spread evenly, for large inputs")
    parser.add_argument("--trace", type=Path, metavar="OUT.json", help="write a timeline of the roles, for ui.perfetto.dev; with the suffix .svg a picture")
    searched = "besides, N orders found systematically: warps give way at one synchronization point, then at two"
    parser.add_argument("--search", type=int, default=0, metavar="N", help=searched)
    parser.add_argument("--raw", action="store_true", help="report accesses to memory around the primitives of weft:: too (slower)")
    parser.add_argument("--planted", action="store_true", help="plant mistakes in correct kernels and show that each is found")


def main(given: argparse.Namespace) -> int:
    """Check what is asked for and return the exit status. Errors: NothingToCheck, NoOrders, those of what is checked."""
    if given.seeds is not None and given.seeds < 1:
        raise NoOrders(seeds=given.seeds)
    if given.blocks is not None and given.blocks < 1:
        raise NothingToCheck(problem=f"--blocks is {given.blocks}")
    if given.search < 0:
        raise NoOrders(seeds=given.search)
    if given.planted:
        return _planted(SEEDS if given.seeds is None else given.seeds)
    if given.file is None:
        raise NothingToCheck(problem="no file was named")
    if not is_file(given.file):
        raise NothingToCheck(problem=f"there is no file {given.file}")
    if given.file.suffix == ".py":
        return _script(given)
    if given.launch is None:
        raise NothingToCheck(problem=f"{given.file} needs --launch, which says how to launch it")
    return _kernel(given)


def is_file(path: Path) -> bool:
    """Tell whether a path names a file; a name that no file can have names none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _planted(seeds: int) -> int:
    from weft.check.planted import MISTAKES, run, table

    start = time.perf_counter()
    verdicts = [run(mistake, range(seeds)) for mistake in MISTAKES]
    print(table(verdicts))
    missed = [v.mistake for v in verdicts if not v.is_found]
    print(f"\n{len(verdicts) - len(missed)} of {len(verdicts)} planted mistakes found, in at most {seeds} orders each, in {time.perf_counter() - start:.1f} s")
    for mistake in missed:
        print(f"missed: {mistake.claim} in {mistake.kernel}", file=sys.stderr)
    return 1 if missed else 0


def _kernel(given: argparse.Namespace) -> int:
    from weft.check.handwritten import load

    made = load(given.file, given.launch, is_foreign=True, raw_net=given.raw)
    options: dict[str, Any] = {} if given.blocks is None else {"sample_blocks": given.blocks}
    result = made.explore(given.seeds, **options)
    if given.search:
        result.reports.update(made.search(given.search, **options).reports)
    print(f"{result.kernel}: grid {made.geometry['grid']}, block {made.geometry['block']}, {len(result.reports)} orders: {_verdict(len(result.found))}")
    for found in result.found:
        print(found.text())
    if given.trace is not None:
        made.explore(1, trace=given.trace, **options)
        print(f"timeline: {given.trace}")
    return 0 if result.is_clean else 1


def _script(given: argparse.Namespace) -> int:
    from weft.check.overlap import PairWatch
    from weft.check.script import KernelWatch, check_script, checked_call

    pairs = PairWatch(checked_call) if given.blocks is None else None
    watch = KernelWatch(tuple(range(SEEDS if given.seeds is None else given.seeds)), given.blocks, given.trace, given.search, given.raw, pairs)
    status = 1
    try:
        status = check_script(given.file, given.arguments, watch)
    finally:  # what was found helps to understand a script that stops
        for checked in watch.kernels.values():
            print(checked.text())
        print(f"{len(watch.kernels)} kernel(s): {_verdict(sum(not c.exploration.is_clean for c in watch.kernels.values()), 'with findings')}")
        if pairs is not None and pairs.pairs:
            for names, found in pairs.found:
                print(f"{names}:\n{found.text()}")
            print(f"{pairs.pairs} pair(s) of kernels, the second before the first has ended: {_verdict(len(pairs.found))}")
    return 0 if watch.is_clean and status == 0 else 1


def _verdict(count: int, what: str = "finding(s)") -> str:
    return f"{count} {what}" if count else "clean"
