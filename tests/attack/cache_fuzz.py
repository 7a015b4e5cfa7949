"""Random damage to every kind of file of the cache: the caller always gets the right value.

Kinds: entries of cubins and of emulated kernels, entries whose header is damaged under a right checksum, lock files, the marker of the last scan, files
in the folder of unfinished things. Read first: `attack`.
"""

from __future__ import annotations

import hashlib
import os
import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from tally import Tally

from weft.cache import Artefact, DiskCache, artefact_key
from weft.cache.entry import _HEADER_LENGTH, _MAGIC, _START, decode, encode
from weft.emulator.toolchain import is_library
from weft.runtime.nvrtc import _from_artefact

KEY = artefact_key("fuzz")
CODE = b"\x7fELF" + random.Random(0).randbytes(6000)
RESOURCES = {"registers": 32, "static_shared_bytes": 0, "stack_bytes": 0, "code_bytes": 600}
CUBIN = Artefact({"entry": "k", "arch": "sm_90a", "log": "", "seconds": 0.1, "resources": RESOURCES}, {"cubin": CODE})
LIBRARY = Artefact({"kind": "kernel", "compiler": "g++ 12"}, {"library": CODE})


def read_cubin(artefact: Artefact) -> bytes | None:
    compiled = _from_artefact(artefact)
    return None if compiled is None else compiled.cubin


def read_library(artefact: Artefact) -> bytes | None:
    code = artefact.blobs.get("library", b"")
    return code if is_library(code) else None


def mutated(draw: random.Random, data: bytes) -> bytes:
    """`data` with one to four damages."""
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        at, size = draw.randrange(len(data) + 1), draw.choice([1, 1, 2, 8, 64, 1000])
        kind = draw.randrange(8)
        if kind == 0:
            data = data[:at] + bytes(b ^ (1 << draw.randrange(8)) for b in data[at : at + 1]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at]
        elif kind == 2:
            data = data[:at] + draw.randbytes(size) + data[at:]
        elif kind == 3:
            data = data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
        elif kind == 4:
            data = data[:at] + data[at + size :]
        elif kind == 5:
            data = data[:at] + draw.randbytes(len(data[at : at + size])) + data[at + size :]
        elif kind == 6:
            data = data + data[-size:]
        else:
            data = data[at:] + data[:at]
    return data


def resigned(draw: random.Random, data: bytes) -> bytes:
    """`data` with a damaged header under a right checksum, the code as it was."""
    body = data[_START:]
    (length,) = _HEADER_LENGTH.unpack_from(body)
    header, code = body[_HEADER_LENGTH.size : _HEADER_LENGTH.size + length], body[_HEADER_LENGTH.size + length :]
    words = [b"null", b"-1", b"1e400", b"NaN", b"[]", b"{}", b'""', b"[" * 100_000, b'{"blobs":', b"true", b"99999999999999999999", b'{"a":' * 5000, b"\xff\xfe", b"\\ud800"]
    if draw.random() < 0.5:
        parts = header.split(b",")
        parts[draw.randrange(len(parts))] = draw.choice([draw.choice(words), b'"blobs": ' + draw.choice(words), b'"resources": ' + draw.choice(words), b'"log": ' + draw.choice(words)])
        header = b",".join(parts)
    else:
        header = mutated(draw, header)
    length = len(header) if draw.random() < 0.8 else draw.choice([0, 1, 2**63, 2**64 - 1, length, len(header) + len(code), len(header) + len(code) + 1])
    body = _HEADER_LENGTH.pack(length) + header + code
    return _MAGIC + hashlib.sha256(body).digest() + body


