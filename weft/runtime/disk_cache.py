"""Artefacts on disk: data with a checksum, found by the hash of what they were made from.

Owns the file format, atomic writing and the size limit. It does not know what an artefact means; `weft.runtime.nvrtc`
keeps machine code in it. Nothing is pickled: an entry is JSON plus named byte strings.

Many processes may share a folder, and each may be killed at any time. An entry is written under a temporary name and
renamed, so a reader sees all of it or nothing; what a killed process leaves is a temporary file, removed an hour later.
A cache never fails its caller: an unreadable entry is a miss, an unwritable folder keeps nothing.
Read first: `DiskCache.get` and `DiskCache.put`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from weft.errors import InternalError
from weft.options import Options, current

FORMAT = 1
"""Part of every key and of every entry's first line: raise it when the layout or the meaning of entries changes."""

_MAGIC = f"weft artefact {FORMAT}\n".encode()
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_HEADER_LENGTH = struct.Struct("<Q")
_SUFFIX = ".weft"
_TEMPORARY_SUFFIX = ".tmp"
_TEMPORARY_LIFETIME_S = 3600.0
_SCAN_INTERVAL_S = 24 * 3600.0
_TOUCH_INTERVAL_S = 60.0


class ArtefactNotJson(InternalError):
    code = "W720"
    what = "the metadata of artefact {key} cannot be written as JSON: {reason}"


@dataclass(frozen=True, slots=True)
class Artefact:
    """One entry: `metadata` holds JSON values only, `blobs` named byte strings."""

    metadata: Mapping[str, object] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheUse:
    entries: int
    bytes: int


