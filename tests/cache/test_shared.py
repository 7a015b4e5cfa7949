"""A cache that several processes and users share: one builder, nothing foreign, and trouble is never the caller's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.cache import Artefact, DiskCache, artefact_key
from weft.cache.disk import CacheTrouble
from weft.cache.entry import encode
from weft.cache.failures import keep_failure
from weft.cache.lock import only_builder
from weft.cache.private import build_folder, sweep
from weft.options import options

KEY = artefact_key("a kernel")
ENTRY = Artefact({"n": 1}, {"x": b"code"})
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def made(cache: DiskCache) -> bytes:
    return cache.get_or_make(KEY, lambda found: found.blobs.get("x"), lambda: (b"code", ENTRY))


def is_right(cache: DiskCache) -> None:
    """The caller gets its value, with at most one warning."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert made(cache) == made(cache) == b"code"
    assert len(said) <= 1 and all(issubclass(w.category, CacheTrouble) for w in said), [str(w.message) for w in said]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    (path / "inside").mkdir(parents=True)


def link(path: Path) -> None:
    target = path.with_name("victim")
    target.write_bytes(b"a victim's file")
    path.symlink_to(target)


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def empty(path: Path) -> None:
    path.touch()


def other_key(path: Path) -> None:
    path.write_bytes(encode(artefact_key("another"), ENTRY))


def writable_by_all(path: Path) -> None:
    path.write_bytes(encode(KEY, ENTRY))
    path.chmod(0o666)


def other_content(path: Path) -> None:
    path.write_bytes(encode(KEY, Artefact({}, {"y": b"what is this"})))


IN_ITS_PLACE = (fifo, folder, link, dangling, empty, other_key, writable_by_all, other_content)


