"""The disk cache: nothing is lost, nothing is half-written, damage is noticed, size is limited."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from weft.options import current
from weft.cache import private
from weft.cache import Artefact, ArtefactNotJson, DiskCache, artefact_key, default_cache
from weft.cache.entry import decode, encode

KEY = artefact_key("a kernel")
ENTRY = Artefact({"log": "two\nlines", "registers": 32, "nothing": None}, {"cubin": bytes(range(256)) * 9, "empty": b""})


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "last_scan")


def test_what_was_put_is_found(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    assert cache.get(KEY) is None
    assert cache.put(KEY, ENTRY)
    assert cache.get(KEY) == ENTRY
    assert DiskCache(tmp_path).get(KEY) == ENTRY
    assert cache.use().entries == 1
    cache.clear()
    assert cache.get(KEY) is None


def test_keys_separate_their_parts() -> None:
    parts = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), (1,), ("1",), (b"1",), (None,), ("None",), (True,), (("a", "b"),), ("a", "b")]
    assert len({artefact_key(*part) for part in parts}) == len(parts)
    assert artefact_key("x", 1) == artefact_key("x", 1)


def test_every_damaged_byte_is_noticed() -> None:
    data = encode(KEY, Artefact({"a": 1}, {"b": b"123"}))
    assert decode(KEY, data) is not None
    for place in range(len(data)):
        assert decode(KEY, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) is None
        assert decode(KEY, data[:place]) is None
    assert decode(KEY, data + b"\0") is None
    assert decode(artefact_key("another"), data) is None


def test_a_damaged_entry_is_removed_and_rebuilt(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.put(KEY, ENTRY)
    with open(cache.path(KEY), "r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"?")
    assert cache.get(KEY) is None
    assert cache.corrupted == 1 and files(tmp_path) == []
    cache.put(KEY, ENTRY)
    assert cache.get(KEY) == ENTRY


@pytest.mark.parametrize("step", ["write", "rename"])
def test_an_interruption_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    cache = DiskCache(tmp_path)
    old = Artefact({"old": True})
    cache.put(KEY, old)

    def interrupt(*arguments: object) -> None:
        if step == "write":
            Path(str(arguments[0])).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(*((private, "write_new") if step == "write" else (private.os, "replace")), interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.put(KEY, ENTRY)
    monkeypatch.undo()
    assert files(tmp_path) == [f"{KEY}.weft"]
    assert cache.get(KEY) == old


def test_a_process_killed_while_it_writes_leaves_no_entry(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from weft.cache import private, DiskCache, Artefact\n"
        "private.os.replace = lambda *a: os.kill(os.getpid(), 9)\n"
        "DiskCache(Path(sys.argv[1])).put(sys.argv[2], Artefact({}, {'x': bytes(100000)}))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), KEY], env=child_environment(), check=False)
    assert done.returncode == -9
    cache = DiskCache(tmp_path)
    assert cache.get(KEY) is None and cache.use().entries == 0
    (left,) = tmp_path.rglob("*.tmp")
    cache.evict()
    assert left.exists()  # it could be another process's, being written
    os.utime(left, (time.time() - 7200,) * 2)
    cache.evict()
    assert not left.exists()


def test_many_processes_write_and_read_the_same_keys(tmp_path: Path) -> None:
    """Every read finds a whole entry: of one writer or the other, never a mixture."""
    script = (
        "import sys; from pathlib import Path; from weft.cache import *\n"
        "cache, me = DiskCache(Path(sys.argv[1]), 200_000), int(sys.argv[2])\n"
        "for round in range(60):\n"
        "    key = artefact_key('key', round % 6)\n"
        "    cache.put(key, Artefact({'writer': me}, {'x': bytes([me]) * (20_000 + me)}))\n"
        "    found = cache.get(key)\n"
        "    assert found is None or found.blobs['x'] == bytes([found.metadata['writer']]) * (20_000 + found.metadata['writer'])\n"
        "assert cache.corrupted == 0 and cache.problem is None, cache.problem\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(i)], env=child_environment()) for i in range(4)]
    assert [child.wait() for child in children] == [0, 0, 0, 0]
    assert not list(tmp_path.rglob("*.tmp"))


def child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(private.__file__).parents[2])}


def test_threads_may_share_a_cache(tmp_path: Path) -> None:
    cache, wrong = DiskCache(tmp_path, 50_000), []

    def work(me: int) -> None:
        for round in range(50):
            key = artefact_key(round % 5)
            cache.put(key, Artefact({}, {"x": bytes([round % 5]) * 5000}))
            found = cache.get(key)
            if found is not None and found.blobs["x"] != bytes([round % 5]) * 5000:
                wrong.append(me)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.problem is None


def test_the_entries_used_longest_ago_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10_500)
    keys = [artefact_key(i) for i in range(10)]
    for age, key in enumerate(keys):
        cache.put(key, Artefact({}, {"x": bytes(1000 - 200)}))
        os.utime(cache.path(key), (time.time() - 1000 + age,) * 2)
    assert cache.get(keys[0]) is not None  # now it is the newest
    cache.put(artefact_key("one more"), Artefact({}, {"x": bytes(1500)}))
    assert cache.use().bytes <= 10_500
    assert cache.path(keys[0]).exists() and not cache.path(keys[1]).exists()
    assert cache.path(keys[9]).exists()


def test_a_folder_that_cannot_be_written_keeps_nothing_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file" / "cache", 1000)
    assert cache.put(KEY, ENTRY) is False
    assert cache.problem is not None and "file" in cache.problem, cache.problem
    assert cache.get(KEY) is None
    assert cache.use().entries == 0


def test_metadata_that_is_not_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArtefactNotJson, match="cannot be written as JSON"):
        DiskCache(tmp_path).put(KEY, Artefact({"x": object()}))


def test_settings_choose_the_cache(tmp_path: Path) -> None:
    assert default_cache(current(cache=False)) is None
    cache = default_cache(current(cache_dir=tmp_path / "here", cache_limit_mib=1))
    assert cache is not None and cache.folder == tmp_path / "here" and cache.limit_bytes == 2**20
    assert default_cache(current(cache_dir=tmp_path / "here", cache_limit_mib=1)) is cache
