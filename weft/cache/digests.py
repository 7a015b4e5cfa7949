"""Digests of folders of code. What their files hold is read once; then the cache knows the digest by the files' names, sizes and times.

Read first: `digest_of_files`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from weft.cache.disk import default_cache
from weft.cache.entry import Artefact, artefact_key

FORMAT = 1


def digest_of_files(kind: str, files: list[tuple[str, int, int]], digest: Callable[[], str]) -> str:
    """Return the result of `digest`, which reads the files, or its result in another process for the same files. files: from `files_below`."""
    cache = default_cache()
    seen = artefact_key(kind, FORMAT, repr(sorted(files)))
    known = None if cache is None else cache.get(seen)
    if known is not None and isinstance(known.metadata.get("version"), str):
        return str(known.metadata["version"])
    version = digest()
    if cache is not None:
        cache.put(seen, Artefact({"kind": kind, "version": version}))
    return version


def files_below(folder: str, suffixes: tuple[str, ...], without: tuple[str, ...] = ()) -> Iterator[tuple[str, int, int]]:
    """Yield (path, bytes, time in ns) of every file of code below a folder. without: direct subfolders to skip."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffixes):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns
            elif entry.name != "__pycache__" and entry.name not in without and entry.is_dir():
                yield from files_below(entry.path, suffixes)


__all__ = ["digest_of_files", "files_below"]
