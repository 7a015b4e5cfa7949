"""The attacks in any size: `python tests/attack KIND [--count N] [--seed S]`; docs/attack.md has the commands of the full size.

KIND: calls, cache, kills, threads, soak. The exit status is 1 when something happened that must not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("WEFT_CHECK", "")
sys.path.insert(0, str(Path(__file__).parent))

import cache_fuzz  # noqa: E402
import kills  # noqa: E402
import many_threads  # noqa: E402
import soak  # noqa: E402
import tally  # noqa: E402
import torch  # noqa: E402
import wrong_calls  # noqa: E402


def main() -> int:
    """Run one kind of attack and print its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["calls", "cache", "kills", "threads", "soak"])
    parser.add_argument("--count", type=int, default=100, help="tries: of each kind of file (cache), of each surface (calls), kills, pieces of work per thread, calls (soak)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="surfaces (calls) or kinds of file (cache), split by commas")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--definitions", type=int, default=1000, help="of the soak")
    parser.add_argument("--kernels", type=int, default=100, help="of the soak: different ones")
    parser.add_argument("--device", default="cpu", help="of the soak: cpu (the emulator) or cuda")
    given = parser.parse_args()
    only = [name for name in given.only.split(",") if name]
    torch.set_num_threads(1)
    in_memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a disk takes milliseconds to remove a file
    with tempfile.TemporaryDirectory(dir=in_memory) as place:
        folder = Path(place)
        if given.kind == "soak":
            soak.warm_calls(given.count, device=given.device, tell=print)
            soak.definitions(given.definitions, given.kernels, device=given.device, tell=print)
            return 0
        if given.kind == "cache":
            found = cache_fuzz.attack(folder, given.count, given.seed, only)
        elif given.kind == "kills":
            found = [kills.attack(folder, given.count, given.processes, given.seed)]
        elif given.kind == "threads":
            found = [many_threads.attack(folder, 16, given.count, given.seed)]
        else:
            found = [wrong_calls.attack(surface, given.count, given.seed) for surface in only or wrong_calls.SURFACES]
    print(tally.HEADER, *(t.row() for t in found), *(note for t in found for note in t.bad), sep="\n")
    return 0 if all(t.is_clean for t in found) else 1


if __name__ == "__main__":
    sys.exit(main())
