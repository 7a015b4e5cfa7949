"""Runs the checks whose outcome docs/benchmarks.md reports: random fusions, compute-sanitizer, tests that need a GPU.

    python bench/checks.py [OUT.json] [--count 1000] [--only NAME] [--sanitizer PATH]

Without a GPU only the emulator's check runs. Each check is a command that can be run by itself; what is kept is the command, its exit status, its time and
the lines that say the outcome. Results of checks that are not run again are taken over from the file, or from bench/results.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measure import HERE, RESULTS, about, parser

TOOLS = ("memcheck", "racecheck", "synccheck")
OUTCOME = re.compile(r"^\d+ fusions in|^taken by|^declined by family|^seed \d+ |ERROR SUMMARY|RACECHECK SUMMARY|^WRONG|\d+ (passed|failed)")


def commands(count: int, sanitizer: str, has_gpu: bool) -> dict[str, list[str]]:
    """Return name -> command."""
    python = sys.executable
    fusions = [python, "-m", "tests.random_fusions", "--count", str(count)]
    out = {"random fusions, emulator": fusions}
    if has_gpu:
        out["random fusions, GPU"] = [*fusions, "--gpu"]
        for tool in TOOLS:
            out[f"compute-sanitizer {tool}"] = [sanitizer, "--tool", tool, python, "tests/gpu/sanitizer_cases.py"]
        out["tests that need a GPU"] = [python, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    return out


def run(command: list[str], timeout_s: float) -> dict[str, Any]:
    """Run a command from the repository's root; return its outcome."""
    shown = " ".join(Path(word).name if Path(word).is_absolute() else word for word in command)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=HERE.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s)
    except FileNotFoundError:
        return {"command": shown, "status": "not found", "seconds": 0, "lines": []}
    except subprocess.TimeoutExpired:
        return {"command": shown, "status": "out of time", "seconds": round(timeout_s), "lines": []}
    lines = [line for line in (raw.strip("= ") for raw in done.stdout.splitlines()) if OUTCOME.search(line)]
    if done.returncode:
        print(done.stdout[-4000:])
    return {"command": shown, "status": done.returncode, "seconds": round(time.monotonic() - start), "lines": lines[-12:]}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--count", type=int, default=1000, help="random fusions")
    arguments.add_argument("--only", default="", help="checks whose name contains this")
    arguments.add_argument("--sanitizer", default=shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer")
    arguments.add_argument("--timeout", type=float, default=600, help="seconds for each check")
    a = arguments.parse_args()
    device = "cuda" if torch.cuda.is_available() and not a.cpu_smoke else "cpu"
    path = Path(a.out) if a.out else None if a.cpu_smoke else RESULTS / "checks.json"
    known = next((p for p in (path, RESULTS / "checks.json") if p and p.exists()), None)
    found: dict[str, Any] = json.loads(known.read_text(encoding="utf-8"))["checks"] if known else {}
    for name, command in commands(20 if a.cpu_smoke else a.count, a.sanitizer, device == "cuda").items():
        if a.only in name:
            found[name] = {**run(command, a.timeout), **about("cpu" if "emulator" in name else device)}
            print(f"{name}: status {found[name]['status']}, {found[name]['seconds']} s", *found[name]["lines"], sep="\n  ", flush=True)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"checks": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
