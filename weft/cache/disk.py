"""The folder of entries, with a size limit, that processes, containers and users' accidents share.

Owns finding, publishing, building once, damage and the size limit. Many processes may share a folder, and each may be killed at any time. An
entry is written under a temporary name of its own and renamed, so a reader sees all of it or nothing; what a killed process leaves lies in the
folder `tmp` and is swept. A cache never fails its caller: an entry that cannot be read, is damaged, or may have been written by another user is a
miss; a folder that cannot be used keeps nothing. Each says so in one warning.
Read first: `DiskCache.get_or_make`, then `get` and `put`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from weft.cache.entry import Artefact, decode, encode
from weft.cache.lock import WAIT_LIMIT_S, only_builder
from weft.cache.private import FILE_TROUBLE, folder_trouble, make_private_folder, read_private, remove, sweep, unique_name, write_whole
from weft.errors import UserError
from weft.options import Options, current

_SUFFIX = ".weft"
_SCAN_INTERVAL_S = 24 * 3600.0
_TOUCH_INTERVAL_S = 60.0

Value = TypeVar("Value")


class NotCached(UserError):
    code = "W722"
    what = "kernel {key} is not in the disk cache {folder}, and the setting require_cached forbids compiling it"
    fix = "run weft.precompile with these shapes on a machine of this kind, or switch require_cached off"


class CacheTrouble(UserWarning):
    """Warning: the disk cache has a problem, and weft continues without it."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    entries: int
    bytes: int


