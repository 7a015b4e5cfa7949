"""Python code that weft's writers have written, as bytes that another process need not compile again: that took half of what a prepared call costs there.

Owns the form of the bytes: a digest of each text with its code, for one version of Python. Whoever keeps them says where; like the texts
that records hold, they run, so they belong into folders that nobody else writes to. Read first: `code_of`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import marshal
from collections.abc import Iterator
from contextvars import ContextVar
from types import CodeType

MOST_KNOWN = 8192
_known: dict[bytes, CodeType] = {}
_noted: ContextVar[dict[bytes, CodeType] | None] = ContextVar("texts that are being noted", default=None)


def code_of(text: str, file: str) -> CodeType:
    """Return the code of a text of statements; `file`: its file name in errors."""
    digest = _digest(text, file)
    code = _known.get(digest)
    if code is None:
        code = compile(text, file, "exec")
        _know({digest: code})
    noted = _noted.get()
    if noted is not None:
        noted[digest] = code
    return code


@functools.lru_cache(maxsize=4096)
def _digest(text: str, file: str) -> bytes:
    return hashlib.sha256(f"{file}\0{text}".encode()).digest()


@contextlib.contextmanager
def noting() -> Iterator[dict[bytes, CodeType]]:
    """Collect the code that is requested in this block."""
    found: dict[bytes, CodeType] = {}
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def packed(codes: dict[bytes, CodeType]) -> bytes:
    """Return the collected code of `noting` as bytes."""
    return importlib.util.MAGIC_NUMBER + marshal.dumps(codes)


def unpack(data: bytes) -> None:
    """Add the code in bytes of `packed` to the table; code of another version of Python is ignored."""
    magic = importlib.util.MAGIC_NUMBER
    if data.startswith(magic):
        _know(marshal.loads(data[len(magic) :]))


def _know(codes: dict[bytes, CodeType]) -> None:
    """Add code to the table; if it becomes too large, drop the earlier entries."""
    if len(_known) + len(codes) > MOST_KNOWN:
        _known.clear()
    _known.update(codes)


__all__ = ["code_of", "noting", "packed", "unpack"]
