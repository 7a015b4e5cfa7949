"""`weft tune`: a script's fusions are tuned while it runs; what was found is listed, exported and imported.

Owns arguments, what is printed and the exit status, which is the script's. What is done is in `weft.runtime.tuning`. Read first: `main`.
"""

from __future__ import annotations

import argparse
import math
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..options import current, options
from .check import is_file

USUAL_LIMIT_S = 600


class NothingToTune(UserError):
    code = "W789"
    what = "weft tune: {problem}"
    fix = "weft tune SCRIPT.py | weft tune --list | weft tune --export FILE | weft tune --import FILE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what `weft tune` accepts."""
    parser.add_argument("script", nargs="?", type=Path, metavar="SCRIPT.py", help="a Python script whose fusions are tuned")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="the script's own arguments")
    parser.add_argument("--limit", type=int, default=USUAL_LIMIT_S, metavar="SECONDS", help=f"stop timing after so long (default: {USUAL_LIMIT_S})")
    parser.add_argument("--again", action="store_true", help="time what was tuned before, too")
    parser.add_argument("--list", action="store_true", help="print what is kept")
    parser.add_argument("--clear", action="store_true", help="forget what is kept, before anything else")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write what is kept to a file, after the script")
    parser.add_argument("--import", type=Path, metavar="FILE", dest="imported", help="keep what a file holds, before the script")


def main(given: argparse.Namespace) -> int:
    """Do what is asked for and return the exit status. Errors: NothingToTune, NotTuned, those of the script."""
    from ..runtime import tuned

    if not (given.script or given.list or given.clear or given.export or given.imported):
        raise NothingToTune(problem="no script was named")
    if given.script and not is_file(given.script):
        raise NothingToTune(problem=f"there is no file {given.script}")
    chosen = current()
    if given.clear:
        print(f"{tuned.clear(chosen)} entries forgotten")
    if given.imported:
        print(f"{tuned.import_file(given.imported, chosen)} entries imported from {given.imported}")
    status = _tune(given.script, given.arguments, given.limit, given.again) if given.script else 0
    if given.list:
        for place, found in sorted(tuned.entries(chosen), key=lambda entry: entry[1].title):
            print(f"{found.title} ({place.chip}): {found.chosen_us} us -> {found.best_us} us, {found.timed} of {found.candidates} candidates")
            print(f"    {found.scheduler} {found.way}: {found.params}")
    if given.export:
        print(f"{tuned.export_file(given.export, chosen)} entries in {given.export}")
    return status


def _tune(script: Path, arguments: Sequence[str], limit_s: int, again: bool) -> int:
    """Run a script as `python script arguments` does, and tune what it executes. Return its exit status."""
    from ..runtime import tuning

    kept = sys.argv[:], sys.path[:]
    sys.argv, sys.path = [os.fspath(script), *arguments], [os.fspath(script.resolve().parent), *sys.path]
    chosen = tuning.Session(limit_s, again, tell=lambda line: print(f"tune: {line}", file=sys.stderr, flush=True))
    status = 0
    try:
        with tuning.session(chosen), options(tune=True):
            runpy.run_path(os.fspath(script), run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv, sys.path = kept
        print(_summary(chosen.results, chosen.is_over), file=sys.stderr)
    return status


def _summary(results: Sequence[object], is_over: bool) -> str:
    gains = [found.gain for found in results]  # type: ignore[attr-defined]
    better = sum(gain > 1 for gain in gains)
    mean = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else 1.0
    late = "; the time was over before all were timed" if is_over else ""
    return f"tune: {len(gains)} kernel(s) tuned, {better} of them faster now, {mean:.3f} times in the geometric mean{late}\ntune: use them with WEFT_TUNE=on"
