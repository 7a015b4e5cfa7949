"""Processes that share a cache are killed at random times: nothing that was kept is lost or damaged, nobody waits, nothing stays behind.

Read first: `attack`.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from tally import Tally

from weft.cache import Artefact, DiskCache, artefact_key
from weft.cache.lock import only_builder
from weft.cache.private import sweep

KEYS, BYTES = 40, 50_000

WORKER = """
import os, random, sys, time
from pathlib import Path
from weft.cache import Artefact, DiskCache, artefact_key
from kills import KEYS, content, kept

folder, me, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
draw, cache = random.Random(seed), DiskCache(folder / "cache")
with open(folder / f"kept.{me}", "a") as log, open(folder / f"built.{me}", "a") as built:
    print("ready", flush=True)
    while True:
        key = artefact_key(draw.randrange(KEYS))
        def make():
            built.write(key + "\\n"); built.flush()
            time.sleep(draw.random() * 0.01)
            return kept(key)
        found = cache.get_or_make(key, lambda a: a.blobs.get("x"), make)
        if found != content(key):
            print("wrong", key, flush=True); sys.exit(3)
        if cache.corrupted or cache.problem:
            print("damaged", cache.problem, flush=True); sys.exit(4)
        if cache.path(key).exists():
            log.write(key + "\\n"); log.flush()
        if draw.random() < 0.02:
            cache.path(key).unlink(missing_ok=True)  # as eviction does
            log.write("-" + key + "\\n"); log.flush()
"""


def content(key: str) -> bytes:
    """What an entry of this key must hold."""
    return random.Random(key).randbytes(BYTES)


def kept(key: str) -> tuple[bytes, Artefact]:
    """A value and its artefact."""
    return content(key), Artefact({"key": key}, {"x": content(key)})


def start(folder: Path, me: str, seed: int) -> subprocess.Popen[str]:
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), me, str(seed)], env=environment, stdout=subprocess.PIPE, text=True)


def attack(folder: Path, kills: int, processes: int, seed: int) -> Tally:
    """Kill one of `processes` workers `kills` times, each time after a random while, then look at what is left."""
    draw = random.Random(seed)
    tally = Tally(f"kills under {processes} processes")
    workers = [start(folder, str(n), seed * 1000 + n) for n in range(processes)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for number in range(kills):
        time.sleep(draw.random() * 0.2)
        victim = draw.randrange(processes)
        workers[victim].kill()
        said = workers[victim].communicate()[0].replace("ready\n", "")
        tally.add("wrong" if said else "right", said)
        workers[victim] = start(folder, str(victim), seed * 1000 + processes + number)
    for worker in workers:
        worker.kill()
        said = worker.communicate()[0].replace("ready\n", "")
        if said:
            tally.add("wrong", said)
    cache = DiskCache(folder / "cache")
    for n in range(KEYS):
        key = artefact_key(n)
        path = cache.path(key)
        was_there = path.exists()
        found = cache.get(key)
        if was_there and (found is None or found.blobs["x"] != content(key)):
            tally.add("wrong", f"{key} is damaged")
        start_s = time.monotonic()
        with only_builder(cache.temporary_folder / f"{key[:32]}.lock", 5) as is_held:
            if not is_held or time.monotonic() - start_s > 1:
                tally.add("hang", f"the lock of {key} is not free")
    sweep(cache.temporary_folder, age_s=-1)
    left = list(cache.temporary_folder.iterdir())
    others = [path for path in cache.folder.rglob("*") if path.is_file() and path.suffix != ".weft"]
    if left or others:
        tally.add("wrong", f"left behind: {left} {others}")
    return tally


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place, contextlib.suppress(KeyboardInterrupt):
        done = attack(Path(place), int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
        print(done.row(), *done.bad, sep="\n")