class DiskCache:
    """A folder of artefacts with least-recently-used eviction. `corrupted` counts damaged entries that were found and removed, `problem` is the last reason why
    something could not be stored or used (or None).
    """

    def __init__(self, folder: Path, limit_bytes: int = 0, wait_limit_s: float = WAIT_LIMIT_S) -> None:
        """`limit_bytes` 0: no limit. `wait_limit_s`: how long to wait for another process that makes the same entry."""
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.wait_limit_s = wait_limit_s
        self.corrupted = 0
        self.problem: str | None = None
        self._written_bytes = 0
        self._has_warned = self._has_swept = False
        self._held: dict[str, Artefact] = {}

    @property
    def temporary_folder(self) -> Path:
        """The folder for unfinished entries, locks and builds."""
        return self.folder / "tmp"

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / (key + _SUFFIX)

    # ------------------------------------------------------------ entries
    def get_or_make(self, key: str, read: Callable[[Artefact], Value | None], make: Callable[[], tuple[Value, Artefact]]) -> Value:
        """Return the result of `read` for the entry of `key`; if there is none, the result of `make`, and store its artefact. `read` returns None for an
        unusable entry, which is then removed. One process at a time makes an entry; the others wait.
        Errors: those of `make`; NotCached.
        """
        found = self._read(key, read)
        if found is not None:
            return found
        if current().require_cached:
            raise NotCached(key=key[:12], folder=self.folder)
        self._has_folders()
        with only_builder(self.temporary_folder / f"{key[:32]}.lock", self.wait_limit_s):
            found = self._read(key, read)
            if found is None:
                found, artefact = make()
                self.put(key, artefact)
        return found

    def _read(self, key: str, read: Callable[[Artefact], Value | None]) -> Value | None:
        artefact = self.get(key)
        if artefact is None:
            return None
        found = read(artefact)
        if found is None:
            self._is_bad(self.path(key), "its checksum is right, and its content is not what was asked for")
        return found

    def get(self, key: str) -> Artefact | None:
        """Return the entry of `key`, or None. A damaged entry is removed and counts as missing."""
        held = self._held.pop(key, None)
        if held is not None:
            return held
        path = self.path(key)
        try:
            trouble = folder_trouble(self.folder, follow=True) or folder_trouble(path.parent)
            if trouble is not None:
                self._warn(f"{path.parent} is not used: {trouble}")
                return None
            data = read_private(path)
        except FileNotFoundError:
            return None
        except FILE_TROUBLE as error:
            self._is_bad(path, str(error))
            return None
        artefact = None if isinstance(data, str) else decode(key, data[0])
        if artefact is None:
            self._is_bad(path, data if isinstance(data, str) else "it is damaged")
        elif time.time() - data[1].st_mtime > _TOUCH_INTERVAL_S:  # type: ignore[union-attr]
            _touch(path)
        return artefact

    def hold(self, artefacts: Mapping[str, Artefact]) -> None:
        """Keep entries in memory, by key, that were read from this folder in another form; each is returned once."""
        self._held.update(artefacts)

    def release(self) -> None:
        """Drop the entries of `hold`."""
        self._held.clear()

    def put(self, key: str, artefact: Artefact) -> bool:
        """Write an entry; return whether it was written. An existing entry is replaced atomically.

        Errors: ArtefactNotJson.
        """
        data = encode(key, artefact)
        path = self.path(key)
        if not self._has_folders(path.parent):
            return False
        try:
            if path.is_dir():
                remove(path, self.temporary_folder)
            write_whole(path, data, self.temporary_folder / unique_name(key[:16]))
        except FILE_TROUBLE as error:
            self._warn(f"nothing is kept: {error}")
            return False
        self._written_bytes += len(data)
        self._limit_size()
        return True

    def is_usable(self) -> bool:
        """Tell whether this process may write into the folder; create it if it is missing."""
        return self._has_folders() and os.access(self.temporary_folder, os.W_OK)

    def _has_folders(self, *shards: Path) -> bool:
        """Create the folders for writing, and tell whether they may be used."""
        try:
            for folder in (self.folder, self.temporary_folder, *shards):
                trouble = make_private_folder(folder, follow=folder is self.folder)
                if trouble is not None:
                    self._warn(f"{folder} is not used: {trouble}")
                    return False
        except FILE_TROUBLE as error:
            self._warn(f"nothing is kept: {error}")
            return False
        if not self._has_swept:
            self._has_swept = True
            sweep(self.temporary_folder)
        return True

    def _is_bad(self, path: Path, reason: str) -> None:
        """Record and remove an entry that cannot be used."""
        self.corrupted += 1
        remove(path, self.temporary_folder)
        self._warn(f"the entry {path} is made anew: {reason}")

    def _warn(self, problem: str) -> None:
        """Record the reason, and warn once per process and folder."""
        self.problem = problem
        if not self._has_warned:
            self._has_warned = True
            try:
                warnings.warn(f"W721: disk cache {self.folder}: {problem}", CacheTrouble, stacklevel=2)
            except CacheTrouble:  # warnings may be errors; a cache problem must not fail the call
                pass

    # ------------------------------------------------------------ size
    def use(self) -> CacheUse:
        """Count the entries and their bytes."""
        entries = self._entries()
        return CacheUse(len(entries), sum(size for _, size, _ in entries))

    def keys(self) -> list[str]:
        """Return the keys of all entries."""
        return sorted(path.stem for *_, path in self._entries())

    def artefacts(self) -> Iterator[Artefact]:
        """Yield every entry that can be read."""
        for _, _, path in sorted(self._entries()):
            artefact = self.get(path.name.removesuffix(_SUFFIX))
            if artefact is not None:
                yield artefact

    def evict(self) -> int:
        """Remove least recently used entries until a tenth of the limit is free; return their number."""
        self._written_bytes = 0
        sweep(self.temporary_folder)
        entries = sorted(self._entries())
        total, removed = sum(size for _, size, _ in entries), 0
        if not self.limit_bytes or total <= self.limit_bytes:
            return 0
        for _, size, path in entries:
            if total <= self.limit_bytes * 9 // 10:
                break
            remove(path)
            total -= size
            removed += 1
        return removed

    def clear(self) -> None:
        """Remove every entry and nothing else from the folder."""
        self.release()
        for _, _, path in self._entries():
            remove(path)

    def _limit_size(self) -> None:
        """Scan the folder after this process wrote a 64th of the limit, and once a day."""
        if not self.limit_bytes:
            return
        marker = self.folder / "last_scan"
        try:
            is_due = time.time() - marker.stat(follow_symlinks=False).st_mtime > _SCAN_INTERVAL_S
        except FILE_TROUBLE:
            is_due = True
        if is_due or self._written_bytes > self.limit_bytes // 64:
            try:
                write_whole(marker, b"", self.temporary_folder / unique_name("scan"))
            except FILE_TROUBLE as error:
                self._warn(str(error))
            self.evict()

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Time of last use, bytes and path of every entry."""
        entries = []
        for file in self._files():
            if file.name.endswith(_SUFFIX):
                try:
                    status = file.stat(follow_symlinks=False)
                except OSError:  # another process removed it
                    continue
                entries.append((status.st_mtime, status.st_size, Path(file.path)))
        return entries

    def _files(self) -> list[os.DirEntry[str]]:
        found: list[os.DirEntry[str]] = []
        try:
            with os.scandir(self.folder) as shards:
                folders = [shard.path for shard in shards if len(shard.name) == 2 and shard.is_dir(follow_symlinks=False)]
        except FILE_TROUBLE:
            return []
        for folder in folders:
            try:
                with os.scandir(folder) as files:
                    found += files
            except OSError:
                continue
        return found


def _touch(path: Path) -> None:
    try:
        os.utime(path, follow_symlinks=False)
    except FILE_TROUBLE + (NotImplementedError,):  # removed meanwhile, or a read-only folder: only the order of eviction suffers
        pass


_caches: dict[tuple[Path, int], DiskCache] = {}


def default_cache(options: Options | None = None) -> DiskCache | None:
    """Return the cache of the settings, or None if it is switched off."""
    options = options or current()
    if not options.cache:
        return None
    place = (options.cache_path, options.cache_limit_mib * 2**20)
    return _caches.get(place) or _caches.setdefault(place, DiskCache(*place))