@pytest.mark.parametrize("put", IN_ITS_PLACE, ids=lambda put: put.__name__)
def test_what_stands_in_an_entrys_place_is_replaced(put: Callable[[Path], None], tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.path(KEY).parent.mkdir(mode=0o700)
    put(cache.path(KEY))
    is_right(cache)
    assert DiskCache(tmp_path).get(KEY) == ENTRY and cache.path(KEY).is_file() and not cache.path(KEY).is_symlink()
    if put is link:
        assert cache.path(KEY).with_name("victim").read_bytes() == b"a victim's file"


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    cache.put(KEY, ENTRY)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    for place in (cache.folder, cache.path(KEY).parent):
        place.chmod(0o777)
        with pytest.warns(CacheTrouble, match="others may write it"):
            assert DiskCache(cache.folder).get(KEY) is None
        is_right(DiskCache(cache.folder))
        place.chmod(0o700)
    assert cache.get(KEY) == ENTRY


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_what_another_user_owns_is_not_read(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.put(KEY, ENTRY)
    os.chown(cache.path(KEY), 12345, -1)
    with pytest.warns(CacheTrouble, match="belongs to user 12345"):
        assert cache.get(KEY) is None
    os.chown(tmp_path, 12345, -1)
    with pytest.warns(CacheTrouble, match="belongs to user 12345"):
        assert DiskCache(tmp_path).put(KEY, ENTRY) is False


@pytest.mark.parametrize("place", ["/proc/weft", "/dev/null/weft", "a\0b", "x" * 300], ids=["unwritable", "below a device", "zero byte", "too long"])
def test_a_folder_that_cannot_be_there_is_no_error(place: str) -> None:
    is_right(DiskCache(Path(place), 1000))


def test_warnings_as_errors_do_not_fail_the_caller(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(DiskCache(tmp_path / "cache")) == b"code"


def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    script = (
        "import resource, sys; from pathlib import Path; from weft.cache import *\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "cache = DiskCache(Path(sys.argv[1]), 10**6)\n"
        "entry = Artefact({}, {'x': bytes(5000)})\n"
        "assert len(cache.get_or_make('ab' * 32, lambda found: found.blobs['x'], lambda: (bytes(5000), entry))) == 5000\n"
        "assert 'File too large' in cache.problem and cache.use().entries == 0"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], env=ENVIRONMENT, check=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_one_process_builds_and_the_others_wait(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path; from weft.cache import *\n"
        "def make():\n"
        "    open(sys.argv[1] + '/built', 'a').write('x'); time.sleep(0.2)\n"
        "    return 'made', Artefact({'value': 'made'})\n"
        "cache = DiskCache(Path(sys.argv[1]) / 'cache')\n"
        "for number in range(3):\n"
        "    key = artefact_key(number)\n"
        "    assert cache.get_or_make(key, lambda found: found.metadata['value'], make) == 'made'\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=ENVIRONMENT) for _ in range(5)]
    assert [child.wait() for child in children] == [0] * 5
    assert (tmp_path / "built").read_text() == "xxx"
    assert not list((tmp_path / "cache" / "tmp").iterdir())


def test_threads_build_once(tmp_path: Path) -> None:
    cache, made_by = DiskCache(tmp_path), []

    def make() -> tuple[int, Artefact]:
        made_by.append(threading.get_ident())
        time.sleep(0.05)
        return 7, Artefact({"value": 7})

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get_or_make(KEY, lambda a: a.metadata["value"], make))) for _ in range(8)]  # type: ignore[arg-type,return-value]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7] * 8 and len(made_by) == 1


def test_a_builder_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "key.lock"
    with only_builder(lock) as first:
        start = time.monotonic()
        with only_builder(lock, 0.1) as second:
            assert first and not second
        assert time.monotonic() - start >= 0.1
        assert lock.exists()
    assert not lock.exists()
    with only_builder(lock) as third:
        assert third


def test_the_lock_of_a_killed_builder_is_free(tmp_path: Path) -> None:
    lock = tmp_path / "key.lock"
    script = (
        "import sys, time; from pathlib import Path; from weft.cache.lock import only_builder\n"
        "with only_builder(Path(sys.argv[1])): print('held', flush=True); time.sleep(100)"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(lock)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    with only_builder(lock, 0.05) as held:
        assert not held
    child.kill()
    child.wait()
    child.stdout.close()
    with only_builder(lock, 5) as held:
        assert held


def test_litter_is_swept_when_it_is_old(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.put(KEY, ENTRY)
    for name in ("a.tmp", "b.lock", "weft-build-x/kernel.cpp", "young.tmp"):
        path = cache.temporary_folder / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for name in ("a.tmp", "b.lock", "weft-build-x"):
        os.utime(cache.temporary_folder / name, (time.time() - 7200,) * 2)
    DiskCache(tmp_path).put(KEY, ENTRY)  # the first write of a process
    assert [path.name for path in cache.temporary_folder.iterdir()] == ["young.tmp"]
    assert sweep(tmp_path / "nowhere") == 0


def test_a_build_folder_is_private_and_goes(tmp_path: Path) -> None:
    with build_folder(tmp_path) as place:
        assert place.parent == tmp_path and place.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir())


def test_what_a_failure_leaves_is_private_and_follows_no_link(tmp_path: Path) -> None:
    with options(dump_dir=""):
        path = keep_failure("kernel", "text", {"kernel.cu": "text"})
    assert isinstance(path, Path) and path.read_text() == "text"
    assert path.parents[1].stat().st_mode & 0o777 == 0o700 and path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "victim").write_text("untouched")
    with options(dump_dir=str(tmp_path)):
        first = keep_failure("kernel", "text", {"kernel.cu": "text", "log": "words"})
        assert isinstance(first, Path)
        first.unlink()
        first.symlink_to(tmp_path / "victim")
        assert keep_failure("kernel", "text", {"kernel.cu": "text"}) == first
    assert (tmp_path / "victim").read_text() == "untouched" and first.read_text() == "text" and not first.is_symlink()
    with options(dump_dir=str(tmp_path / "victim" / "below")):
        assert str(keep_failure("kernel", "text", {"kernel.cu": "text"})).startswith("(not written")
