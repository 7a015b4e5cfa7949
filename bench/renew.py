"""Runs the scripts of this folder on a GPU, one after the other, for as long as there is time; the page is made from the results afterwards.

    python bench/renew.py FOLDER [--cases PATH/fusion_cases.py] [--runs 3] [--seconds 560] [--only ways widths]

The results go to FOLDER, which begins with what bench/results holds: copy it back, and run `make_benchmarks_page.py`. The order is that of the list below, most
needed first; of `ways` only the cases are measured whose params have changed since. What there is no time for is named, and keeps its old results.
Read first: `steps`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from measure import HERE, RESULTS


def steps(folder: Path, cases: str, runs: int) -> list[tuple[str, list[str], int]]:
    """Return (name, command, seconds that it may take)."""
    python = sys.executable

    def script(name: str, *more: str) -> list[str]:
        return [python, str(HERE / f"{name}.py"), *more, str(folder / f"{name}.json")]

    out = [("ways", [python, str(HERE / "ways.py"), str(folder / "ways.json"), "--changed", "--seconds", "100"], 130)]
    if cases:
        out += [(f"fusion_cases {n}", [python, cases, "weft", str(folder / f"fusion_cases_{n}.json")], 150) for n in range(1, runs + 1)]
    out += [("widths", script("widths"), 130), ("ncu_reasons", script("ncu_reasons"), 130), ("first_call", script("first_call"), 60)]
    out += [("profile_warm", script("profile_warm"), 60), ("checks", script("checks"), 560)]
    return out


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--cases", default="", help="path of fusion_cases.py, which is not part of this repository")
    arguments.add_argument("--runs", type=int, default=3, help="of fusion_cases.py")
    arguments.add_argument("--seconds", type=float, default=560, help="for all of them")
    arguments.add_argument("--only", nargs="+", default=[], help="steps whose name begins with one of these")
    a = arguments.parse_args()
    folder, start = a.folder.resolve(), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for path in RESULTS.glob("*.json"):
        if not (folder / path.name).exists():
            shutil.copy(path, folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    left = []
    for name, command, most in steps(folder, a.cases, a.runs):
        if a.only and not name.startswith(tuple(a.only)):
            continue
        remaining = a.seconds - (time.monotonic() - start)
        if remaining < 10:
            left.append(name)
            continue
        began = time.monotonic()
        with (folder / f"{name.replace(' ', '_')}.txt").open("w", encoding="utf-8") as log:
            try:
                done = subprocess.run(
                    command, cwd=HERE.parent, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=min(most, remaining), check=False
                )
                status = done.returncode
            except subprocess.TimeoutExpired:
                status = -1
        print(f"{name}: {'done' if status == 0 else 'out of time' if status < 0 else f'failed ({status})'} in {time.monotonic() - began:.0f} s", flush=True)
        if status:
            left.append(name)
    if left:
        print(f"not renewed: {', '.join(left)}")


if __name__ == "__main__":
    main()