def artefact_key(*parts: object) -> str:
    """Return the sha256 of `parts` (texts, numbers, None, byte strings and tuples of these), as 64 hexadecimal digits.

    Parts are separated by their lengths, so ("ab", "c") and ("a", "bc") differ; so do 1 and "1".
    """
    digest = hashlib.sha256(_MAGIC)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(f"{type(part).__name__} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def encode(key: str, artefact: Artefact) -> bytes:
    """Return the bytes of an entry's file.

    Errors: ArtefactNotJson.
    """
    sizes = {name: len(blob) for name, blob in artefact.blobs.items()}
    try:
        header = json.dumps({"key": key, "metadata": dict(artefact.metadata), "blobs": sizes}, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ArtefactNotJson(key=key, reason=error) from None
    body = b"".join([_HEADER_LENGTH.pack(len(header)), header, *artefact.blobs.values()])
    return _MAGIC + hashlib.sha256(body).digest() + body


def decode(key: str, data: bytes) -> Artefact | None:
    """Return the artefact in an entry's file, or None when the bytes are not exactly what was written under `key`."""
    start = len(_MAGIC) + _CHECKSUM_BYTES
    body = data[start:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        return None
    (header_length,) = _HEADER_LENGTH.unpack_from(body)
    header = json.loads(body[_HEADER_LENGTH.size : _HEADER_LENGTH.size + header_length])
    if header["key"] != key:
        return None
    blobs, offset = {}, _HEADER_LENGTH.size + header_length
    for name, size in header["blobs"].items():
        blobs[name] = body[offset : offset + size]
        offset += size
    return Artefact(metadata=header["metadata"], blobs=blobs)


class DiskCache:
    """A folder of artefacts with a size limit; the entries used longest ago go first.

    `corrupted` counts damaged entries that were found and removed, `problem` is the last reason for which nothing could
    be written (None: no reason).
    """

    def __init__(self, folder: Path, limit_bytes: int = 0) -> None:
        """`limit_bytes` 0: no limit."""
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.corrupted = 0
        self.problem: str | None = None
        self._written_bytes = 0

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / (key + _SUFFIX)

    def get(self, key: str) -> Artefact | None:
        """Return the entry of `key`, or None. A damaged entry is removed and counts as missing."""
        path = self.path(key)
        try:
            with open(path, "rb") as file:
                data = file.read()
                age_s = time.time() - os.fstat(file.fileno()).st_mtime
        except OSError:
            return None
        artefact = decode(key, data)
        if artefact is None:
            self.corrupted += 1
            _remove(path)
            return None
        if age_s > _TOUCH_INTERVAL_S:
            _touch(path)
        return artefact

    def put(self, key: str, artefact: Artefact) -> bool:
        """Write an entry; return whether it was written. An entry that exists is replaced in one step.

        Errors: ArtefactNotJson.
        """
        data = encode(key, artefact)
        path = self.path(key)
        temporary = path.with_name(f"{key[:16]}.{os.getpid()}.{secrets.token_hex(4)}{_TEMPORARY_SUFFIX}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                os.replace(temporary, path)
            except BaseException:  # KeyboardInterrupt too; what was not renamed is worth nothing
                _remove(temporary)
                raise
        except OSError as error:
            self.problem = str(error)
            return False
        self._written_bytes += len(data)
        self._limit_size()
        return True

    def use(self) -> CacheUse:
        """Count the entries and their bytes."""
        entries = self._entries()
        return CacheUse(len(entries), sum(size for _, size, _ in entries))

    def evict(self) -> int:
        """Remove the entries used longest ago until a tenth of the limit is free; return how many went."""
        self._written_bytes = 0
        self._remove_stale_temporaries()
        entries = sorted(self._entries())
        total, removed = sum(size for _, size, _ in entries), 0
        if not self.limit_bytes or total <= self.limit_bytes:
            return 0
        for _, size, path in entries:
            if total <= self.limit_bytes * 9 // 10:
                break
            _remove(path)
            total -= size
            removed += 1
        return removed

    def clear(self) -> None:
        """Remove every entry and nothing else from the folder."""
        for _, _, path in self._entries():
            _remove(path)

    def _limit_size(self) -> None:
        """Scan the folder when this process wrote a 64th of the limit, and once a day whoever writes."""
        if not self.limit_bytes:
            return
        marker = self.folder / "last_scan"
        try:
            is_due = time.time() - marker.stat().st_mtime > _SCAN_INTERVAL_S
        except OSError:
            is_due = True
        if is_due or self._written_bytes > self.limit_bytes // 64:
            try:
                marker.touch()
            except OSError as error:
                self.problem = str(error)
            self.evict()

    def _files(self) -> list[os.DirEntry[str]]:
        found: list[os.DirEntry[str]] = []
        try:
            with os.scandir(self.folder) as shards:
                folders = [shard.path for shard in shards if len(shard.name) == 2 and shard.is_dir()]
        except OSError:
            return []
        for folder in folders:
            try:
                with os.scandir(folder) as files:
                    found += files
            except OSError:
                continue
        return found

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Time of last use, bytes and path of every entry."""
        entries = []
        for file in self._files():
            if file.name.endswith(_SUFFIX):
                try:
                    status = file.stat()
                except OSError:  # another process removed it
                    continue
                entries.append((status.st_mtime, status.st_size, Path(file.path)))
        return entries

    def _remove_stale_temporaries(self) -> None:
        oldest = time.time() - _TEMPORARY_LIFETIME_S
        for file in self._files():
            if file.name.endswith(_TEMPORARY_SUFFIX):
                try:
                    is_stale = file.stat().st_mtime < oldest
                except OSError:
                    continue
                if is_stale:
                    _remove(Path(file.path))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # read-only folder: the entry stays, and stays a miss
        pass


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:  # removed meanwhile, or a read-only folder: only the order of eviction suffers
        pass


_caches: dict[tuple[Path, int], DiskCache] = {}


def default_cache(options: Options | None = None) -> DiskCache | None:
    """Return the cache that the settings ask for, or None when they switch it off."""
    options = options or current()
    if not options.cache:
        return None
    place = (options.cache_path, options.cache_limit_mib * 2**20)
    return _caches.setdefault(place, DiskCache(*place))
