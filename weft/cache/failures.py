"""What an error leaves behind for a look: texts, logs, repros, in a private folder.

Read first: `keep_failure`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from weft.cache.private import FILE_TROUBLE, write_whole
from weft.options import current


@functools.lru_cache(maxsize=None)
def _temporary_folder(process: int) -> Path:
    """One private folder per process, with an unpredictable name."""
    return Path(tempfile.mkdtemp(prefix="weft-failures-"))


def keep_failure(name: str, text: str, files: Mapping[str, str]) -> Path | str:
    """Write files into a folder named after `name` and the hash of `text`, below the setting `dump_dir` or a private temporary folder.

    A repeated failure writes the same files again. Returns the path of the first file, or a note in parentheses if it could not be written, because the
    reported error is more important.
    """
    try:
        dump_dir = current().dump_dir
        folder = Path(dump_dir).expanduser() if dump_dir else _temporary_folder(os.getpid())
        folder = folder / f"{name}_{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:10]}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, content in files.items():
            write_whole(folder / file, content.encode(errors="replace"))
    except (*FILE_TROUBLE, RuntimeError) as error:  # RuntimeError: there is no home folder
        return f"(not written: {error})"
    return folder / next(iter(files))