def entries(tally: Tally, folder: Path, count: int, seed: int, artefact: Artefact, read: Callable[[Artefact], bytes | None], change: Callable[[random.Random, bytes], bytes]) -> None:
    """Damage the entry, ask for it, and count what comes."""
    cache, good = DiskCache(folder, 10**9), encode(KEY, artefact)
    cache.put(KEY, artefact)
    path = cache.path(KEY)
    for number in range(count):
        draw = random.Random(f"{tally.kind} {seed} {number}")
        path.write_bytes(change(draw, good))
        path.chmod(0o600)
        try:
            found = cache.get_or_make(KEY, read, lambda: (CODE, artefact))
        except Exception as error:  # noqa: BLE001 - any error is what is looked for
            tally.add("raw error", f"--seed {seed} --number {number}: {type(error).__name__}: {error}")
            cache.put(KEY, artefact)
            continue
        kept = cache.get(KEY)
        is_right = found == CODE and kept is not None and read(kept) == CODE
        tally.add("right" if is_right else "wrong", f"--seed {seed} --number {number}: {len(found)} bytes, kept: {kept is not None}")
        if decode(KEY, path.read_bytes()) is None:
            cache.put(KEY, artefact)


def other_files(tally: Tally, folder: Path, count: int, seed: int, place: Callable[[DiskCache, random.Random], Path]) -> None:
    """Put something odd where the cache keeps other files than entries; entries are made and found all the same."""
    cache = DiskCache(folder, 10**6, wait_limit_s=0.01)
    for number in range(count):
        draw = random.Random(f"{tally.kind} {seed} {number}")
        if number % 100 == 0:
            cache = DiskCache(folder, 10**6, wait_limit_s=0.01)
        path = place(cache, draw)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        odd(draw, path)
        key = artefact_key(draw.randrange(50))
        try:
            found = cache.get_or_make(key, read_library, lambda: (CODE, LIBRARY))
            again = cache.get_or_make(key, read_library, lambda: (CODE, LIBRARY))
            cache.use()
            if number % 50 == 0:
                cache.evict()
            tally.add("right" if found == again == CODE else "wrong", f"--seed {seed} --number {number}")
        except Exception as error:  # noqa: BLE001 - any error is what is looked for
            tally.add("raw error", f"--seed {seed} --number {number}: {type(error).__name__}: {error}")
        clear(path)


def odd(draw: random.Random, path: Path) -> None:
    """Make something at `path`: a file, folder, link, FIFO, with odd modes."""
    kind = draw.randrange(6)
    clear(path)
    if kind == 0:
        path.write_bytes(draw.randbytes(draw.choice([0, 1, 1000])))
        path.chmod(draw.choice([0o000, 0o444, 0o600, 0o666, 0o7777]))
    elif kind == 1:
        (path / "inside").mkdir(parents=True)
    elif kind == 2:
        path.symlink_to(draw.choice(["nowhere", str(path), "/dev/null", "/dev/zero", "."]))
    elif kind == 3:
        os.mkfifo(path)
    elif kind == 4:
        path.mkdir()
    else:
        path.write_bytes(b"")
        os.utime(path, (draw.choice([0, 2**31, 2**33]),) * 2)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for inside in path.iterdir():
            clear(inside)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def attack(folder: Path, count: int, seed: int, only: Sequence[str] = ()) -> list[Tally]:
    """Damage each kind of file `count` times. only: kinds, all of them unless given."""
    tallies = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, artefact, read, change in (
            ("cubin entries", CUBIN, read_cubin, mutated), ("library entries", LIBRARY, read_library, mutated),
            ("resigned cubin headers", CUBIN, read_cubin, resigned), ("resigned library headers", LIBRARY, read_library, resigned),
        ):  # fmt: skip
            if only and name not in only:
                continue
            tallies.append(Tally(f"cache: {name}"))
            entries(tallies[-1], folder / str(len(tallies)), count, seed, artefact, read, change)
        for name, place in (
            ("lock files", lambda cache, draw: cache.temporary_folder / f"{artefact_key(draw.randrange(50))[:32]}.lock"),
            ("the marker of the scan", lambda cache, draw: cache.folder / "last_scan"),
            ("entries' places", lambda cache, draw: cache.path(artefact_key(draw.randrange(50)))),
            ("shards' places", lambda cache, draw: cache.folder / draw.choice("0123456789abcdef").join(["", draw.choice("0123456789abcdef")])),
            ("unfinished files", lambda cache, draw: cache.temporary_folder / draw.choice(["a.tmp", "weft-build-x", "x"])),
        ):  # fmt: skip
            if only and name not in only:
                continue
            tallies.append(Tally(f"cache: {name}"))
            other_files(tallies[-1], folder / str(len(tallies)), count, seed, place)
    return tallies
